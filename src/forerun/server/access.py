"""Access: which requests may pass, whose they are, and what their keys allow.

Without keys everybody may ask. With keys, all paths need one but those that a browser or an orchestrator must reach
before it can show one.
"""

import logging
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forerun.errors import UsageError
from forerun.server.asgi import headers_of
from forerun.server.body_limit import refuse
from forerun.server.errors import ApiError
from forerun.server.exchange import current_exchange
from forerun.server.keys import ApiKey, KeySources, tenant_salt
from forerun.server.limits import Allowance, Allowances
from forerun.server.service import Tenant

log = logging.getLogger(__name__)

OPEN_PATHS = ("/", "/favicon.ico", "/health", "/health/live", "/health/ready")
OPEN_PREFIXES = ("/page/",)  # the page's own files; what it shows comes from paths that need a key


@dataclass(frozen=True)
class Admitted:
    """Who asks, under which allowance."""

    tenant: Tenant
    allowance: Allowance


class Access:
    """The keys and what is left of their limits. Belongs to the event loop.

    public_metrics  /metrics needs no key

    Raises UsageError for keys that cannot be read.
    """

    def __init__(self, sources: KeySources, *, public_metrics: bool = False) -> None:
        self._sources = sources
        self._ring = sources.load()
        self._allowances = Allowances(sources.limits)
        self._open_paths = (*OPEN_PATHS, "/metrics") if public_metrics else OPEN_PATHS

    @property
    def num_keys(self) -> int:
        """0 opens the server to all."""
        return len(self._ring.keys)

    def reload(self) -> bool:
        """Read the keys again; False, and the old ones stay, when that fails."""
        try:
            ring = self._sources.load()
        except UsageError as error:
            log.error("the keys stay as they were: %s", error)
            return False
        self._ring = ring
        self._allowances.keep(ring)
        log.info("%d API keys are in force", len(ring.keys))
        return True

    def is_open(self, path: str) -> bool:
        """True where no key is asked for."""
        return path in self._open_paths or path.startswith(OPEN_PREFIXES)

    def admit(self, headers: dict[str, str]) -> Admitted:
        """Who sends these headers. Raises ApiError 401."""
        key: ApiKey | None = None
        if self._ring.keys:
            key = self._ring.find(_presented(headers))
            if key is None:
                raise ApiError(
                    401,
                    "this API key is not valid here",
                    code="invalid_api_key",
                    headers={"WWW-Authenticate": "Bearer"},
                )
        tenant = Tenant() if key is None else Tenant(key.tenant, tenant_salt(key.tenant))
        return Admitted(tenant, self._allowances.of(key))


def _presented(headers: dict[str, str]) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    presented = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
    if not presented:
        raise ApiError(
            401,
            "this server needs an API key: send Authorization: Bearer KEY",
            code="missing_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )
    return presented


class AccessMiddleware:
    """Lets requests pass or answers 401 or 429; a POST takes from its key's allowance until it is answered."""

    def __init__(self, app: ASGIApp, *, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._access.is_open(scope["path"]):
            await self._app(scope, receive, send)
            return
        try:
            admitted = self._access.admit(headers_of(scope))
        except ApiError as error:
            await refuse(error, scope, receive, send)
            return
        scope.setdefault("state", {})["tenant"] = admitted.tenant
        exchange = current_exchange()
        if exchange is not None:
            exchange.tenant, exchange.allowance = admitted.tenant.name, admitted.allowance

        async def send_with_limits(message: Message) -> None:
            if message["type"] == "http.response.start":
                more = [(name.encode(), value.encode()) for name, value in admitted.allowance.headers().items()]
                message["headers"] = [*message.get("headers", ()), *more]
            await send(message)

        await self._run(admitted.allowance, scope, receive, send_with_limits)

    async def _run(self, allowance: Allowance, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        try:
            allowance.enter()
        except ApiError as error:
            await refuse(error, scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            allowance.leave()
