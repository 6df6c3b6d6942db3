"""Drafters that try to break the engine: trees at random, ids that do not exist, right tokens hidden among wrong ones.

For `forerun verify` and the lossless tests. None of them may change a token; that is what those check.
"""

import random
from collections.abc import Mapping
from collections.abc import Sequence as Seq

from forerun.errors import UsageError
from forerun.sequence import Sequence
from forerun.speculation import drafters  # noqa: F401  # registers the built-in ones
from forerun.speculation.drafter import Ask, Drafter, Seen, known_drafters, make_drafter
from forerun.speculation.tree import MAX_NODES, DraftTree

ADVERSARIES = ("oracle", "branches", "random", "garbage")


def registered_drafters(*, free: bool = False) -> tuple[str, ...]:
    """Registered drafters that need no option, such as another model; `free`: only those that run no model."""
    names = []
    for name in known_drafters():
        try:
            drafter = make_drafter(name, {})
        except UsageError:
            continue
        if not (free and drafter.is_paid):
            names.append(name)
    return tuple(names)


DRAFTERS = ("off", *registered_drafters(free=True), *ADVERSARIES)


def adversary(name: str, answers: Mapping[str, Seq[int]], vocab_size: int, seed: int = 0) -> Drafter | None:
    """A fresh drafter by its name; None for a name that is none of these, such as "off" and the registered ones.

    answers  by request id, the tokens that plain decoding gave; the oracles draft from them

    oracle    the right continuation, all of which is accepted
    branches  at every depth a wrong sibling before the right node, and a mistake in every path
    random    trees of random shape, of the sequence's own tokens and of random ones
    garbage   ids that do not exist, wrong roots, more nodes than were asked for
    """
    match name:
        case "oracle":
            return OracleDrafter(answers)
        case "branches":
            return BranchingDrafter(answers, vocab_size, seed)
        case "random":
            return RandomDrafter(vocab_size, seed)
        case "garbage":
            return GarbageDrafter(vocab_size, seed)
        case _:
            return None


class _Stateless:
    """A drafter that decides for each sequence by itself and learns nothing."""

    name = ""
    is_paid = False

    def begin(self, sequence: Sequence) -> None:
        """Nothing to prepare."""

    def propose(self, asks: Seq[Ask]) -> list[DraftTree | None]:
        return [self.tree(ask) for ask in asks]

    def observe(self, seen: Seq[Seen]) -> None:
        """Nothing to learn."""

    def end(self, sequence_id: int) -> None:
        """Nothing to forget."""

    def tree(self, ask: Ask) -> DraftTree | None:
        """The draft of one sequence."""
        raise NotImplementedError


class OracleDrafter(_Stateless):
    """Drafts what plain decoding said, so that every draft is accepted to its end."""

    name = "oracle"

    def __init__(self, answers: Mapping[str, Seq[int]]) -> None:
        self._answers = answers

    def tree(self, ask: Ask) -> DraftTree | None:
        return DraftTree.chain(ask.sequence.tokens[-1], self.right(ask)[: ask.max_nodes], source=self.name)

    def right(self, ask: Ask) -> list[int]:
        """The next tokens that plain decoding said, as many as may be drafted in depth."""
        done = ask.sequence.num_output
        return list(self._answers[ask.sequence.request.id][done : done + ask.max_depth])


class BranchingDrafter(OracleDrafter):
    """Hides the right path among wrong siblings, so that accepted rows must be moved, and breaks it somewhere."""

    name = "branches"

    def __init__(self, answers: Mapping[str, Seq[int]], vocab_size: int, seed: int = 0) -> None:
        super().__init__(answers)
        self._vocab_size = vocab_size
        self._random = random.Random(seed)

    def tree(self, ask: Ask) -> DraftTree | None:
        path = self.right(ask)
        if path and self._random.random() < 0.5:
            broken = self._random.randrange(len(path))
            path[broken] = self._other_than(path[broken])
        paths: list[list[int]] = []
        for depth, token in enumerate(path):
            paths += [[*path[:depth], self._other_than(token)], path[: depth + 1]]
        limit = max(1, ask.max_nodes // 2)  # two nodes a depth
        return DraftTree.from_paths(ask.sequence.tokens[-1], paths[: 2 * limit], source=self.name)

    def _other_than(self, token: int) -> int:
        return (token + self._random.randrange(1, self._vocab_size)) % self._vocab_size


class RandomDrafter(_Stateless):
    """Trees of random shape; half of the tokens are the sequence's own, which a model does sometimes repeat."""

    name = "random"

    def __init__(self, vocab_size: int, seed: int = 0) -> None:
        self._vocab_size = vocab_size
        self._random = random.Random(seed)

    def tree(self, ask: Ask) -> DraftTree | None:
        return self._grow(ask, self._random.randint(0, ask.max_nodes))

    def _grow(self, ask: Ask, num_nodes: int) -> DraftTree:
        tokens, parents = [ask.sequence.tokens[-1]], [-1]
        taken = set()
        for _ in range(num_nodes):
            parent, token = self._random.randrange(len(tokens)), self._token(ask)
            if (parent, token) not in taken:
                taken.add((parent, token))
                tokens.append(token)
                parents.append(parent)
        return DraftTree.of(tokens, parents, (1.0,) * len(tokens), self.name)

    def _token(self, ask: Ask) -> int:
        if self._random.random() < 0.5:
            return self._random.choice(ask.sequence.tokens)
        return self._random.randrange(self._vocab_size)


class GarbageDrafter(RandomDrafter):
    """Proposes what no drafter should; the speculator must drop it."""

    name = "garbage"

    def tree(self, ask: Ask) -> DraftTree | None:
        if self._random.random() < 0.1:
            return DraftTree.chain(ask.sequence.tokens[-1] + 1, [0, 1, 2], source=self.name)  # another sequence's root
        return self._grow(ask, self._random.randint(0, MAX_NODES))

    def _token(self, ask: Ask) -> int:
        if self._random.random() < 0.5:
            return super()._token(ask)
        return self._random.choice((-1, -(2**31), self._vocab_size, self._vocab_size + 7, 2**31 - 1))
