"""Structured logs on stderr: one line an event, as text or as JSON, and the access line of every request.

An event is a message with fields: `log.info("message", extra=fields(tenant="alice"))`. What comes from clients is
escaped, so that a line is always one event. Prompts and answers are logged only where the operator asked for it.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

from forerun.server.exchange import Exchange
from forerun.server.totals import total_by_depth, total_by_name

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")
_LOGGERS = ("forerun", "uvicorn", "asyncio", "opentelemetry")
_QUIET_PATHS = ("/health", "/health/live", "/health/ready", "/metrics")  # asked every few seconds by machines

access_log = logging.getLogger("forerun.access")


def fields(**values: Any) -> dict[str, Any]:
    """The `extra` of a log call. None is left out."""
    return {"fields": {name: value for name, value in values.items() if value is not None}}


def configure(log_format: str, level: str, stream: TextIO | None = None) -> None:
    """Send what forerun and its server libraries log to stderr in one form; the root logger is left alone."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(level.upper())
    # Its start and stop are told by us, its complaints about clients are part of the access lines.
    logging.getLogger("uvicorn").setLevel(max(logging.getLogger("uvicorn").level, logging.WARNING))


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, fields, and the traceback where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        document = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            document["traceback"] = self.formatException(record.exc_info)
        return json.dumps(document, ensure_ascii=True, default=str)


class TextFormatter(logging.Formatter):
    """Time, level and message, then name=value for every field; tracebacks on lines of their own."""

    def format(self, record: logging.LogRecord) -> str:
        words = [_time(record), record.levelname.lower(), _printable(record.getMessage())]
        words += [f"{name}={_value(value)}" for name, value in getattr(record, "fields", {}).items()]
        line = " ".join(words)
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def log_access(exchange: Exchange) -> None:
    """The one line of a request."""
    level = logging.DEBUG if exchange.path in _QUIET_PATHS and exchange.status < 400 else logging.INFO
    if access_log.isEnabledFor(level):
        access_log.log(level, "request", extra=fields(**access_fields(exchange)))


def access_fields(exchange: Exchange) -> dict[str, Any]:
    """What there is to say about a request; None where there is nothing."""
    document: dict[str, Any] = {
        "request_id": exchange.id,
        "tenant": exchange.tenant or None,
        "client": exchange.client or None,
        "method": exchange.method,
        "path": exchange.path,
        "status": exchange.status,
        "seconds": round(exchange.total_s, 6),
        "reason": exchange.reason or None,
        "error": exchange.message or None,
    }
    return document | (_generation_fields(exchange) if exchange.records else {})


def _generation_fields(exchange: Exchange) -> dict[str, Any]:
    records = exchange.records
    firsts = [record.first_s for record in records if record.first_s is not None]
    num_output = sum(record.num_output for record in records)
    decode_s = max((record.total_s - record.first_s for record in records if record.first_s is not None), default=0.0)
    after_first = num_output - len(firsts)
    drafted = sum(record.drafted for record in records)
    texts = [record.text for record in records if record.text is not None]
    return {
        "prompt_tokens": exchange.prompt_tokens,
        "cached_tokens": max(record.num_cached for record in records),
        "output_tokens": num_output,
        "finish": ",".join(sorted({record.finish for record in records})),
        "queue_s": round(min(record.queue_s for record in records), 6),
        "first_token_s": round(min(firsts), 6) if firsts else None,
        "tokens_per_s": round(after_first / decode_s, 2) if decode_s > 0 and after_first > 0 else None,
        "steps": sum(record.steps for record in records),
        "drafted": drafted,
        "accepted": sum(record.accepted for record in records),
        "drafted_by": total_by_name(record.drafted_by for record in records) or None,
        "accepted_by": total_by_name(record.accepted_by for record in records) or None,
        "drafted_at": total_by_depth(record.drafted_at for record in records) or None,
        "accepted_at": total_by_depth(record.accepted_at for record in records) or None,
        "preemptions": sum(record.preemptions for record in records) or None,
        "generation_error": next((record.error for record in records if record.error), None),
        "prompts": exchange.prompts or None,
        "answers": texts or None,
    }


def _time(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, tz=UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if text and all(c.isprintable() and c not in ' "=' for c in text) else json.dumps(text)


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
