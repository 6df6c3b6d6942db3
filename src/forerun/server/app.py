"""build_app: the routes, the error answers and the life of the engine's thread, as one ASGI application."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from forerun import __version__
from forerun.errors import ForerunError
from forerun.llm import LLM
from forerun.server.access import Access
from forerun.server.asgi import error_response
from forerun.server.config import ServerConfig
from forerun.server.dashboard import StepRecorder
from forerun.server.dashboard_snapshot import Snapshots
from forerun.server.documented import describe
from forerun.server.errors import ApiError, api_error
from forerun.server.operations import Operations
from forerun.server.param_names import named_as_asked
from forerun.server.problems import refusal
from forerun.server.routes import (
    capabilities,
    chat,
    completions,
    dashboard,
    health,
    metrics,
    models,
    page,
    refused,
    responses,
    tokens,
)
from forerun.server.service import Service


def build_app(llm: LLM, config: ServerConfig, operations: Operations | None = None) -> FastAPI:
    """The application around a loaded model. Its lifespan starts and stops the engine's thread.

    operations  made of `config` when not given. Raises UsageError for keys that cannot be read
    """
    running = operations or Operations(config, Access(config.keys, public_metrics=config.public_metrics))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        recorder = StepRecorder()
        engine = running.make_engine(llm, [recorder])
        engine.start()
        app.state.service, app.state.operations = Service(llm, engine, config), running
        app.state.dashboard = dashboard.Dashboard(engine, Snapshots(llm, recorder, config.served_model))
        try:
            yield
        finally:
            await engine.stop()
            app.state.service.grammars.close()
            await asyncio.to_thread(running.tracer.close)

    app = FastAPI(title="forerun", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    for part in (chat, completions, responses, models, tokens, capabilities, health, metrics, dashboard, page, refused):
        app.include_router(part.router)
    describe(app)
    _answer_errors(app)
    running.add_middlewares(app)
    return app


def _answer_errors(app: FastAPI) -> None:
    @app.exception_handler(ApiError)
    async def refused(request: Request, error: ApiError) -> JSONResponse:
        return error_response(named_as_asked(error, request.url.path))

    @app.exception_handler(ForerunError)
    async def expected(request: Request, error: ForerunError) -> JSONResponse:
        return error_response(named_as_asked(api_error(error), request.url.path))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        return error_response(refusal(error.errors(), error.body, request.url.path))

    @app.exception_handler(HTTPException)
    async def other(request: Request, error: HTTPException) -> JSONResponse:
        path, allowed = repr(request.url.path[:200]), (error.headers or {}).get("Allow")
        told = {
            404: ("not_found", f"there is no path {path} here: {_meant(app, request.url.path)}"),
            405: ("method_not_allowed", f"{path} does not take {request.method}: use {allowed or 'another method'}"),
        }
        code, message = told.get(error.status_code, (None, str(error.detail)))
        return error_response(ApiError(error.status_code, message, code=code, headers=error.headers))


def _meant(app: FastAPI, path: str) -> str:
    """What helps where there is no such path: clients often take their base URL without /v1, or have it twice."""
    there = app.openapi()["paths"].keys() - {f"/v1/{name}" for name in refused.REFUSED_PATHS}
    for other in (f"/v1{path}", path.removeprefix("/v1")):
        if other in there:
            return f"{other} is, so look at the client's base URL"
    return "GET /v1/capabilities lists what there is"
