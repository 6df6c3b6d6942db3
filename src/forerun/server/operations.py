"""Operations: what runs a server beside its routes: access, metrics, traces, accounts, and the middlewares for them.

A request passes them in this order:

    observing -> CORS -> host -> access -> body limit -> routes
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware

from forerun.llm import LLM
from forerun.server.access import Access, AccessMiddleware
from forerun.server.accounting import AccountedEngine, Ledger
from forerun.server.async_engine import EngineObserver
from forerun.server.body_limit import BodyLimit
from forerun.server.config import ServerConfig
from forerun.server.engine_metrics import EngineCollector
from forerun.server.hosts import HostCheck
from forerun.server.limits import RATE_LIMIT_HEADERS
from forerun.server.logs import log_access
from forerun.server.metrics import Metrics
from forerun.server.observing import Observing
from forerun.server.tracing import NoTracer, Tracer
from forerun.server.watch import EngineWatch

_EXPOSED = ("X-Request-Id", "Retry-After", *RATE_LIMIT_HEADERS)


@dataclass
class Operations:
    """One per application."""

    config: ServerConfig
    access: Access
    tracer: Tracer = field(default_factory=NoTracer)
    metrics: Metrics = field(default_factory=Metrics)
    ledger: Ledger = field(default_factory=Ledger)

    def make_engine(self, llm: LLM, observers: Seq[EngineObserver] = ()) -> AccountedEngine:
        """The engine's thread, watched, by `observers` too; not started."""
        watch = EngineWatch(self.metrics, self.ledger.ended, with_text=self.config.log_prompts)
        engine = AccountedEngine(
            llm,
            self.ledger,
            max_waiting=self.config.max_waiting,
            observers=[watch, *observers],
            log_prompts=self.config.log_prompts,
        )
        self.metrics.registry.register(EngineCollector(llm, engine, self.config.served_model))
        return engine

    def add_middlewares(self, app: FastAPI) -> None:
        """The last one added is the first one passed."""
        config = self.config
        app.add_middleware(BodyLimit, max_bytes=config.max_body_bytes, timeout_s=config.receive_timeout_s)
        app.add_middleware(AccessMiddleware, access=self.access)
        app.add_middleware(HostCheck, host=config.host, allowed=config.allowed_hosts, access=self.access)
        if config.cors_origins:
            app.add_middleware(
                CORSMiddleware,
                allow_origins=config.cors_origins,
                allow_methods=("GET", "POST"),
                allow_headers=("*",),
                expose_headers=_EXPOSED,
            )
        app.add_middleware(Observing, metrics=self.metrics, tracer=self.tracer, reports=[log_access])
