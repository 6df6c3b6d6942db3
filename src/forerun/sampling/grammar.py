"""Token masks of drafted paths: what a grammar allows behind a sequence's last token, and behind tokens drafted on it.

Place in the step: drafters ask before they propose, the speculator cuts what other drafters proposed, and the batch
gets one mask for each row of the tree. The matcher of a sequence stands behind its last token, which is the tree's
root. A node's row sees what the matcher allows once the tokens on the path to the node are taken, on a fork of it; so
the row is masked as plain decoding would mask it there, and the draw on it is the same.

    root "{" ── 1 '"a"' ── 2 ":"        row 0  allowed()                    after "{"
            └── 3 "}"                   row 1  fork, advance('"a"')         after "{" '"a"'
"""

from collections.abc import Sequence as Seq
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from forerun.errors import GrammarError
from forerun.sequence import Sequence, TokenMask
from forerun.speculation.tree import DraftTree

_EVERYTHING = np.uint32(0xFFFFFFFF)
Mask = npt.NDArray[np.uint32]
Path = tuple[int, ...]


class PathMasks:
    """Masks behind paths of drafted tokens below the last token of a sequence; each path is forked once."""

    def __init__(self, sequence: Sequence, matcher: TokenMask) -> None:
        self._made_for = (len(sequence.tokens), matcher)
        self._ends = ends_of(sequence)
        self._matchers: dict[Path, TokenMask | None] = {(): matcher}
        self._masks: dict[Path, Mask] = {}

    def fits(self, sequence: Sequence) -> bool:
        """Do the masks still hold, or has the sequence grown?"""
        num_tokens, matcher = self._made_for
        return len(sequence.tokens) == num_tokens and sequence.token_mask is matcher

    def behind(self, path: Seq[int]) -> Mask | None:
        """[words] bit mask of the tokens that may follow `path`, from the root's child down; empty for the root.

        None where nothing follows: the grammar forbids a token of the path, or the sequence ends with one.
        """
        key = tuple(path)
        found = self._masks.get(key)
        if found is None:
            matcher = self._matcher(key)
            if matcher is None:
                return None
            found = self._masks[key] = np.array(matcher.allowed(), np.uint32)  # a copy: the matcher may use it again
        return found

    def ahead(self, path: Seq[int]) -> Mask | None:
        """As `behind`, for those who can do without: None also where the grammar takes too long to tell."""
        try:
            return self.behind(path)
        except GrammarError:
            return None

    def _matcher(self, path: Path) -> TokenMask | None:
        if path not in self._matchers:
            self._matchers[path] = self._step(path[:-1], path[-1])
        return self._matchers[path]

    def _step(self, before: Path, token: int) -> TokenMask | None:
        mask, matcher = self.behind(before), self._matcher(before)
        if mask is None or matcher is None or token in self._ends or not allows(mask, token):
            return None
        fork = matcher.fork()
        fork.advance(token)
        return fork


_KNOWN: WeakKeyDictionary[Sequence, PathMasks] = WeakKeyDictionary()


def path_masks(sequence: Sequence) -> PathMasks | None:
    """The masks behind a sequence's last token, shared by all who ask in a step; None without a grammar."""
    if sequence.token_mask is None:
        return None
    known = _KNOWN.get(sequence)
    if known is None or not known.fits(sequence):
        known = _KNOWN[sequence] = PathMasks(sequence, sequence.token_mask)
    return known


def mask_rows(sequence: Sequence, tree: DraftTree) -> Mask | None:
    """[rows of the tree, words] bit masks for a tree below the last token; None for a sequence without a grammar.

    Rows that no walk can visit, because the grammar forbids their token or the sequence ends with it, allow everything.
    """
    masks = path_masks(sequence)
    if masks is None:
        return None
    rows = [masks.behind(path) for path in _paths(tree)]
    root = rows[0]
    assert root is not None, "a matcher that takes no more tokens has ended its sequence"
    found = np.full((len(tree), len(root)), _EVERYTHING, np.uint32)
    for row, mask in enumerate(rows):
        if mask is not None:
            found[row] = mask
    return found


def cut_to_grammar(sequence: Sequence, tree: DraftTree) -> DraftTree:
    """The tree without nodes that no walk can reach: those that the grammar forbids, and all below them; and without
    those of which it takes too long to tell."""
    masks = path_masks(sequence)
    if masks is None:
        return tree
    keep = []
    for row, path in enumerate(_paths(tree)):
        mask = masks.ahead(path[:-1]) if row else None
        if mask is not None and allows(mask, path[-1]):
            keep.append(row)
    return tree if len(keep) == tree.num_nodes else tree.keep(keep)


def cut_to_limits(sequence: Sequence, tree: DraftTree) -> DraftTree:
    """The tree without nodes whose rows take too long to mask, so that no draft ends a request. Of a drawn tree all
    nodes stay or none."""
    masks = path_masks(sequence)
    if masks is None:
        return tree
    keep = []
    for row, path in enumerate(_paths(tree)):
        try:
            masks.behind(path)
        except GrammarError:
            continue  # nor is any node below it kept: its mask is behind this one
        if row:
            keep.append(row)
    if len(keep) == tree.num_nodes:
        return tree
    return DraftTree.root_only(tree.tokens[0]) if tree.draft_probs else tree.keep(keep)


def allows(mask: Mask, token: int) -> bool:
    """Is a token's bit set?"""
    return 0 <= token < 32 * len(mask) and bool(int(mask[token >> 5]) >> (token & 31) & 1)


def allowed_of(mask: Mask, tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    """[len(tokens)] booleans: which tokens a mask allows; ids that it does not know are not."""
    known = (tokens >= 0) & (tokens < 32 * len(mask))
    at = np.where(known, tokens, 0)
    is_set: npt.NDArray[np.bool_] = (mask[at >> 5] >> (at & 31).astype(np.uint32) & 1).astype(np.bool_)
    return known & is_set


def unpack(mask: Mask, vocab_size: int) -> npt.NDArray[np.bool_]:
    """[vocab_size] booleans of a bit mask [words]; ids behind its end are not allowed."""
    bits = np.unpackbits(mask.astype("<u4").view(np.uint8), bitorder="little")[:vocab_size]
    return np.concatenate([bits, np.zeros(vocab_size - len(bits), np.uint8)]).astype(np.bool_)


def ends_of(sequence: Sequence) -> set[int]:
    """Ids that end a sequence, which its matcher never takes."""
    params = sequence.params
    return {*params.stop_token_ids, *(() if params.ignore_eos else sequence.request.eos_ids)}


def _paths(tree: DraftTree) -> list[Path]:
    """Tokens from the root's child down to each row; empty for the root."""
    paths: list[Path] = [()]
    for row in range(1, len(tree)):
        paths.append((*paths[tree.parents[row]], tree.tokens[row]))
    return paths
