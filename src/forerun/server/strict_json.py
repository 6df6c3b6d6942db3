"""StrictRoute: bodies are read as JSON by a parser that bounds depth and refuses NaN, infinity, broken UTF-8 and a key
that stands twice in one object."""

import json
from collections.abc import Callable, Coroutine
from typing import Any

import pydantic_core
from fastapi import Request, Response
from fastapi.routing import APIRoute

from forerun.server.errors import ApiError, spelled


def read_json(raw: bytes) -> Any:
    """The value of a body. Raises ApiError for what is no JSON, or leaves open which of two values is meant."""
    try:
        value = pydantic_core.from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise ApiError(400, f"the body is no valid JSON: {error}", code="invalid_json") from error
    if isinstance(value, (dict, list)):
        _refuse_twins(raw.decode())
    return value


def _refuse_twins(text: str) -> None:
    """Raise ApiError for a key that stands twice in one object; of JSON that is known to be sound and not too deep.

    The strict parser keeps the last of two values and does not tell; this one can tell, but is neither strict nor
    bounded in depth: hence both. Its objects become None, so that only strings and lists are built twice.
    """
    json.loads(text, object_pairs_hook=_check_keys)


def _check_keys(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) == len(pairs):
        return
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            name = spelled(key)
            said = f"{name!r} stands twice in one object of the body: leave one of them out"
            raise ApiError(400, said, param=name, code="duplicate_key")
        seen.add(key)


class _StrictRequest(Request):
    async def json(self) -> Any:
        return read_json(await self.body())


class StrictRoute(APIRoute):
    """A route whose JSON body is parsed strictly."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
            if self.body_field is not None and kind != "application/json" and not kind.endswith("+json"):
                said = f"the body has the Content-Type {kind[:60]!r}: send application/json"
                raise ApiError(400, said, code="invalid_content_type")
            return await handle(_StrictRequest(request.scope, request.receive))

        return strict
