"""`forerun generate`: what it prints where, the options that shape an answer, bad input, Ctrl-C."""

import io
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console

from forerun.cli.generate import conclude
from forerun.cli.options import parse_size
from forerun.cli.render import Answer, TextWriter
from forerun.errors import ForerunError
from forerun.results import Choice, GenerationStats, StreamChunk
from forerun.sequence import FinishReason
from tests.cli.conftest import Cli
from tests.head_files import RANDOM_SPEC, write_target


@pytest.fixture
def document(cli: Cli, tiny_model: Path) -> Any:
    """Call it with options: runs generate with --json and gives the parsed document."""

    def run(*options: str, prompt: str = "Hello there") -> dict[str, Any]:
        ran = cli("generate", prompt, "--model", str(tiny_model), "--json", "--quiet", *options)
        assert (ran.code, ran.err) == (0, "")
        parsed: dict[str, Any] = json.loads(ran.out)
        return parsed

    return run


def test_a_drafter_that_is_of_no_use_is_warned_about(cli: Cli, tmp_path: Path) -> None:
    words = (
        "generate",
        "Hello there",
        "--model",
        str(write_target(tmp_path / "model.gguf", RANDOM_SPEC)),
        "--max-tokens",
        "4",
    )
    ran = cli(*words, "--speculation", "early-exit", "--draft-option", "early-exit.layer=1", "--json", "--quiet")
    assert (ran.code, ran.err.count("\n")) == (0, 1)
    assert ran.err.startswith("forerun: warning: drafter early-exit agrees with the model on ")
    assert "early-exit.layer" in ran.err
    assert "early-exit" in json.loads(ran.out)["drafters"]


def test_text_on_stdout_and_a_summary_on_stderr(cli: Cli, tiny_model: Path, document: Any) -> None:
    words = ("generate", "Hello there", "--model", str(tiny_model), "--max-tokens", "20")
    ran = cli(*words)
    assert ran.code == 0
    assert ran.out.rstrip("\n") == document("--max-tokens", "20")["choices"][0]["text"].rstrip("\n")
    assert ran.out.endswith("\n")
    summary = r"20 tokens, [\d.]+ tokens/s, accepted length [\d.]+, first token after \d+ ms \(prompt \d+ tokens\)\n"
    assert re.fullmatch(summary, cli(*words, "--speculation", "off").err)
    drafts = r"drafts: ngram \d+ of \d+ accepted in [\d.]+ ms\n"
    assert re.fullmatch(summary + drafts, cli(*words, "--speculation", "ngram").err)
    assert cli(*words, "--quiet").err == ""


def test_json_has_all_of_the_contract(document: Any, tiny_model: Path) -> None:
    made = document("--max-tokens", "6", "--logprobs", "2", "--temperature", "1", "--seed", "7", "--n", "2")
    assert made["model"] == str(tiny_model)
    assert made["prompt_tokens"] > 4
    assert made["numerics_id"]
    assert made["versions"].keys() == {"forerun", "python"}
    for stats in made["drafters"].values():
        assert stats.keys() >= {"drafts", "drafted", "accepted", "drafted_at", "accepted_at", "seconds"}
    drafted = document("--max-tokens", "20", "--speculation", "ngram")
    assert "ngram" in drafted["drafters"]
    assert drafted["speculation"]["bonus"] == drafted["drafters"]["ngram"]["drafts"] > 0
    assert drafted["speculation"]["verify_s"] > 0
    assert sum(drafted["speculation"]["decisions"].values()) > 0
    plain = document("--max-tokens", "6", "--speculation", "off")["speculation"]
    assert (plain["bonus"], plain["verify_s"]) == (0, 0)
    first, second = made["choices"]
    assert first["token_ids"] != second["token_ids"]
    for choice in (first, second):
        assert (choice["finish_reason"], choice["seed"], choice["stats"]["num_tokens"]) == ("length", 7, 6)
        assert [entry["token"] for entry in choice["logprobs"]] == choice["token_ids"]
        assert all(len(entry["top"]) == 2 and entry["logprob"] <= 0 for entry in choice["logprobs"])


