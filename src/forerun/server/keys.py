"""API keys: who may ask, and how much each may take.

A key is written as KEY or TENANT:KEY, with its own limits behind it where they differ from the server's:

    sk-4f1e9c2b                                     one key, a tenant of its own
    alice:sk-77aa01 tokens_per_minute=60000         a named tenant; several keys may name the same one
    bob:sk-09ffe3 requests_per_minute=10 concurrent=2

Memory holds digests only. Keys of one tenant share cached prefixes, those of different tenants never do.
"""

import dataclasses
import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from forerun.errors import UsageError

MAX_FILE_BYTES = 1 << 20
MIN_KEY_LEN = 8  # characters; a shorter key can be guessed


@dataclass(frozen=True)
class KeyLimits:
    """What one key may take; None is no limit.

    requests_per_minute  answered with 429 beyond
    tokens_per_minute    of prompts and answers together, cached ones included
    concurrent           requests under way at the same time
    max_prompt_tokens    of one request
    max_output_tokens    of one request's answer; one that does not say how long it may be is cut there
    """

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent: int | None = None
    max_prompt_tokens: int | None = None
    max_output_tokens: int | None = None

    def with_entries(self, entries: Iterable[str]) -> "KeyLimits":
        """These limits with NAME=NUMBER entries in their place; "none" lifts one. Raises UsageError."""
        names = [field.name for field in dataclasses.fields(self)]
        changed: dict[str, int | None] = {}
        for entry in entries:
            name, _, text = entry.partition("=")
            if name not in names:
                raise UsageError(f"a key has no limit {name!r}: choose {', '.join(names)}")
            if text != "none" and not (text.isascii() and text.isdigit() and int(text) > 0):
                raise UsageError(f"the limit {name} must be a whole number above 0, or none, got {text!r}")
            changed[name] = None if text == "none" else int(text)
        return dataclasses.replace(self, **changed)


@dataclass(frozen=True)
class ApiKey:
    """One key: whose it is, its digest, and its limits."""

    tenant: str
    digest: bytes
    limits: KeyLimits = KeyLimits()


@dataclass(frozen=True)
class KeySources:
    """Where keys come from. limits: of every key that does not say otherwise, and of all clients together without keys.

    entries  as written on the command line or in the environment
    file     read at start and again on SIGHUP
    """

    entries: tuple[str, ...] = ()
    file: Path | None = None
    limits: KeyLimits = KeyLimits()

    def load(self) -> "KeyRing":
        """All keys. Raises UsageError naming what is wrong, without ever printing a key."""
        keys = [_parse(entry, self.limits, f"API key {at}") for at, entry in enumerate(self.entries, start=1)]
        if self.file is not None:
            keys += _read(self.file, self.limits)
        seen: dict[bytes, str] = {}
        for key in keys:
            if key.digest in seen:
                raise UsageError(f"a key of tenant {key.tenant!r} is given twice: keep one of them")
            seen[key.digest] = key.tenant
        return KeyRing(tuple(keys))


class KeyRing:
    """The keys that open the server; without any it is open to all."""

    def __init__(self, keys: tuple[ApiKey, ...] = ()) -> None:
        self.keys = keys

    def find(self, presented: str) -> ApiKey | None:
        """The key that was presented. The time it takes says nothing about which one, or how much of it, is right."""
        digest = key_digest(presented)
        found = None
        for key in self.keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found


def key_digest(key: str) -> bytes:
    """What is kept of a key."""
    return hashlib.sha256(b"forerun/key/1:" + key.encode("utf-8", "surrogatepass")).digest()


def tenant_salt(tenant: str) -> str:
    """What separates a tenant's caches: of fixed length, so that nothing appended can imitate another's."""
    raw = tenant.encode("utf-8", "surrogatepass")
    return hashlib.sha256(b"forerun/tenant/1:%d:" % len(raw) + raw).hexdigest()


def _read(path: Path, limits: KeyLimits) -> list[ApiKey]:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
        text = raw.decode("utf-8")
    except OSError as error:
        raise UsageError(f"the key file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"the key file {path} is not UTF-8 text: write one TENANT:KEY a line") from None
    if len(raw) > MAX_FILE_BYTES:
        raise UsageError(f"the key file {path} is longer than {MAX_FILE_BYTES >> 20} MB: is it the right file?")
    lines = [(at, line.strip()) for at, line in enumerate(text.splitlines(), start=1)]
    keys = [_parse(line, limits, f"{path}:{at}") for at, line in lines if line and not line.startswith("#")]
    if not keys:
        raise UsageError(f"the key file {path} has no key: write one TENANT:KEY a line")
    return keys


def _parse(entry: str, limits: KeyLimits, where: str) -> ApiKey:
    words = entry.split()
    if not words:
        raise UsageError(f"{where} is empty: write KEY or TENANT:KEY")
    tenant, colon, key = words[0].rpartition(":")
    if colon and not (tenant.isprintable() and 0 < len(tenant) <= 64):
        raise UsageError(f"{where}: a tenant's name has 1 to 64 characters")
    if len(key) < MIN_KEY_LEN or not (key.isascii() and key.isprintable()):
        raise UsageError(f"{where}: a key has at least {MIN_KEY_LEN} printable ASCII characters")
    digest = key_digest(key)
    try:
        return ApiKey(tenant or f"key-{digest.hex()[:8]}", digest, limits.with_entries(words[1:]))
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
