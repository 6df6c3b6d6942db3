"""OpenTelemetry traces, when its standard environment variables ask for them and the extra `otel` is installed.

One span per HTTP request under /v1, child of the caller's (W3C traceparent), with events where a generation was queued,
began, had its first token and ended. The libraries are imported only then; nothing global of theirs is touched.
"""

import logging
import os
import time
from collections.abc import Mapping
from typing import Any, Protocol

from forerun import __version__
from forerun.server.exchange import Exchange, Record

log = logging.getLogger(__name__)
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_FLUSH_MS = 5000


class Tracer(Protocol):
    """Follows HTTP requests."""

    def begin(self, exchange: Exchange, headers: Mapping[str, str]) -> None:
        """A request has come; its span is kept in the exchange."""
        ...

    def end(self, exchange: Exchange) -> None:
        """It is answered and its generations have ended."""
        ...

    def close(self) -> None:
        """Send what is left; waits a few seconds at most."""
        ...


class NoTracer:
    """Traces nothing."""

    def begin(self, exchange: Exchange, headers: Mapping[str, str]) -> None:
        pass

    def end(self, exchange: Exchange) -> None:
        pass

    def close(self) -> None:
        pass


def make_tracer(model_name: str, environment: Mapping[str, str] | None = None) -> Tracer:
    """The tracer that the environment asks for. One warning, and none, when the libraries for it are missing."""
    wanted = os.environ if environment is None else environment
    if not any(wanted.get(name) for name in _ENDPOINTS) or wanted.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return NoTracer()
    if wanted.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp":
        return NoTracer()
    protocol = wanted.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or wanted.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    if protocol not in (None, "", "http/protobuf"):
        log.warning("no traces are sent: forerun speaks OTLP as http/protobuf only, not %s", protocol)
        return NoTracer()
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        return OtelTracer(BatchSpanProcessor(OTLPSpanExporter()), model_name)
    except ImportError as error:
        log.warning(
            "no traces are sent although the environment asks for them: pip install 'forerun[otel]' (%s)", error
        )
        return NoTracer()


class OtelTracer:
    """Spans through a processor of the OpenTelemetry SDK. Raises ImportError without it."""

    def __init__(self, processor: Any, model_name: str) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.trace import SpanKind, Status, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        # What the environment says about the service wins over what is given here.
        named = bool(os.environ.get("OTEL_SERVICE_NAME"))
        resource = Resource.create({"service.version": __version__} | ({} if named else {"service.name": "forerun"}))
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("forerun.server", __version__)
        self._propagator = TraceContextTextMapPropagator()
        self._kind = SpanKind.SERVER
        self._failed = Status(StatusCode.ERROR)
        self._model_name = model_name

    def begin(self, exchange: Exchange, headers: Mapping[str, str]) -> None:
        if not exchange.path.startswith("/v1/"):
            return
        exchange.span = self._tracer.start_span(
            exchange.method,
            context=self._propagator.extract(headers),
            kind=self._kind,
            start_time=_unix_ns(exchange.started_at),
            attributes={
                "http.request.method": exchange.method,
                "url.path": exchange.path,
                "forerun.request_id": exchange.id,
            },
        )

    def end(self, exchange: Exchange) -> None:
        span = exchange.span
        if span is None:
            return
        if exchange.route:
            span.update_name(f"{exchange.method} {exchange.route}")
            span.set_attribute("http.route", exchange.route)
        span.set_attributes(_attributes(exchange, self._model_name))
        for record in exchange.records:
            _add_events(span, record)
        if exchange.status >= 500 or exchange.status == 0:
            span.set_status(self._failed)
        span.end(_unix_ns(exchange.answered_at or time.perf_counter()))

    def close(self) -> None:
        self._provider.force_flush(_FLUSH_MS)
        self._provider.shutdown()


def _attributes(exchange: Exchange, model_name: str) -> dict[str, Any]:
    """Names follow the semantic conventions of HTTP and of generative models where they have one."""
    found: dict[str, Any] = {"http.response.status_code": exchange.status}
    if exchange.tenant:
        found["forerun.tenant"] = exchange.tenant
    if exchange.reason:
        found["error.type"] = exchange.reason
    records = exchange.records
    if records:
        found |= {
            "gen_ai.request.model": model_name,
            "gen_ai.usage.input_tokens": exchange.prompt_tokens,
            "gen_ai.usage.output_tokens": sum(record.num_output for record in records),
            "gen_ai.response.finish_reasons": [record.finish for record in records],
            "forerun.cached_tokens": max(record.num_cached for record in records),
            "forerun.drafted_tokens": sum(record.drafted for record in records),
            "forerun.accepted_tokens": sum(record.accepted for record in records),
        }
    return found


def _add_events(span: Any, record: Record) -> None:
    span.add_event("queued", {"prompt_tokens": record.num_prompt}, _unix_ns(record.arrived_at))
    if record.steps or record.first_s is not None or record.queue_s < record.total_s:
        began = {"cached_tokens": record.num_cached}
        span.add_event("prefill began", began, _unix_ns(record.arrived_at + record.queue_s))
    if record.first_s is not None:
        span.add_event("decode began", None, _unix_ns(record.arrived_at + record.first_s))
    ended = {"output_tokens": record.num_output, "finish": record.finish, "steps": record.steps}
    span.add_event("generation ended", ended, _unix_ns(record.arrived_at + record.total_s))


def _unix_ns(at: float) -> int:
    """A time on time.perf_counter's clock as nanoseconds since 1970."""
    return time.time_ns() - int((time.perf_counter() - at) * 1e9)
