"""`forerun verify`: table, sentence, JSON, exit codes."""

import json
import re
from pathlib import Path

import pytest

from forerun.backends.cpu import CpuBackend
from forerun.bench import verify as checks
from forerun.bench.lossless import Difference, Row, Setting
from forerun.bench.verify import Verdict, all_settings
from forerun.cli.verify_report import MAX_TABLE_ROWS, conclusion, groups
from tests.cli.conftest import Cli


def row(setting: Setting, difference: Difference | None = None) -> Row:
    found = () if difference is None else (difference,)
    return Row(setting, 4, 32, 32, found, drafted=0, accepted=0, cached=0, partial_hits=0, preempted=0)


def test_a_sound_machine(cli: Cli, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "QUICK_S", 300.0)  # the machine may be busy
    ran = cli("verify", "--quick", "--model", str(tiny_model), "--threads", "2")
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert lines[0].split()[:6] == ["threads", "drafter", "batch", "chunk", "cache", "pool"]
    settings = [line.split() for line in lines[1:-2]]
    assert {words[-1] for words in settings} == {"yes"}
    assert {words[0] for words in settings} == {"1", "2"}
    assert lines[-2].startswith("numerics ")
    assert "is lossless on this machine" in lines[-1]
    (count,) = re.findall(r"under (\d+) settings", lines[-1])
    assert int(count) >= 24
    assert ran.err.startswith(f"forerun: 12 prompts under {count} settings against plain decoding, about ")


def test_json_is_one_document(cli: Cli, tiny_model: Path) -> None:
    ran = cli("verify", "--quick", "--json", "--model", str(tiny_model), "--threads", "1")
    made = json.loads(ran.out)
    assert (ran.code, made["equal"], made["passed"], made["first_difference"]) == (0, True, True, None)
    assert made["numerics_id"]
    first = made["settings"][0]
    assert first.keys() >= {
        "drafter",
        "batch",
        "chunk",
        "cache",
        "tight",
        "threads",
        "cells",
        "tokens",
        "hashes",
        "equal",
    }
    assert all(entry["hashes"] == entry["tokens"] > 0 for entry in made["settings"])


def test_a_drafter_of_the_users(cli: Cli, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "QUICK_S", 300.0)  # the machine may be busy
    words = ("--draft-model", str(tiny_model), "--draft-option", "draft-model.weights=file", "--speculation", "ngram")
    ran = cli("verify", "--quick", "--json", "--model", str(tiny_model), "--threads", "1", *words)
    rows = [entry for entry in json.loads(ran.out)["settings"] if entry["drafter"] == "ngram+draft-model"]
    assert (ran.code, len(rows)) == (0, 3)
    assert all(entry["equal"] and entry["accepted"] for entry in rows)


def test_a_rule_that_promises_less_is_refused(cli: Cli, tiny_model: Path) -> None:
    ran = cli("verify", "--model", str(tiny_model), "--verification", "block", "--speculation", "ngram")
    assert (ran.code, ran.out) == (2, "")
    assert "bit for bit" in ran.err


def test_the_self_test_passes_when_the_error_is_found(cli: Cli, tiny_model: Path) -> None:
    ran = cli("verify", "--self-test", "--model", str(tiny_model), "--threads", "1")
    assert ran.code == 0
    assert "self-test: the injected error was found. prompt shared-48/greedy, drafter" in ran.out
    assert "NO" in ran.out.split()


def test_the_self_test_fails_when_it_is_not(cli: Cli, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = CpuBackend.__init__
    monkeypatch.setattr(CpuBackend, "__init__", lambda self, fault, **others: made(self, fault=None, **others))
    ran = cli("verify", "--self-test", "--model", str(tiny_model), "--threads", "1")
    assert ran.code == 1
    assert "the injected error was NOT found" in ran.out


def test_a_difference_is_named_and_1(cli: Cli, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = CpuBackend.__init__
    monkeypatch.setattr(CpuBackend, "__init__", lambda self, fault, **others: made(self, fault="row_ulp", **others))
    ran = cli("verify", "--quick", "--json", "--model", str(tiny_model), "--threads", "1")
    document = json.loads(ran.out)
    assert (ran.code, document["equal"]) == (1, False)
    assert document["first_difference"].keys() == {"setting", "cell", "position", "kind", "expected", "found"}


def test_the_self_test_needs_the_cpu_backend(cli: Cli, tiny_model: Path) -> None:
    ran = cli("verify", "--self-test", "--backend", "reference", "--model", str(tiny_model))
    assert ran.code == 2
    assert "--self-test injects its error into the cpu backend" in ran.err


@pytest.mark.parametrize("words", [("--model", "no-such-model"), ("--threads", "0")])
def test_bad_input_is_2(cli: Cli, tiny_model: Path, words: tuple[str, ...]) -> None:
    ran = cli("verify", "--model", str(tiny_model), *words)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)


def test_many_settings_are_grouped() -> None:
    few = [row(setting) for setting in all_settings(2)[:MAX_TABLE_ROWS]]
    assert groups(few) == [[one] for one in few]
    many = [row(setting) for setting in all_settings(2)]
    grouped = groups(many)
    assert [one for group in grouped for one in group] == many
    assert len(grouped) < MAX_TABLE_ROWS
    assert all(len({(one.setting.drafter, one.setting.batch) for one in group}) == 1 for group in grouped)


def test_sentences() -> None:
    setting = Setting("ngram", 3, threads=2)
    difference = Difference(setting, "text-1/greedy", 4, "token", "7", "8")
    cut_short = Verdict(rows=[row(setting)], skipped=[Setting()])
    assert "1 further settings had no time" in conclusion(cut_short, "m", False)
    assert "One thread was not compared" in conclusion(cut_short, "m", False)
    assert conclusion(Verdict(rows=[row(setting, difference)]), "m", False) == (
        "NOT lossless. First difference: prompt text-1/greedy, drafter ngram, batch 3, chunk whole, cache off, "
        "pool roomy, threads 2, output token 4: token 8, plain decoding gives 7"
    )
