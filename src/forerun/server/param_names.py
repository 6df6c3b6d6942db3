"""named_as_asked: an error about an option by the name that the option has at the endpoint that was asked.

Behind the endpoints there is one kind of request, which calls the prompt `prompt` and its limit `max_tokens`. Where an
option has two names at one endpoint it goes by the one that the client used.
"""

import re

from forerun.server.errors import ApiError
from forerun.server.exchange import current_exchange

_NAMES = {
    "/v1/chat/completions": {"prompt": "messages"},
    "/v1/responses": {
        "prompt": "input",
        "messages": "input",
        "max_tokens": "max_output_tokens",
        "response_format": "text.format",
    },
}


def goes_by(inner: str, outer: str) -> None:
    """The client whose request this code runs for calls an option by this name."""
    exchange = current_exchange()
    if exchange is not None:
        exchange.names[inner] = outer


def named_as_asked(error: ApiError, path: str) -> ApiError:
    """The error, with `param` and the options in its sentence named as they are at `path`.

    In the sentence only names that are no English words are options: "the prompt" stays.
    """
    exchange = current_exchange()
    names = _NAMES.get(path, {}) | (exchange.names if exchange is not None else {})
    message = error.message
    for inner, outer in names.items():
        if "_" in inner:
            message = re.sub(rf"\b{inner}\b", outer, message)
    param = None if error.param is None else names.get(error.param, error.param)
    return ApiError(error.status_code, message, param=param, code=error.code, type=error.type, headers=error.headers)
