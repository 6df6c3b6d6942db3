"""recycle drafter: what the target thought might follow each token, kept for the next time that token comes.

Every verified row, accepted or not, has computed its token's most likely successors and is thrown away; here a table
keeps the last ones of every token. A draft is the tree that the table spans below the last token. Its shape is the best
one for the chances that the successor of rank r comes true, which are learned: each draw is compared with what the
table held, drafted or not, so no rank's chance is censored by the ones before it.

    table   the -> cat, dog, ..        tree   the ─┬ cat ─┬ sat ─ on
            cat -> sat, is, ..                     │      └ is
            sat -> on, ..                          └ dog

It always has something to say, so it is the floor below drafters that wait for repetition. It holds no text, yet what
it proposes to one request comes from what others were answered. So requests with a salt share a table with those of the
same salt alone; it lives as long as the process and the budget of such tables allow. The table of those without a salt
is kept in a file per model: with `persist` off nothing outlives the process.

Options: width=8 (successors of a token), max_nodes=15 (of a draft), min_prob=0.05 (of a node being reached),
persist=True, salted_bytes=64 MB (of all tables of salts; requests with a salt whose table would not fit it are not
drafted for).
Memory: 4 * width bytes a token of the vocabulary and table: 1.6 MB for 49 152 tokens. The file is as large.
Cost: about 15 us a draft; finding a row's successors 5 to 15 us for 49 152 tokens, three times that for 151 936.
Source: Token Recycling (Luo et al., arXiv:2408.08696); best static tree as in Sequoia (Chen et al., arXiv:2402.12374).
Differs: the tree's shape follows learned chances of the ranks instead of a fixed one; chances are counted over all
draws instead of those that were drafted; the table outlives the process.
"""

import heapq
import logging
from collections.abc import Sequence as Seq
from functools import lru_cache
from pathlib import Path

from forerun.cache.layout import KvStack
from forerun.errors import UsageError
from forerun.sequence import Sequence
from forerun.speculation.drafter import Ask, Seen, register
from forerun.speculation.drafting.successors import SuccessorTable, SuccessorTables
from forerun.speculation.host import DraftHost
from forerun.speculation.tree import MAX_NODES, DraftTree

log = logging.getLogger(__name__)

PRIOR = (0.4, 0.12, 0.06, 0.04, 0.03, 0.02, 0.015, 0.01)  # chance of each rank before anything is known
PRIOR_DRAWS = 32.0  # weight of the prior
WINDOW = 2000.0  # draws after which old ones begin to fade
SAVE_EVERY, SAVE_EVERY_BUSY = 200, 20_000  # draws between two writes of the file, when idle and when not
CHANCE_STEP = 0.02  # chances are rounded to this for the tree's shape, so that shapes are few

Shape = tuple[tuple[int, int], ...]  # per node: row of the parent, rank among its successors


@lru_cache(maxsize=256)
def best_shape(chances: tuple[float, ...], max_nodes: int, max_depth: int, min_prob: float) -> Shape:
    """Nodes of the tree that is reached most often, where rank r of any token's successors comes with chances[r].

    chances  non-increasing. A heap finds the optimum: whatever is popped is likelier than its child and its sibling.
    """
    shape: list[tuple[int, int]] = []
    heap = [(-chances[0], 0, 0, 1, 1.0)]  # minus the probability, row of the parent, rank, depth, the parent's own
    while heap and len(shape) < max_nodes:
        reached, parent, rank, depth, above = heapq.heappop(heap)
        if -reached < min_prob:
            break
        shape.append((parent, rank))
        if rank + 1 < len(chances):
            heapq.heappush(heap, (-above * chances[rank + 1], parent, rank + 1, depth, above))
        if depth < max_depth:
            heapq.heappush(heap, (reached * chances[0], len(shape), 0, depth + 1, -reached))
    return tuple(shape)


