"""draft-model: a second, smaller model drafts, with KV layers of its own in the target's blocks.

Options

    model         path, alias or hub id of the draft model; required. Its tokens must be the target's
    width         children per node and nodes per level; 1 drafts a chain, more a tree
    max_depth     longest path
    min_survival  a path that is less likely than this is not followed further
    weights       format of its weights, as for the target: "file", "bf16", "int8" or "int4"
    vocabulary    0: all of its output matrix; N: the N tokens of lowest id, control tokens, and those of the running
                  texts (trimmed_vocabulary)

KV lies in the store that all stacks share, so its format is the target's.

Source: Leviathan et al., arXiv:2211.17192; Chen et al., arXiv:2302.01318; trees, EAGLE-2 (tree_search).
"""

from collections.abc import Sequence as Seq
from dataclasses import replace

from forerun.backends.base import ProgramSpec
from forerun.cache.layout import KvStack
from forerun.errors import UsageError
from forerun.models import decoder
from forerun.models.kv import kv_stack
from forerun.sequence import Sequence
from forerun.speculation.draft_vocabulary import SharedVocabulary
from forerun.speculation.drafter import Ask, Seen, register
from forerun.speculation.host import DraftHost, OpenedModel
from forerun.speculation.level_drafting import DraftSettings, LevelDrafting, draft_limits
from forerun.speculation.tree import MAX_NODES, DraftTree
from forerun.speculation.trimmed_vocabulary import EXTRA, KEPT, TrimmedVocabulary
from forerun.speculation.vocabulary_match import num_shared_ids

WEIGHTS = ("file", "bf16", "int8", "int4")


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
        weights: str = "file",
        vocabulary: int = 0,
    ) -> None:  # size: one argument an option
        if not model:
            raise UsageError("draft-model needs a model to draft with: give the option draft-model.model=NAME")
        if not 1 <= width <= 16:
            raise UsageError(f"draft-model.width must be between 1 and 16, got {width}")
        if not 1 <= max_depth <= MAX_NODES:
            raise UsageError(f"draft-model.max_depth must be between 1 and {MAX_NODES}, got {max_depth}")
        if not 0.0 <= min_survival < 1.0:
            raise UsageError(f"draft-model.min_survival must be at least 0 and below 1, got {min_survival}")
        if weights not in WEIGHTS:
            raise UsageError(f"draft-model.weights must be one of {', '.join(WEIGHTS)}, got {weights!r}")
        if vocabulary < 0:
            raise UsageError(f"draft-model.vocabulary must be at least 0 (0 is all), got {vocabulary}")
        self._reference = model
        self._weights = weights
        self._kept = vocabulary
        self._settings = DraftSettings(self.name, False, width, max_depth, min_survival)
        self._opened: OpenedModel | None = None
        self._num_shared = 0
        self._drafting: LevelDrafting

    # ---- where it lives ----

    def kv_stacks(self, host: DraftHost) -> Seq[KvStack]:
        return (kv_stack(self.name, self._open(host).model.spec),)

    def load(self, host: DraftHost, first_kv_layer: int) -> None:
        draft = self._open(host)
        model, spec = draft.model, draft.model.spec
        settings = replace(self._settings, max_context=spec.max_context)
        trimmed = self._trimmed(draft)
        output = KEPT if trimmed else None
        program = host.backend.add_program(
            ProgramSpec(
                self.name,
                trimmed.trimmed if trimmed else model,
                lambda ops: decoder.logits(spec, ops, first_kv_layer=first_kv_layer, output=output),
                draft_limits(host, settings),
                self._weights,
                trimmed.shapes if trimmed else None,
            )
        )
        if trimmed:
            trimmed.reload = program.reload
        vocabulary = trimmed or SharedVocabulary(self._num_shared, spec.vocab_size)
        self._drafting = LevelDrafting(program, settings, host, vocabulary)

    def _trimmed(self, draft: OpenedModel) -> TrimmedVocabulary | None:
        """A cut output matrix, where that is asked for and makes it smaller."""
        if not 0 < self._kept < self._num_shared - EXTRA:
            return None
        return TrimmedVocabulary(draft.model, self._kept, self._num_shared, draft.vocabulary.is_special)

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
            self._num_shared = num_shared_ids(host.target, self._opened)
        return self._opened


register("draft-model", ModelDrafter)
