"""GET /v1/dashboard and /v1/dashboard/stream: what the engine is doing, for people."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from forerun.server.async_engine import AsyncEngine
from forerun.server.dashboard import INTERVAL_S
from forerun.server.dashboard_feed import SharedSampling
from forerun.server.dashboard_snapshot import Snapshots
from forerun.server.dashboard_view import seen_by
from forerun.server.documented import EVENTS, errors, watching
from forerun.server.service import Asker, Tenant
from forerun.server.sse import stream_response
from forerun.server.streams import StreamGroup

RECENT_INTERVALS = 12  # in every sample of the stream, so that who misses some samples misses no interval

router = APIRouter()


class Dashboard:
    """Snapshots of an engine, one by one or as a stream that all watchers share."""

    def __init__(self, engine: AsyncEngine, snapshots: Snapshots) -> None:
        self._engine, self._snapshots = engine, snapshots
        self.sampling = SharedSampling(
            lambda: engine.call(lambda: snapshots.take(RECENT_INTERVALS)), INTERVAL_S, lambda: engine.accepts
        )

    async def snapshot(self, tenant: Tenant) -> dict[str, Any]:
        """The present state and the last minute, as the tenant may see it."""
        return seen_by(await self._engine.call(self._snapshots.take), tenant)

    async def documents(self, tenant: Tenant) -> AsyncIterator[dict[str, Any]]:
        """A snapshot with the last minute, then one with the last seconds for every interval."""
        yield await self.snapshot(tenant)
        async with aclosing(self.sampling.watch()) as samples:
            async for sample in samples:
                yield seen_by(sample, tenant)


def _dashboard(request: Request) -> Dashboard:
    dashboard: Dashboard = request.app.state.dashboard
    return dashboard


Watched = Annotated[Dashboard, Depends(_dashboard)]


@router.get("/v1/dashboard", responses=errors(503))
async def dashboard(watched: Watched, tenant: Asker) -> JSONResponse:
    """One snapshot."""
    return JSONResponse(await watched.snapshot(tenant), headers={"Cache-Control": "no-store"})


@router.get("/v1/dashboard/stream", response_class=Response, responses=watching("snapshots", EVENTS))
async def dashboard_stream(watched: Watched, tenant: Asker) -> Response:
    """Snapshots as server-sent events, four a second, until the client leaves or the server stops."""
    return stream_response(watched.documents(tenant), StreamGroup(()))
