"""What the OpenAPI document says about answers."""

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from forerun.server.schema.answers import ErrorDocument

Responses = dict[int | str, dict[str, Any]]

_ERRORS = {
    400: "an option that is unknown, out of range or cannot be honoured",
    401: "the API key is missing or unknown",
    403: "the Host is none that this server answers to",
    404: "no such model or path",
    408: "the body did not come in time",
    413: "the body is too long",
    429: "the key's limit is used up",
    500: "the generation failed",
    503: "too many requests wait, or the server is stopping",
}
_OF_ALL = (401, 403, 429)  # the middlewares answer these, whatever the path
_OF_BODIES = (408, 413)

# There is no schema of a stream: its events are documents, and the last one says [DONE].
EVENTS: dict[str, Any] = {"text/event-stream": {}}


def errors(*statuses: int) -> Responses:
    """Answers that are errors."""
    return {status: {"model": ErrorDocument, "description": _ERRORS[status]} for status in statuses}


def reading(model: type[BaseModel], *statuses: int) -> Responses:
    """Answers of an endpoint that generates nothing."""
    return {200: {"model": model}, **errors(*statuses)}


def generating(model: type[BaseModel]) -> Responses:
    """Answers of an endpoint that generates: at once or as events."""
    return {200: {"model": model, "content": EVENTS}, **errors(400, 404, 500, 503)}


def watching(description: str, content: dict[str, Any]) -> Responses:
    """Answers of an endpoint for people and programs that watch the server. content: what 200 may carry"""
    return {200: {"description": description, "content": content}}


def describe(app: FastAPI) -> None:
    """Make the app's document say what its middlewares answer, and leave out what the framework assumes: a body that
    does not fit is answered with 400."""
    make = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            for operations in make()["paths"].values():
                for method, operation in operations.items():
                    _complete(operation["responses"], has_body=method == "post")
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _complete(responses: dict[str, Any], has_body: bool) -> None:
    responses.pop("422", None)
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorDocument"}}}
    for status in (*_OF_ALL, *(_OF_BODIES if has_body else ())):
        responses.setdefault(str(status), {"description": _ERRORS[status], "content": error})
