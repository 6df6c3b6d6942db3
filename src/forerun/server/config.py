"""ServerConfig: how the server is reached and how much it takes."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ServerConfig:
    """Settings of the server; the engine has its own.

    served_model    the name that clients use for the model
    model_aliases   further names for it
    max_body_bytes  longest request body
    max_waiting     generations that may wait beyond those that run
    default_max_tokens  longest answer when a request to /v1/completions does not say
    shutdown_grace_s  how long running requests may go on after the signal to stop
    """

    host: str = "127.0.0.1"
    port: int = 8000
    served_model: str = ""
    model_aliases: tuple[str, ...] = ()
    max_body_bytes: int = 8 << 20
    max_waiting: int = 1024
    default_max_tokens: int = 16
    shutdown_grace_s: float = 30.0
