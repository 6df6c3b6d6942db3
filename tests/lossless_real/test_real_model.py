"""The default model, for real: `forerun verify` and its self-test as a test. Minutes."""

import pytest

from forerun.backends.cores import default_threads
from forerun.bench.verify import rotating_settings, verify
from forerun.llm import LLM, EngineOptions

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def test_the_default_model_is_lossless() -> None:
    options = EngineOptions()
    threads = max(2, default_threads())
    verdict = verify(lambda count: LLM(threads=count, speculation="off", options=options), options, threads, quick=True)
    assert verdict.first_difference is None
    assert len(verdict.rows) >= len(rotating_settings(1)) // 3


def test_an_injected_error_is_found() -> None:
    options = EngineOptions(fault="row_ulp")
    verdict = verify(
        lambda count: LLM(threads=count, speculation="off", options=options), options, 1, quick=True, stop_at_first=True
    )
    assert verdict.first_difference is not None
    assert verdict.first_difference.kind == "logits"
