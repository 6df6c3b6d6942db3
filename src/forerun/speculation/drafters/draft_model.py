"""draft-model: a second, smaller model drafts, with KV layers of its own.

Options

    model         path, alias or hub id of the draft model; required
    width         children per node and nodes per level; 1 drafts a chain, more a tree
    max_depth     longest path
    min_survival  a path that is less likely than this is not followed and not proposed
    weights       format of its weights, as for the target: "file", "bf16", "int8" or "int4" (the default: what its
                  errors cost is acceptance, never a token)
    vocabulary    N: of its output matrix the N tokens of lowest id, control tokens, and those of the running texts
                  (trimmed_vocabulary); 0: all; left out: 32768 with match "exact", else all
    kv_format     how its keys and values are stored: "bf16", "fp32", or "target": as the target's
    match         "exact": its token ids are the target's, and its KV lies in the target's blocks.
                  "intersection" or "text": it has another tokenizer (foreign_vocabulary) and a KV store of its own
    sequences     with another tokenizer: sequences that it can draft for at a time, each with KV for a whole context

Source: Leviathan et al., arXiv:2211.17192; Chen et al., arXiv:2302.01318; trees, EAGLE-2 (tree_search).
"""

from collections.abc import Sequence as Seq
from dataclasses import replace
from functools import partial
from typing import TypeVar

from forerun.backends.base import Ops, ProgramSpec
from forerun.cache.layout import CODEC_BYTES, KvStack
from forerun.errors import UsageError
from forerun.models import decoder
from forerun.models.kv import kv_stack
from forerun.models.spec import ModelSpec
from forerun.sequence import Sequence
from forerun.speculation.drafter import Ask, Seen, register
from forerun.speculation.drafting.level_drafting import DraftSettings, LevelDrafting, draft_limits
from forerun.speculation.drafting.private_kv import PrivateKv, private_layout
from forerun.speculation.host import DraftHost, OpenedModel
from forerun.speculation.tree import MAX_NODES, DraftTree
from forerun.speculation.vocabularies.draft_vocabulary import SharedVocabulary
from forerun.speculation.vocabularies.foreign_vocabulary import IntersectionVocabulary, TextVocabulary
from forerun.speculation.vocabularies.trimmed_vocabulary import EXTRA, KEPT, TrimmedVocabulary
from forerun.speculation.vocabularies.vocabulary_match import num_shared_ids

V = TypeVar("V")

WEIGHTS = ("file", "bf16", "int8", "int4")
KEPT_TOKENS = 32768
AS_TARGET = "target"
MATCHES = ("exact", "intersection", "text")


