"""build_app: the routes, the error answers and the life of the engine's thread, as one ASGI application."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from forerun import __version__
from forerun.errors import ForerunError
from forerun.llm import LLM
from forerun.server.async_engine import AsyncEngine
from forerun.server.config import ServerConfig
from forerun.server.dashboard import StepRecorder
from forerun.server.dashboard_snapshot import Snapshots
from forerun.server.errors import ApiError, api_error, error_body
from forerun.server.routes import chat, dashboard, health, models, page
from forerun.server.service import Service


def build_app(llm: LLM, config: ServerConfig) -> FastAPI:
    """The application around a loaded model. Its lifespan starts and stops the engine's thread."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        recorder = StepRecorder()
        engine = AsyncEngine(llm, max_waiting=config.max_waiting, observers=[recorder])
        engine.start()
        app.state.service = Service(llm, engine, config)
        app.state.dashboard = dashboard.Dashboard(engine, Snapshots(llm, recorder, config.served_model))
        try:
            yield
        finally:
            await engine.stop()

    app = FastAPI(title="forerun", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    for router in (chat.router, models.router, health.router, dashboard.router, page.router):
        app.include_router(router)
    _answer_errors(app)
    return app


def _answer_errors(app: FastAPI) -> None:
    @app.exception_handler(ApiError)
    async def refused(_request: Request, error: ApiError) -> JSONResponse:
        return JSONResponse(error.body, error.status_code, error.headers)

    @app.exception_handler(ForerunError)
    async def expected(_request: Request, error: ForerunError) -> JSONResponse:
        answer = api_error(error)
        return JSONResponse(answer.body, answer.status_code, answer.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(_request: Request, error: RequestValidationError) -> JSONResponse:
        param, message, code = _first_problem(error.errors())
        return JSONResponse(error_body(400, message, param, code), 400)

    @app.exception_handler(HTTPException)
    async def other(_request: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse(error_body(error.status_code, str(error.detail)), error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def unexpected(_request: Request, error: Exception) -> JSONResponse:
        return JSONResponse(
            error_body(500, "the server failed on this request: see its log", code="internal_error"), 500
        )


def _first_problem(problems: Sequence[Any]) -> tuple[str | None, str, str]:
    """(param, message, code) of the first thing that is wrong with a body."""
    problem = problems[0]
    place = [part for part in problem["loc"] if part != "body"]
    param = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".") or None
    if problem["type"] == "extra_forbidden":
        return param, f"{param} is not an option here: leave it out", "unknown_parameter"
    if problem["type"] == "missing":
        return param, f"{param or 'the body'} is required", "missing_required_parameter"
    return param, f"{param or 'the body'}: {problem['msg']}", "invalid_value"
