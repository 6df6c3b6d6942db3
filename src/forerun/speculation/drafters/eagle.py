"""eagle: one decoder layer over tokens and the target's hidden states drafts, level by level.

Options

    head          folder of an EAGLE, EAGLE-2 or EAGLE-3 checkpoint with its config.json; required
    width         children of a node, and nodes of a level; 1 drafts a chain
    max_depth     longest path
    min_survival  a path that is less likely than this is not followed further

The layer's KV lies in the target's blocks. Version 1 reads the target's last hidden state, behind the final norm;
version 3 reads three of them, made one by its first matrix as soon as they come, so that one is kept.

Source: EAGLE, Li et al., arXiv:2401.15077; EAGLE-2, arXiv:2406.16858; EAGLE-3, arXiv:2503.01840.
"""

from collections.abc import Sequence as Seq

import numpy as np
import numpy.typing as npt

from forerun.backends.base import DraftProgram, Limits, ProgramSpec
from forerun.cache.layout import KvStack
from forerun.errors import UsageError
from forerun.models.files.heads_eagle import EagleHead, read_eagle
from forerun.models.heads import eagle, fuse
from forerun.sequence import Sequence
from forerun.speculation.drafter import Ask, Computed, Seen, register
from forerun.speculation.drafting.feature_drafting import FeatureDrafting, FeatureSettings, feature_limits
from forerun.speculation.drafting.head_drafting import PASS_ROWS, check_options, run_rows
from forerun.speculation.host import DraftHost
from forerun.speculation.tree import MAX_NODES, DraftTree

Float32 = npt.NDArray[np.float32]


class EagleDrafter:
    """Drafts with an EAGLE head. Implements Drafter, HostedDrafter and HiddenStateDrafter."""

    name = "eagle"
    is_paid = True

    def __init__(self, head: str = "", width: int = 4, max_depth: int = MAX_NODES, min_survival: float = 0.0) -> None:
        self._path = check_options(self.name, head, width, max_depth)
        if not 0.0 <= min_survival < 1.0:
            raise UsageError(f"eagle.min_survival must be at least 0 and below 1, got {min_survival}")
        self._settings = FeatureSettings(self.name, width, max_depth, min_survival)
        self._head: EagleHead | None = None
        self._captures: tuple[int, ...] = ()
        self._fuse: DraftProgram | None = None  # version 3's first matrix
        self._drafting: FeatureDrafting

    # ---- where it lives ----

    def kv_stacks(self, host: DraftHost) -> Seq[KvStack]:
        spec = self._open(host).spec
        mixer = spec.layers[0].mixer
        return (KvStack(self.name, len(spec.layers), mixer.num_kv_heads, mixer.head_dim, host.kv_format),)

    def captures(self, host: DraftHost) -> Seq[int]:
        return self._open(host).spec.captures

    def load(self, host: DraftHost, first_kv_layer: int) -> None:
        head, model = self._open(host), host.target.model
        spec = head.spec
        shapes = {**model.spec.weight_shapes(), **spec.weight_shapes()}
        program = ProgramSpec(
            self.name,
            model,
            lambda ops: eagle(spec, model.spec, first_kv_layer, ops),
            feature_limits(host, self._settings),
            shapes=shapes,
            further=head.weights,
        )
        self._drafting = FeatureDrafting(host.backend.add_program(program), head.columns, self._settings, host)
        self._captures = spec.captures
        if spec.version == 3:
            limits = Limits(PASS_ROWS, PASS_ROWS, 1)
            first = ProgramSpec("eagle fuse", model, lambda ops: fuse(spec, ops), limits, None, shapes, head.weights)
            self._fuse = host.backend.add_program(first)

    # ---- drafting ----

    def begin(self, sequence: Sequence) -> None:
        """Nothing is known of it yet."""

    def collect(self, computed: Seq[Computed]) -> None:
        features = [one.hidden(self._captures) for one in computed]
        if self._fuse is not None:
            ends = np.cumsum([len(rows) for rows in features])[:-1]
            features = np.split(run_rows(self._fuse, np.concatenate(features)), ends)
        self._drafting.collect(computed, features)

    def propose(self, asks: Seq[Ask]) -> list[DraftTree | None]:
        return self._drafting.propose(asks)

    def observe(self, seen: Seq[Seen]) -> None:
        self._drafting.observe(seen)

    def end(self, sequence_id: int) -> None:
        self._drafting.end(sequence_id)

    def _open(self, host: DraftHost) -> EagleHead:
        if self._head is None:
            self._head = read_eagle(self._path, host.target.model.spec)
        return self._head


register("eagle", EagleDrafter)
