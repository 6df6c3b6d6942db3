"""check_drafters: who is checked, what is measured, and the cause that a warning names."""

import logging
from collections.abc import Sequence as Seq
from pathlib import Path

import pytest

from forerun.drafter_check import DrafterCheck, check_drafters, likely_cause
from forerun.engine import EngineStats
from forerun.errors import UsageError
from forerun.llm import LLM, EngineOptions
from forerun.speculation import drafter as registry
from forerun.speculation.allocation.allocator import Allocator
from forerun.speculation.drafter import Ask, make_drafter, register
from forerun.speculation.drafters.ngram import NgramDrafter
from forerun.speculation.tree import DraftTree


class Agreeing(NgramDrafter):
    """Looks like a drafter that runs a model; the tiny model repeats itself, so that it is often right."""

    name = "agreeing"
    is_paid = True


class Foreign(NgramDrafter):
    """Drafts ids that mean nothing here."""

    name = "foreign"
    is_paid = True

    def propose(self, asks: Seq[Ask]) -> list[DraftTree | None]:
        return [DraftTree.chain(ask.sequence.tokens[-1], [1], source=self.name) for ask in asks]


class Silent(Agreeing):
    """Never drafts."""

    name = "silent"

    def propose(self, asks: Seq[Ask]) -> list[DraftTree | None]:
        return [None for _ in asks]


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_FACTORIES", dict(registry._FACTORIES))
    for kind in (Agreeing, Foreign, Silent):
        register(kind.name, kind)


UNCHECKED = EngineOptions(check_drafters=False)


def load(path: Path, speculation: str, options: EngineOptions | None = UNCHECKED, max_model_len: int = 512) -> LLM:
    return LLM(str(path), speculation=speculation, threads=1, max_model_len=max_model_len, options=options)


def check(path: Path, speculation: str) -> list[DrafterCheck]:
    return check_drafters(load(path, speculation))


def test_only_drafters_that_run_a_model_are_checked(tiny_model: Path) -> None:
    assert check(tiny_model, "off") == check(tiny_model, "ngram") == []
    assert [one.drafter for one in check(tiny_model, "ngram+agreeing+foreign")] == ["agreeing", "foreign"]


def test_one_that_agrees_is_not_warned_about(tiny_model: Path, caplog: pytest.LogCaptureFixture) -> None:
    (found,) = check(tiny_model, "agreeing")
    assert found.cause is None
    assert found.text is not None
    assert found.chat is not None
    assert min(found.text, found.chat) > 0.3
    assert caplog.records == []


def test_one_that_never_agrees_is_warned_about(tiny_model: Path, caplog: pytest.LogCaptureFixture) -> None:
    (found,) = check(tiny_model, "foreign")
    assert (found.text, found.chat) == (0.0, 0.0)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "drafter foreign agrees with the model on 0% of text and 0% of chat" in record.message
    assert "another tokenizer" in record.message


@pytest.mark.parametrize("is_on", [True, False])
def test_a_model_is_loaded_with_the_check_or_without(
    tiny_model: Path, caplog: pytest.LogCaptureFixture, is_on: bool
) -> None:
    load(tiny_model, "ngram+foreign", EngineOptions(check_drafters=is_on))
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * is_on


def test_the_check_leaves_no_trace_but_its_warning(tiny_model: Path) -> None:
    llm = load(tiny_model, "foreign", None)
    assert llm.engine.stats == EngineStats()
    assert llm.engine.speculator.stats.drafts == 0
    assert isinstance(llm.engine.speculator.budget, Allocator)
    assert not llm.engine.has_work


def test_a_drafter_that_runs_no_model_costs_nothing(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("nothing is to be generated")

    monkeypatch.setattr(LLM, "generate", never)
    load(tiny_model, "auto", None)


def test_prompts_that_do_not_fit_are_left_out(tiny_model: Path) -> None:
    assert check_drafters(load(tiny_model, "foreign", None, max_model_len=16)) == [
        DrafterCheck("foreign", None, None, None)
    ]


def test_a_template_that_refuses_is_no_error(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise UsageError("no")

    monkeypatch.setattr(LLM, "chat_prompt", refuse)
    (found,) = check_drafters(load(tiny_model, "foreign", None))
    assert (found.text, found.chat) == (0.0, None)


def test_without_a_template_text_alone_is_checked(tiny_model_without_template: Path) -> None:
    (found,) = check(tiny_model_without_template, "foreign")
    assert (found.text, found.chat) == (0.0, None)


def test_one_that_never_drafts_is_no_case(tiny_model: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert check(tiny_model, "silent") == [DrafterCheck("silent", None, None, None)]
    assert caplog.records == []


@pytest.mark.parametrize(
    ("text", "chat", "words"),
    [
        (0.0, 0.02, "tokenizer"),
        (0.0, None, "tokenizer"),
        (0.5, 0.1, "chat template"),
        (0.15, 0.1, "another version"),
        (0.1, None, "another version"),
        (0.1, 0.5, "another version"),
    ],
)
def test_causes(text: float | None, chat: float | None, words: str) -> None:
    assert words in str(likely_cause(text, chat))


@pytest.mark.parametrize(
    ("name", "words"),
    [("early-exit", "early-exit.layer"), ("layer-skip", "bench layer-skip"), ("self-int4", "four bits")],
)
@pytest.mark.parametrize("shares", [(0.0, 0.02), (0.5, 0.1), (0.15, None)])
def test_a_part_of_the_model_is_no_other_model(
    name: str, words: str, shares: tuple[float | None, float | None]
) -> None:
    cause = str(likely_cause(*shares, make_drafter(name, {}).weakness))  # type: ignore[attr-defined]
    assert words in cause
    assert "made for another" not in cause
    assert likely_cause(0.9, None, "weak") is None


@pytest.mark.parametrize("shares", [(0.2, 0.2), (None, None), (0.9, None)])
def test_no_cause(shares: tuple[float | None, float | None]) -> None:
    assert likely_cause(*shares) is None
