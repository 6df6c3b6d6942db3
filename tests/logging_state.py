"""kept_logging: loggers that a test configures are as before afterwards."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

NAMES = ("forerun", "uvicorn", "asyncio", "opentelemetry")


@contextmanager
def kept_logging() -> Iterator[None]:
    """Restore handlers, levels and propagation when the block ends."""
    loggers = [logging.getLogger(name) for name in NAMES]
    before = [(logger.handlers, logger.propagate, logger.level) for logger in loggers]
    try:
        yield
    finally:
        for logger, (handlers, propagate, level) in zip(loggers, before, strict=True):
            logger.handlers, logger.propagate = handlers, propagate
            logger.setLevel(level)
