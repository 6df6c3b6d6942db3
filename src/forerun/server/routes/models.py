"""GET /v1/models and /v1/models/{model}."""

from fastapi import APIRouter

from forerun.server.asking import check_model
from forerun.server.documented import reading
from forerun.server.schema.answers import Model, ModelList
from forerun.server.service import Service, Serving

router = APIRouter()


@router.get("/v1/models", responses=reading(ModelList))
async def list_models(service: Serving) -> ModelList:
    """The one model that is served."""
    return ModelList(object="list", data=[_document(service)])


@router.get("/v1/models/{model:path}", responses=reading(Model, 404))
async def get_model(model: str, service: Serving) -> Model:
    """The served model by any of its names, 404 for any other."""
    check_model(model, service)
    return _document(service)


def _document(service: Service) -> Model:
    return Model(
        id=service.model_name,
        object="model",
        created=service.created,
        owned_by="forerun",
        max_model_len=service.llm.max_model_len,
        aliases=list(service.aliases),
    )