def test_speculation_and_a_seed_repeat_an_answer(document: Any) -> None:
    sampled = ("--temperature", "0.3", "--top-k", "5", "--seed", "3", "--max-tokens", "60")
    on, off = document(*sampled)["choices"][0], document(*sampled, "--speculation", "off")["choices"][0]
    assert on["token_ids"] == off["token_ids"]
    assert on["stats"]["drafted"] > 0
    assert off["stats"]["drafted"] == 0


def test_options_reach_the_draw(document: Any) -> None:
    plain = document("--max-tokens", "8")["choices"][0]["token_ids"]
    biased = document("--max-tokens", "8", "--logit-bias", "65=1000")["choices"][0]["token_ids"]
    assert biased == [65] * 8
    stopped = document("--max-tokens", "8", "--stop-token-id", str(plain[0]))["choices"][0]
    assert (stopped["token_ids"], stopped["finish_reason"]) == (plain[:1], "stop")
    later = document("--max-tokens", "8", "--stop-token-id", str(plain[0]), "--min-tokens", "5")["choices"][0]
    assert len(later["token_ids"]) >= 5
    penalised = document("--max-tokens", "8", "--frequency-penalty", "100")["choices"][0]["token_ids"]
    assert len(set(penalised)) == 8


def test_stop_strings_end_the_text(document: Any) -> None:
    words = ("--raw", "--logit-bias", "68=1000", "--max-tokens", "8")  # D D D D ...
    letter = document(*words)["choices"][0]["text"][0]
    stopped = document(*words, "--stop", "absent", "--stop", letter * 3)["choices"][0]
    assert (stopped["text"], stopped["finish_reason"], len(stopped["token_ids"])) == ("", "stop", 3)


def test_the_template_is_used_unless_raw(document: Any) -> None:
    chat, raw = document("--max-tokens", "1"), document("--max-tokens", "1", "--raw")
    with_system = document("--max-tokens", "1", "--system", "Be brief.")
    assert raw["prompt_tokens"] < chat["prompt_tokens"] < with_system["prompt_tokens"]


def test_a_model_without_template_continues_and_says_so(cli: Cli, tiny_model_without_template: Path) -> None:
    words = ("generate", "Hello", "--model", str(tiny_model_without_template), "--max-tokens", "4")
    assert "no chat template" in cli(*words).err
    assert cli(*words, "--quiet").err == ""
    assert "no chat template" not in cli(*words, "--raw").err
    refused = cli(*words, "--system", "Be brief.")
    assert refused.code == 2
    assert "takes no --system" in refused.err


def test_standard_input(document: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hello there\n"))
    piped, given = document("--max-tokens", "3", prompt="-"), document("--max-tokens", "3")
    assert piped["prompt_tokens"] == given["prompt_tokens"]
    assert piped["choices"][0]["token_ids"] == given["choices"][0]["token_ids"]


def test_several_answers_are_told_apart(cli: Cli, tiny_model: Path) -> None:
    ran = cli("generate", "Hello", "--model", str(tiny_model), "--n", "2", "--temperature", "1", "--max-tokens", "4")
    assert ran.code == 0
    assert ran.out.startswith("--- 1 of 2 ---\n")
    assert "\n--- 2 of 2 ---\n" in ran.out
    assert ran.err.count("accepted length") == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([""], "the prompt is empty"),
        (["hi", "--temperature", "-1"], "temperature must be"),
        (["hi", "--temperature", "nan"], "temperature must be"),
        (["hi", "--top-p", "0"], "top_p must be"),
        (["hi", "--speculation", "oracle"], "unknown drafter 'oracle'"),
        (["hi", "--backend", "tpu"], "unknown backend 'tpu'"),
        (["hi", "--kv-format", "int3"], "unknown KV format 'int3'"),
        (["hi", "--threads", "0"], "threads must be at least 1"),
        (["hi", "--kv-cache-bytes", "much"], "'much' is no size"),
        (["hi", "--logit-bias", "x=1"], "logit bias 'x=1' is not ID=VALUE"),
        (["hi", "--logit-bias", "1=nan"], "logit_bias must be"),
        (["hi", "--logit-bias", "100000=1"], "logit_bias: id 100000 is not in the vocabulary"),
        (["hi", "--logprobs", "3"], "add --json"),
        (["hi", "--raw", "--system", "x"], "give only one of them"),
        (["hello " * 2000], "tokens but the context holds 1024"),
        (["hi", "--max-model-len", "4096"], "max_model_len is 4096"),
        (["hi", "--model", "./absent.gguf"], "no file or folder './absent.gguf'"),
    ],
)
def test_bad_input_is_one_line_and_2(cli: Cli, tiny_model: Path, words: list[str], message: str) -> None:
    ran = cli("generate", "--model", str(tiny_model), *words)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("forerun: ")
    assert message in ran.err
    assert ran.err.count("\n") == 1


