"""StrictRoute: bodies are read as JSON by a parser that bounds depth and refuses NaN, infinity and broken UTF-8."""

from collections.abc import Callable, Coroutine
from typing import Any

import pydantic_core
from fastapi import Request, Response
from fastapi.routing import APIRoute

from forerun.server.errors import ApiError


class _StrictRequest(Request):
    async def json(self) -> Any:
        try:
            return pydantic_core.from_json(await self.body(), allow_inf_nan=False)
        except ValueError as error:
            raise ApiError(400, f"the body is no valid JSON: {error}", code="invalid_json") from error


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
