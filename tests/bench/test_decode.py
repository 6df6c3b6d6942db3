"""`bench decode` on a tiny model: figures that fit each other, a check of equality, refusals of the impossible."""

from dataclasses import replace
from pathlib import Path

import pytest

from forerun.bench.decode import DecodeResult, DecodeWish, bench_decode, check_speculation
from forerun.errors import UsageError
from forerun.llm import LLM, EngineOptions

WISH = DecodeWish(prompt_tokens=40, new_tokens=24, batches=(1, 3), speculations=("off", "ngram"), repeats=2)


def load(path: Path, wish: DecodeWish, **options: object) -> tuple[LLM, EngineOptions]:
    chosen = wish.options(EngineOptions(**options))  # type: ignore[arg-type]
    return LLM(str(path), speculation="off", threads=1, options=chosen), chosen


def run(path: Path, wish: DecodeWish = WISH, **options: object) -> tuple[list[DecodeResult], list[tuple[int, int]]]:
    llm, chosen = load(path, wish, **options)
    progress: list[tuple[int, int]] = []
    return bench_decode(llm, wish, chosen, lambda done, total: progress.append((done, total))), progress


def test_every_setting_is_measured_and_equal(tiny_model: Path) -> None:
    results, progress = run(tiny_model)
    assert [(result.batch, result.speculation) for result in results] == [
        (1, "off"),
        (1, "ngram"),
        (3, "off"),
        (3, "ngram"),
    ]
    assert all(result.is_equal for result in results)
    assert progress == [(done, WISH.num_runs) for done in range(1, WISH.num_runs + 1)]
    for result in results:
        assert len(result.decode_tokens_per_s_runs) == WISH.repeats
        assert min(result.prefill_tokens_per_s, result.decode_tokens_per_s, result.step_ms) > 0
        assert result.peak_memory_bytes > 10e6
        if result.speculation == "off":
            assert (result.mean_accepted_len, result.acceptance) == (1.0, None)
            # 23 steps of 1 or 3 rows yield the tokens behind the first; an interruption lowers the rate
            assert 0 < result.decode_tokens_per_s * result.step_ms / 1e3 < 1.5 * result.batch
        else:
            assert result.mean_accepted_len > 1  # the tiny model repeats itself
            assert result.acceptance is not None
            assert 0 < result.acceptance <= 1


def test_an_engine_that_depends_on_the_batch_is_not_equal(tiny_model: Path) -> None:
    results, _ = run(tiny_model, replace(WISH, repeats=1), fault="row_ulp")
    differences = {(result.batch, result.speculation): result.difference for result in results}
    assert differences[3, "off"] is None  # what all others are compared with
    # (3, "ngram") is free to decode plainly, in just the batches that all are compared with
    assert all(differences[setting] is not None for setting in ((1, "off"), (1, "ngram")))


@pytest.mark.parametrize(
    "change",
    [
        {"prompt_tokens": 0},
        {"new_tokens": 1},
        {"repeats": 0},
        {"batches": ()},
        {"batches": (0,)},
        {"speculations": ()},
        {"temperature": -1.0},
    ],
)
def test_nothing_to_measure_is_refused(change: dict) -> None:
    with pytest.raises(UsageError):
        replace(WISH, **change)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"prompt_tokens": 1000, "new_tokens": 100}, "1100 tokens but the context holds 1024"),
        ({"batches": (200,)}, "raise --kv-cache-bytes or lower --batch"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_numbers(tiny_model: Path, change: dict, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        run(tiny_model, replace(WISH, **change))


def test_an_unknown_drafter_is_refused_before_loading() -> None:
    check_speculation(("off", "ngram", "auto"))
    with pytest.raises(UsageError, match="unknown drafter 'fast'"):
        check_speculation(("off", "fast"))


def test_sampled_answers_are_equal_too(tiny_model: Path) -> None:
    results, _ = run(tiny_model, replace(WISH, repeats=1, temperature=5.0))
    assert all(result.is_equal for result in results)
    greedy, _ = run(tiny_model, replace(WISH, repeats=1))
    assert results[1].mean_accepted_len < greedy[1].mean_accepted_len