class RecycleDrafter:
    """Drafts from the target's own earlier predictions, of all sequences of a salt together."""

    name = "recycle"
    is_paid = False

    def __init__(
        self,
        width: int = 8,
        max_nodes: int = 15,
        min_prob: float = 0.05,
        persist: bool = True,
        salted_bytes: int = 64 << 20,
    ) -> None:
        if not 1 <= width <= len(PRIOR):
            raise UsageError(f"recycle drafter: width must be between 1 and {len(PRIOR)}, got {width}")
        if not 1 <= max_nodes <= MAX_NODES:
            raise UsageError(f"recycle drafter: max_nodes must be between 1 and {MAX_NODES}, got {max_nodes}")
        if not 0.001 <= min_prob < 1:
            raise UsageError(f"recycle drafter: min_prob must be at least 0.001 and below 1, got {min_prob}")
        if salted_bytes < 0:
            raise UsageError(f"recycle drafter: salted_bytes must be at least 0, got {salted_bytes}")
        self._max_nodes, self._min_prob, self._persist = max_nodes, min_prob, persist
        self._salted_bytes = salted_bytes
        self._prior = [PRIOR_DRAWS * chance for chance in (*PRIOR[:width], 1 - sum(PRIOR[:width]))]
        self._tables = SuccessorTables(0, self._prior, salted_bytes)
        self._home: tuple[Path, str] | None = None  # folder and model of the file
        self._active: set[int] = set()
        self._num_unsaved = 0

    @property
    def num_bytes(self) -> int:
        """Memory of all tables."""
        return self._tables.num_bytes

    # ---- where it lives ----

    def kv_stacks(self, host: DraftHost) -> Seq[KvStack]:
        """None: it runs no model."""
        return ()

    def load(self, host: DraftHost, first_kv_layer: int) -> None:
        vocab_size = host.target.model.spec.vocab_size
        width = self._tables.unsalted.width
        if width > vocab_size:
            raise UsageError(f"recycle drafter: width is {width}, the model has {vocab_size} tokens")
        self._tables = SuccessorTables(vocab_size, self._prior, self._salted_bytes)
        if self._persist:
            self._home = (host.cache_folder, host.target.name)
            self._tables.unsalted.load(*self._home)

    # ---- drafting ----

    def begin(self, sequence: Sequence) -> None:
        self._active.add(sequence.id)

    def propose(self, asks: Seq[Ask]) -> list[DraftTree | None]:
        tables = {salt: self._tables.of(salt) for salt in {ask.sequence.request.salt for ask in asks}}
        chances = {salt: _chances(table) for salt, table in tables.items() if table is not None}
        trees: list[DraftTree | None] = []
        for ask in asks:
            salt = ask.sequence.request.salt
            table = tables[salt]
            trees.append(None if table is None else self._propose(ask, table, chances[salt]))
        return trees

    def _propose(self, ask: Ask, table: SuccessorTable, chances: Seq[float]) -> DraftTree | None:
        rounded = tuple(max(1, round(chance / CHANCE_STEP)) * CHANCE_STEP for chance in chances)
        shape = best_shape(rounded, min(ask.max_nodes, self._max_nodes), ask.max_depth, self._min_prob)
        tokens, parents, score = [ask.sequence.tokens[-1]], [-1], [1.0]
        successors: list[list[int] | None] = [None]  # per row, looked up when first needed
        rows = [0]  # row in this tree of each node of the shape; -1 where the table has nothing
        for parent, rank in shape:
            at = rows[parent]
            rows.append(-1)
            if at < 0:
                continue
            known = successors[at]
            if known is None:
                known = successors[at] = table.of(tokens[at])
            if rank < len(known):
                rows[-1] = len(tokens)
                tokens.append(known[rank])
                parents.append(at)
                score.append(chances[rank])
                successors.append(None)
        return DraftTree.of(tokens, parents, score, self.name) if len(tokens) > 1 else None

    # ---- learning ----

    def observe(self, seen: Seq[Seen]) -> None:
        """Compare the draws with the table, then replace the successors of every verified row's token."""
        for one in seen:
            if not one.outcome.is_finite:
                continue  # rows with NaN have no successors
            salt, tree = one.sequence.request.salt, one.outcome.tree
            table = self._tables.of(salt)
            if table is None:
                continue
            for row, drawn in zip((0, *one.outcome.accepted), one.outcome.tokens, strict=False):
                self._num_unsaved += _count(table, tree.tokens[row], drawn) and not salt
            # A token may stand in several rows: of equal ones the last counts, and what was really said comes last.
            rows = sorted(range(len(tree)), key=lambda row: (row in one.outcome.accepted, row))
            table.update([tree.tokens[row] for row in rows], one.top(rows, table.width))

    def end(self, sequence_id: int) -> None:
        """Write the file when enough was learned: sooner while nobody is waiting for a token."""
        self._active.discard(sequence_id)
        enough = SAVE_EVERY_BUSY if self._active else SAVE_EVERY
        if self._home is None or self._num_unsaved < enough:
            return
        self._num_unsaved = 0
        try:
            self._tables.unsalted.save(*self._home)
        except OSError as error:
            log.warning("the successor table is not kept: %s", error)
            self._home = None  # do not try again


def _count(table: SuccessorTable, token: int, drawn: int) -> bool:
    """Count which rank of a token's successors has come true; False when none was known."""
    known = table.of(token)
    if not known:
        return False
    if table.hits.sum() > WINDOW:
        table.hits *= 0.5
    table.hits[known.index(drawn) if drawn in known else -1] += 1
    return True


def _chances(table: SuccessorTable) -> list[float]:
    """[width] chance of each rank, never increasing: ranks in the wrong order share their mean."""
    blocks: list[tuple[float, int]] = []  # sum and number of neighbouring ranks
    for chance in (table.hits[:-1] / table.hits.sum()).clip(0.001, 0.98).tolist():
        total, count = chance, 1
        while blocks and blocks[-1][0] * count < total * blocks[-1][1]:
            total, count = total + blocks[-1][0], count + blocks[-1][1]
            blocks.pop()
        blocks.append((total, count))
    return [total / count for total, count in blocks for _ in range(count)]


register("recycle", RecycleDrafter)
