"""Settings of an engine, as small frozen groups. Each part receives its own group, never the whole."""

import math
from dataclasses import dataclass, field

from forerun.errors import UsageError


@dataclass(frozen=True)
class CacheConfig:
    """KV store. `num_blocks` is decided by the memory plan before the engine is built.

    codecs  format of each stack of KV layers, the target's first
    """

    num_blocks: int
    block_size: int = 32
    codecs: tuple[str, ...] = ("bf16",)
    prefix_caching: bool = True

    def __post_init__(self) -> None:
        if self.block_size not in (16, 32, 64, 128, 256):
            raise UsageError(f"block size must be 16, 32, 64, 128 or 256, got {self.block_size}")
        for codec in self.codecs:
            if codec not in ("bf16", "fp32"):
                raise UsageError(f"unknown KV format {codec!r}: choose bf16 or fp32")
        if self.num_blocks < 1:
            raise UsageError(f"the KV cache needs at least one block of {self.block_size} tokens; give it more memory")


@dataclass(frozen=True)
class SchedulerConfig:
    """How much one step may carry.

    max_rows          rows in one batch
    max_outputs       rows whose logits are computed in one batch
    max_num_seqs      sequences running together
    max_model_len     tokens of prompt and output together
    prefill_slowdown  how many times the predicted time of the others' plain decoding a step may take with prefill
    priority_s        seconds of waiting that make up for one level of a request's priority
    max_chunk         longest prefill chunk of one sequence (tests force short ones); 0 means max_rows
    """

    max_rows: int = 512
    max_outputs: int = 256
    max_num_seqs: int = 64
    max_model_len: int = 2048
    prefill_slowdown: float = 1.5
    priority_s: float = 30.0
    max_chunk: int = 0

    def __post_init__(self) -> None:
        for name in ("max_rows", "max_outputs", "max_num_seqs", "max_model_len"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.max_chunk < 0:
            raise UsageError(f"max_chunk must be at least 0 (0 is no limit), got {self.max_chunk}")
        if not (math.isfinite(self.prefill_slowdown) and self.prefill_slowdown >= 1):
            raise UsageError(f"prefill_slowdown must be at least 1, got {self.prefill_slowdown}")
        if not (math.isfinite(self.priority_s) and self.priority_s >= 0):
            raise UsageError(f"priority_s must be seconds, at least 0, got {self.priority_s}")
        if self.max_num_seqs > min(self.max_rows, self.max_outputs):
            raise UsageError("max_num_seqs cannot exceed max_rows or max_outputs: every sequence needs a row")


VERIFICATIONS = ("coupled", "rejection", "block", "typical")


@dataclass(frozen=True)
class SpeculationConfig:
    """Which drafters propose, how much at most, and how their drafts are verified.

    drafter           "off", "auto", a registered name, or several joined by "+", asked in this order
    max_depth         longest draft of one sequence; None: what pays, or with a fixed budget what fills the row tile
    max_draft_rows    draft rows of all sequences in one step
    options           "option" for all drafters, or "drafter.option" for one: passed to their constructors
    verification      "coupled": the same tokens with any draft; "rejection", "block": the same distribution; "typical":
                      neither, so it needs `lossy`
    lossy             permits what changes the distribution
    budget            "auto": learned while running, so much as pays; "fixed": max_depth for every sequence
    """

    drafter: str = "auto"
    max_depth: int | None = None
    max_draft_rows: int = 32
    options: dict[str, bool | int | float | str] = field(default_factory=dict)
    verification: str = "coupled"
    lossy: bool = False
    budget: str = "auto"

    def __post_init__(self) -> None:
        if self.max_depth is not None and not 1 <= self.max_depth <= 63:
            raise UsageError(f"max_depth must be between 1 and 63, got {self.max_depth}")
        if self.max_draft_rows < 0:
            raise UsageError(f"max_draft_rows must be at least 0, got {self.max_draft_rows}")
        if self.verification not in VERIFICATIONS:
            raise UsageError(f"unknown verification {self.verification!r}: choose {', '.join(VERIFICATIONS)}")
        if self.budget not in ("auto", "fixed"):
            raise UsageError(f"unknown budget {self.budget!r}: choose auto or fixed")
        if self.verification == "typical" and not self.lossy:
            raise UsageError("typical acceptance changes what the model says: it needs lossy=True")
        if self.lossy and self.verification != "typical":
            raise UsageError(f"lossy has no meaning with {self.verification} verification, which loses nothing")
