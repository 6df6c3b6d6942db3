"""Documents for the dashboard: what the engine is doing, read on its thread between two steps. Numbers only: no text of
any request is in them."""

import math
import time
from array import array
from collections.abc import Iterable
from itertools import groupby, islice
from typing import Any

from forerun.llm import LLM
from forerun.machine import resident_memory
from forerun.sequence import Sequence
from forerun.server.dashboard import INTERVAL_S, NUM_INTERVALS, Ended, Interval, StepRecorder
from forerun.speculation.speculator import DrafterStats

MAX_WAITING = 16  # waiting requests that are listed; all are counted
MAP_SHARE = 0.002  # of the time that block maps may take: with many blocks they are made less often

# States of blocks in the map; FIRST_OWNER + id is a block that only sequence `id` uses, OTHERS one that only one of
# another tenant uses (see dashboard_view).
BLANK, CACHED, SHARED, OTHERS, FIRST_OWNER = 0, 1, 2, 3, 4


class Snapshots:
    """Makes snapshots of one engine."""

    def __init__(self, llm: LLM, recorder: StepRecorder, model: str) -> None:
        self._llm, self._recorder, self._model = llm, recorder, model
        self._map: list[tuple[int, int]] = []
        self._next_map_s = 0.0

    def take(self, num_intervals: int = NUM_INTERVALS) -> dict[str, Any]:
        """The present state and the last `num_intervals` intervals, for seen_by. Call it on the engine's thread."""
        recorder, scheduler = self._recorder, self._llm.engine.scheduler
        index = recorder.now_index()
        past = [interval for interval in recorder.intervals if interval.index > index - num_intervals]
        return {
            "interval_s": INTERVAL_S,
            "index": index,
            "server": self._server(),
            "intervals": _columns(past),
            "first_tokens": [(at, round(s, 6)) for at, s in recorder.first_tokens if at > index - NUM_INTERVALS],
            "running": len(scheduler.running),
            "waiting": len(scheduler.waiting),
            "requests": [_request(sequence, "running") for sequence in scheduler.running]
            + [_request(sequence, "waiting") for sequence in islice(scheduler.waiting, MAX_WAITING)],
            "ended": [_ended(one) for one in recorder.ended_last],
            "totals": self._totals(),
            "drafters": {name: _drafter(one) for name, one in self._llm.engine.speculator.stats.by_drafter.items()},
            "blocks": self._blocks(),
            "memory": self._memory(),
            "owners": self._owners(),
        }

    def _owners(self) -> dict[int, str]:
        """The tenant's salt of every sequence that is listed. Not for clients: dashboard_view takes it out."""
        scheduler = self._llm.engine.scheduler
        alive = [*scheduler.running, *islice(scheduler.waiting, MAX_WAITING)]
        salts = {sequence.id: sequence.request.salt for sequence in alive}
        salts |= {one.id: one.salt for one in self._recorder.ended_last}
        return {id: salt.partition("/")[0] for id, salt in salts.items()}

    def _server(self) -> dict[str, Any]:
        llm = self._llm
        return {
            "model": self._model,
            "numerics_id": llm.numerics_id,
            "max_model_len": llm.max_model_len,
            "max_num_seqs": llm.engine.scheduler.config.max_num_seqs,
            "drafters": [drafter.name for drafter in llm.engine.speculator.drafters],
            "uptime_s": round(time.perf_counter() - self._recorder.started_s, 1),
        }

    def _totals(self) -> dict[str, Any]:
        recorder, engine = self._recorder, self._llm.engine
        return {
            "requests_ended": recorder.num_ended,
            "tokens": recorder.num_tokens,
            "steps": engine.stats.steps,
            "rows": engine.stats.rows,
            "failed_steps": engine.stats.failed_steps,
            "preemptions": engine.scheduler.num_preemptions,
            "prompt_tokens": recorder.prompt_tokens,
            "cached_tokens": recorder.cached_tokens,
        }

    def _blocks(self) -> dict[str, Any]:
        pool, start = self._llm.engine.scheduler.pool, time.perf_counter()
        if start >= self._next_map_s:
            self._map = block_map(pool.num_blocks, pool.cached_blocks(), self._llm.engine.scheduler.running)
            now = time.perf_counter()
            self._next_map_s = now + (now - start) / MAP_SHARE
        return {
            "block_size": self._llm.kv_layout.block_size,
            "total": pool.num_blocks,
            "owned": pool.num_owned,
            "cached": pool.num_cached,
            "map": self._map,
        }

    def _memory(self) -> dict[str, Any]:
        layout, pool, held = self._llm.kv_layout, self._llm.engine.scheduler.pool, self._llm.backend.memory()
        return {
            "kv_bytes": held.kv,
            "kv_owned_bytes": pool.num_owned * layout.bytes_per_block,
            "weights_bytes": held.weights,
            "workspace_bytes": held.workspace,
            "drafts_bytes": held.drafts,
            "resident_bytes": resident_memory(),
        }


