"""What `bench serve` found, as one JSON document and as Markdown. Definitions stand in bench/serving."""

import statistics
from collections import Counter
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import asdict
from itertools import pairwise
from typing import Any

from forerun.bench.serving import ServingRun, ServingWish, percentile
from forerun.bench.serving_client import Reply
from forerun.bench.serving_interference import Interference

FORMAT = "forerun-serving-1"
SHARES = (0.5, 0.95, 0.99)
Document = Mapping[str, Any]


def document(
    runs: Seq[ServingRun],
    interference: Seq[Interference],
    wish: ServingWish,
    about: Mapping[str, Any],
) -> dict[str, Any]:
    """Everything as JSON values; times are seconds. about: model, url, prompts, machine, versions, start"""
    found = [_run(run, wish) for run in runs]
    return {
        "format": FORMAT,
        "command": "bench serve",
        **about,
        "settings": asdict(wish) | {"model": about["model"]},  # no path of somebody's machine
        "passed": all(run["failed"] == 0 for run in found),
        "runs": found,
        "interference": [_interference(one) for one in interference],
    }


def _run(run: ServingRun, wish: ServingWish) -> dict[str, Any]:
    whole = [reply for reply in run.replies if not reply.error]
    first, last = min(r.start_s for r in run.replies), max(r.end_s for r in run.replies)
    tokens = sum(_tokens(reply) for reply in whole)
    ttft = [reply.chunk_s[0] - reply.start_s for reply in whole if reply.chunk_s]
    tpot = [value for reply in whole if (value := _tpot(reply)) is not None]
    good = [reply for reply in whole if _is_good(reply, wish)]
    gaps = [later - earlier for reply in whole for earlier, later in pairwise(reply.chunk_s)]
    errors = Counter(reply.error for reply in run.replies if reply.error)
    return {
        "kind": run.kind,
        "load": run.load,
        "requests": len(run.replies),
        "failed": len(run.replies) - len(whole),
        "errors": dict(errors),
        "output_tokens": tokens,
        "tokens_per_s": tokens / (last - first),
        "requests_per_s": len(whole) / (last - first),
        "goodput_per_s": len(good) / (last - first),
        "good_share": len(good) / len(run.replies),
        "ttft_s": _spread(ttft),
        "tpot_s": _spread(tpot),
        "inter_token_s": _spread(gaps),
        "end_to_end_s": _spread([reply.end_s - reply.start_s for reply in whole]),
        "tokens_per_chunk": tokens / max(1, sum(len(reply.chunk_s) for reply in whole)),
        "cached_share": _share(
            [reply.usage.get("prompt_tokens_details") for reply in whole],
            "cached_tokens",
            [reply.usage.get("prompt_tokens", 0) for reply in whole],
        ),
        "acceptance": _acceptance(whole),
        "client_share_of_a_core": run.client_share,
    }


def _tokens(reply: Reply) -> int:
    """Output tokens by the server's count; the arrivals, where it gives none."""
    return int(reply.usage.get("completion_tokens", len(reply.chunk_s)))


def _tpot(reply: Reply) -> float | None:
    more = _tokens(reply) - 1
    return (reply.chunk_s[-1] - reply.chunk_s[0]) / more if reply.chunk_s and more > 0 else None


def _is_good(reply: Reply, wish: ServingWish) -> bool:
    if not reply.chunk_s:
        return False
    return reply.chunk_s[0] - reply.start_s <= wish.max_ttft_s and (_tpot(reply) or 0.0) <= wish.max_tpot_s


def _share(details: Seq[Mapping[str, Any] | None], name: str, totals: Seq[int]) -> float | None:
    """None when the server does not say."""
    if not any(detail and name in detail for detail in details):
        return None
    return sum((detail or {}).get(name) or 0 for detail in details) / max(1, sum(totals))


def _acceptance(replies: Seq[Reply]) -> float | None:
    """Of what all drafters proposed; None of other servers, and where nothing was drafted."""
    drafted = sum(reply.speculation.get("drafted", 0) for reply in replies)
    return sum(reply.speculation.get("accepted", 0) for reply in replies) / drafted if drafted else None


def _spread(values: Seq[float]) -> dict[str, float | None]:
    named = {f"p{int(100 * share)}": percentile(values, share) for share in SHARES}
    return {"mean": statistics.fmean(values) if values else None, **named}


