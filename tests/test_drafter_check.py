"""check_drafters: who is checked, what is measured, and the cause that a warning names."""

import logging
from collections.abc import Sequence as Seq
from pathlib import Path

import pytest

from forerun.drafter_check import DrafterCheck, check_drafters, likely_cause
from forerun.llm import LLM
from forerun.speculation import drafter as registry
from forerun.speculation.drafter import Ask, register
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


def check(path: Path, speculation: str) -> list[DrafterCheck]:
    return check_drafters(LLM(str(path), speculation=speculation, threads=1, max_model_len=512))


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


@pytest.mark.parametrize("shares", [(0.2, 0.2), (None, None), (0.9, None)])
def test_no_cause(shares: tuple[float | None, float | None]) -> None:
    assert likely_cause(*shares) is None
