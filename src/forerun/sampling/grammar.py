"""Token masks of a draft tree: what a grammar allows behind each of its rows.

Place in the step: when the batch is built. The matcher of a sequence stands behind its last token, which is the tree's
root. A node's row sees what the matcher allows once the tokens on the path to the node are taken, on a fork of it; so
the row is masked as plain decoding would mask it there, and the draw on it is the same.

    root "{" ── 1 '"a"' ── 2 ":"        row 0  allowed()                    after "{"
            └── 3 "}"                   row 1  fork, advance('"a"')         after "{" '"a"'
"""

import numpy as np
import numpy.typing as npt

from forerun.sequence import Sequence, TokenMask
from forerun.speculation.tree import DraftTree

_EVERYTHING = np.uint32(0xFFFFFFFF)


def mask_rows(sequence: Sequence, tree: DraftTree) -> npt.NDArray[np.uint32] | None:
    """[rows of the tree, words] bit masks for a tree below the last token; None for a sequence without a grammar.

    Rows that no walk can visit, because the grammar forbids their token or the sequence ends with it, allow everything.
    """
    matcher = sequence.token_mask
    if matcher is None:
        return None
    root = np.asarray(matcher.allowed(), np.uint32)
    if tree.num_nodes == 0:
        return root[None]
    masks = np.full((len(tree), len(root)), _EVERYTHING, np.uint32)
    masks[0] = root
    matchers: dict[int, TokenMask] = {0: matcher}
    ends = ends_of(sequence)
    for row in range(1, len(tree)):
        token, parent = tree.tokens[row], tree.parents[row]
        if parent not in matchers or token in ends or not allows(masks[parent], token):
            continue
        matchers[row] = fork = matchers[parent].fork()
        fork.advance(token)
        masks[row] = fork.allowed()
    return masks


def allows(mask: npt.NDArray[np.uint32], token: int) -> bool:
    """Is a token's bit set?"""
    return 0 <= token < 32 * len(mask) and bool(int(mask[token >> 5]) >> (token & 31) & 1)


def unpack(mask: npt.NDArray[np.uint32], vocab_size: int) -> npt.NDArray[np.bool_]:
    """[vocab_size] booleans of a bit mask [words]; ids behind its end are not allowed."""
    bits = np.unpackbits(mask.astype("<u4").view(np.uint8), bitorder="little")[:vocab_size]
    return np.concatenate([bits, np.zeros(vocab_size - len(bits), np.uint8)]).astype(np.bool_)


def ends_of(sequence: Sequence) -> set[int]:
    """Ids that end a sequence, which its matcher never takes."""
    params = sequence.params
    return {*params.stop_token_ids, *(() if params.ignore_eos else sequence.request.eos_ids)}
