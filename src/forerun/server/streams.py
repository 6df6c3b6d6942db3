"""StreamGroup: the running generations of one HTTP request, one for each of its prompts."""

import asyncio
from collections.abc import AsyncIterator
from collections.abc import Sequence as Seq
from contextlib import aclosing

from forerun.sequence import Request
from forerun.server.async_engine import AsyncEngine, RequestStream
from forerun.server.updates import ChoiceUpdate

Turn = tuple[int, list[ChoiceUpdate]]  # which prompt, and what came


class StreamGroup:
    """Belongs to the event loop; close it when the client has left."""

    def __init__(self, streams: Seq[RequestStream]) -> None:
        self.streams = tuple(streams)

    @property
    def requests(self) -> list[Request]:
        """In the order of the prompts."""
        return [stream.request for stream in self.streams]

    @property
    def num_prompt_tokens(self) -> int:
        """Over all prompts."""
        return sum(len(request.prompt) for request in self.requests)

    async def __aiter__(self) -> AsyncIterator[Turn]:
        """What comes, until every choice of every prompt has ended. Leaving early ends them."""
        turns: asyncio.Queue[Turn | None] = asyncio.Queue()
        pumps = [asyncio.ensure_future(_pump(at, stream, turns)) for at, stream in enumerate(self.streams)]
        try:
            num_open = len(pumps)
            while num_open:
                turn = await turns.get()
                if turn is None:
                    num_open -= 1
                else:
                    yield turn
        finally:
            for pump in pumps:
                pump.cancel()
            self.close()

    def close(self) -> None:
        """End what still runs. May be called again."""
        for stream in self.streams:
            stream.close()


async def submit_all(engine: AsyncEngine, requests: Seq[Request]) -> StreamGroup:
    """Queue the requests, all or none. Raises as AsyncEngine.submit does."""
    streams: list[RequestStream] = []
    try:
        for request in requests:
            streams.append(await engine.submit(request))  # noqa: PERF401  those submitted are needed when one fails
    except BaseException:
        StreamGroup(streams).close()
        raise
    return StreamGroup(streams)


async def _pump(at: int, stream: RequestStream, turns: "asyncio.Queue[Turn | None]") -> None:
    try:
        async with aclosing(aiter(stream)) as updates:  # type: ignore[type-var]
            async for some in updates:
                turns.put_nowait((at, some))
    finally:
        turns.put_nowait(None)
