"""prepare: everything about a server that can fail without a model, so that it fails before one is loaded."""

import errno
import logging
import resource
import socket
import ssl
from dataclasses import dataclass

from forerun.errors import ForerunError, UsageError
from forerun.server.access import Access
from forerun.server.config import ServerConfig

log = logging.getLogger(__name__)
BACKLOG = 2048  # connections that wait to be accepted
WANTED_FILES = 1 << 16  # open files: every connection is one


@dataclass
class Prepared:
    """An address that is ours, where clients wait; the keys; the certificate. A context that gives the address up."""

    listener: socket.socket
    access: Access
    tls: ssl.SSLContext | None

    def __enter__(self) -> "Prepared":
        return self

    def __exit__(self, *_error: object) -> None:
        self.listener.close()

    @property
    def port(self) -> int:
        """The port, a free one where none was named."""
        port: int = self.listener.getsockname()[1]
        return port

    def url(self, host: str) -> str:
        """Where clients reach the server."""
        name = f"[{host}]" if ":" in host else host
        return f"{'http' if self.tls is None else 'https'}://{name}:{self.port}"


def prepare(config: ServerConfig) -> Prepared:
    """Read keys and certificate and bind the address. Raises UsageError, or ForerunError when the address is taken."""
    access = Access(config.keys, public_metrics=config.public_metrics)
    tls = _tls(config)
    _raise_open_files()
    return Prepared(_bind(config.host, config.port), access, tls)


def load_certificate(context: ssl.SSLContext, config: ServerConfig) -> None:
    """Use the certificate's files as they are now, for connections from now on. Raises UsageError."""
    assert config.tls_cert is not None
    for path in (config.tls_cert, config.tls_key):
        try:
            if path is not None:
                path.open("rb").close()
        except OSError as error:
            raise UsageError(f"the TLS file {path} cannot be read: {error.strerror}") from None
    try:
        context.load_cert_chain(config.tls_cert, config.tls_key, password=_no_password)
    except (ssl.SSLError, ValueError) as error:
        raise UsageError(
            f"{config.tls_cert} and {config.tls_key} are no certificate with its key, both as PEM: {error}"
        ) from None


def _tls(config: ServerConfig) -> ssl.SSLContext | None:
    if config.tls_cert is None and config.tls_key is None:
        return None
    if config.tls_cert is None or config.tls_key is None:
        raise UsageError("TLS needs a certificate and its key: give --tls-cert and --tls-key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load_certificate(context, config)
    return context


def _no_password() -> str:
    raise ValueError("the key is encrypted: store it without a password")


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise UsageError(f"the address {host!r} is not known: {error.strerror}") from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # With SO_REUSEADDR two sockets may be bound to one port, and only listening shows it. Clients that come before
        # the model is loaded wait.
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ForerunError(f"port {port} of {host} is in use: choose another with --port") from None
        raise ForerunError(f"cannot listen on port {port} of {host}: {error.strerror}") from None
    return listener


def _raise_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_FILES if hard == resource.RLIM_INFINITY else min(WANTED_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError) as error:
            log.info("the limit of open files stays at %d: %s", soft, error)
