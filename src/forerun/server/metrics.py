"""Metrics: what happened to requests, for Prometheus, in a registry of its own.

What the engine counts by itself is read when somebody asks (engine_metrics); here is what must be observed when it
happens. Everything is a counter or a histogram, so that sums and ratios over any time can be taken by who reads them.
"""

from collections.abc import Sequence as Seq

from prometheus_client import CollectorRegistry, Counter, Gauge, GCCollector, Histogram, PlatformCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.process_collector import ProcessCollector

from forerun.server.exchange import Exchange, Record

SHORT_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0)
LONG_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0)
TOKENS = (1, 4, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
ROWS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024)
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


class Metrics:
    """All instruments. `page` writes them out."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self._make_http()
        self._make_tokens()
        self._make_times()

    def page(self, accept: str | None) -> tuple[bytes, str]:
        """The text of all metrics in the form that `accept` prefers, and its content type."""
        encode, content_type = choose_encoder(accept or "")
        return encode(self.registry), content_type

    def exchange_ended(self, exchange: Exchange) -> None:
        """Count an HTTP request whose answer is out and whose generations have ended."""
        method = exchange.method if exchange.method in _METHODS else "other"
        route = exchange.route or "unmatched"
        self.http_requests.labels(method, route, str(exchange.status)).inc()
        self.http_seconds.labels(route).observe(exchange.total_s)
        if exchange.reason and exchange.status >= 400:
            self.rejected.labels(exchange.reason).inc()

    def generation_began(self, num_prompt: int, num_cached: int, queue_s: float) -> None:
        """A generation's first step has begun."""
        self.prompt_tokens.inc(num_prompt)
        self.prefix_hit_tokens.inc(num_cached)
        self.queue_seconds.observe(queue_s)
        self.prompt_len.observe(num_prompt)

    def generation_ended(self, record: Record) -> None:
        """A generation is over."""
        self.generations.labels(record.finish).inc()
        self.output_len.observe(record.num_output)
        self.generation_seconds.observe(record.total_s)
        if record.first_s is None:
            return
        self.first_token_seconds.observe(record.first_s)
        self.prefill_seconds.observe(max(0.0, record.first_s - record.queue_s))
        decode_s = max(0.0, record.total_s - record.first_s)
        self.decode_seconds.observe(decode_s)
        if record.num_output > 1:
            self.token_seconds.observe(decode_s / (record.num_output - 1))

    # ---- construction ----

    def _make_http(self) -> None:
        self.http_requests = self._counter(
            "forerun_http_requests", "HTTP requests answered.", ("method", "route", "status")
        )
        self.http_seconds = self._histogram(
            "forerun_http_request_seconds", "From a request's headers to the end of its answer.", LONG_S, ("route",)
        )
        self.http_in_flight = Gauge(
            "forerun_http_requests_in_flight", "HTTP requests under way.", registry=self.registry
        )
        self.rejected = self._counter("forerun_rejected_requests", "Requests answered with an error.", ("reason",))

    def _make_tokens(self) -> None:
        self.prompt_tokens = self._counter("forerun_prompt_tokens", "Prompt tokens of generations that began.")
        self.prefix_hit_tokens = self._counter(
            "forerun_prefix_hit_tokens", "Prompt tokens whose KV came from the prefix cache."
        )
        self.output_tokens = self._counter("forerun_output_tokens", "Tokens generated.")
        self.generations = self._counter("forerun_generations", "Generations that ended, by reason.", ("finish",))
        self.prompt_len = self._histogram("forerun_prompt_length_tokens", "Prompt tokens of a generation.", TOKENS)
        self.output_len = self._histogram("forerun_output_length_tokens", "Output tokens of a generation.", TOKENS)

    def _make_times(self) -> None:
        self.queue_seconds = self._histogram(
            "forerun_queue_seconds", "From a generation's arrival to its first step.", LONG_S
        )
        self.prefill_seconds = self._histogram(
            "forerun_prefill_seconds", "From a generation's first step to its first token.", LONG_S
        )
        self.first_token_seconds = self._histogram(
            "forerun_time_to_first_token_seconds", "From a generation's arrival to its first token.", LONG_S
        )
        self.inter_token_seconds = self._histogram(
            "forerun_inter_token_seconds",
            "Between two deliveries of tokens to one generation; one delivery may carry several accepted drafts.",
            SHORT_S,
        )
        self.token_seconds = self._histogram(
            "forerun_time_per_output_token_seconds", "Mean time of a generation's tokens behind the first.", SHORT_S
        )
        self.decode_seconds = self._histogram(
            "forerun_decode_seconds", "From a generation's first token to its end.", LONG_S
        )
        self.generation_seconds = self._histogram(
            "forerun_generation_seconds", "From a generation's arrival to its end.", LONG_S
        )
        self.step_seconds = self._histogram("forerun_step_seconds", "Time of an engine step.", SHORT_S)
        self.step_rows = self._histogram("forerun_step_rows", "Rows of an engine step: tokens and draft nodes.", ROWS)

    def _counter(self, name: str, text: str, labels: Seq[str] = ()) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: Seq[float], labels: Seq[str] = ()) -> Histogram:
        return Histogram(name, text, labels, buckets=buckets, registry=self.registry)
