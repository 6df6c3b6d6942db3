"""What the kernels are to reach, and whether a sitting of `bench kernels` reached it.

A target applies to some models and machines only, and some need a figure that this program cannot measure itself, such
as another engine's in the same sitting. Neither counts as passed or failed; the table says which and why.
"""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

Document = Mapping[str, Any]  # of bench/sitting

BILLION = 0.9e9  # parameters from which a model counts as one of a billion
SMALL = 0.2e9  # and up to which as one like SmolLM2-135M
LARGE_VOCABULARY = 150_000  # tokens
LARGE_FILE = 0.4e9  # bytes
AMX_PEAK = 5.8e12  # bf16 operations per second of the machine for which targets in tokens/s were set
LARGE_BUFFER = 64 << 20  # bytes
PASSED, FAILED, NOT_APPLICABLE, NOT_MEASURED = "pass", "FAIL", "not applicable", "not measured"


@dataclass(frozen=True)
class Result:
    """One target and one model. measured  with its unit; reason  why there is no verdict, "" where there is one"""

    target: str
    wanted: str
    measured: str
    status: str
    reason: str = ""


@dataclass(frozen=True)
class Peer:
    """Another engine's tokens per second on the same model in the same sitting; None where they were not measured."""

    prefill: float | None = None
    batch_decode: Mapping[int, float] | None = None

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "Peer":
        """From {"prefill_tokens_per_s": ..., "batch_decode_tokens_per_s": {"16": ..., "32": ...}}."""
        batches = document.get("batch_decode_tokens_per_s") or {}
        return cls(document.get("prefill_tokens_per_s"), {int(batch): speed for batch, speed in batches.items()})


@dataclass(frozen=True)
class _Limit:
    """A value that must be at least or at most a bound. shown  how values are written"""

    bound: float
    at_least: bool
    shown: Callable[[float], str]

    @property
    def text(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.shown(self.bound)}"

    def judge(self, target: str, value: float | None, *, excluded: str = "", missing: str = "") -> Result:
        """The result for a value.

        excluded  why the target does not apply, "" when it does       missing  why there is no value
        """
        if excluded:
            return Result(target, self.text, "-", NOT_APPLICABLE, excluded)
        if value is None:
            return Result(target, self.text, "-", NOT_MEASURED, missing)
        passed = value >= self.bound if self.at_least else value <= self.bound
        return Result(target, self.text, self.shown(value), PASSED if passed else FAILED)


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %"


def _times(value: float) -> str:
    return f"{value:.2f}x"


def _milliseconds(value: float) -> str:
    return f"{1e3 * value:.2f} ms"


def _seconds(value: float) -> str:
    return f"{value:.2f} s"


def _tokens(value: float) -> str:
    return f"{value:,.0f} tokens/s"


def evaluate(document: Document, peer: Peer | None = None, idle: Document | None = None) -> list[Result]:
    """Every target for the sitting's model, in the order of the issue that set them.

    peer  the other engine's figures       idle  a sitting on the idle machine, to compare the limits with
    """
    peer = peer or Peer()
    return [
        *_decode(document),
        *_step_cost(document),
        *_prefill(document, peer),
        *_batches(document, peer),
        *_long_context(document),
        _sampling(document),
        *_overhead(document),
        *_loading(document),
        _same_limits(document, idle),
    ]


# ---- single targets ----

NO_PEER = "needs llama.cpp's figure from this sitting: --peer"


def _decode(document: Document) -> list[Result]:
    model, fraction = document["model"], document["decode"]["fraction"]
    large = _unless_large(document)
    bits = "" if _width(model["file_bits"]) == 4 else f"the file has {model['file_bits']:.1f} bits a weight"
    small = "" if model["parameters"] <= SMALL else f"the model has {model['parameters'] / 1e6:,.0f} million parameters"
    ratio = model["packed_bytes_per_token"] / model["file_bytes_per_token"]
    return [
        _Limit(0.80, True, _percent).judge("decode, >= 1B, of file bytes / bandwidth", fraction, excluded=large),
        _Limit(1.08, False, _times).judge("decode, >= 1B, 4-bit: packed / file bytes", ratio, excluded=large or bits),
        _Limit(0.60, True, _percent).judge("decode, 135M, of file bytes / bandwidth", fraction, excluded=small),
    ]


