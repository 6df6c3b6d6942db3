"""StrictRoute: bodies are read as JSON by a parser that bounds depth and refuses NaN, infinity, numbers that no double
holds, broken UTF-8 and a key that stands twice in one object."""

import json
import math
from collections.abc import Callable, Coroutine
from typing import Any

import pydantic_core
from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.datastructures import Headers

from forerun.server.errors import ApiError, spelled

_MAX_DIGITS = 20  # of a number that an answer repeats


def read_json(raw: bytes) -> Any:
    """The value of a body. Raises ApiError for what is no JSON, or leaves open which of two values is meant."""
    try:
        value = pydantic_core.from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise ApiError(400, f"the body is no valid JSON: {error}", code="invalid_json") from error
    _refuse_loose(raw.decode())
    return value


def _refuse_loose(text: str) -> None:
    """Raise ApiError for a key that stands twice in one object, and for a number out of range; of JSON that is known to
    be sound and not too deep.

    The strict parser keeps the last of two values, makes infinity of 1e999, and does not tell; this one can tell, but
    is neither strict nor bounded in depth: hence both. What it builds is mostly None.
    """
    json.loads(text, object_pairs_hook=_check_keys, parse_float=_check_number, parse_int=_check_number)


def _check_number(spelling: str) -> None:
    """Whole numbers too: a client in another language would read them as doubles, and so infinity."""
    if math.isinf(float(spelling)):
        said = f"the body is no valid JSON: the number {_short(spelling)} is too large for a double"
        raise ApiError(400, said, code="invalid_json")


def _short(spelling: str) -> str:
    """As much of a number as an answer repeats."""
    return spelling if len(spelling) <= _MAX_DIGITS else f"{spelling[:_MAX_DIGITS]}..."


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


def _check_headers(headers: Headers) -> None:
    """Raise ApiError for a body that is said to be something else than JSON as it stands."""
    given = headers.get("content-type")
    kind = (given or "").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        # Without one it may come from a web page that nobody asked: such bodies cross origins without a question.
        fact = "has no Content-Type" if given is None else f"has the Content-Type {kind[:60]!r}"
        raise ApiError(400, f"the body {fact}: send application/json", code="invalid_content_type")
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        said = f"the body has the Content-Encoding {encoding[:60]!r}: send it as it is"
        raise ApiError(400, said, code="invalid_content_encoding")


class _StrictRequest(Request):
    async def json(self) -> Any:
        return read_json(await self.body())


class StrictRoute(APIRoute):
    """A route whose JSON body is parsed strictly."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            if self.body_field is not None:
                _check_headers(request.headers)
            return await handle(_StrictRequest(request.scope, request.receive))

        return strict
