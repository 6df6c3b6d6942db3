"""PrefixIndex: which block holds the KV of which token prefix.

Each full block has a digest over (parent digest, its tokens); the chain's origin covers salt, the formats of all stacks
and block size, so tenants and formats never meet. On a hit, and before a chain grows, the tokens are compared too: a
collision ends a chain, it does not hand out another text's KV.

    prompt  [ 32 tokens ][ 32 tokens ][ 9 tokens ]
    match    block 7      block 2      block 5, first 9 slots        shared until written, then copied

Only full blocks of verified tokens are published, and a published block is never written again.
"""

import hashlib
from array import array
from bisect import bisect, bisect_left, insort
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from forerun.sequence import Sequence


@dataclass(frozen=True)
class PrefixMatch:
    """Blocks that hold the first `num_tokens` tokens; the last one is used in part when num_tokens is not a multiple of
    the block size."""

    blocks: tuple[int, ...]
    num_tokens: int


@dataclass(frozen=True)
class _Entry:
    block: int
    digest: bytes
    parent: bytes
    tokens: tuple[int, ...]


_Child = tuple[tuple[int, ...], bytes]  # tokens and digest of a block


class PrefixIndex:
    """Content-addressed map from token prefixes to blocks."""

    def __init__(self, block_size: int, codecs: Seq[str]) -> None:
        self._block_size = block_size
        self._formats = "+".join(codecs)  # what a block holds depends on all of them
        self._by_digest: dict[bytes, _Entry] = {}
        self._by_block: dict[int, _Entry] = {}
        self._children: dict[bytes, list[_Child]] = {}  # parent digest -> its children in the order of their tokens
        self._version = 0

    def __len__(self) -> int:
        return len(self._by_digest)

    @property
    def version(self) -> int:
        """Another number whenever what a match may find has changed."""
        return self._version

    def match(
        self, tokens: Seq[int], salt: str = "", limit: int | None = None, digests: list[bytes] | None = None
    ) -> PrefixMatch:
        """Longest known prefix of tokens[:limit], whole blocks first, then the best partly equal block.

        digests  of the leading blocks of `tokens`, as an earlier call left them; extended
        """
        end = len(tokens) if limit is None else min(limit, len(tokens))
        size = self._block_size
        digests = [] if digests is None else digests
        digest, matched = self._origin(salt), 0
        blocks: list[int] = []
        while matched + size <= end:
            part = tuple(tokens[matched : matched + size])
            if len(blocks) == len(digests):
                digests.append(self._extend(digest, part))
            entry = self._by_digest.get(digests[len(blocks)])
            if entry is None or entry.tokens != part or entry.parent != digest:
                break
            blocks.append(entry.block)
            digest = entry.digest
            matched += size
        best, best_len = self._best_child(digest, tuple(tokens[matched : min(end, matched + size)]))
        if best is not None:
            blocks.append(best.block)
        return PrefixMatch(tuple(blocks), matched + best_len)

    def _best_child(self, parent: bytes, tokens: tuple[int, ...]) -> "tuple[_Entry | None, int]":
        """The child of a chain that begins with most of `tokens`, and how many that are. In the order of their tokens
        it stands beside the place where `tokens` would stand."""
        best, best_len = None, 0
        children = self._children.get(parent, [])
        place = bisect(children, tokens, key=lambda child: child[0])
        for found, digest in children[max(0, place - 1) : place + 1]:
            common = _common_prefix(found, tokens)
            if common > best_len:
                best, best_len = self._by_digest[digest], common
        return best, best_len

    def publish(self, sequence: Sequence, upto: int) -> list[int]:
        """Enter the sequence's full blocks within tokens[:upto]; returns the blocks that are new in the index.

        Extends sequence.block_digests. A prefix that another block already holds keeps that block.
        """
        size = self._block_size
        new = []
        digests = sequence.block_digests
        for index in range(len(digests), upto // size):
            parent = digests[-1] if digests else self._origin(sequence.request.salt)
            part = tuple(sequence.tokens[index * size : (index + 1) * size])
            digest = self._extend(parent, part)
            known = self._by_digest.get(digest)
            if known is not None and (known.tokens != part or known.parent != parent):
                break
            digests.append(digest)
            block = sequence.block_ids[index]
            if known is None and block not in self._by_block:
                entry = _Entry(block, digest, parent, part)
                self._by_digest[digest] = self._by_block[block] = entry
                insort(self._children.setdefault(parent, []), (part, digest))
                new.append(block)
                self._version += 1
        return new

    def forget(self, block: int) -> None:
        """The block is about to be reused: drop its entry."""
        entry = self._by_block.pop(block, None)
        if entry is None:
            return
        del self._by_digest[entry.digest]
        self._version += 1
        siblings = self._children[entry.parent]
        del siblings[bisect_left(siblings, (entry.tokens, entry.digest))]
        if not siblings:
            del self._children[entry.parent]

    def _origin(self, salt: str) -> bytes:
        # Length prefixes keep the fields apart, so no salt can imitate another salt with other settings.
        raw = salt.encode("utf-8", "surrogatepass")
        head = f"forerun/prefix/1:{self._formats}:{self._block_size}:{len(raw)}:".encode()
        return hashlib.sha256(head + raw).digest()

    @staticmethod
    def _extend(parent: bytes, tokens: tuple[int, ...]) -> bytes:
        return hashlib.sha256(parent + array("q", tokens).tobytes()).digest()


def _common_prefix(a: Seq[int], b: Seq[int]) -> int:
    count = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        count += 1
    return count