def _step_cost(document: Document) -> list[Result]:
    """t(n) / t(1) of a chain at the shortest context; the bounds depend on the weights in memory and on the kernels."""
    table, bits = document["numerics_id"].split("/")[0], _width(document["model"]["packed_bits"])
    bounds: dict[int, float]
    if table.startswith("amx"):
        bounds = {8: 1.10, 16: 1.20, 32: 1.50} if bits == 4 else {8: 1.06, 16: 1.10, 32: 1.35}
    elif table.startswith("avx512"):
        bounds = {4: 1.2, 8: 1.6}
    elif table.startswith("avx2") and bits == 4:
        bounds = {4: 2.0}
    else:
        reason = f"the kernel table {table} with {bits}-bit weights has no such target"
        return [Result("whole step, >= 1B, t(n) / t(1)", "-", "-", NOT_APPLICABLE, reason)]
    return [
        _Limit(bound, False, _times).judge(
            f"whole step, >= 1B, {bits}-bit weights, t({rows}) / t(1)",
            _ratio(document, _shortest(document), rows),
            excluded=_unless_large(document),
            missing=f"no step of {rows} rows was timed",
        )
        for rows, bound in bounds.items()
    ]


def _prefill(document: Document, peer: Peer) -> list[Result]:
    prefill, large = document["prefill"], _unless_large(document)
    what = f"prefill of {prefill['tokens']}"
    speedup = prefill["tokens_per_s"] / peer.prefill if peer.prefill else None
    return [
        _Limit(0.35, True, _percent).judge(
            f"{what}, >= 1B, of the {prefill['peak_format']} peak", prefill["fraction"], excluded=large
        ),
        _Limit(4.0, True, _times).judge(f"{what}, >= 1B, / llama.cpp", speedup, excluded=large, missing=NO_PEER),
        _Limit(4000, True, _tokens).judge(
            f"{what}, SmolLM2",
            prefill["tokens_per_s"],
            excluded=_unless_smollm(document) or _unless_peak_reached(document),
        ),
    ]


def _batches(document: Document, peer: Peer) -> list[Result]:
    speeds = {cost["batch"]: cost["tokens_per_s"] for cost in document["engine"]}
    results = []
    for batch in (16, 32):
        other, own = (peer.batch_decode or {}).get(batch), speeds.get(batch)
        results.append(
            _Limit(4.0, True, _times).judge(
                f"decode, SmolLM2, batch {batch}, / llama.cpp",
                own / other if own and other else None,
                excluded=_unless_smollm(document),
                missing=NO_PEER if own else f"no batch of {batch} was timed",
            )
        )
    return results


def _long_context(document: Document) -> list[Result]:
    """At 8k: the attention of one row against the bandwidth, and 16 rows against one."""
    context, codec = 8192, document["numerics_id"].rpartition("kv-")[2]
    kernels = [k for k in document["kernels"] if (k["kind"], k["context"], k["rows"]) == ("attention", context, 1)]
    value = kernels[0]["memory_s"] / kernels[0]["seconds"] if kernels else None
    excluded = "" if codec == "bf16" else f"the KV format is {codec}"
    missing = f"no step at {context} tokens of context was timed"
    return [
        _Limit(0.70, True, _percent).judge(
            "decode at 8k, bf16 KV: KV bytes / bandwidth", value, excluded=excluded, missing=missing
        ),
        _Limit(1.3, False, _times).judge(
            "decode at 8k, bf16 KV: whole step, t(16) / t(1)",
            _ratio(document, context, 16),
            excluded=excluded,
            missing=missing,
        ),
    ]


def _sampling(document: Document) -> Result:
    vocab_size = document["model"]["vocab_size"]
    found = [d["over_greedy"] for d in document["draws"] if (d["method"], d["rows"]) == ("temperature 0.8", 16)]
    return _Limit(0.05, False, _percent).judge(
        "step of 16 rows at temperature 0.8, unfiltered, 152k tokens: time over greedy",
        found[0] if found else None,
        excluded="" if vocab_size >= LARGE_VOCABULARY else f"the vocabulary has {vocab_size:,} tokens",
        missing="no such draw was timed",
    )


def _overhead(document: Document) -> list[Result]:
    outside = {cost["batch"]: cost["outside_s"] for cost in document["engine"]}
    return [
        _Limit(bound, False, _milliseconds).judge(
            f"a step outside the kernels, batch {batch}",
            outside.get(batch),
            missing=f"no batch of {batch} was timed",
        )
        for batch, bound in ((1, 0.25e-3), (16, 1e-3))
    ]


def _loading(document: Document) -> list[Result]:
    """The time is scaled to a file of 1 GB; of small files it is mostly what does not depend on their size."""
    load = document["load"]
    size, peak, kept = load["file_bytes"], load["peak_bytes"], load["kept_bytes"]
    small = "" if size >= LARGE_FILE else f"the file has only {size / 1e6:.0f} MB"
    return [
        _Limit(3.0, False, _seconds).judge(
            "loading, for 1 GB of file, warm page cache", load["seconds"] * 1e9 / size, excluded=small
        ),
        _Limit(1.15, False, _times).judge(
            "loading, peak memory / memory that stays",
            peak / kept if peak and kept else None,
            missing="this system does not tell a process its memory",
        ),
    ]


