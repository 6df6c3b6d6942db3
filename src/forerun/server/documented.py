"""What the OpenAPI document says about answers."""

from typing import Any

from pydantic import BaseModel

from forerun.server.schema.answers import ErrorDocument

Responses = dict[int | str, dict[str, Any]]

_ERRORS = {
    400: "an option that is unknown, out of range or cannot be honoured",
    401: "the API key is missing or unknown",
    404: "no such model or path",
    413: "the body is too long",
    429: "the key's limit is used up",
    500: "the generation failed",
    503: "too many requests wait, or the server is stopping",
}


def errors(*statuses: int) -> Responses:
    """Answers that are errors."""
    return {status: {"model": ErrorDocument, "description": _ERRORS[status]} for status in statuses}


def reading(model: type[BaseModel], *statuses: int) -> Responses:
    """Answers of an endpoint that generates nothing."""
    return {200: {"model": model}, **errors(401, 429, *statuses)}


def generating(model: type[BaseModel]) -> Responses:
    """Answers of an endpoint that generates: at once or as events."""
    stream = {"text/event-stream": {"schema": {"type": "string"}}}
    return {200: {"model": model, "content": stream}, **errors(400, 401, 404, 413, 429, 500, 503)}
