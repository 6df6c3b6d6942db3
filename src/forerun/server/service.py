"""Service: what the routes share; one per process, made at start."""

import time
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Request

from forerun.llm import LLM
from forerun.server.async_engine import AsyncEngine
from forerun.server.config import ServerConfig
from forerun.server.grammars import Grammars


@dataclass
class Service:
    """Of `llm`, routes may read what never changes (tokenizer, template, spec, numerics_id); its engine belongs to
    `engine`'s thread."""

    llm: LLM
    engine: AsyncEngine
    config: ServerConfig
    created: int = field(default_factory=lambda: int(time.time()))
    started_s: float = field(default_factory=time.monotonic)
    grammars: Grammars = field(init=False)

    def __post_init__(self) -> None:
        self.grammars = Grammars(self.llm.grammars)

    @property
    def model_name(self) -> str:
        """The model's name for clients."""
        return self.config.served_model

    @property
    def uptime_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started_s

    @property
    def model_names(self) -> tuple[str, ...]:
        """All names that clients may use for it, the first one first."""
        return (self.model_name, *self.aliases, *self.config.untold_names)

    @property
    def aliases(self) -> tuple[str, ...]:
        """Those beside the first that clients are told."""
        return tuple(dict.fromkeys(name for name in self.config.model_aliases if name != self.model_name))


@dataclass(frozen=True)
class Tenant:
    """Who asks. Tenants do not share cached prefixes.

    salt  separates the tenant's KV cache and drafter stores from others'
    """

    name: str = ""
    salt: str = ""


# Without "async" each of the two would wait for a thread and back, in every request.
async def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


async def _tenant(request: Request) -> Tenant:
    tenant: Tenant = getattr(request.state, "tenant", Tenant())
    return tenant


Serving = Annotated[Service, Depends(_service)]
Asker = Annotated[Tenant, Depends(_tenant)]
