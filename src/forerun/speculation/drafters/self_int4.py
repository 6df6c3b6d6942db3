"""self-int4: the target drafts with a copy of its weights in four bits, over its own KV.

Of use where the target is loaded with more bits: a draft of 5 bits a weight reads a third of bfloat16's bytes and
agrees nearly always. Where the file has hardly more bits itself a draft would cost as much as the target: refused.

Options

    width         children per node and nodes per level; 1 drafts a chain, more a tree
    max_depth     longest path
    min_survival  a path that is less likely than this is not followed further

Source: QuantSpec, R. Tiwari et al., arXiv:2502.10424.
Differs: the KV of committed tokens is the target's own, not quantised.
"""

from forerun.errors import UsageError
from forerun.speculation.drafter import register
from forerun.speculation.drafting.self_draft import Part, SelfDrafter, draft_shape, part_cost
from forerun.speculation.host import DraftHost
from forerun.speculation.tree import MAX_NODES

NAME = "self-int4"
MAX_COST = 0.9  # part of the target's bytes from which a draft cannot pay

WEAKNESS = "four bits a weight are too few for this model: choose another drafter"

_PART = Part(weights="int4")


def make_self_int4(width: int = 1, max_depth: int = MAX_NODES, min_survival: float = 0.0) -> SelfDrafter:
    """The drafter. Raises UsageError."""
    return SelfDrafter(draft_shape(NAME, width, max_depth, min_survival), _choose, WEAKNESS)


def _choose(host: DraftHost) -> Part:
    """Raises UsageError when four bits save nothing."""
    cost = part_cost(host, _PART)
    if cost > MAX_COST:
        raise UsageError(
            f"self-int4 would read {cost:.0%} of the bytes that the target reads, so it cannot pay: draft with another "
            "drafter, or keep the target in more bits (--weights bf16)"
        )
    return _PART


register(NAME, make_self_int4)
