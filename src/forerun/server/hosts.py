"""HostCheck: refuses requests whose Host is another name for this machine than the ones that are known.

A page on the web can have its own name point at 127.0.0.1 (DNS rebinding) and then talk, as its own server, to whatever
listens there. Such requests carry that name as their Host. Where keys are asked for, it would need one.
"""

from collections.abc import Collection

from starlette.types import ASGIApp, Receive, Scope, Send

from forerun.server.access import Access
from forerun.server.asgi import headers_of
from forerun.server.body_limit import refuse
from forerun.server.errors import ApiError

LOOPBACK = ("127.0.0.1", "::1", "localhost")


class HostCheck:
    """See the module. A request without a Host passes: no browser sends one.

    host     the address that the server listens on; the check is for loopback ones without keys
    allowed  further names, as with --allowed-host: with any of them there is always a check; "*" is all names
    """

    def __init__(self, app: ASGIApp, *, host: str, allowed: Collection[str], access: Access) -> None:
        self._app = app
        self._access = access
        self._is_local = host in LOOPBACK
        self._names = frozenset(name.lower() for name in (*LOOPBACK, host, *allowed))
        self._is_asked_for = bool(allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._checks:
            host = headers_of(scope).get("host", "")
            if host and _name_of(host) not in self._names:
                sentence = f"this server does not answer to the host {host[:100]!r}: start it with --allowed-host NAME"
                await refuse(ApiError(403, sentence, code="host_not_allowed"), scope, receive, send)
                return
        await self._app(scope, receive, send)

    @property
    def _checks(self) -> bool:
        if "*" in self._names:
            return False
        return self._is_asked_for or (self._is_local and not self._access.num_keys)


def _name_of(host: str) -> str:
    """The name in a Host header, without its port and an IPv6 address's brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()
