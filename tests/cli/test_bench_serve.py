"""`forerun bench serve` from the command line, against a server of its own with the tiny model."""

import json

import pytest

from forerun.cli.main import main


def test_it_starts_a_server_measures_and_writes(tiny_model, tmp_path, capsys):
    options = ["--clients", "2", "--rate", "50", "--requests", "4", "--warmup", "1", "-n", "8", "--ignore-eos"]
    code = main(["bench", "serve", "--model", str(tiny_model), *options, "--out", str(tmp_path), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert code == 0
    assert [(run["kind"], run["requests"], run["failed"]) for run in found["runs"]] == [
        ("closed", 4, 0),
        ("open", 4, 0),
    ]
    assert {run["output_tokens"] for run in found["runs"]} == {32}
    assert found["start_s"] > 0
    assert found["prompts"] == "forerun-prompts-2"
    assert json.loads((tmp_path / "serving.json").read_text()) == found
    assert "tokens/s" in (tmp_path / "serving.md").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--clients", "many"], "no list of whole numbers"),
        (["--clients", "", "--rate", "fast"], "no list of numbers"),
        (["--clients", ""], "nothing to measure"),
        (["--url", "http://127.0.0.1:9/v1"], "lists no models"),
        (["--url", "http://a/v1", "--served-model", "m", "--speculation", "ngram+suffix"], "names one drafter"),
        (["--slo-ttft", "0"], "must be above 0"),
        (["--prompts", "missing.txt"], "missing.txt"),
    ],
)
def test_what_is_asked_wrongly(options, message, capsys):
    assert main(["bench", "serve", *options]) in (1, 2)
    assert message in capsys.readouterr().err
