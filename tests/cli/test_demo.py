"""`forerun demo`: what it shows, its exit code, its arithmetic; with a tiny model and short answers."""

import json
import re
from pathlib import Path

import pytest

from forerun.cli.comparison import Compared, Comparison
from forerun.cli.comparison_report import total_speedup, verdict
from forerun.cli.demo import read_prompts
from forerun.results import Choice, GenerationStats
from forerun.sequence import FinishReason
from tests.cli.conftest import Cli


def choice(tokens: tuple[int, ...], *, seconds: float = 0.1, steps: int = 2, hashes: str = "") -> Choice:
    stats = GenerationStats(5, len(tokens), steps, 0, 0, (), (), {}, {}, 0, 0, 0.1, seconds, 1.0)
    bits = tuple((hashes or "x" * len(tokens)).encode()[i : i + 1] for i in range(len(tokens)))
    return Choice(0, "", tokens, FinishReason.LENGTH, 0, stats, logits_hashes=bits)


def compared(off: Choice, on: Choice) -> Compared:
    return Compared("one", {"off": off, "on": on}, {"off": [off], "on": [on]})


@pytest.fixture
def short_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo's own prompts are too long for a tiny model."""
    monkeypatch.setattr("forerun.cli.demo.read_prompts", lambda: {"copy": "one two three " * 3, "other": "Hello"})


def test_the_prompts_are_those_of_the_contract() -> None:
    prompts = read_prompts()
    assert list(prompts) == ["chat", "code", "summary", "edit"]
    assert all(text == text.strip() and len(text) > 20 for text in prompts.values())


@pytest.mark.usefixtures("short_prompts")
def test_a_pipe_gets_text_table_and_verdict(cli: Cli, tiny_model: Path) -> None:
    ran = cli("demo", "--model", str(tiny_model), "--max-tokens", "24")
    assert (ran.code, ran.err) == (0, "")
    assert "\x1b" not in ran.out
    assert ran.out.count("--- speculation off ---\n") == ran.out.count("--- speculation on ---\n") == 2
    assert re.search(r"^copy +24 +[\d.]+ +[\d.]+ +[\d.]+ +[\d.]+x +yes", ran.out, re.MULTILINE)
    assert "Identical: with speculation off and on all 48 tokens are the same" in ran.out
    off, on = re.findall(r"--- speculation o\w+ ---\n(.*?)(?=\n---|\n===)", ran.out, re.DOTALL)[:2]
    assert off == on


@pytest.mark.usefixtures("short_prompts")
def test_json_is_one_document(cli: Cli, tiny_model: Path) -> None:
    ran = cli("demo", "--model", str(tiny_model), "--max-tokens", "24", "--json", "--speculation", "ngram")
    assert (ran.code, ran.err) == (0, "")
    made = json.loads(ran.out)
    assert made["identical"] is True
    assert [prompt["name"] for prompt in made["prompts"]] == ["copy", "other"]
    for prompt in made["prompts"]:
        assert prompt["timed_runs"] == 3
        off, on = prompt["tokens_per_s"]["off"], prompt["tokens_per_s"]["on"]
        assert prompt["speedup"] == pytest.approx(on / off)
        assert 1 <= prompt["mean_accepted_len"] <= 16


@pytest.mark.usefixtures("short_prompts")
def test_a_difference_is_told_and_is_exit_code_1(cli: Cli, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Comparison.run

    def broken(self: Comparison, *arguments: object) -> list[Compared]:
        made = run(self, *arguments)  # type: ignore[arg-type]
        made[1].shown["on"] = choice((1, 2, 3))
        return made

    monkeypatch.setattr(Comparison, "run", broken)
    ran = cli("demo", "--model", str(tiny_model), "--max-tokens", "4")
    assert ran.code == 1
    assert "DIFFERENT: other (other from token 1 on)" in ran.out
    assert "NO" in ran.out
    assert cli("demo", "--model", str(tiny_model), "--max-tokens", "4", "--json").code == 1


def test_the_repeats_end_with_the_budget(cli: Cli, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forerun.cli.comparison.BUDGET_S", 0.0)
    monkeypatch.setattr("forerun.cli.demo.read_prompts", lambda: {"one": "Hello"})
    ran = cli("demo", "--model", str(tiny_model), "--max-tokens", "4", "--json")
    assert json.loads(ran.out)["prompts"][0]["timed_runs"] == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--speculation", "off"], "name a drafter such as ngram"),
        (["--speculation", "oracle"], "unknown drafter 'oracle'"),
        (["--max-tokens", "1"], "--max-tokens"),
        (["--model", "./absent.gguf"], "no file or folder"),
    ],
)
def test_bad_input_is_one_line_and_2(cli: Cli, tiny_model: Path, words: list[str], message: str) -> None:
    ran = cli("demo", "--model", str(tiny_model), *words)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert message in ran.err


class TestCompared:
    def test_identical(self) -> None:
        one = compared(choice((1, 2, 3), seconds=0.3), choice((1, 2, 3), seconds=0.1))
        assert one.identical
        assert one.speedup == pytest.approx(3.0)
        assert verdict([one]).startswith("Identical: with speculation off and on all 3 tokens")

    def test_the_place_of_a_difference(self) -> None:
        assert compared(choice((1, 2, 3)), choice((1, 9, 3))).first_difference == 1
        assert compared(choice((1, 2, 3)), choice((1, 2))).first_difference == 2

    def test_other_bits_behind_the_same_token_are_a_difference(self) -> None:
        one = compared(choice((1, 2, 3), hashes="xxx"), choice((1, 2, 3), hashes="xxy"))
        assert one.first_difference == 2
        assert verdict([one]).startswith("DIFFERENT: one (one from token 3 on)")

    def test_a_timed_run_counts_too(self) -> None:
        one = compared(choice((1, 2, 3)), choice((1, 2, 3)))
        one.timed["on"].append(choice((1, 2, 4)))
        assert one.first_difference is None
        assert not one.identical
        assert "in a timed run" in verdict([one])

    def test_the_total_weighs_by_time(self) -> None:
        short = compared(choice((1, 2), seconds=0.1), choice((1, 2), seconds=0.1))
        long = compared(choice((1,) * 18, seconds=0.1), choice((1,) * 18, seconds=0.05))
        assert total_speedup([short, long]) == pytest.approx(2.0 / 1.1)
