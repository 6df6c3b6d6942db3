"""GET /v1/capabilities."""

from fastapi import APIRouter

from forerun.server.capabilities import capabilities
from forerun.server.documented import reading
from forerun.server.schema.answers import Capabilities
from forerun.server.service import Serving

router = APIRouter()


@router.get("/v1/capabilities", responses=reading(Capabilities, 503))
async def get_capabilities(service: Serving) -> Capabilities:
    """Which options this model and build honour, and what is refused with which sentence."""
    return await capabilities(service)