def _same_limits(document: Document, idle: Document | None) -> Result:
    """The lowest ratio of a limit to that of the idle machine, over peaks and over large buffers."""
    ratios = []
    for group, key in (("bandwidths", "buffer_bytes"), ("peaks", "format")):
        entries = idle["limits"][group] if idle is not None else []
        before = {entry[key]: entry["all_threads"] for entry in entries}
        ratios += [
            entry["all_threads"] / before[entry[key]]
            for entry in document["limits"][group]
            if entry[key] in before and entry.get("buffer_bytes", LARGE_BUFFER) >= LARGE_BUFFER
        ]
    return _Limit(0.85, True, _percent).judge(
        "bandwidth and peaks, of those of the idle machine",
        min(ratios, default=None),
        missing="needs a document of the idle machine: --idle",
    )


# ---- what they are about ----


def _unless_large(document: Document) -> str:
    """Why a target for models of a billion parameters does not apply; "" when it does."""
    parameters = document["model"]["parameters"]
    return "" if parameters >= BILLION else f"the model has {parameters / 1e6:,.0f} million parameters"


def _unless_smollm(document: Document) -> str:
    """The same for targets that name SmolLM2-135M."""
    model = document["model"]
    return "" if "smollm2" in model["name"].lower() and model["parameters"] <= SMALL else "the model is another one"


def _unless_peak_reached(document: Document) -> str:
    """The same for targets in tokens/s, which were set on a machine of AMX_PEAK."""
    peaks = {entry["format"]: entry["all_threads"] for entry in document["limits"]["peaks"]}
    peak = peaks.get("amx_bf16", 0.0)
    return (
        "" if peak >= 0.85 * AMX_PEAK else f"the bf16 peak is {peak / 1e12:.1f} T, it was set for {AMX_PEAK / 1e12} T"
    )


def _width(bits: float) -> int:
    """4, 8 or 16: the format that so many bits a weight, scales and mixtures included, stand for."""
    return 4 if bits < 6.5 else 8 if bits < 12 else 16


def _shortest(document: Document) -> int:
    return int(min(cost["context"] for cost in document["steps"] if cost["kind"] == "chain"))


def _ratio(document: Document, context: int, rows: int) -> float | None:
    found = [c["ratio"] for c in document["steps"] if (c["kind"], c["context"], c["rows"]) == ("chain", context, rows)]
    return found[0] if found else None


# ---- as a document ----


def markdown(sittings: Seq[tuple[Document, Seq[Result]]]) -> str:
    """Tables of several sittings, to be committed: machine, what was measured, and every target."""
    parts = []
    for document, results in sittings:
        model, machine, limits = document["model"], document.get("machine", {}), document["limits"]
        counts = {status: sum(result.status == status for result in results) for status in (PASSED, FAILED)}
        equality = document["equality"]
        facts = {
            "machine": f"{machine.get('cpu', 'unknown')}, {document['threads']} threads",
            "numerics": f"`{document['numerics_id']}`",
            "model": f"{model['parameters'] / 1e6:,.0f} million parameters, {model['file_bits']:.1f} bits a weight in "
            f"the file, {model['packed_bits']:.1f} in memory",
            "versions": ", ".join(f"{name} {version}" for name, version in document.get("versions", {}).items()),
            "read bandwidth, all threads": ", ".join(
                f"{entry['buffer_bytes'] >> 20} MB {entry['all_threads'] / 1e9:.0f} GB/s"
                for entry in limits["bandwidths"]
                if entry["buffer_bytes"] >= LARGE_BUFFER
            ),
            "peaks, all threads": ", ".join(
                f"{entry['format']} {entry['all_threads'] / 1e12:.2f} T" for entry in limits["peaks"]
            ),
            "steadiness of the limits": _percent(limits["steadiness"]),
            "output equality": f"{equality['rows']} rows compared bit for bit, "
            + ("all equal" if equality["difference"] is None else f"NOT equal: {equality['difference']}"),
            "targets": f"{counts[PASSED]} passed, {counts[FAILED]} failed",
        }
        parts.append(f"## {model['name']}\n\n")
        parts.append("| | |\n|---|---|\n" + "".join(f"| {key} | {value} |\n" for key, value in facts.items()))
        parts.append("\n| target | wanted | measured | |\n|---|---|---|---|\n")
        parts += [
            f"| {r.target} | {r.wanted} | {r.measured} | {r.status}{f': {r.reason}' if r.reason else ''} |\n"
            for r in results
        ]
        parts.append("\n")
    return "".join(parts).rstrip("\n") + "\n"
