"""DraftHost: what a drafter may know of the engine it drafts for."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from forerun.backends.base import Backend, LoadedModel
from forerun.cache.layout import KvLayout


class Vocabulary(Protocol):
    """A tokenizer as drafters see it; text.tokenizer.Tokenizer is one."""

    @property
    def vocab_size(self) -> int: ...

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token stands for; empty for control tokens."""
        ...

    def is_special(self, token: int) -> bool:
        """True for control tokens, which stand for no text."""
        ...

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Token ids of a text, nothing added; `special`: control tokens spelled out in it are recognised."""
        ...

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Text of token ids."""
        ...


@dataclass(frozen=True)
class OpenedModel:
    """A model that has been opened but not loaded. `name` identifies its file, for messages and caches."""

    name: str
    model: LoadedModel
    vocabulary: Vocabulary


@dataclass(frozen=True)
class DraftHost:
    """The surroundings of a drafter.

    target         the model that is drafted for
    backend        loads further programs; forwards of the target are the engine's alone
    open_model     opens another model by path, alias or hub id. Raises ModelNotFound and the like
    kv_format      how the target's keys and values are stored
    layout         the KV store; its first stack is the target's. None while it is being planned
    max_model_len  longest sequence, in tokens
    max_num_seqs   sequences that run together
    max_rows       draft rows of one step at most
    verification   "coupled", "rejection", "block" or "typical"
    cache_folder   where files may be kept that are specific to this target and machine
    """

    target: OpenedModel
    backend: Backend
    open_model: Callable[[str], OpenedModel]
    kv_format: str
    layout: KvLayout | None
    max_model_len: int
    max_num_seqs: int
    max_rows: int
    verification: str
    cache_folder: Path
