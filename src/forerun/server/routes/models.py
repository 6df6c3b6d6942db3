"""GET /v1/models and /v1/models/{model}."""

from typing import Any

from fastapi import APIRouter

from forerun.server.errors import ApiError
from forerun.server.service import Service, Serving

router = APIRouter()


@router.get("/v1/models")
async def list_models(service: Serving) -> dict[str, Any]:
    """The one model that is served."""
    return {"object": "list", "data": [_document(service)]}


@router.get("/v1/models/{model:path}")
async def get_model(model: str, service: Serving) -> dict[str, Any]:
    """The served model, 404 for any other."""
    if model != service.model_name:
        raise ApiError(404, f"no model {model!r} here: this server has {service.model_name!r}", code="model_not_found")
    return _document(service)


def _document(service: Service) -> dict[str, Any]:
    return {
        "id": service.model_name,
        "object": "model",
        "created": service.created,
        "owned_by": "forerun",
        "max_model_len": service.llm.max_model_len,
    }