def block_map(num_blocks: int, cached: Iterable[int], running: Iterable[Sequence]) -> list[tuple[int, int]]:
    """Runs of (state, number of blocks) over all blocks in order."""
    states = array("q", bytes(8 * num_blocks))
    for block in cached:
        states[block] = CACHED
    for sequence in running:
        own = FIRST_OWNER + sequence.id
        for block in sequence.block_ids:
            states[block] = SHARED if states[block] > CACHED else own
    return [(state, sum(1 for _ in run)) for state, run in groupby(states)]


def _columns(intervals: list[Interval]) -> dict[str, list[float]]:
    """Lists of equal length by field: shorter than a document for every interval."""
    columns: dict[str, list[float]] = {
        name: [getattr(interval, name) for interval in intervals]
        for name in ("index", "steps", "tokens", "decoding_rows", "draft_rows", "accepted", "running", "waiting")
    }
    columns["busy_s"] = [round(one.busy_s, 6) for one in intervals]
    columns["prompt_rows"] = [max(0, one.rows - one.decoding_rows - one.draft_rows) for one in intervals]
    return columns


def _request(sequence: Sequence, state: str) -> dict[str, Any]:
    stats, now = sequence.stats, time.perf_counter()
    since_first = now - stats.first_token_s if stats.first_token_s is not None else 0.0
    return {
        "id": sequence.id,
        "state": state,
        "prompt_tokens": sequence.num_prompt,
        "computed_tokens": sequence.num_computed,
        "cached_tokens": stats.cached_prompt_tokens,
        "output_tokens": sequence.num_output,
        "blocks": len(sequence.block_ids),
        "drafted": stats.drafted,
        "accepted": stats.accepted,
        "first_token_s": None if stats.first_token_s is None else round(stats.first_token_s - stats.arrived_s, 4),
        "tokens_per_s": round((sequence.num_output - 1) / since_first, 2) if since_first > 0.05 else None,
        "age_s": round(now - stats.arrived_s, 2),
    }


def _ended(one: Ended) -> dict[str, Any]:
    stats = one.stats
    per_token_s = stats.time_per_token_s
    return {
        "id": one.id,
        "state": one.finish_reason,
        "prompt_tokens": stats.num_prompt_tokens,
        "cached_tokens": stats.cached_prompt_tokens,
        "output_tokens": stats.num_tokens,
        "drafted": stats.drafted,
        "accepted": stats.accepted,
        "first_token_s": round(stats.time_to_first_token_s, 4),
        "tokens_per_s": round(1 / per_token_s, 2) if per_token_s > 0 and math.isfinite(1 / per_token_s) else None,
    }


def _drafter(stats: DrafterStats) -> dict[str, Any]:
    return {
        "drafted": stats.drafted,
        "accepted": stats.accepted,
        "drafted_at": stats.drafted_at[:16],
        "accepted_at": stats.accepted_at[:16],
        "seconds": round(stats.seconds, 4),
    }
