"""`forerun bench speculation`: table, JSON, files, exit codes."""

import json
from pathlib import Path
from typing import Any

import pytest

from forerun.backends.cpu import CpuBackend
from forerun.bench import speculation
from tests.cli.conftest import Cli

WORDS = ("bench", "speculation", "--quick", "--categories", "copy")


def question(path: Path, *turns: str) -> Path:
    path.write_text(json.dumps({"question_id": 1, "category": "talk", "turns": turns}), encoding="utf-8")
    return path


def test_table(cli: Cli, tiny_model: Path) -> None:
    ran = cli(*WORDS, "--drafters", "off,ngram", "--model", str(tiny_model))
    assert ran.code == 0
    shown = ran.err.splitlines()  # as they are measured
    assert [line.split(":")[1] for line in shown] == [
        " off, copy, batch 1, T 0",
        " ngram, copy, batch 1, T 0",
    ]
    lines = ran.out.splitlines()
    assert "speed-up (95 %)" in lines[0]
    assert [line.split()[:4] for line in lines[1:3]] == [["off", "copy", "1", "0"], ["ngram", "copy", "1", "0"]]
    assert "ngram: geometric mean" in ran.out
    assert "No verdict on speed: 3 pairs, and 7 are needed for one." in ran.out
    assert "prompts forerun-prompts-2, prefix cache off" in lines[-1]


def test_json_and_files(cli: Cli, tiny_model: Path, tmp_path: Path) -> None:
    words = (*WORDS, "--drafters", "ngram", "--draft-option", "max_n=5", "--max-draft", "4", "--json")
    ran = cli(*words, "--model", str(tiny_model), "--threads", "1", "--out", str(tmp_path / "out"))
    made: dict[str, Any] = json.loads(ran.out)
    assert (ran.code, made["passed"], made["has_verdict"]) == (0, True, False)
    assert made.keys() >= {"model", "numerics_id", "machine", "versions", "prompts", "settings", "summary", "cells"}
    assert made["settings"]["config"]["options"] == {"max_n": 5}
    assert len(made["cells"][0]["drafted_at"]) <= 4
    assert made["machine"]["threads"] == 1
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names >= {"speculation.json", "speculation.md"}
    assert json.loads((tmp_path / "out" / "speculation.json").read_text()) == made


def test_a_stopped_run_goes_on(cli: Cli, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = (*WORDS, "--model", str(tiny_model), "--out", str(tmp_path / "out"), "--drafters")
    measure, left = speculation._measure, [1]

    def stopped(*args: Any) -> Any:
        if not left:
            raise KeyboardInterrupt
        left.pop()
        return measure(*args)

    monkeypatch.setattr(speculation, "_measure", stopped)
    cli(*words, "off,ngram,suffix")
    first = json.loads((tmp_path / "out" / "speculation.json").read_text())
    assert [cell["drafter"] for cell in first["cells"]] == ["off"]
    monkeypatch.setattr(speculation, "_measure", measure)
    ran = cli(*words, "off,ngram")
    assert "off, copy" not in ran.err
    assert [one["drafter"] for one in json.loads((tmp_path / "out" / "speculation.json").read_text())["summary"]] == [
        "off",
        "ngram",
    ]
    assert "| `ngram` | copy |" in (tmp_path / "out" / "speculation.md").read_text()


def test_unequal_answers_are_1(cli: Cli, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = CpuBackend.__init__
    monkeypatch.setattr(CpuBackend, "__init__", lambda self, fault, **others: made(self, fault="row_ulp", **others))
    ran = cli(*WORDS, "--drafters", "ngram", "--model", str(tiny_model))
    assert ran.code == 1
    assert "NOT equal: ngram, copy, batch 1, T 0: logits of answer 0" in ran.out
    assert "FAILED" in ran.out


def test_spec_bench_questions(cli: Cli, tiny_model: Path, tmp_path: Path) -> None:
    path = question(tmp_path / "question.jsonl", "hello", "and then?")
    words = ("bench", "speculation", "--quick", "--drafters", "ngram", "--data", str(path), "--json")
    first, all_of_it = (json.loads(cli(*words, *more, "--model", str(tiny_model)).out) for more in ((), ("--turns",)))
    assert first["prompts"] == "question.jsonl"
    assert [cell["category"] for cell in first["cells"]] == ["talk"]
    assert all_of_it["cells"][0]["equal"] is True


def test_by_default_all_that_need_no_model_and_auto(cli: Cli, tiny_model: Path) -> None:
    made = json.loads(cli(*WORDS, "--model", str(tiny_model), "--json").out)
    names = [one["drafter"] for one in made["summary"]]
    assert {"ngram", "auto"} <= set(names)
    assert "draft-model" not in names


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--batch", "1,x"), "'1,x' is no list of whole numbers"),
        (("--batch", "0"), "must be at least 1"),
        (("--temperature", "0,y"), "'0,y' is no list of numbers"),
        (("--drafters", "magic"), "unknown drafter 'magic'"),
        (("--categories", "poems"), "no category 'poems'"),
        (("--turns",), "--turns is for the questions of --data"),
        (("--draft-option", "ngram.magic=1"), "does not take these options"),
        (("--draft-option", "max_n"), "is not KEY=VALUE"),
        (("--verification", "typical"), "needs lossy=True"),
        (("--verification", "hope"), "unknown verification 'hope'"),
        (("--max-draft", "0"), "max_depth must be between 1 and 63"),
    ],
)
def test_bad_input_is_one_line_and_2(cli: Cli, tiny_model: Path, words: tuple[str, ...], message: str) -> None:
    ran = cli("bench", "speculation", *words, "--model", str(tiny_model))
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert message in ran.err


def test_a_missing_question_file_is_one_line(cli: Cli, tmp_path: Path) -> None:
    ran = cli("bench", "speculation", "--data", str(tmp_path / "no.jsonl"))
    assert (ran.code, ran.err.count("\n")) == (1, 1)
