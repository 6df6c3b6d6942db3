"""layer-skip: the target drafts without some of its sub-layers, over its own KV.

Which ones is a property of the model and stands in a small file: `forerun bench layer-skip` searches and writes it.

Options

    profile       path of that file; without it, the one in the cache folder that the command writes
    width         children per node and nodes per level; 1 drafts a chain, more a tree
    max_depth     longest path
    min_survival  a path that is less likely than this is not followed further

Source: Draft & Verify, J. Zhang et al., arXiv:2309.08168.
"""

from pathlib import Path

from forerun.speculation.drafter import register
from forerun.speculation.drafting.self_draft import Part, SelfDrafter, draft_shape
from forerun.speculation.drafting.skip_profile import ModelIdentity, default_path, read_profile
from forerun.speculation.host import DraftHost
from forerun.speculation.tree import MAX_NODES

NAME = "layer-skip"
WEAKNESS = (
    "its profile leaves out too much of this model: search another one with 'forerun bench layer-skip', or choose "
    "another drafter"
)


def make_layer_skip(
    profile: str = "", width: int = 1, max_depth: int = MAX_NODES, min_survival: float = 0.0
) -> SelfDrafter:
    """The drafter. Raises UsageError."""

    def choose(host: DraftHost) -> Part:
        model = ModelIdentity.of(host.target)
        path = Path(profile).expanduser() if profile else default_path(host.cache_folder, model)
        return Part(skip=frozenset(read_profile(path, model, host.target.name).skip))

    return SelfDrafter(draft_shape(NAME, width, max_depth, min_survival), choose, WEAKNESS)


register(NAME, make_layer_skip)
