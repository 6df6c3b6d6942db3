"""Traces: off without the standard variables, with them a span a request, child of the caller's, and a warning when the
libraries are missing."""

import builtins
import json
import logging
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from forerun.server.access import Access
from forerun.server.config import ServerConfig
from forerun.server.operations import Operations
from forerun.server.tracing import NoTracer, OtelTracer, make_tracer
from tests.server.conftest import MODEL, serving, tiny_llm

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


@pytest.fixture(scope="module")
def traced(tiny_model):
    """A server and the exporter that has its spans."""
    exporter = InMemorySpanExporter()
    config = ServerConfig(served_model=MODEL)
    operations = Operations(config, Access(config.keys), OtelTracer(SimpleSpanProcessor(exporter), MODEL))
    with serving(tiny_llm(tiny_model), config, operations) as server:
        yield server, exporter


def ask(server, headers=None, **options):
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5} | options
    return server.http.post("/v1/chat/completions", json=body, headers=headers or {})


def spans(traced, wait_until, count=1):
    _, exporter = traced
    wait_until(lambda: len(exporter.get_finished_spans()) >= count)
    found = exporter.get_finished_spans()
    exporter.clear()
    return found


def test_a_span_has_the_life_of_its_request(traced, wait_until):
    server, _ = traced
    usage = ask(server, ignore_eos=True, n=2).json()["usage"]
    (span,) = spans(traced, wait_until)
    assert span.name == "POST /v1/chat/completions"
    assert span.attributes["http.response.status_code"] == 200
    assert span.attributes["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
    assert span.attributes["gen_ai.usage.output_tokens"] == usage["completion_tokens"] == 10
    assert span.attributes["gen_ai.response.finish_reasons"] == ("length", "length")
    assert span.resource.attributes["service.name"] == "forerun"
    names = [event.name for event in span.events]
    assert names == ["queued", "prefill began", "decode began", "generation ended"] * 2
    times = [event.timestamp for event in span.events[:4]]
    assert times == sorted(times)
    assert span.start_time <= times[0]
    assert times[-1] <= span.end_time + 1_000_000_000


def test_the_callers_trace_goes_on(traced, wait_until):
    server, _ = traced
    ask(server, {"traceparent": f"00-{TRACE}-{PARENT}-01"})
    ask(server, {"traceparent": "nonsense"})
    inner, own = spans(traced, wait_until, 2)
    assert f"{inner.context.trace_id:032x}" == TRACE
    assert f"{inner.parent.span_id:016x}" == PARENT
    assert own.parent is None
    ask(server, {"traceparent": f"00-{TRACE}-{PARENT}-00"})  # the caller does not sample
    ask(server)
    (span,) = spans(traced, wait_until)
    assert span.parent is None


def test_refusals_and_failures(traced, wait_until, monkeypatch):
    server, _ = traced
    ask(server, temperature=9)
    (span,) = spans(traced, wait_until)
    assert (span.attributes["error.type"], span.status.status_code) == ("invalid_value", StatusCode.UNSET)
    with monkeypatch.context() as broken:
        broken.setattr("forerun.server.routes.chat.ask_chat", lambda *_arguments: 1 / 0)
        ask(server)
    (span,) = spans(traced, wait_until)
    assert span.status.status_code is StatusCode.ERROR


def test_health_and_metrics_have_no_spans(traced, wait_until):
    server, _ = traced
    for path in ("/health", "/metrics", "/v1/models"):
        server.http.get(path)
    assert [span.name for span in spans(traced, wait_until)] == ["GET /v1/models"]


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {ENDPOINT: ""},
        {ENDPOINT: "http://x", "OTEL_SDK_DISABLED": "true"},
        {ENDPOINT: "http://x", "OTEL_TRACES_EXPORTER": "none"},
    ],
)
def test_no_traces_unless_asked_for(environment, caplog):
    assert isinstance(make_tracer(MODEL, environment), NoTracer)
    assert caplog.records == []


def test_a_protocol_that_is_not_there_is_said(caplog):
    assert isinstance(make_tracer(MODEL, {ENDPOINT: "http://x", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}), NoTracer)
    assert "grpc" in caplog.text


def test_a_missing_extra_is_one_warning(monkeypatch, caplog):
    real = builtins.__import__

    def without(name, *rest):
        if name.startswith("opentelemetry"):
            raise ImportError(f"No module named {name!r}")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with caplog.at_level(logging.WARNING):
        assert isinstance(make_tracer(MODEL, {ENDPOINT: "http://x"}), NoTracer)
    (warning,) = caplog.records
    assert "forerun[otel]" in warning.getMessage()
    assert "\n" not in warning.getMessage()


class Collector(BaseHTTPRequestHandler):
    """Takes what is exported."""

    received: list[tuple[str, bytes]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.received.append((self.path, body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_arguments: object) -> None:
        pass


def test_spans_reach_a_collector_when_the_server_ends(tiny_model, monkeypatch):
    Collector.received = []
    collector = HTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=collector.serve_forever, daemon=True)
    thread.start()
    try:
        monkeypatch.setenv(ENDPOINT, f"http://127.0.0.1:{collector.server_port}")
        monkeypatch.setenv("OTEL_SERVICE_NAME", "my-forerun")
        config = ServerConfig(served_model=MODEL)
        operations = Operations(config, Access(config.keys), make_tracer(MODEL))
        with serving(tiny_llm(tiny_model), config, operations) as server:
            assert json.loads(ask(server).text)["choices"]
    finally:
        collector.shutdown()
        collector.server_close()
        thread.join(5)
    assert [path for path, _ in Collector.received] == ["/v1/traces"]
    assert b"POST /v1/chat/completions" in Collector.received[0][1]
    assert b"my-forerun" in Collector.received[0][1]
