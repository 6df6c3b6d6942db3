"""`forerun bench kernels` and `bench targets`: one real sitting on a tiny model; documents, plots, exit codes."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from forerun.bench.targets import evaluate
from forerun.cli import bench_kernels
from tests.bench.sittings import document, smollm
from tests.cli.conftest import Cli

NO_PLOTS = f"forerun: {bench_kernels.NO_PLOTS}\n"


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What measuring gives, without measuring."""
    made = document()
    monkeypatch.setattr(bench_kernels, "_measure", lambda model, quick: made)
    return made


@pytest.fixture
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if matplotlib were not installed."""
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)


def shape(value: Any) -> Any:
    """The keys of a document and the types of its values; of lists, of the first entry."""
    if isinstance(value, dict):
        return {key: shape(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return float if isinstance(value, (int, float)) and not isinstance(value, bool) else type(value)


def test_a_real_sitting(cli: Cli, tiny_model: Path, tmp_path: Path, no_plots: None) -> None:
    out = tmp_path / "new" / "folder"
    ran = cli("bench", "kernels", "--model", str(tiny_model), "--threads", "2", "--quick", "--json", "--out", str(out))
    assert ran.code == 0
    assert ran.err == NO_PLOTS  # and no progress, since this is no terminal
    made = json.loads(ran.out)
    assert json.loads((out / "kernels.json").read_text(encoding="utf-8")) == made
    assert sorted(path.name for path in out.iterdir()) == ["kernels.json"]
    expected = shape(document()) | {"machine": shape(made["machine"])}
    assert shape(made) == expected  # so whatever reads a document is tested on one of the same form
    assert made["machine"].keys() >= {"cpu", "kernel_table", "threads", "memory_bytes", "features"}
    assert made["threads"] == made["limits"]["threads"] == 2
    assert made["equality"] == {"rows": 33, "difference": None}
    assert made["limits"]["rounds"] == 3
    parts = {part for kernel in made["kernels"] for part in kernel["kind"].split("+")}
    assert parts >= {"linear", "attention", "rms_norm", "embed", "write_kv", "silu_mul"}
    for kernel in made["kernels"]:
        assert kernel["seconds"] > 0
        assert kernel["fraction"] == pytest.approx(max(kernel["memory_s"], kernel["compute_s"]) / kernel["seconds"])
    assert made["model"]["packed_bits"] >= 16
    assert made["model"]["file_bits"] == pytest.approx(32)
    assert made["decode"]["fraction"] == pytest.approx(made["decode"]["limit_s"] / made["decode"]["seconds"])
    assert evaluate(made)


def test_the_table(cli: Cli, measured: dict[str, Any]) -> None:
    ran = cli("bench", "kernels")
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[0] == "Test CPU, 2 threads, amx_bf16/k1/w-bf16/a-bf16/kv-bf16, Qwen 1.5B"
    attention = next(line for line in lines if line.startswith("attention") and "8192" in line)
    assert " ".join(attention.split()) == "attention 1536 -> 1536 1 8192 28 1000.0 24.0 1000 bandwidth 80% 50.0%"
    assert "decode 10.0 tokens/s, 85% of the limit of the file's bytes" in lines
    assert lines[-1].startswith("equal: the logits of 129 rows")


def test_a_busy_machine_is_said(cli: Cli, measured: dict[str, Any]) -> None:
    assert "not to be published" not in cli("bench", "kernels").out
    measured["limits"]["steadiness"] = 0.5
    assert "not to be published" in cli("bench", "kernels").out


def test_unequal_logits_are_1(cli: Cli, measured: dict[str, Any]) -> None:
    measured["equality"]["difference"] = "row of a chain alone and in it: logits of row 0 differ"
    ran = cli("bench", "kernels")
    assert ran.code == 1
    assert ran.out.splitlines()[-1] == "NOT equal: row of a chain alone and in it: logits of row 0 differ"
    assert cli("bench", "targets").code == 1


def test_plots(cli: Cli, measured: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert cli("bench", "kernels", "--out", str(tmp_path)).err == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "kernels.json",
        "kernels.png",
        "kernels.svg",
        "steps.png",
        "steps.svg",
    ]


def test_targets_are_markdown(cli: Cli, measured: dict[str, Any]) -> None:
    ran = cli("bench", "targets")
    assert ran.err == ""
    assert ran.out.startswith("## Qwen 1.5B\n")
    assert "| decode, >= 1B, of file bytes / bandwidth | >= 80 % | 85 % | pass |" in ran.out
    assert ran.code == 1  # some are missed
    made = json.loads(cli("bench", "targets", "--json").out)
    assert [entry["model"] for entry in made["sittings"]] == ["Qwen 1.5B"]
    assert {"target", "wanted", "measured", "status", "reason"} == made["sittings"][0]["targets"][0].keys()


def test_targets_of_documents(cli: Cli, tmp_path: Path) -> None:
    files = {"a": document(), "b": smollm(), "peer": {"batch_decode_tokens_per_s": {"16": 36.0}}}
    paths = {name: tmp_path / f"{name}.json" for name in files}
    for name, path in paths.items():
        path.write_text(json.dumps(files[name]))
    words = ("--from", str(paths["a"]), "--from", str(paths["b"]), "--idle", str(paths["a"]))
    out = cli("bench", "targets", *words, "--peer", str(paths["peer"])).out
    assert out.index("## Qwen 1.5B") < out.index("## SmolLM2 135M")
    assert "| decode, SmolLM2, batch 16, / llama.cpp | >= 4.00x | 4.03x | pass |" in out
    assert out.count("| bandwidth and peaks, of those of the idle machine | >= 85 % | 100 % | pass |") == 2


def test_all_targets_reached_is_0(cli: Cli, tmp_path: Path) -> None:
    reached = document(
        steps=[{**cost, "ratio": 1.0} for cost in document()["steps"]],
        draws=[{**cost, "over_greedy": 0.0} for cost in document()["draws"]],
        engine=[{**cost, "outside_s": 1e-4} for cost in document()["engine"]],
    )
    (tmp_path / "a.json").write_text(json.dumps(reached))
    assert cli("bench", "targets", "--from", str(tmp_path / "a.json")).code == 0


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("{", "is no JSON document"), ("[1]", "holds no JSON object"), ('{"format": "old"}', "measure again")],
)
def test_other_files_are_refused(cli: Cli, tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "a.json").write_text(text)
    ran = cli("bench", "targets", "--from", str(tmp_path / "a.json"))
    assert (ran.code, ran.out) == (2, "")
    assert complaint in ran.err
    assert ran.err.count("\n") == 1


def test_impossible_wishes(cli: Cli, tmp_path: Path) -> None:
    assert cli("bench", "kernels", "--backend", "reference").code == 2
    assert cli("bench", "targets", "--from", str(tmp_path), "--model", "x").code == 2
    assert cli("bench", "targets", "--from", str(tmp_path / "absent")).code == 1
