"""build_app: the routes, the error answers and the life of the engine's thread, as one ASGI application."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from forerun import __version__
from forerun.errors import ForerunError
from forerun.llm import LLM
from forerun.server.async_engine import AsyncEngine
from forerun.server.config import ServerConfig
from forerun.server.errors import ApiError, api_error, error_body
from forerun.server.problems import refusal
from forerun.server.routes import capabilities, chat, completions, health, models, refused, responses, tokens
from forerun.server.service import Service


def build_app(llm: LLM, config: ServerConfig) -> FastAPI:
    """The application around a loaded model. Its lifespan starts and stops the engine's thread."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        engine = AsyncEngine(llm, max_waiting=config.max_waiting)
        engine.start()
        app.state.service = Service(llm, engine, config)
        try:
            yield
        finally:
            await engine.stop()

    app = FastAPI(title="forerun", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    for part in (chat, completions, responses, models, tokens, capabilities, health, refused):
        app.include_router(part.router)
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
        answer = refusal(error.errors(), error.body)
        return JSONResponse(answer.body, answer.status_code)

    @app.exception_handler(HTTPException)
    async def other(_request: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse(error_body(error.status_code, str(error.detail)), error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def unexpected(_request: Request, error: Exception) -> JSONResponse:
        return JSONResponse(
            error_body(500, "the server failed on this request: see its log", code="internal_error"), 500
        )
