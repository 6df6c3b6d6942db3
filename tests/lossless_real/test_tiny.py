"""Whole engine, real kernels, tiny models: no setting changes a token or a bit of the logits behind it."""

from dataclasses import replace

import pytest

from forerun.bench.drafters import DRAFTERS
from forerun.bench.lossless import Cell, Row, Setting, answer_one_plainly, compare
from forerun.bench.verify import rotating_settings
from forerun.sequence import SamplingParams
from tests.lossless_real.conftest import BACKENDS, MODELS, Subject


def check(subject: Subject, settings: list[Setting]) -> list[Row]:
    rows = [compare(subject.llm, setting, subject.cells, subject.plain, subject.options) for setting in settings]
    assert [str(difference) for row in rows for difference in row.differences] == []
    return rows


def test_answers_are_worth_comparing(subject) -> None:
    """Different prompts get different answers, and an answer is not one token repeated."""
    plain = subject("llama", "best").plain
    assert len({answer.tokens for answer in plain.values()}) == len(plain)
    assert all(len(set(answer.tokens)) > 3 for answer in plain.values())
    assert all(len(answer.hashes) == len(answer.tokens) for answer in plain.values())


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_no_setting_changes_an_answer(subject, model: str, backend: str) -> None:
    rows = check(subject(model, backend), rotating_settings(1))
    # The comparison has gone through all that could have broken it.
    accepted = {name: sum(row.accepted for row in rows if row.setting.drafter == name) for name in DRAFTERS}
    assert min(accepted[name] for name in ("ngram", "oracle", "branches")) > 5
    assert all(row.drafted > row.accepted for row in rows if row.setting.drafter in ("branches", "random", "garbage"))
    assert all(row.partial_hits > 0 for row in rows if row.setting.cache)
    assert sum(row.preempted for row in rows if row.setting.tight) > 3


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("backend", ["portable", "best"])
def test_threads_do_not_change_an_answer(subject, backend: str, threads: int) -> None:
    one, many = subject("llama", backend), subject("llama", backend, threads)
    assert many.plain == one.plain
    check(replace(many, plain=one.plain), rotating_settings(threads)[threads % 2 :: 2])


@pytest.mark.parametrize("chunk", [1, 2, 5, 15, 17])
def test_prefill_chunks(subject, chunk: int) -> None:
    check(subject("llama", "best"), [Setting("off", 3, chunk), Setting("branches", 8, chunk, cache=True, tight=True)])


@pytest.mark.parametrize("backend", ["portable", "best"])
@pytest.mark.parametrize("shared", [15, 16, 17, 31, 32, 33])
@pytest.mark.parametrize("tail", [1, 2, 18])
def test_prefix_hits_at_block_borders(subject, backend: str, shared: int, tail: int) -> None:
    """Two prompts that have exactly `shared` tokens in common: the second one's answer does not know it."""
    it = subject("qwen2", backend)
    first = tuple(range(100, 150))
    second = (*first[:shared], *range(300, 300 + tail))
    cells = [Cell("first", first, SamplingParams(max_tokens=3)), Cell("second", second, SamplingParams(max_tokens=12))]
    plain = {cell.name: answer_one_plainly(it.llm, cell, it.options) for cell in cells}
    row = compare(it.llm, Setting("branches", 1, cache=True), cells, plain, it.options)
    assert [str(difference) for difference in row.differences] == []
    # `first` is found again up to its last token: it had also warmed the cache; one token is always computed.
    assert row.cached == len(first) - len(first) % 16 + shared


class TestTheComparisonItself:
    """Damaged engines, which the comparison must find."""

    def differs(self, subject: Subject, setting: Setting) -> str:
        row = compare(subject.llm, setting, subject.cells, subject.plain, subject.options)
        return row.differences[0].kind if row.differences else ""

    def test_one_ulp_in_batches(self, subject, monkeypatch: pytest.MonkeyPatch) -> None:
        it = subject("llama", "best")
        monkeypatch.setattr(it.llm.backend, "_fault", "row_ulp")
        assert self.differs(it, Setting("off", 3)) == "logits"
        assert self.differs(it, Setting("ngram", 1)) == "logits"
        assert self.differs(it, Setting("off", 1, chunk=1)) == ""  # never two rows, never an error

    @pytest.mark.parametrize(
        ("call", "setting"),
        [
            ("move_kv", Setting("branches", 1)),  # accepted rows stay where the tree had them
            ("copy_blocks", Setting("off", 1, cache=True)),  # a partial hit without its copy
        ],
    )
    def test_kv_that_is_not_moved(self, subject, monkeypatch: pytest.MonkeyPatch, call: str, setting: Setting) -> None:
        it = subject("llama", "best")
        assert self.differs(it, setting) == ""
        monkeypatch.setattr(it.llm.backend, call, lambda moves: None)
        assert self.differs(it, setting) in ("logits", "token")
