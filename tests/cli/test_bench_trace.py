"""`forerun bench trace`: a file for trace viewers and the totals."""

import json
from pathlib import Path

from tests.cli.conftest import Cli


def test_trace(cli: Cli, tiny_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "line.json"
    sizes = ("--prompt-tokens", "20", "--new-tokens", "3")
    ran = cli("bench", "trace", "--model", str(tiny_model), *sizes, "--out", str(out))
    assert (ran.code, ran.err) == (0, "")
    assert "phase of a step" in ran.out
    assert "operation" in ran.out
    assert f"wrote {out}" in ran.out
    document = json.loads(out.read_text("utf-8"))
    assert document["otherData"]["numerics_id"]
    assert {event["name"] for event in document["traceEvents"]} >= {"select", "forward", "attention", "draw"}


def test_an_unknown_drafter_is_2(cli: Cli, tiny_model: Path) -> None:
    ran = cli("bench", "trace", "--model", str(tiny_model), "--speculation", "magic")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