def _interference(one: Interference) -> dict[str, Any]:
    return {
        "streams": one.streams,
        "prompt_tokens": one.prompt_tokens,
        "quiet_inter_token_s": _spread(one.quiet_gaps),
        "loaded_inter_token_s": _spread(one.loaded_gaps),
        "quiet_gaps": len(one.quiet_gaps),
        "loaded_gaps": len(one.loaded_gaps),
        "p95_ratio": one.ratio,
        "ttft_alone_s": one.ttft_alone_s,
        "ttft_beside_s": one.ttft_beside_s,
    }


# ---- Markdown ----

_COLUMNS = (
    "load",
    "tokens/s",
    "TTFT p50 / p95 (ms)",
    "TPOT p50 (ms)",
    "inter-token p50 / p95 / p99 (ms)",
    "end-to-end p95 (ms)",
    "goodput (answers/s)",
    "cached",
    "acceptance",
    "failed",
)
_INTERFERENCE = (
    "streams",
    "prompt",
    "p95 quiet (ms)",
    "p95 beside the prompt (ms)",
    "ratio",
    "TTFT alone (ms)",
    "TTFT beside (ms)",
)
MUCH_CACHED = 0.5


def markdown(found: Document) -> str:
    """Tables of the runs and of interference, times in milliseconds, with what they were measured on."""
    settings, machine = found["settings"], found["machine"]
    lines = [
        f"{found['model']} at {found['server']}; prompts {found['prompts']} ({found['num_prompts']}), at most "
        f"{settings['max_tokens']} tokens{', end ignored' if settings['ignore_eos'] else ''}, temperature "
        f"{settings['temperature']:g}, seed {settings['seed']}, {settings['warmup']} requests of warm-up"
        f"{', drafter ' + settings['drafter'] if settings.get('drafter') else ''}; "
        f"{machine['cpu']}, {machine['threads']} threads. "
        f"SLO: TTFT {settings['max_ttft_s']:g} s, TPOT {settings['max_tpot_s']:g} s.",
        "",
    ]
    if found["runs"]:
        lines += _table(_COLUMNS, [run_row(run) for run in found["runs"]])
        lines.append("")
    if any((run["cached_share"] or 0.0) > MUCH_CACHED for run in found["runs"]):
        lines += ["**More than half of a run's prompt tokens came from the cache: give more prompts (--prompts).**", ""]
    if not found["passed"]:
        lines += ["**Requests failed: the figures above are no result.**", ""]
    if found["interference"]:
        lines += _table(_INTERFERENCE, [interference_row(one) for one in found["interference"]])
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def run_row(run: Mapping[str, Any]) -> tuple[str, ...]:
    """A run's cells, in the order of the table."""
    ttft, gaps = run["ttft_s"], run["inter_token_s"]
    return (
        f"{run['load']:g} clients" if run["kind"] == "closed" else f"{run['load']:g} requests/s",
        f"{run['tokens_per_s']:.0f}",
        f"{ms(ttft['p50'])} / {ms(ttft['p95'])}",
        ms(run["tpot_s"]["p50"]),
        f"{ms(gaps['p50'])} / {ms(gaps['p95'])} / {ms(gaps['p99'])}",
        ms(run["end_to_end_s"]["p95"]),
        f"{run['goodput_per_s']:.2f} ({run['good_share']:.0%})",
        percent(run["cached_share"]),
        percent(run["acceptance"]),
        f"{run['failed']} of {run['requests']}",
    )


def interference_row(one: Mapping[str, Any]) -> tuple[str, ...]:
    """A measurement's cells, in the order of the table."""
    return (
        str(one["streams"]),
        f"{one['prompt_tokens']} tokens",
        ms(one["quiet_inter_token_s"]["p95"]),
        ms(one["loaded_inter_token_s"]["p95"]),
        "" if one["p95_ratio"] is None else f"{one['p95_ratio']:.2f}x",
        ms(one["ttft_alone_s"]),
        ms(one["ttft_beside_s"]),
    )


def ms(seconds: float | None) -> str:
    """Milliseconds; nothing where there is no value."""
    return "" if seconds is None else f"{1e3 * seconds:.1f}" if seconds < 0.1 else f"{1e3 * seconds:.0f}"


def percent(share: float | None) -> str:
    """A share; nothing where the server does not say."""
    return "" if share is None else f"{share:.0%}"


def _table(columns: Seq[str], rows: Seq[Seq[str]]) -> list[str]:
    head = ["| " + " | ".join(columns) + " |", "|" + "|".join("---" for _ in columns) + "|"]
    return head + ["| " + " | ".join(row) + " |" for row in rows]
