"""A simulated engine loop around a budget: true acceptance and true costs are given, and time is computed from them."""

import random
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from forerun.batch import Outcome
from forerun.config import SpeculationConfig
from forerun.sequence import Request, SamplingParams, Sequence
from forerun.speculation.allocation.allocator import Allocator
from forerun.speculation.allocation.step_cost import MAX_ROWS, TRUSTED, StepCost
from forerun.speculation.budget import FixedBudget, StepFacts
from forerun.speculation.drafter import Ask
from forerun.speculation.tree import DraftTree

WRONG, RIGHT = 1, 2  # tokens: the target always says RIGHT
Curve = Callable[[int], float]


def flat(tile: int) -> Curve:
    """Milliseconds: rows inside a tile are free, the next one costs a tile."""
    return lambda rows: 5e-3 * -(-rows // tile)


def linear(first: float, per_row: float) -> Curve:
    return lambda rows: 1e-3 * (first + per_row * rows)


def cost_of(curve: Curve) -> StepCost:
    """A table that knows the truth."""
    table = [0.0, *(curve(rows) for rows in range(1, MAX_ROWS + 1))]
    return StepCost(table, seen=[TRUSTED] * len(table))


def sequence_of(number: int = 0, length: int = 10, max_tokens: int | None = None) -> Sequence:
    """One that decodes; without a limit unless given."""
    wanted = Request("r", (RIGHT,) * length, SamplingParams(seed=0, max_tokens=max_tokens))
    return Sequence(number, wanted, 0, 0, (0, 0), [RIGHT] * length, length)


@dataclass
class FakeDrafter:
    """Chains whose nodes are right with probability `acceptance` each, below a right parent."""

    acceptance: float
    seed: int = 0
    score: float = 1.0
    name: str = "fake"
    is_paid: bool = False
    seconds: float = 0.0  # of a call, for each level

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def chain(self, root: int, ask: Ask) -> DraftTree:
        """As long as it is asked for, or as far as it is worth it."""
        depth, alive = min(ask.max_depth, ask.max_nodes), 1.0
        for level in range(1, depth if ask.worth is not None else 0):
            alive *= ask.worth.judge(level, self.score)
            if alive < ask.worth.least_survival:
                depth = level
                break
        tokens = [RIGHT if self._random.random() < self.acceptance else WRONG for _ in range(depth)]
        return DraftTree.chain(root, tokens, [self.score] * depth, self.name)


@dataclass
class Totals:
    """Of a simulated run. tokens: those expected of what was verified, which vary less than those that came."""

    tokens: float = 0.0
    seconds: float = 0.0
    drafted: int = 0
    asked: int = 0

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds


def outcome_of(tree: DraftTree) -> Outcome:
    """Walk the tree with a target that says RIGHT."""
    accepted: list[int] = []
    row = tree.child(0, RIGHT)
    while row is not None:
        accepted.append(row)
        row = tree.child(row, RIGHT)
    count = len(accepted) + 1
    return Outcome(tree, tuple(accepted), (RIGHT,) * count, tuple(range(count)))


def expected_tokens(tree: DraftTree, drafters: Seq[FakeDrafter]) -> float:
    """Of a step that verifies a tree; of merged trees the tokens that came in this one."""
    known = {drafter.name: drafter.acceptance for drafter in drafters}
    if not tree.is_chain:
        return len(outcome_of(tree).tokens)
    alive = total = 1.0
    for name in tree.sources[1:]:
        alive *= known[name]
        total += alive
    return total


def best_fixed_speed(acceptance: float, curve: Curve, batch: int, max_rows: int = 32) -> float:
    """Tokens/s of the best length that is the same for all sequences in all steps, none included."""
    speeds, alive, total = [], 1.0, 0.0
    for depth in range(max_rows // batch + 1):
        total += alive
        alive *= acceptance
        speeds.append(batch * total / curve(batch * (1 + depth)))
    return max(speeds)


def simulate(
    budget: Allocator | FixedBudget,
    drafters: Seq[FakeDrafter],
    curve: Curve,
    batch: int = 1,
    steps: int = 500,
    noise: Callable[[], float] = lambda: 1.0,
) -> Totals:
    """Run `batch` endless sequences for so many steps."""
    sequences = [sequence_of(number) for number in range(batch)]
    totals = Totals()
    for _ in range(steps):
        rooms = [0] * batch if budget.rests(batch) else [budget.room(sequence, batch) for sequence in sequences]
        trees = [DraftTree.root_only(sequence.tokens[-1]) for sequence in sequences]
        draft_s = 0.0
        if any(rooms):
            for drafter in drafters:
                allowed = [i for i in range(batch) if rooms[i] > 0]
                asks = budget.asks(drafter, allowed, sequences, rooms, trees)
                if not asks:
                    continue
                totals.asked += 1
                deepest = 0
                for i, ask in asks.items():
                    tree = drafter.chain(trees[i].tokens[0], ask)
                    deepest = max(deepest, tree.num_nodes)
                    tree = budget.calibrate(drafter, sequences[i], tree)
                    trees[i] = tree if trees[i].num_nodes == 0 else trees[i].merge(tree)
                spent = drafter.seconds * deepest
                draft_s += spent
                budget.drafted(drafter, list(asks.values()), deepest, spent)
            trees = budget.choose(sequences, rooms, trees, 0)
        outcomes = [outcome_of(tree) for tree in trees]
        rows = sum(len(tree) for tree in trees)
        forward_s = curve(rows) * noise()
        keys = sum(len(sequence.tokens) * len(tree) for sequence, tree in zip(sequences, trees, strict=True))
        for sequence, outcome in zip(sequences, outcomes, strict=True):
            sequence.tokens += outcome.tokens
            del sequence.tokens[10:]  # contexts stay short: nothing but rows costs
            sequence.tokens += [RIGHT] * (10 - len(sequence.tokens))
            totals.tokens += expected_tokens(outcome.tree, drafters)
            totals.drafted += outcome.tree.num_nodes
        totals.seconds += forward_s + draft_s
        budget.observe(sequences, outcomes, StepFacts(rows, keys, draft_s, forward_s, forward_s + draft_s))
    return totals


def allocator(cost: StepCost, **config: object) -> Allocator:
    """One with the defaults of a configuration, for an endless context."""
    return Allocator(SpeculationConfig(**config), 1 << 20, cost)  # type: ignore[arg-type]