def test_a_failed_generation_is_a_failure() -> None:
    stats = GenerationStats(1, 0, 0, 0, 0, (), (), {}, {}, 0, 0, 0.0, 0.0, 0.0)
    failed = Choice(0, "", (), FinishReason.NUMERICAL_ERROR, 0, stats, error="the model produced NaN")
    with pytest.raises(ForerunError, match="the model produced NaN"):
        conclude([Answer("", (), failed)], quiet=True)


@pytest.mark.parametrize(
    ("text", "size"), [("1000", 1000), ("4k", 4096), ("512M", 1 << 29), ("1.5GiB", 3 << 29), ("2 gb", 2 << 30)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "M", "-1", "0", "nan", "infG", "12X", "0.1"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_size(text)


class TestTextWriter:
    CHUNK = StreamChunk((("plain ", False), ("draft\x1b[2J\a", True)), (1, 2))

    def test_a_terminal_shows_drafts_and_obeys_no_model(self) -> None:
        console = Console(file=io.StringIO(), force_terminal=True, color_system="standard")
        writer = TextWriter(console, show_drafts=True)
        writer.chunk(self.CHUNK)
        writer.end()
        assert console.file.getvalue() == "plain \x1b[1;32mdraft[2J\x1b[0m\n"  # type: ignore[attr-defined]

    def test_a_pipe_gets_the_text_as_it_is(self) -> None:
        console = Console(file=io.StringIO())
        writer = TextWriter(console, show_drafts=True)
        writer.chunk(self.CHUNK)
        writer.text("\n")
        writer.end()
        assert console.file.getvalue() == "plain draft\x1b[2J\a\n"  # type: ignore[attr-defined]


# Runs the command line in its arguments and interrupts itself when the sixth chunk of the answer arrives.
INTERRUPTED = """
import os, signal, sys
from forerun.cli.main import main
from forerun.llm import LLM
stream = LLM.stream
def interrupted(self, *arguments):
    for number, chunk in enumerate(stream(self, *arguments)):
        if number == 5:
            os.kill(os.getpid(), signal.SIGINT)
        yield chunk
LLM.stream = interrupted
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_ctrl_c_keeps_what_there_is(tiny_model: Path, form: list[str]) -> None:
    options = ["--model", str(tiny_model), "--ignore-eos", "--max-tokens", "900", "--speculation", "off", *form]
    command = [sys.executable, "-c", INTERRUPTED, "generate", "Hello there", *options]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stderr) == (130, "forerun: interrupted\n")
    if form:
        choice = json.loads(ran.stdout)["choices"][0]
        assert (choice["finish_reason"], len(choice["token_ids"]), choice["stats"]) == ("aborted", 6, None)
    else:
        assert ran.stdout.strip()
        assert ran.stdout.endswith("\n")


def test_signal_handler_is_restored(cli: Cli, tiny_model: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    cli("generate", "hi", "--model", str(tiny_model), "--max-tokens", "2")
    assert signal.getsignal(signal.SIGINT) is before
