"""`bench trace`: one recorded run of a batch as a document that trace viewers open."""

import json
from pathlib import Path

import pytest

from forerun.bench.trace import TraceWish, run_trace, trace_document
from forerun.errors import UsageError
from forerun.llm import LLM, EngineOptions


def test_one_run_is_in_the_document(tiny_model: Path) -> None:
    wish = TraceWish(prompt_tokens=20, new_tokens=5, batch=2)
    options = wish.options(EngineOptions())
    llm = LLM(str(tiny_model), speculation="off", threads=2, options=options)
    profile = run_trace(llm, wish, options)
    assert profile.phases["forward"].calls == 5  # the prompts, then four tokens behind the first
    document = json.loads(json.dumps(trace_document(profile, {"model": "tiny"})))
    assert document["otherData"] == {"model": "tiny"}
    slices = [event for event in document["traceEvents"] if event["ph"] == "X"]
    assert {event["tid"] for event in slices} >= {0, 1}
    forward = [event for event in slices if event["name"] == "forward"]
    attention = [event for event in slices if event["name"] == "attention" and event["tid"] == 1]
    assert len(forward) == 5
    for event in attention:  # lies within a forward pass
        assert any(f["ts"] <= event["ts"] <= event["ts"] + event["dur"] <= f["ts"] + f["dur"] for f in forward)


def test_impossible_wishes_are_refused() -> None:
    with pytest.raises(UsageError, match="batch size"):
        TraceWish(batch=0)
