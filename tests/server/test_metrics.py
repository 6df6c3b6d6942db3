"""Metrics: they count what clients saw, cost nothing worth mentioning, and the dashboard asks for what exists."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import prometheus_client
import pytest
from prometheus_client.parser import text_string_to_metric_families

from forerun.config import SpeculationConfig
from forerun.server.metrics import Metrics
from tests.server.conftest import MODEL, Server, serving, tiny_llm

DEPLOY = Path(__file__).parents[2] / "deploy"


@pytest.fixture
def fresh(tiny_model: Path) -> Iterator[Server]:
    """A server that drafts for every token, so that there is something to count."""
    with serving(tiny_llm(tiny_model, SpeculationConfig("ngram", budget="fixed"))) as running:
        yield running


def read(server: Server) -> dict[tuple[str, frozenset], float]:
    """Samples by name and labels."""
    families = text_string_to_metric_families(server.http.get("/metrics").text)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def total(samples: dict, name: str, **labels: str) -> float:
    """Sum over the series that have these labels."""
    found = [value for (one, has), value in samples.items() if one == name and labels.items() <= dict(has).items()]
    assert found, f"no series {name} {labels}"
    return sum(found)


def ask(server: Server, text: str = "one two one two one two", **options) -> dict[str, Any]:
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 40, "temperature": 0}
    return server.http.post("/v1/chat/completions", json=body | {"ignore_eos": True} | options).json()


def test_tokens_and_requests_are_those_that_clients_saw(fresh, wait_until):
    usages = [ask(fresh)["usage"], ask(fresh)["usage"], ask(fresh, n=3, seed=1, temperature=1)["usage"]]
    ask(fresh, temperature=7)
    wait_until(lambda: total(read(fresh), "forerun_generations_total") == 5)
    samples = read(fresh)
    assert total(samples, "forerun_output_tokens_total") == sum(usage["completion_tokens"] for usage in usages) == 200
    hits = [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]
    assert total(samples, "forerun_prefix_hit_tokens_total") >= sum(hits) > 0
    assert total(samples, "forerun_prompt_tokens_total") == 5 * usages[0]["prompt_tokens"]
    route = "/v1/chat/completions"
    assert total(samples, "forerun_http_requests_total", route=route, status="200") == 3
    assert total(samples, "forerun_rejected_requests_total", reason="invalid_value") == 1
    assert total(samples, "forerun_generations_total", finish="length") == 5
    for name in ("queue", "prefill", "time_to_first_token", "decode", "generation", "time_per_output_token"):
        assert total(samples, f"forerun_{name}_seconds_count") == 5
    assert 0 < total(samples, "forerun_inter_token_seconds_count") <= 195
    assert total(samples, "forerun_time_to_first_token_seconds_sum") < total(samples, "forerun_generation_seconds_sum")


def test_speculation_adds_up(fresh):
    told = [ask(fresh, text=f"{word} one two one two one two")["speculation"] for word in "abc"]
    samples = read(fresh)
    accepted = total(samples, "forerun_accepted_tokens_total", drafter="ngram")
    drafted = total(samples, "forerun_drafted_tokens_total", drafter="ngram")
    assert accepted == sum(one["accepted"] for one in told) > 0
    assert drafted == sum(one["drafted"] for one in told)
    assert total(samples, "forerun_drafted_tokens_at_total", drafter="ngram") == drafted
    assert total(samples, "forerun_accepted_tokens_at_total", drafter="ngram") == accepted
    first = total(samples, "forerun_accepted_tokens_at_total", drafter="ngram", position="1")
    assert first == max(value for (name, _), value in samples.items() if name == "forerun_accepted_tokens_at_total")
    told_first = sum(one["drafted_at"][0] for one in told if one["drafted_at"])
    assert told_first == total(samples, "forerun_drafts_total", drafter="ngram")
    stats = fresh.llm.engine.stats
    assert 0 < total(samples, "forerun_verify_seconds_total") <= stats.forward_s
    assert total(samples, "forerun_steps_total") == total(samples, "forerun_step_seconds_count") == stats.steps
    assert total(samples, "forerun_step_rows_sum") == stats.rows


def test_decisions_have_the_allocators_own_reasons(tiny_model):
    with serving(tiny_llm(tiny_model)) as server:
        for word in "abcd":
            ask(server, text=f"{word} one two one two one two")
        decisions = dict(server.llm.engine.speculator.stats.decisions)
        samples = read(server)
    assert decisions
    for reason, count in decisions.items():
        assert total(samples, "forerun_allocator_decisions_total", reason=reason) == count
    assert total(samples, "forerun_guard_off") in (0, 1)


def test_blocks_add_up_and_queues_are_empty_at_rest(fresh, wait_until):
    ask(fresh)
    wait_until(lambda: not fresh.llm.engine.has_work)
    samples = read(fresh)
    assert total(samples, "forerun_kv_blocks") == fresh.llm.kv_layout.num_blocks
    assert total(samples, "forerun_kv_blocks", state="owned") == 0
    assert total(samples, "forerun_running") == total(samples, "forerun_waiting") == 0
    assert total(samples, "forerun_memory_bytes", use="kv") > 0
    assert total(samples, "forerun_memory_bytes", use="drafts") == 0  # repetitions need no model
    assert total(samples, "process_resident_memory_bytes") > 0
    assert total(samples, "forerun_info", kv_format="bf16", numerics_id=fresh.llm.numerics_id, model=MODEL) == 1


def test_what_drafters_remember_is_told(tiny_model):
    with serving(tiny_llm(tiny_model, SpeculationConfig("suffix+recycle", options={"suffix.shared": True}))) as server:
        before = total(read(server), "forerun_drafter_bytes", drafter="suffix")
        ask(server)
        samples = read(server)
        assert total(samples, "forerun_drafter_bytes", drafter="suffix") > before
        tables = server.llm.engine.speculator.drafters[1].num_bytes
        assert total(samples, "forerun_drafter_bytes", drafter="recycle") == tables > 8 * 100
        ask(server, cache_salt="own")
        assert total(read(server), "forerun_drafter_bytes", drafter="recycle") == 2 * tables


def test_formats_and_verification_are_told(tiny_model):
    options = {"draft-model.model": str(tiny_model), "draft-model.kv_format": "fp32"}
    speculation = SpeculationConfig("draft-model", options=options, verification="typical", lossy=True)
    with serving(tiny_llm(tiny_model, speculation)) as server:
        health = server.http.get("/health").json()
        assert health["kv_formats"] == {"target": "bf16", "draft-model": "fp32"}
        assert (health["verification"], health["lossy"]) == ("typical", True)
        info = {"kv_formats": "target:bf16,draft-model:fp32", "verification": "typical", "lossy": "true"}
        assert total(read(server), "forerun_info", **info) == 1
        assert total(read(server), "forerun_memory_bytes", use="drafts") > 0


def test_clients_cannot_make_series(fresh):
    for path in ("/a", "/b/c", "/v1/models/x", "/v1/models/y"):
        fresh.http.get(path)
    fresh.http.request("BREW", "/v1/models")
    samples = read(fresh)
    named = {dict(labels).get("route") for (name, labels) in samples if name == "forerun_http_requests_total"}
    assert named <= {"unmatched", "/v1/models/{model:path}", "/v1/models", "/metrics"}
    assert total(samples, "forerun_http_requests_total", method="other") == 1


def test_every_form_that_prometheus_asks_for(fresh):
    openmetrics = fresh.http.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert openmetrics.headers["content-type"].startswith("application/openmetrics-text")
    assert openmetrics.text.endswith("# EOF\n")
    assert fresh.http.get("/metrics").headers["content-type"].startswith("text/plain")


def test_nothing_global_is_registered():
    first, second = Metrics(), Metrics()
    first.output_tokens.inc(5)
    assert b"forerun_output_tokens_total 0.0" in second.page(None)[0]
    assert b"forerun" not in prometheus_client.generate_latest()


@pytest.fixture(scope="module")
def exported(tiny_model) -> dict[str, set[str]]:
    """Samples' names by family, of a server as it is by default."""
    with serving(tiny_llm(tiny_model)) as server:
        for word in "abcdefgh":
            ask(server, text=f"{word} one two one two one two")
        ask(server, temperature=7)
        families = text_string_to_metric_families(server.http.get("/metrics").text)
        return {family.name: {sample.name for sample in family.samples} for family in families}


