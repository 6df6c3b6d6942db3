"""Targets: the arithmetic of each, and the difference between missed, not applicable and not measured."""

from typing import Any

import pytest

from forerun.bench.targets import FAILED, NOT_APPLICABLE, NOT_MEASURED, PASSED, Peer, Result, evaluate, markdown
from tests.bench.sittings import document, smollm

PEER = Peer.of({"prefill_tokens_per_s": 185.0, "batch_decode_tokens_per_s": {"16": 36.0, "32": 60.0}})


def find(results: list[Result], *words: str) -> Result:
    """The one result whose target holds all words."""
    found = [result for result in results if all(word in result.target for word in words)]
    assert len(found) == 1, [result.target for result in found]
    return found[0]


@pytest.mark.parametrize(
    ("words", "status", "measured"),
    [
        (("decode, >= 1B, of file",), PASSED, "85 %"),
        (("packed / file",), NOT_APPLICABLE, "-"),
        (("decode, 135M",), NOT_APPLICABLE, "-"),
        (("t(8) / t(1)",), PASSED, "1.05x"),
        (("16-bit weights, t(16)",), PASSED, "1.10x"),
        (("t(32) / t(1)",), FAILED, "1.36x"),
        (("of the amx_bf16 peak",), PASSED, "39 %"),
        (("prefill of 512, >= 1B, / llama.cpp",), FAILED, "3.95x"),
        (("prefill of 512, SmolLM2",), NOT_APPLICABLE, "-"),
        (("batch 16, / llama.cpp",), NOT_APPLICABLE, "-"),
        (("8k", "bandwidth"), PASSED, "80 %"),
        (("8k", "t(16)"), PASSED, "1.10x"),
        (("152k",), FAILED, "6 %"),
        (("outside the kernels, batch 16",), FAILED, "1.20 ms"),
        (("loading, for 1 GB",), PASSED, "2.00 s"),
        (("loading, peak",), PASSED, "1.12x"),
        (("idle machine",), NOT_MEASURED, "-"),
    ],
)
def test_a_large_model(words: tuple[str, ...], status: str, measured: str) -> None:
    result = find(evaluate(document(), PEER), *words)
    assert (result.status, result.measured) == (status, measured)
    assert bool(result.reason) == (status in (NOT_APPLICABLE, NOT_MEASURED))


def test_bounds_themselves_pass() -> None:
    exact = document(decode={"fraction": 0.80}, engine=[{"batch": 1, "outside_s": 0.25e-3, "tokens_per_s": 1.0}])
    results = evaluate(exact)
    assert find(results, "decode, >= 1B, of file").status == PASSED
    assert next(r for r in results if r.target.endswith("kernels, batch 1")).status == PASSED
    assert find(results, "outside the kernels, batch 16").status == NOT_MEASURED
    over = document(decode={"fraction": 0.7999})
    assert find(evaluate(over), "decode, >= 1B, of file").status == FAILED


def test_weights_of_four_bits_have_other_bounds() -> None:
    model = {"file_bits": 4.9, "packed_bits": 5.2, "file_bytes_per_token": 1000, "packed_bytes_per_token": 1090}
    results = evaluate(document(model=model))
    assert find(results, "packed / file").measured == "1.09x"
    assert find(results, "packed / file").status == FAILED
    assert find(results, "4-bit weights, t(32)").wanted == "<= 1.50x"
    assert find(results, "4-bit weights, t(32)").status == PASSED


@pytest.mark.parametrize(
    ("table", "bits", "bounds"),
    [
        ("avx512", 8.5, {"t(4)": "<= 1.20x", "t(8)": "<= 1.60x"}),
        ("avx2", 4.5, {"t(4)": "<= 2.00x"}),
        ("avx2", 8.5, {}),
        ("portable", 16.0, {}),
    ],
)
def test_other_kernel_tables_have_other_bounds(table: str, bits: float, bounds: dict[str, str]) -> None:
    made = document(numerics_id=f"{table}/k1/w-x/a-int8/kv-bf16", model={"packed_bits": bits})
    steps = [result for result in evaluate(made) if "whole step, >= 1B" in result.target]
    if not bounds:
        assert [result.status for result in steps] == [NOT_APPLICABLE]
    assert {name: find(steps, name).wanted for name in bounds} == bounds


def test_a_small_model() -> None:
    results = evaluate(smollm(), PEER)
    assert find(results, "decode, 135M").measured == "85 %"
    assert find(results, "prefill of 512, SmolLM2").status == FAILED
    assert find(results, "batch 16, / llama.cpp").measured == "4.03x"
    assert find(results, "batch 32, / llama.cpp").status == FAILED
    assert find(results, "loading, for 1 GB").status == NOT_APPLICABLE
    assert find(results, "152k").status == NOT_APPLICABLE
    assert "49,152" in find(results, "152k").reason


def test_tokens_per_second_are_asked_of_the_machine_they_were_set_for_only() -> None:
    slower = smollm(limits={"peaks": [{"format": "amx_bf16", "one_thread": 1e12, "all_threads": 2e12}]})
    result = find(evaluate(slower), "prefill of 512, SmolLM2")
    assert (result.status, result.reason) == (NOT_APPLICABLE, "the bf16 peak is 2.0 T, it was set for 5.8 T")


def test_without_the_other_engine_nothing_is_claimed() -> None:
    results = evaluate(smollm())
    assert {r.status for r in results if "SmolLM2, batch" in r.target} == {NOT_MEASURED}
    assert "--peer" in find(results, "batch 16, / llama.cpp").reason


def test_another_kv_format_is_no_subject() -> None:
    results = evaluate(document(numerics_id="amx_bf16/k1/w-bf16/a-bf16/kv-fp32"))
    assert {result.status for result in results if "8k" in result.target} == {NOT_APPLICABLE}


def test_limits_are_compared_with_the_idle_machine() -> None:
    def status(rate: float, peak: float = 5.8e12) -> str:
        bandwidths = [{"buffer_bytes": 1 << 20, "all_threads": 9e11}, {"buffer_bytes": 1 << 30, "all_threads": rate}]
        idle = document(limits={"bandwidths": bandwidths, "peaks": [{"format": "amx_bf16", "all_threads": peak}]})
        return find(evaluate(document(), idle=idle), "idle machine").status

    assert status(3.1e10) == PASSED  # the small buffer does not count
    assert status(3.6e10) == FAILED
    assert status(3.1e10, peak=7e12) == FAILED


def test_a_system_without_memory_figures() -> None:
    unknown: dict[str, Any] = {"peak_bytes": None, "kept_bytes": None}
    assert find(evaluate(document(load=unknown)), "loading, peak").status == NOT_MEASURED


def test_markdown_holds_every_target_of_every_sitting() -> None:
    judged = [(made, evaluate(made)) for made in (document(), smollm())]
    text = markdown(judged)
    rows = [line for line in text.splitlines() if line.startswith("| ") and line.count("|") == 5]
    assert len(rows) == sum(len(results) for _, results in judged) + 2  # and two headings
    assert "## Qwen 1.5B" in text
    assert "## SmolLM2 135M" in text
    assert "Test CPU, 2 threads" in text
    assert "amx_bf16 5.80 T" in text
    assert "129 rows compared bit for bit, all equal" in text
    unequal = document(equality={"difference": "row 3"})
    assert "NOT equal: row 3" in markdown([(unequal, evaluate(unequal))])
