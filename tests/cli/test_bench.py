"""`forerun bench`: tables, JSON, exit codes."""

import json
from pathlib import Path

import pytest

from forerun.backends.cpu import CpuBackend
from forerun.bench import quality
from tests.cli.conftest import Cli

DECODE = ("bench", "decode", "--prompt-tokens", "24", "--new-tokens", "8", "--batch", "1,2", "--repeats", "1")


def test_decode_table(cli: Cli, tiny_model: Path) -> None:
    ran = cli(*DECODE, "--model", str(tiny_model))
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert "prefill tokens/s" in lines[0]
    assert [line.split()[:2] for line in lines[1:5]] == [["1", "off"], ["1", "ngram"], ["2", "off"], ["2", "ngram"]]
    assert all(line.split()[-1] == "yes" for line in lines[1:5])
    assert "prefix cache off" in lines[5]


def test_decode_json_has_all_of_the_contract(cli: Cli, tiny_model: Path) -> None:
    ran = cli(*DECODE, "--model", str(tiny_model), "--threads", "1", "--json")
    made = json.loads(ran.out)
    assert (ran.code, made["equal"]) == (0, True)
    assert made["settings"]["prefix_cache"] is False
    assert made["corpus"].startswith("forerun-corpus")
    assert made["machine"].keys() >= {"cpu", "kernel_table", "threads", "memory_bytes"}
    assert made["machine"]["threads"] == 1
    assert made["numerics_id"].startswith(made["machine"]["kernel_table"])
    assert made["memory_bytes"].keys() == {"weights", "kv", "workspace", "drafts"}
    for result in made["results"]:
        assert result["equal"] is True
        assert result.keys() >= {"prefill_tokens_per_s", "decode_tokens_per_s", "step_ms", "mean_accepted_len"}
        assert result.keys() >= {"acceptance", "peak_memory_bytes"}


def test_unequal_answers_are_1(cli: Cli, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = CpuBackend.__init__
    monkeypatch.setattr(CpuBackend, "__init__", lambda self, fault, **others: made(self, fault="row_ulp", **others))
    ran = cli(*DECODE, "--model", str(tiny_model))
    assert ran.code == 1
    assert "NOT equal: prompt excerpt-0, drafter off, batch 1" in ran.out
    ran = cli(*DECODE, "--model", str(tiny_model), "--json")
    assert (ran.code, json.loads(ran.out)["equal"]) == (1, False)


def test_quality(cli: Cli, tiny_model: Path) -> None:
    ran = cli("bench", "quality", "--model", str(tiny_model), "--tokens", "40", "--weights", "file,int4")
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[0].split()[:5] == ["weights", "in", "memory", "mean", "KL"]
    assert [line.split()[0] for line in lines[1:4]] == ["file", "int4", "fp32"]
    assert "40 positions of forerun-corpus" in lines[4]


def test_quality_json_is_one_document(cli: Cli, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = []
    dense = quality.dense_logits
    monkeypatch.setattr(quality, "dense_logits", lambda *given: passes.append(1) or dense(*given))
    words = ("bench", "quality", "--model", str(tiny_model), "--tokens", "40", "--weights", "bf16,int8,int4", "--json")
    made = json.loads(cli(*words).out)
    assert made.keys() == {"model", "corpus", "machine", "versions", "results"}
    assert [result["weights"] for result in made["results"]] == ["bf16", "int8", "int4"]
    bf16, int8, int4 = made["results"]
    assert len({result["numerics_id"] for result in made["results"]}) == 3
    assert bf16["weight_bytes"] > int8["weight_bytes"] > int4["weight_bytes"]
    assert 0 < bf16["mean_kl"] < 1e-3
    assert bf16["mean_kl"] < int4["mean_kl"]
    assert bf16["perplexity"] == pytest.approx(bf16["perplexity_fp32"], rel=0.05)
    assert bf16["tokens"] == 40
    assert len(passes) == 1  # fp32 is the same for all


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("decode", "--batch", "1,x"), "'1,x' is no list of whole numbers"),
        (("decode", "--batch", "0"), "batch size of at least 1"),
        (("decode", "--temperature", "-1"), "temperature must be between 0 and 100"),
        (("decode", "--speculation", "magic"), "unknown drafter 'magic'"),
        (("decode", "--prompt-tokens", "100000"), "100128 tokens but the context holds 1024"),
        (("quality", "--tokens", "0"), "between 1 and"),
        (("quality", "--weights", "file,int2"), "unknown weight format 'int2'"),
    ],
)
def test_bad_input_is_one_line_and_2(cli: Cli, tiny_model: Path, words: tuple[str, ...], message: str) -> None:
    ran = cli("bench", *words, "--model", str(tiny_model))
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert message in ran.err
