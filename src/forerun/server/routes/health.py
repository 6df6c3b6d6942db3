"""GET /health: is the process alive, and does it take requests?"""

from dataclasses import asdict

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from forerun.server.service import Serving

router = APIRouter()


@router.get("/health")
async def health(service: Serving) -> JSONResponse:
    """200 while the engine's thread runs, 503 when it does not."""
    state = service.engine.health
    return JSONResponse(
        {"live": state.alive, "ready": state.alive and service.engine.accepts, "engine": asdict(state)},
        status_code=200 if state.alive and service.engine.accepts else 503,
    )
