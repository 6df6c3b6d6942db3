"""`bench serve --long-prompt N`: what a long prompt does to the streams beside it, and they to it.

N clients stream answers without end. In turns nothing else happens for a while, then a long prompt comes, each time
another one; a quiet while is the last turn, too. Compared are the times between two arrivals of text in a stream
(bench/serving) that end in a quiet window and those that end between the sending of a long prompt and its first token.
The long prompt's time to first token is measured beside the streams and, before they start, on the idle server.
"""

import asyncio
import random
import secrets
import statistics
import time
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from forerun.bench import corpus
from forerun.bench.serving import ServingWish, body_of, percentile
from forerun.bench.serving_client import Exchange, Target, exchange, read_reply
from forerun.errors import UsageError

QUIET_S = 2.0  # of a quiet window
SETTLE_S = 1.5  # until all streams run
PROBE_CHARS = 4000


@dataclass(frozen=True)
class Interference:
    """gaps are the seconds between arrivals of text; prompt_tokens as the server counts them."""

    streams: int
    prompt_tokens: int
    quiet_gaps: tuple[float, ...]
    loaded_gaps: tuple[float, ...]
    ttft_alone_s: float
    ttft_beside_s: float

    @property
    def ratio(self) -> float | None:
        """p95 beside a long prompt over p95 without."""
        quiet, loaded = percentile(self.quiet_gaps, 0.95), percentile(self.loaded_gaps, 0.95)
        return loaded / quiet if quiet and loaded else None


async def measure_interference(
    target: Target, wish: ServingWish, streams: int, prompt_tokens: int, repeats: int = 3
) -> Interference:
    """Measure beside so many streams. Raises UsageError when a request fails."""
    writer = LongPrompts(wish.seed)
    short = replace(wish, max_tokens=1)

    async def ask(chars: int) -> tuple[float, float, int]:
        sent = await exchange(target, target.request(body_of(short, writer.next(chars), 0)), wish.timeout_s)
        reply = read_reply(sent)
        if reply.error or not reply.usage:
            raise UsageError(f"a long prompt was not answered: {reply.error or 'no usage in the stream'}")
        return sent.start_s, (reply.chunk_s or [reply.end_s])[0], int(reply.usage["prompt_tokens"])

    _, _, tokens = await ask(PROBE_CHARS)
    chars = PROBE_CHARS * prompt_tokens // tokens
    alone = [await ask(chars) for _ in range(repeats)]
    sent: list[Exchange] = []
    running = [asyncio.ensure_future(_stream(target, wish, number, sent)) for number in range(streams)]
    try:
        await asyncio.sleep(SETTLE_S)
        quiet, loaded = [], []
        for _ in range(repeats):
            quiet.append(await _quiet_window())
            loaded.append(await ask(chars))
        quiet.append(await _quiet_window())  # attention to their own growing texts slows the streams down meanwhile
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    replies = [read_reply(one) for one in sent]
    gaps = [(later - earlier, later) for reply in replies for earlier, later in pairwise(reply.chunk_s)]
    return Interference(
        streams=streams,
        prompt_tokens=loaded[-1][2],
        quiet_gaps=_within(gaps, quiet),
        loaded_gaps=_within(gaps, [(start, first) for start, first, _ in loaded]),
        ttft_alone_s=statistics.median(first - start for start, first, _ in alone),
        ttft_beside_s=statistics.median(first - start for start, first, _ in loaded),
    )


async def _quiet_window() -> tuple[float, float]:
    start = time.perf_counter()
    await asyncio.sleep(QUIET_S)
    return start, time.perf_counter()


async def _stream(target: Target, wish: ServingWish, number: int, sent: list[Exchange]) -> None:
    """Answers without end; what was received is in `sent` also when the task is cancelled."""
    turn = 0
    while True:
        text = f"Write a long story, number {number}.{turn}, about a journey."
        body: dict[str, Any] = body_of(replace(wish, max_tokens=1500), text, number)
        result = Exchange(time.perf_counter())
        sent.append(result)
        await exchange(target, target.request(body), wish.timeout_s, into=result)
        turn += 1


def _within(gaps: Seq[tuple[float, float]], windows: Seq[tuple[float, float]]) -> tuple[float, ...]:
    return tuple(gap for gap, end in gaps if any(start <= end <= stop for start, stop in windows))


class LongPrompts:
    """Texts of any length from the corpus, no two of which begin alike, nor those of an earlier run, which the server
    may have in its cache."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._mark = secrets.token_hex(8)
        self._paragraphs = [part for part in corpus.text().split("\n\n") if part.strip()]
        self._count = 0

    def next(self, chars: int) -> str:
        self._count += 1
        text = f"Text {self._mark}.{self._count}.\n\n"
        while len(text) < chars:
            text += self._random.choice(self._paragraphs) + "\n\n"
        return text[:chars]
