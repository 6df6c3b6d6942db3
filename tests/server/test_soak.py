"""Mixed load with clients that leave, for a long time: memory stays flat, blocks are conserved, everything is answered.

FORERUN_SOAK_S sets the duration in seconds; 1800 without it.
"""

import os
import random
import threading
import time
from pathlib import Path

import openai
import pytest

from tests.server.conftest import MODEL, Server, serving, tiny_llm

DURATION_S = float(os.environ.get("FORERUN_SOAK_S", "1800"))
WARM_SHARE = 0.3  # of the time, in which memory may grow: caches fill, the allocator's arenas too
CLIENTS = 8
MAX_GROWTH = 24 << 20


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def live(server: Server, seed: int, end: float, counts: list[int]) -> None:
    """One client: streams, whole answers, several choices, bad requests, and leaving in the middle."""
    rng = random.Random(seed)
    client = server.openai.with_options(timeout=600)
    while time.monotonic() < end:
        words = " ".join(str(rng.randrange(50)) for _ in range(rng.choice((3, 20, 150))))
        options = {"max_tokens": rng.choice((1, 8, 60, 200)), "seed": rng.randrange(100), "n": rng.choice((1, 1, 1, 3))}
        options["extra_body"] = {"priority": rng.choice((0, 0, -1, 2)), "ignore_eos": rng.random() < 0.5}
        messages = [{"role": "user", "content": words}]
        try:
            if rng.random() < 0.5:
                stream = client.chat.completions.create(model=MODEL, messages=messages, stream=True, **options)
                leaves_after = rng.choice((1, 5, 10**6))
                for number, _ in enumerate(stream):
                    if number >= leaves_after:
                        stream.close()
                        break
            elif rng.random() < 0.2:
                options["temperature"] = 9
                with pytest.raises(openai.BadRequestError):
                    client.chat.completions.create(model=MODEL, messages=messages, **options)
            else:
                client.chat.completions.create(model=MODEL, messages=messages, **options)
        except Exception as error:
            counts.append(-1)
            raise AssertionError(f"client {seed}") from error
        counts.append(1)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the resident size from /proc")
@pytest.mark.timeout(DURATION_S + 300)
def test_memory_stays_flat_and_everything_is_answered(tiny_model, wait_until):
    with serving(tiny_llm(tiny_model, max_num_seqs=6)) as server:
        start = time.monotonic()
        end = start + DURATION_S
        counts: list[int] = []
        threads = [threading.Thread(target=live, args=(server, seed, end, counts)) for seed in range(CLIENTS)]
        for thread in threads:
            thread.start()
        sizes = []
        while time.monotonic() < end:
            time.sleep(min(1.0, DURATION_S / 20))
            if time.monotonic() > start + WARM_SHARE * DURATION_S:
                sizes.append(resident_bytes())
        for thread in threads:
            thread.join()
        third = max(1, len(sizes) // 3)
        early, late = sorted(sizes[:third])[third // 2], sorted(sizes[-third:])[third // 2]
        print(f"{len(counts)} requests, {counts.count(-1)} failed, {early / 1e6:.1f} MB, then {late / 1e6:.1f} MB")
        assert -1 not in counts
        assert len(counts) > CLIENTS
        assert late - early < MAX_GROWTH, f"{early} bytes became {late}"
        wait_until(lambda: not server.llm.engine.has_work)
        server.llm.engine.check()
        assert server.llm.engine.scheduler.pool.num_owned == 0
        health = server.http.get("/health").json()
        assert health["engine"]["failures"] == health["engine"]["failed_steps"] == 0
