"""`bench serve`: load on an OpenAI-compatible server, and what its clients see.

    closed loop   N clients, each sends its next request when its last one has been answered
    open loop     requests come by a Poisson process of R a second, whether the server keeps up or not

Definitions. Times are what the client sees.
    TTFT          from the moment a request is due (open loop) or sent (closed loop) to its first piece of text;
                  connecting and waiting included
    inter-token   between two arrivals of text in one stream. What comes in one read is one arrival; an arrival may hold
                  several tokens, with speculation or a late reader
    TPOT          from the first to the last piece of text, by the output tokens after the first
    end-to-end    from due or sent to the end of the answer
    throughput    output tokens of all whole answers, by the time from the first request to the last end
    goodput       answers a second, whole and within the SLO: TTFT and TPOT both at most so long
    cached        prompt tokens that the server says came from its cache, of all prompt tokens
    acceptance    drafted tokens that the server says were accepted, of all drafted

Token counts are the server's own (usage). Percentiles are over all values of a run, the nearest rank above.
"""

import asyncio
import itertools
import random
import secrets
import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

from forerun.bench.prompts import PromptSet
from forerun.bench.serving_client import Exchange, Reply, Target, exchange, read_reply
from forerun.errors import UsageError


@dataclass(frozen=True)
class ServingWish:
    """What to measure.

    clients    closed-loop runs, by the number of clients
    rates      open-loop runs, by requests a second
    requests   of a run; of a closed loop at least twice the clients
    warmup     requests before the first run, which are not counted
    max_ttft_s, max_tpot_s  the SLO
    ignore_eos ask for answers of full length: an extension that not every server has
    drafter    what requests name as their drafter, "off" for none; None: the server's choice. Only forerun knows it

    Raises UsageError.
    """

    model: str
    clients: tuple[int, ...] = (1, 4, 16, 64)
    rates: tuple[float, ...] = ()
    requests: int = 32
    warmup: int = 4
    max_tokens: int = 64
    temperature: float = 0.0
    seed: int = 0
    ignore_eos: bool = False
    max_ttft_s: float = 1.0
    max_tpot_s: float = 0.1
    timeout_s: float = 300.0
    drafter: str | None = None

    def __post_init__(self) -> None:
        if any(n < 1 for n in self.clients) or any(not 0 < rate < 1e6 for rate in self.rates):
            raise UsageError("clients must be at least 1 and rates above 0")
        if self.requests < 1 or self.warmup < 0 or self.max_tokens < 1:
            raise UsageError("at least 1 request of at least 1 token is needed, and no negative number of warm-ups")
        if min(self.max_ttft_s, self.max_tpot_s, self.timeout_s) <= 0:
            raise UsageError("the SLO's times and the timeout must be above 0")


@dataclass(frozen=True)
class ServingRun:
    """One run. load: clients or requests a second; client_share: the part of a core that this client used"""

    kind: str  # "closed" or "open"
    load: float
    replies: tuple[Reply, ...]
    wall_s: float
    client_share: float


Bodies = Iterator[dict[str, Any]]


def bodies(prompts: PromptSet, wish: ServingWish) -> Bodies:
    """Request bodies, the prompts in a shuffled order, again from the front when all have been used."""
    texts = [prompt.turns[0] for group in prompts.categories.values() for prompt in group]
    random.Random(wish.seed).shuffle(texts)
    for number, text in enumerate(itertools.cycle(texts)):
        yield body_of(wish, text, wish.seed + number)


def body_of(wish: ServingWish, text: str, seed: int) -> dict[str, Any]:
    """One request's body."""
    body: dict[str, Any] = {
        "model": wish.model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": wish.max_tokens,
        "temperature": wish.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if wish.temperature > 0:
        body["seed"] = seed
    if wish.ignore_eos:
        body["ignore_eos"] = True
    if wish.drafter is not None:
        body["speculation"] = {"drafter": wish.drafter}
    return body


async def bench_serving(
    target: Target, prompts: PromptSet, wish: ServingWish, progress: Callable[[int, int], None]
) -> list[ServingRun]:
    """Make every run, closed loops first. `progress` counts requests. Raises UsageError when the warm-up fails.

    A run must not find in the cache what the one before has asked. Of a server that answers the warm-up as forerun does
    each run has a cache of its own, by a salt; of others it has prompts of its own as long as there are enough.
    """
    queue = bodies(prompts, wish)
    counts = [max(wish.requests, 2 * n) for n in wish.clients] + [wish.requests for _ in wish.rates]
    total, done = sum(counts) + wish.warmup, itertools.count(1)

    salts, secret = {"cache_salt": ""}, secrets.token_hex(4)  # no earlier measurement's
    salted = False

    async def send(due_s: float | None = None) -> Exchange:
        body = next(queue) | (salts if salted else {})
        result = await exchange(target, target.request(body), wish.timeout_s, due_s)
        progress(next(done), total)
        return result

    for warm in [read_reply(await send()) for _ in range(wish.warmup)]:
        salted = salted or bool(warm.speculation)
        if warm.error:
            raise UsageError(f"the server at {target.host}:{target.port} does not answer as it should: {warm.error}")
    runs = []
    for number, (clients, count) in enumerate(zip(wish.clients, counts, strict=False)):
        salts["cache_salt"] = f"closed/{number}/{secret}"
        runs.append(await _timed("closed", clients, _closed(send, clients, count)))
    for number, rate in enumerate(wish.rates):
        salts["cache_salt"] = f"open/{number}/{secret}"
        gaps = random.Random(f"{wish.seed}/{number}")
        runs.append(await _timed("open", rate, _open(send, rate, wish.requests, gaps)))
    return runs


async def _timed(kind: str, load: float, running: Any) -> ServingRun:
    start, cpu = time.perf_counter(), time.process_time()
    exchanges: list[Exchange] = await running
    wall_s, cpu_s = time.perf_counter() - start, time.process_time() - cpu
    return ServingRun(kind, load, tuple(read_reply(one) for one in exchanges), wall_s, cpu_s / wall_s)


async def _closed(send: Any, clients: int, requests: int) -> list[Exchange]:
    left = iter(range(requests))

    async def client() -> list[Exchange]:
        return [await send() for _ in left]

    return [one for many in await asyncio.gather(*(client() for _ in range(clients))) for one in many]


async def _open(send: Any, rate: float, requests: int, gaps: random.Random) -> list[Exchange]:
    due = time.perf_counter()
    sent = []
    for _ in range(requests):
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        sent.append(asyncio.ensure_future(send(due)))
        due += gaps.expovariate(rate)
    return list(await asyncio.gather(*sent))


def percentile(values: Seq[float], share: float) -> float | None:
    """The nearest rank: the smallest value that at least `share` of all do not exceed; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, -(-int(share * 1e6) * len(ordered) // 10**6) - 1)]