class ModelDrafter:
    """Drafts with a model. Implements Drafter and HostedDrafter."""

    name = "draft-model"
    is_paid = True

    def __init__(
        self,
        model: str = "",
        width: int = 1,
        max_depth: int = MAX_NODES,
        min_survival: float = 0.0,
        weights: str = "int4",
        vocabulary: int | None = None,
        kv_format: str = AS_TARGET,
        match: str = "exact",
        sequences: int = 4,
    ) -> None:  # size: one argument an option
        _check(bool(model), "model", "the draft model: a path, an alias or a hub id", model)
        _check(1 <= width <= 16, "width", "between 1 and 16", width)
        _check(1 <= max_depth <= MAX_NODES, "max_depth", f"between 1 and {MAX_NODES}", max_depth)
        _check(0.0 <= min_survival < 1.0, "min_survival", "at least 0 and below 1", min_survival)
        _check(weights in WEIGHTS, "weights", f"one of {', '.join(WEIGHTS)}", weights)
        _check(vocabulary is None or vocabulary >= 0, "vocabulary", "at least 0 (0 is all)", vocabulary)
        formats = (AS_TARGET, *CODEC_BYTES)
        _check(kv_format in formats, "kv_format", f"one of {', '.join(formats)}", kv_format)
        _check(match in MATCHES, "match", f"one of {', '.join(MATCHES)}", match)
        _check(sequences >= 1, "sequences", "at least 1", sequences)
        _check(match == "exact" or not vocabulary, "vocabulary", f"0 with match={match}", vocabulary)
        _check(match != "text" or width == 1, "width", "1 with match=text, which drafts chains", width)
        self._reference, self._weights, self._kv_format = model, weights, kv_format
        self._kept = KEPT_TOKENS if vocabulary is None else vocabulary
        self._match, self._num_sequences = match, sequences
        self._settings = DraftSettings(self.name, False, width, max_depth, min_survival)
        self._opened: OpenedModel | None = None
        self._num_shared = 0
        self._drafting: LevelDrafting

    # ---- where it lives ----

    def kv_stacks(self, host: DraftHost) -> Seq[KvStack]:
        stack = self._stack(host)
        return (stack,) if self._match == "exact" else ()

    def _stack(self, host: DraftHost) -> KvStack:
        codec = host.kv_format if self._kv_format == AS_TARGET else self._kv_format
        return kv_stack(self.name, self._open(host).model.spec, codec)

    def load(self, host: DraftHost, first_kv_layer: int) -> None:
        draft = self._open(host)
        settings = replace(self._settings, max_context=draft.model.spec.max_context)
        if self._match == "exact":
            self._drafting = self._load_beside(host, draft, settings, first_kv_layer)
        else:
            self._drafting = self._load_apart(host, draft, settings)

    def _load_beside(
        self, host: DraftHost, draft: OpenedModel, settings: DraftSettings, first_kv_layer: int
    ) -> LevelDrafting:
        """The target's tokens, a stack in the target's blocks."""
        spec = draft.model.spec
        limits, weights = draft_limits(host, settings), self._weights
        if not 0 < self._kept < self._num_shared - EXTRA:  # else trimming would not make the matrix smaller
            whole = partial(_logits, spec=spec, first_kv_layer=first_kv_layer)
            program = host.backend.add_program(ProgramSpec(self.name, draft.model, whole, limits, weights))
            return LevelDrafting(program, settings, host, SharedVocabulary(self._num_shared, spec.vocab_size))
        kept = TrimmedVocabulary(draft.model, self._kept, self._num_shared, draft.vocabulary.is_special)
        cut = partial(_logits, spec=spec, first_kv_layer=first_kv_layer, output=KEPT)
        program = host.backend.add_program(ProgramSpec(self.name, kept.trimmed, cut, limits, weights, kept.shapes))
        kept.reload = program.reload
        return LevelDrafting(program, settings, host, kept)

    def _load_apart(self, host: DraftHost, draft: OpenedModel, settings: DraftSettings) -> LevelDrafting:
        """Other tokens, a KV store of its own."""
        assert host.layout is not None, "a drafter loads when the KV memory is there"
        spec, limits = draft.model.spec, draft_limits(host, settings)
        vocabulary = (IntersectionVocabulary if self._match == "intersection" else TextVocabulary)(
            host.target, draft, spec.vocab_size
        )
        layout = private_layout(self._stack(host), self._num_sequences, limits.max_model_len, host.layout.block_size)
        kv = PrivateKv(layout, self._num_sequences, vocabulary, host.target.vocabulary, draft.vocabulary)
        program = host.backend.add_program(
            ProgramSpec(self.name, draft.model, partial(_logits, spec=spec), limits, self._weights, kv=layout)
        )
        return LevelDrafting(program, settings, host, vocabulary, kv)

    # ---- drafting ----

    def begin(self, sequence: Sequence) -> None:
        """Nothing to prepare: the first proposal catches up."""

    def propose(self, asks: Seq[Ask]) -> list[DraftTree | None]:
        return self._drafting.propose(asks)

    def observe(self, seen: Seq[Seen]) -> None:
        self._drafting.observe(seen)

    def end(self, sequence_id: int) -> None:
        self._drafting.end(sequence_id)

    def _open(self, host: DraftHost) -> OpenedModel:
        if self._opened is None:
            self._opened = host.open_model(self._reference)
            if self._match == "exact":
                self._num_shared = num_shared_ids(host.target, self._opened)
        return self._opened


def _logits(ops: Ops[V], spec: ModelSpec, first_kv_layer: int = 0, output: str | None = None) -> V:
    return decoder.logits(spec, ops, first_kv_layer=first_kv_layer, output=output)


def _check(ok: bool, option: str, want: str, got: object) -> None:
    if not ok:
        raise UsageError(f"draft-model.{option} must be {want}, got {got!r}")


register("draft-model", ModelDrafter)
