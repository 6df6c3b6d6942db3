"""early-exit: the target's first layers draft, with its own last norm and output matrix, over its own KV.

Options

    layer         layers that run; 0 takes half of them
    width         children per node and nodes per level; 1 drafts a chain, more a tree
    max_depth     longest path
    min_survival  a path that is less likely than this is not followed further

Models that were not trained to exit early agree with their own middle rarely; see layer-skip for a better choice.

Source: LayerSkip, M. Elhoushi et al., arXiv:2404.16710.
Differs: no training, the target's rows are computed anew in all layers.
"""

from forerun.errors import UsageError
from forerun.speculation.drafter import register
from forerun.speculation.drafting.self_draft import Part, SelfDrafter, draft_shape
from forerun.speculation.drafting.skip_profile import sub_layers
from forerun.speculation.host import DraftHost
from forerun.speculation.tree import MAX_NODES

NAME = "early-exit"
WEAKNESS = (
    "the layers that it runs are too few to tell this model's next token: run more (early-exit.layer), or choose "
    "layer-skip or a draft model"
)


def make_early_exit(
    layer: int = 0, width: int = 1, max_depth: int = MAX_NODES, min_survival: float = 0.0
) -> SelfDrafter:
    """The drafter. Raises UsageError."""

    def choose(host: DraftHost) -> Part:
        num_layers = host.target.model.spec.num_layers
        last = layer or num_layers // 2
        if not 1 <= last < num_layers:
            raise UsageError(f"early-exit.layer must be between 1 and {num_layers - 1} for this model, got {layer}")
        return Part(skip=frozenset(sub_layers(num_layers)[2 * last :]))

    return SelfDrafter(draft_shape(NAME, width, max_depth, min_survival), choose, WEAKNESS)


register(NAME, make_early_exit)
