"""Options for speculation: typed values, what they amount to, and what is refused before a model is loaded."""

from pathlib import Path

import pytest

from forerun.cli.drafting import Drafting, DraftOptions, parse_draft_options
from forerun.config import SpeculationConfig
from forerun.errors import UsageError
from forerun.speculation import drafter as registry
from forerun.speculation.drafter import register
from tests.cli.conftest import Cli


def test_values_are_typed() -> None:
    entries = ["ngram.max-n=5", "draft-model.top-k=2", "fast=true", "slow=False", "share=0.5", "path=a=b", "name = x "]
    assert parse_draft_options(entries) == {
        "ngram.max_n": 5,
        "draft-model.top_k": 2,
        "fast": True,
        "slow": False,
        "share": 0.5,
        "path": "a=b",
        "name": "x",
    }
    assert parse_draft_options(None) == {}


@pytest.mark.parametrize("entry", ["max_n", "=5", "ngram.=5"])
def test_malformed_options_are_refused(entry: str) -> None:
    with pytest.raises(UsageError, match="is not KEY=VALUE"):
        parse_draft_options([entry])


def test_an_option_given_twice_is_refused() -> None:
    with pytest.raises(UsageError, match=r"ngram\.max_n is given twice"):
        parse_draft_options(["ngram.max_n=5", "ngram.max-n=6"])


def test_what_options_amount_to(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Drafting().chosen == SpeculationConfig("auto")
    assert Drafting(speculation="off").chosen.drafter == "off"
    options = {"max_draft": 4, "verification": "typical", "lossy": True, "draft_option": ["min_n=1"]}
    assert Drafting(speculation="ngram", **options).chosen == SpeculationConfig(  # type: ignore[arg-type]
        "ngram", max_depth=4, options={"min_n": 1}, verification="typical", lossy=True
    )
    monkeypatch.setattr(registry, "_FACTORIES", dict(registry._FACTORIES))
    register("draft-model", lambda model: None)  # type: ignore[arg-type,return-value]
    options = {"draft-model.model": "small.gguf"}
    assert DraftOptions(draft_model="small.gguf").config("ngram") == SpeculationConfig(
        "ngram+draft-model", options=dict(options)
    )
    assert DraftOptions(draft_model="small.gguf").config("draft-model").drafter == "draft-model"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--speculation", "ngram+magic"), "unknown drafter 'magic'"),
        (("--speculation", "ngram", "--draft-option", "max_n"), "is not KEY=VALUE"),
        (("--speculation", "ngram", "--draft-option", "magic=1"), "does not take these options"),
        (("--speculation", "ngram", "--draft-option", "other.size=1"), "the drafter 'other' is not used here"),
        (("--speculation", "off", "--max-draft", "3"), "nothing drafts with --speculation off"),
        (("--speculation", "off", "--draft-model", "x"), "nothing drafts with --speculation off"),
        (("--speculation", "off", "--verification", "rejection"), "leave out --verification rejection"),
        (("--top-k", "5"), "--top-k would do nothing at temperature 0"),
        (("--top-p", "0.9", "--min-p", "0.1", "--temperature", "0"), "--top-p and --min-p would do nothing"),
        (("--max-draft", "64"), "max_depth must be between 1 and 63"),
        (("--verification", "typical"), "needs lossy=True"),
        (("--lossy",), "lossy has no meaning with coupled"),
    ],
)
@pytest.mark.parametrize("command", [("generate", "hi"), ("chat",)])
def test_bad_input_is_one_line_and_2(
    cli: Cli, tiny_model: Path, command: tuple[str, ...], words: tuple[str, ...], message: str
) -> None:
    ran = cli(*command, *words, "--model", str(tiny_model))
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert message in ran.err


def test_options_change_the_speed_and_no_word(cli: Cli, tiny_model: Path) -> None:
    words = ("generate", "say it again and again", "--max-tokens", "40", "--ignore-eos", "--model", str(tiny_model))
    plain = cli(*words, "--speculation", "off")
    short = cli(*words, "--speculation", "ngram", "--max-draft", "1")
    long = cli(*words, "--speculation", "ngram", "--max-draft", "12", "--draft-option", "ngram.min_n=1")
    assert plain.out == short.out == long.out
    lengths = [float(ran.err.split("accepted length ")[1].split(",")[0]) for ran in (plain, short, long)]
    assert lengths[0] == 1.0 < lengths[1] <= 2.0 < lengths[2]
