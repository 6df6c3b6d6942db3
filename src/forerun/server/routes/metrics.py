"""GET /metrics: for Prometheus."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from forerun.server.documented import watching

router = APIRouter()


@router.get("/metrics", response_class=Response, responses=watching("all metrics", {"text/plain": {}}))
async def metrics(request: Request) -> Response:
    """All metrics, as text."""
    page, content_type = request.app.state.operations.metrics.page(request.headers.get("accept"))
    return Response(page, media_type=None, headers={"Content-Type": content_type})
