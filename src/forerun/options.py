"""EngineOptions: settings of an LLM that few users need."""

from dataclasses import dataclass
from pathlib import Path

from forerun.profile import Profile


@dataclass(frozen=True)
class EngineOptions:
    """Settings that few users need.

    backend         "cpu" (native kernels) or "reference" (numpy: slow and obvious, the oracle)
    isa             kernel table of the cpu backend; None: the best one, or $FORERUN_ISA
    weights         of the cpu backend: "file" (its own bits where kernels exist, else bf16), "bf16"; "int8" and "int4"
                    quantise matrices that have more bits, which changes what the model says
    kv_format       "bf16" or "fp32"
    block_size      tokens per KV block
    prefix_caching  reuse the KV of prompts that begin alike
    max_num_seqs    sequences that run together
    max_rows        rows of one step, which bounds prefill chunks
    max_outputs     rows of one step whose logits are computed: drawing sequences and their draft nodes
    max_chunk       longest prefill chunk of one sequence, 0 for no limit of its own
    prefill_slowdown  how many times the plain decoding of others a step may take in which a prompt is read beside them
    fault           deliberate damage, for `forerun verify --self-test` only
    drafter_files   folder of what drafters keep between runs; None: the user's cache
    check_drafters  answer a few short prompts with each drafter that runs a model once it is loaded, and log a warning
                    about one that hardly ever agrees (drafter_check)
    profile         records the time of phases and operations; None: that of the process, if FORERUN_PROFILE is 1
    """

    backend: str = "cpu"
    isa: str | None = None
    weights: str = "file"
    kv_format: str = "bf16"
    block_size: int = 32
    prefix_caching: bool = True
    max_num_seqs: int = 32
    max_rows: int = 512
    max_outputs: int = 96
    max_chunk: int = 0
    prefill_slowdown: float = 1.5
    fault: str | None = None
    drafter_files: Path | None = None
    check_drafters: bool = True
    profile: Profile | None = None
