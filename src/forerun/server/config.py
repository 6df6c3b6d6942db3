"""ServerConfig: how the server is reached, by whom, and how much it takes."""

from dataclasses import dataclass, field
from pathlib import Path

from forerun.server.keys import KeySources


@dataclass(frozen=True)
class ServerConfig:
    """Settings of the server; the engine has its own.

    allowed_hosts   names beside the address that clients may call the server by; "*" is any, see hosts
    served_model    the name that clients use for the model
    model_aliases   further names for it
    untold_names    further ones that no answer lists, such as its path on this machine
    max_body_bytes  longest request body
    max_waiting     generations that may wait beyond those that run
    default_max_tokens  longest answer when a request to /v1/completions does not say
    shutdown_grace_s  how long running requests may go on after the signal to stop
    receive_timeout_s how long a request's headers may take to come, and then its body
    keys            who may ask, and how much
    public_metrics  /metrics needs no key
    cors_origins    origins whose pages may read answers; "*" is all
    tls_cert, tls_key  PEM files; both or none
    log_prompts     access lines carry what was asked and said
    """

    host: str = "127.0.0.1"
    port: int = 8000
    allowed_hosts: tuple[str, ...] = ()
    served_model: str = ""
    model_aliases: tuple[str, ...] = ()
    untold_names: tuple[str, ...] = ()
    max_body_bytes: int = 8 << 20
    max_waiting: int = 1024
    default_max_tokens: int = 16
    shutdown_grace_s: float = 30.0
    receive_timeout_s: float = 30.0
    keys: KeySources = field(default_factory=KeySources)
    public_metrics: bool = False
    cors_origins: tuple[str, ...] = ()
    tls_cert: Path | None = None
    tls_key: Path | None = None
    log_prompts: bool = False
