"""FixedBudget: how many draft nodes a sequence may have in a step.

A fixed maximum per sequence and per step, clamped to what the sequence can still use: a draft of depth d can yield
d + 1 tokens, so depth never exceeds what is left of max_tokens and of the context minus one.
"""

from forerun.config import SpeculationConfig
from forerun.sequence import Sequence

DEFAULT_DEPTH = 15


class FixedBudget:
    """Same limit for every sequence that decodes."""

    def __init__(self, config: SpeculationConfig, max_model_len: int) -> None:
        self._config = config
        self._max_depth = config.max_depth if config.max_depth is not None else DEFAULT_DEPTH
        self._max_model_len = max_model_len

    def depth(self, sequence: Sequence, num_decoding: int) -> int:
        """Longest useful draft of `sequence` when `num_decoding` sequences share the step."""
        left = self._max_model_len - len(sequence.tokens)
        max_tokens = sequence.params.max_tokens
        if max_tokens is not None:
            left = min(left, max_tokens - sequence.num_output)
        share = self._config.max_draft_rows // max(1, num_decoding)
        return max(0, min(self._max_depth, share, left - 1))
