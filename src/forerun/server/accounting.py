"""AccountedEngine: an engine whose generations are charged to the HTTP request that asked for them.

`submit` runs on the event loop and checks the key's limits; `Ledger` hears on the engine's thread how generations end
and brings their records back to the loop.
"""

import asyncio
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

from forerun.llm import LLM
from forerun.sequence import Request
from forerun.server.async_engine import AsyncEngine, EngineObserver, RequestStream
from forerun.server.errors import ApiError
from forerun.server.exchange import Exchange, Record, current_exchange
from forerun.server.limits import Reservation


@dataclass
class _Account:
    """One submitted request. It holds the request, so that its address stays its own."""

    request: Request
    exchange: Exchange
    reservation: Reservation | None
    num_open: int
    used: int


class Ledger:
    """Which HTTP request each submitted request belongs to. Used on the event loop, except for `ended`."""

    def __init__(self) -> None:
        self._accounts: dict[int, _Account] = {}  # by the request's identity
        self._loop: asyncio.AbstractEventLoop | None = None

    def open(self, request: Request, exchange: Exchange, reservation: Reservation | None) -> None:
        """`request` is about to be submitted."""
        self._loop = asyncio.get_running_loop()
        num = request.params.n
        exchange.expect(num)
        self._accounts[id(request)] = _Account(request, exchange, reservation, num, len(request.prompt))

    def cancel(self, request: Request) -> None:
        """It was refused, so nothing of it will end."""
        account = self._accounts.pop(id(request))
        if account.reservation is not None:
            account.reservation.settle(0)
        for _ in range(account.num_open):
            account.exchange.generation_ended(None)

    def ended(self, request: Request, record: Record) -> None:
        """Called on the engine's thread when a choice has ended."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._settle, id(request), record)

    def _settle(self, key: int, record: Record) -> None:
        account = self._accounts.get(key)
        if account is None:  # submitted by nobody's HTTP request
            return
        account.used += record.num_output
        account.num_open -= 1
        if account.num_open == 0:
            del self._accounts[key]
            if account.reservation is not None:
                account.reservation.settle(account.used)
        account.exchange.generation_ended(record)


class AccountedEngine(AsyncEngine):
    """See the module. log_prompts: keep the prompts' text in their exchanges."""

    def __init__(
        self,
        llm: LLM,
        ledger: Ledger,
        *,
        max_waiting: int = 1024,
        observers: Seq[EngineObserver] = (),
        log_prompts: bool = False,
    ) -> None:
        super().__init__(llm, max_waiting=max_waiting, observers=observers)
        self._ledger = ledger
        self._tokenizer = llm.tokenizer
        self._log_prompts = log_prompts

    async def submit(self, request: Request) -> RequestStream:
        """Queue a request. Raises what AsyncEngine.submit raises, and ApiError when its key's limits forbid it."""
        exchange = current_exchange()
        if exchange is None:
            return await super().submit(request)
        request = _within_limits(request, exchange)
        reservation = None
        if exchange.allowance is not None:
            announced = (request.params.max_tokens or 0) * request.params.n
            reservation = exchange.allowance.reserve(len(request.prompt), announced)
        self._ledger.open(request, exchange, reservation)
        try:
            stream = await super().submit(request)
        except asyncio.CancelledError:  # the engine may have taken it; then it ends there
            raise
        except BaseException:
            self._ledger.cancel(request)
            raise
        exchange.prompt_tokens += len(request.prompt)
        if self._log_prompts:
            exchange.prompts.append(self._tokenizer.decode(request.prompt))
        return stream


def _within_limits(request: Request, exchange: Exchange) -> Request:
    """The request, its answer cut at what the key allows where it does not say how long it may be."""
    if exchange.allowance is None:
        return request
    limits, params = exchange.allowance.limits, request.params
    if limits.max_prompt_tokens is not None and len(request.prompt) > limits.max_prompt_tokens:
        raise ApiError(
            400,
            f"the prompt has {len(request.prompt)} tokens and this key may send {limits.max_prompt_tokens}: shorten it",
            param="prompt",
            code="context_length_exceeded",
        )
    if limits.max_output_tokens is None:
        return request
    if params.max_tokens is None:
        return replace(request, params=replace(params, max_tokens=limits.max_output_tokens))
    if params.max_tokens > limits.max_output_tokens:
        raise ApiError(
            400,
            f"max_tokens is {params.max_tokens} and this key may ask for {limits.max_output_tokens}: lower it",
            param="max_tokens",
            code="invalid_value",
        )
    return request
