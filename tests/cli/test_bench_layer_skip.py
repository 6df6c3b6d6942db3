"""`forerun bench layer-skip`: writes a profile and says what to expect."""

import json
from pathlib import Path

from tests.cli.conftest import Cli
from tests.text.vocabularies import byte_level
from tests.tiny import tiny_spec, write_tiny_gguf

QUICK = ("--tokens", "64", "--measurements", "12")


def model(folder: Path) -> str:
    _, vocabulary = byte_level("smollm")
    spec = tiny_spec(vocab=len(vocabulary["tokenizer.ggml.tokens"]), layers=5, max_context=1024)
    write_tiny_gguf(folder / "five.gguf", spec, metadata=vocabulary)
    return str(folder / "five.gguf")


def test_the_profile_is_kept_where_the_drafter_looks(cli: Cli, tmp_path: Path) -> None:
    ran = cli("bench", "layer-skip", "--model", model(tmp_path), *QUICK)
    assert (ran.code, ran.err) == (0, "")
    path = tmp_path / "cache" / "drafters" / "layer-skip-five.gguf.json"
    assert f"wrote {path}" in ran.out
    for fact in ("left out", "alpha", "greedy", "cost of a draft", "expected speed-up"):
        assert fact in ran.out
    document = json.loads(path.read_text())
    assert document["skip"]
    assert document["origin"]["text"] == "forerun-corpus-1 with the model's own continuations, 64 tokens measured"


def test_another_place(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "mine.json"
    ran = cli("bench", "layer-skip", "--model", model(tmp_path), *QUICK, "--out", str(out))
    assert (ran.code, out.exists()) == (0, True)


def test_a_wrong_number_is_2(cli: Cli, tmp_path: Path) -> None:
    ran = cli("bench", "layer-skip", "--model", model(tmp_path), "--tokens", "30")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
