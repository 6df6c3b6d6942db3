"""Errors as an OpenAI client reads them: {"error": {"message", "type", "param", "code"}} with the right status."""

from collections.abc import Mapping
from typing import Any

from fastapi import HTTPException

from forerun.errors import CapacityError, ForerunError, GrammarError, RequestError, UsageError, is_line_of
from forerun.results import Choice
from forerun.sequence import FinishReason

MAX_SPELLED = 200  # characters of a name that a client made up, where an answer repeats it

_TYPES = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error"}
_TYPES |= {405: "invalid_request_error", 413: "invalid_request_error"}


def spelled(name: str) -> str:
    """A name that a client made up, as far as an answer repeats it."""
    return name if len(name) <= MAX_SPELLED else f"{name[:MAX_SPELLED]}..."


class ApiError(HTTPException):
    """An answer that is an error.

    param  the option at fault, if it is one option's
    code   a word for programs
    type   another word, by default the status's
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        type: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, dict(headers or {}))
        self.message, self.param, self.code, self.type = message, param, code, type

    @property
    def body(self) -> dict[str, Any]:
        """The JSON document of the answer."""
        usual = "invalid_request_error" if self.status_code < 500 else "server_error"
        kind = self.type or _TYPES.get(self.status_code, usual)
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def api_error(error: ForerunError) -> ApiError:
    """What a client is told about an expected failure."""
    if isinstance(error, RequestError):
        return ApiError(400, str(error), param=error.param, code=error.code)
    if isinstance(error, UsageError):
        return ApiError(400, str(error), code="invalid_request")
    if isinstance(error, CapacityError):
        return ApiError(503, str(error), code="out_of_memory", headers={"Retry-After": "1"})
    return ApiError(500, str(error), code="internal_error")


def failure_of(choice: Choice) -> ApiError | None:
    """The error of a choice that did not end well, None for one that did."""
    if choice.finish_reason is FinishReason.NUMERICAL_ERROR:
        return ApiError(500, choice.error, code="numerical_error")
    if choice.finish_reason is FinishReason.ERROR and is_line_of(choice.error, GrammarError):
        return ApiError(400, choice.error.partition(": ")[2], code="grammar_too_complex")  # again would end no better
    if choice.finish_reason is FinishReason.ERROR:
        return ApiError(500, choice.error, code="generation_failed")
    if choice.finish_reason is FinishReason.ABORTED:
        return ApiError(503, "the server is stopping and ended this generation", code="aborted")
    return None
