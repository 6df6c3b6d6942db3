"""GET /health, /health/live and /health/ready: is the process alive, does it take requests, what went wrong so far?"""

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from forerun.server.documented import Responses
from forerun.server.service import Service, Serving

_UNWELL: Responses = {503: {"description": "the same document, and not well", "content": {"application/json": {}}}}

router = APIRouter()


@router.get("/health", responses=_UNWELL)
async def health(service: Serving) -> JSONResponse:
    """All that is known; 200 when ready, else 503."""
    document = _document(service)
    return JSONResponse(document, 200 if document["ready"] else 503)


@router.get("/health/live", responses=_UNWELL)
async def live(service: Serving) -> JSONResponse:
    """200 while the engine's thread runs and makes progress; restart the process when it does not."""
    is_live = _is_live(service)
    return JSONResponse({"live": is_live}, 200 if is_live else 503)


@router.get("/health/ready", responses=_UNWELL)
async def ready(service: Serving) -> JSONResponse:
    """200 while requests are taken; 503 also while the server winds down."""
    is_ready = _is_live(service) and service.engine.accepts
    return JSONResponse({"ready": is_ready}, 200 if is_ready else 503)


def _is_live(service: Service) -> bool:
    state = service.engine.health
    return state.alive and not state.stalled


def _document(service: Service) -> dict[str, Any]:
    llm, state = service.llm, service.engine.health
    speculation = llm.engine.speculator
    return {
        "live": _is_live(service),
        "ready": _is_live(service) and service.engine.accepts,
        "model": service.model_name,
        "uptime_s": round(service.uptime_s, 3),
        "generations": {"open": service.engine.num_open, "max": service.engine.max_open},
        "engine": asdict(state),
        "drafter_errors": speculation.stats.drafter_errors,
        "numerics_id": llm.numerics_id,
        "kv_format": llm.kv_layout.stacks[0].codec,
        "kv_formats": llm.kv_layout.formats,
        "speculation": speculation.drafter_name,
        "verification": llm.engine.verification["name"],
        "lossy": llm.engine.verification["is_lossy"],
    }
