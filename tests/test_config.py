"""Settings that could never work are refused on construction, with a reason."""

import pytest

from forerun.config import CacheConfig, SchedulerConfig, SpeculationConfig
from forerun.errors import UsageError


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        (CacheConfig, {"num_blocks": 0}, "at least one block"),
        (CacheConfig, {"num_blocks": 4, "block_size": 15}, "block size must be"),
        (CacheConfig, {"num_blocks": 4, "block_size": 0}, "block size must be"),
        (CacheConfig, {"num_blocks": 4, "codecs": ("bf16", "int3")}, "unknown KV format 'int3'"),
        (SchedulerConfig, {"max_rows": 0}, "max_rows must be at least 1"),
        (SchedulerConfig, {"max_outputs": 0}, "max_outputs must be at least 1"),
        (SchedulerConfig, {"max_num_seqs": 0}, "max_num_seqs must be at least 1"),
        (SchedulerConfig, {"max_model_len": -1}, "max_model_len must be at least 1"),
        (SchedulerConfig, {"max_rows": 8, "max_num_seqs": 9}, "every sequence needs a row"),
        (SchedulerConfig, {"max_outputs": 8, "max_num_seqs": 9}, "every sequence needs a row"),
        (SchedulerConfig, {"max_chunk": -1}, "max_chunk must be at least 0"),
        (SchedulerConfig, {"prefill_slowdown": 0.9}, "prefill_slowdown must be"),
        (SchedulerConfig, {"prefill_slowdown": float("nan")}, "prefill_slowdown must be"),
        (SchedulerConfig, {"prefill_slowdown": float("inf")}, "prefill_slowdown must be"),
        (SchedulerConfig, {"priority_s": -1.0}, "priority_s must be"),
        (SchedulerConfig, {"priority_s": float("nan")}, "priority_s must be"),
        (SpeculationConfig, {"max_depth": 0}, "max_depth must be between 1 and 63"),
        (SpeculationConfig, {"max_depth": 64}, "max_depth must be between 1 and 63"),
        (SpeculationConfig, {"max_draft_rows": -1}, "max_draft_rows must be at least 0"),
    ],
)
def test_refusals(config, options, message):
    with pytest.raises(UsageError, match=message):
        config(**options)


def test_extremes_that_work():
    CacheConfig(1, 256)
    SchedulerConfig(1, 1, 1, 1, 1.0, 0.0, 1)
    SpeculationConfig(max_depth=63, max_draft_rows=0)