def names_in(expressions: list[str]) -> set[str]:
    return {name for one in expressions for name in re.findall(r"\b(?:forerun|process|python)_\w+", one)}


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    return json.loads((DEPLOY / "grafana" / "forerun.json").read_text())


def panel_names(dashboard: dict[str, Any]) -> set[str]:
    return names_in([target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())])


def test_the_dashboard_and_the_alerts_ask_for_metrics_that_exist(exported, dashboard):
    variables = [one["query"]["query"] for one in dashboard["templating"]["list"] if one["type"] == "query"]
    alerts = re.findall(r"expr: (.*)", (DEPLOY / "prometheus" / "alerts.yml").read_text())
    asked = panel_names(dashboard) | names_in(variables + alerts)
    assert len(asked) > 25
    assert asked - set().union(*exported.values()) == set()


def test_every_metric_has_a_panel(exported, dashboard):
    shown = panel_names(dashboard)
    counted = {family: names for family, names in exported.items() if not family.endswith("_created")}
    assert len(counted) > 40
    assert [family for family, names in counted.items() if not names & shown] == []


def test_panels_have_numbers_and_places_of_their_own(dashboard):
    places = [
        (panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y)
        for panel in dashboard["panels"]
        for x in range(panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["h"])
    ]
    assert len(set(places)) == len(places)
    assert max(x for x, _ in places) < 24
    numbers = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(numbers)) == len(numbers)


def test_every_metric_is_described(fresh):
    ask(fresh)
    page = (DEPLOY.parent / "docs" / "how-to" / "observe.md").read_text()
    families = {family.name for family in text_string_to_metric_families(fresh.http.get("/metrics").text)}
    described = {name.removesuffix("_total") for name in re.findall(r"\bforerun_\w+", page)}
    missing = {name for name in families if name.startswith("forerun_") and not name.endswith("_created")} - described
    assert missing == set()
    of_the_allocator = {"forerun_guard_trips", "forerun_guard_off"}  # `fresh` has a fixed budget
    assert described - {family.removesuffix("_total") for family in families} == of_the_allocator
