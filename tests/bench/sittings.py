"""A document of `bench kernels` made by hand, for tests of what is derived from one."""

import copy
from typing import Any

_CHAIN = {1: 1.0, 2: 1.01, 4: 1.02, 8: 1.05, 16: 1.10, 32: 1.36, 64: 2.0}

_DOCUMENT: dict[str, Any] = {
    "command": "bench kernels",
    "machine": {"cpu": "Test CPU", "threads": 2},
    "versions": {"forerun": "0", "python": "3"},
    "format": "forerun-kernels-1",
    "quick": False,
    "numerics_id": "amx_bf16/k1/w-bf16/a-bf16/kv-bf16",
    "threads": 2,
    "model": {
        "name": "Qwen 1.5B",
        "parameters": 1_540_000_000,
        "vocab_size": 151_665,
        "file_bytes": 3_000_000_000,
        "file_bytes_per_token": 3_000_000_000,
        "packed_bytes_per_token": 3_100_000_000,
        "file_bits": 16.0,
        "packed_bits": 16.5,
    },
    "limits": {
        "threads": 2,
        "bandwidths": [
            {"buffer_bytes": 1 << 20, "one_thread": 1e11, "all_threads": 2e11, "loop": "avx512"},
            {"buffer_bytes": 1 << 30, "one_thread": 1.6e10, "all_threads": 3.0e10, "loop": "avx512"},
        ],
        "peaks": [{"format": "amx_bf16", "one_thread": 2.9e12, "all_threads": 5.8e12}],
        "rounds": 3,
        "steadiness": 0.95,
    },
    "load": {"seconds": 6.0, "file_bytes": 3_000_000_000, "peak_bytes": 3_600_000_000, "kept_bytes": 3_200_000_000},
    "kernels": [
        {
            "kind": kind,
            "inputs": 1536,
            "outputs": 1536,
            "rows": rows,
            "context": context,
            "count": 28,
            "seconds": 1e-3,
            "num_bytes": 2.4e7,
            "operations": 1e9 * rows,
            "memory_s": 0.8e-3,
            "compute_s": 0.02e-3 * rows,
            "share": 0.5,
            "bound": "bandwidth" if rows <= 16 else "compute",
            "fraction": 0.8 if rows <= 16 else 0.9,
        }
        for kind, context in (("linear", 128), ("attention", 128), ("attention", 8192))
        for rows in (1, 16, 64)
    ],
    "steps": [
        {"kind": kind, "context": context, "rows": rows, "seconds": 0.1 * ratio, "ratio": ratio}
        for context in (128, 8192)
        for kind in ("chain", "sequences")
        for rows, ratio in _CHAIN.items()
    ]
    + [{"kind": "prefill", "context": 0, "rows": 512, "seconds": 0.7, "ratio": 1.0}],
    "decode": {"seconds": 0.1, "limit_s": 0.085, "fraction": 0.85},
    "prefill": {
        "tokens": 512,
        "tokens_per_s": 731.0,
        "operations": 1.6e12,
        "peak_format": "amx_bf16",
        "fraction": 0.39,
    },
    "draws": [
        {"method": "greedy", "rows": 16, "vocab_size": 151_665, "seconds": 1e-3, "over_greedy": 0.0},
        {"method": "temperature 0.8", "rows": 16, "vocab_size": 151_665, "seconds": 7e-3, "over_greedy": 0.06},
    ],
    "engine": [
        {"batch": 1, "step_s": 0.1, "outside_s": 0.2e-3, "tokens_per_s": 10.0},
        {"batch": 16, "step_s": 0.11, "outside_s": 1.2e-3, "tokens_per_s": 145.0},
        {"batch": 32, "step_s": 0.14, "outside_s": 2e-3, "tokens_per_s": 228.0},
    ],
    "equality": {"rows": 129, "difference": None},
}


def document(**changes: Any) -> dict[str, Any]:
    """A fresh document; a change that is a mapping changes the entries it names."""
    made = copy.deepcopy(_DOCUMENT)
    for name, value in changes.items():
        made[name] = {**made[name], **value} if isinstance(value, dict) else value
    return made


def smollm(**changes: Any) -> dict[str, Any]:
    """The same of a model like SmolLM2-135M."""
    model = {"name": "SmolLM2 135M", "parameters": 134_515_008, "vocab_size": 49_152, "file_bytes": 98_000_000}
    return document(**{"model": model, "load": {"file_bytes": 98_000_000}, **changes})
