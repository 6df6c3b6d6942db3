"""Allocator: the budget that learns. Draft nodes go where they bring the most tokens per second; none is a fine answer.

    rests      nobody is asked for some steps after those that brought nothing (guard.py)
    room       few slots for sequences whose drafts are rarely worth it, none while the guard has speculation off
    asks       free drafters always, paid ones where that pays (paid.py), or to try them again (guard.py)
    calibrate  scores become probabilities of acceptance (calibration.py), the request's own experience included
    choose     the nodes of all sequences that make the step yield most per second (best_nodes.py, step_cost.py)
    observe    costs, acceptance and the guard learn

A decision changes the speed only, never a token, so all of it may depend on measured time.
"""

from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import NamedTuple

from forerun.batch import Outcome
from forerun.config import SpeculationConfig
from forerun.sequence import Sequence
from forerun.speculation.allocation.best_nodes import Choice, alive_in_order, best_nodes, no_nodes
from forerun.speculation.allocation.calibration import HOPEFUL, Calibration, RequestFactor, scores_of_drawn
from forerun.speculation.allocation.guard import Nap, Probe, SpeedGuard
from forerun.speculation.allocation.paid import MIN_GAIN, PLAN_EVERY, PaidDrafter, PaidPlan, plan_paid
from forerun.speculation.allocation.step_cost import MAX_ROWS, SHARED_KEY, TRUSTED, StepCost
from forerun.speculation.budget import StepFacts, longest_draft
from forerun.speculation.drafter import Ask, Drafter, Worth
from forerun.speculation.tree import MAX_NODES, DraftTree

MAX_DEPTH = 31  # where the user sets no maximum
FIRST_REACH, LEAST_REACH = 4, 2  # nodes that slots are reserved for
GROW_AT = 0.4  # more room is worth having where as many nodes as there is room for survive with this
PATIENCE = 6  # fruitless steps after which free drafters are asked less often
LONGEST_NAP = 16  # steps from one ask to the next then, a power of two
LEARN_EVERY = 8  # steps whose times are learned from together
STRETCH = 2  # how much further than planned a draft may go that turns out likely
REFRESH = 256  # steps with drafts after which one without is due, so that the plain cost stays known
FIRST_REFRESH = 12  # the same while it is hardly known
LIKELY = 0.5  # survival of nodes that are verified now and then although they seem too dear
FIRST_EXPLORED = 4  # steps between the first times
DOUBTFUL_GAIN = 2.0  # but not where speculation is beyond doubt

WORTH, NOT_WORTH, NO_PROPOSALS, GUARD = "verified", "not worth it", "no proposals", "guard"
NO_ROOM, NAP, PAID_SKIPPED, PAID_PROBED = "no room", "rarely worth it: not asked", "paid skipped", "paid probed"


@dataclass
class _Request:
    """What is known of one sequence.

    reach    nodes to reserve slots for        idle  steps in a row without nodes worth verifying
    nap      steps left without asking         proposals  of this step, with their drafters' own scores
    read     tokens that each paid drafter has read
    """

    reach: int = FIRST_REACH
    idle: int = 0
    nap: int = 0
    factors: dict[str, RequestFactor] = field(default_factory=dict)
    proposals: list[tuple[str, DraftTree]] = field(default_factory=list)
    read: dict[str, int] = field(default_factory=dict)

    def unread(self, name: str, sequence: Sequence) -> int:
        """Tokens that a drafter had to read before its draft of this step; all of them where it made none."""
        length = len(sequence.tokens)
        if not self.proposals or self.proposals[-1][0] != name:
            return length
        unread, self.read[name] = length - self.read.get(name, 0), length
        return unread


class _Step(NamedTuple):
    """A step to learn from: sequences that drew, draft nodes, tokens that came, tokens before it summed over them."""

    num: int
    nodes: int
    tokens: int
    contexts: int
    was_off: bool
    facts: StepFacts


class Allocator:
    """A Budget. keep: called now and then so that what was learned is not lost.

    cost, calibrations  learned in place; calibrations by drafter's name, of unknown drafters added
    """

    def __init__(
        self,
        config: SpeculationConfig,
        max_model_len: int,
        cost: StepCost,
        keep: Callable[[StepCost], None] | None = None,
        calibrations: dict[str, Calibration] | None = None,
    ) -> None:
        self.decisions: Counter[str] = Counter()
        self.cost = cost
        self.guard = SpeedGuard()
        self._max_depth = config.max_depth if config.max_depth is not None else MAX_DEPTH
        self._max_rows = config.max_draft_rows
        self._max_model_len = max_model_len
        self._keep = keep
        self._next_keep = 64
        self._num_steps = 0
        self._steps: list[_Step] = []
        self._since_plain = 0
        self._requests: dict[int, _Request] = {}
        self._calibrations = calibrations if calibrations is not None else {}
        self._paid: dict[str, PaidDrafter] = {}
        self._explore = Probe(FIRST_EXPLORED)
        self._nap = Nap(PATIENCE, LONGEST_NAP)
        self._draft_s = 0.0  # in this step so far
        self._num_rooms = 0.0  # steps in which room was asked for, about

    # ---- before the proposals ----

    def rests(self, num_decoding: int) -> bool:
        if self.guard.is_off:
            self.decisions[GUARD] += num_decoding
            return True
        if not self._paid and self._nap.begins(num_decoding):
            self.decisions[NAP] += num_decoding
            return True
        return False

    def room(self, sequence: Sequence, num_decoding: int) -> int:
        if self.guard.is_off:
            self.decisions[GUARD] += 1
            return 0
        self._num_rooms += 1 / num_decoding
        request = self._request(sequence.id)
        if request.nap > 0 and not self._paid and not sequence.is_guided:
            request.nap -= 1
            self.decisions[NAP] += 1
            return 0
        room = min(request.reach, self._max_rows, longest_draft(sequence, self._max_model_len))
        self.decisions[NO_ROOM] += room <= 0
        return max(0, room)

    def asks(
        self, drafter: Drafter, allowed: Seq[int], sequences: Seq[Sequence], rooms: Seq[int], trees: Seq[DraftTree]
    ) -> dict[int, Ask]:
        if drafter.is_paid:
            return self._paid_asks(drafter, allowed, sequences, rooms, trees)
        return {i: Ask(sequences[i], rooms[i], min(rooms[i], self._max_depth)) for i in allowed}

    def drafted(self, drafter: Drafter, asks: Seq[Ask], depth: int, seconds: float) -> None:
        self._draft_s += seconds
        if drafter.is_paid and asks:
            unread = [self._request(ask.sequence.id).unread(drafter.name, ask.sequence) for ask in asks]
            self._paid[drafter.name].drafted(len(asks), depth, seconds, max(unread))

    def _paid_asks(
        self, drafter: Drafter, allowed: Seq[int], sequences: Seq[Sequence], rooms: Seq[int], trees: Seq[DraftTree]
    ) -> dict[int, Ask]:
        paid = self._paid.setdefault(drafter.name, PaidDrafter())
        if paid.rests():
            self.decisions[PAID_SKIPPED] += len(allowed)
            return {}
        limit = min(self._max_depth, max(rooms[i] for i in allowed))
        price = (paid.times.predict(len(allowed), 1) or 0.0) / self.cost.seconds(len(sequences))
        if trial := paid.trial(price):
            plan, order = PaidPlan(len(allowed), min(trial, limit), 1.0), list(allowed)
            self.decisions[PAID_PROBED] += len(order)
        else:
            plan, order = self._plan(drafter.name, allowed, sequences, trees)
            if plan.gain >= MIN_GAIN:
                paid.probe.paid()
            elif paid.probe.is_due(price):
                plan, order = PaidPlan(len(allowed), min(max(1, plan.depth), limit), 1.0), list(allowed)
                self.decisions[PAID_PROBED] += len(order)
            else:
                self.decisions[PAID_SKIPPED] += len(order)
                paid.rest = PLAN_EVERY - 1
                return {}
        for i in allowed:  # a deeper draft than there are slots for: reserve more next time
            request = self._request(sequences[i].id)
            request.reach = max(request.reach, min(MAX_NODES, 2 * plan.depth))
        depth = min(self._max_depth, STRETCH * plan.depth) if plan.least_survival else plan.depth
        chosen = [(i, self._worth(drafter, sequences[i], plan)) for i in order[: plan.num_sequences]]
        return {i: Ask(sequences[i], min(rooms[i], MAX_NODES), min(depth, rooms[i]), worth) for i, worth in chosen}

    def _worth(self, drafter: Drafter, sequence: Sequence, plan: PaidPlan) -> Worth | None:
        """How far a draft goes: the plan's depth is right for drafts as they are on average, this for each of them."""
        if not plan.least_survival:
            return None
        factor = self._request(sequence.id).factors.get(drafter.name, RequestFactor())
        return Worth(self._calibration(drafter.name).judge(factor), plan.least_survival)

    def _plan(
        self, name: str, allowed: Seq[int], sequences: Seq[Sequence], trees: Seq[DraftTree]
    ) -> tuple[PaidPlan, list[int]]:
        """The best way to ask a paid drafter, and the sequences in the order of what it may do for them."""
        calibration, depth_limit = self._calibration(name), min(self._max_depth, 15)
        usual = [calibration.at_depth(depth) for depth in range(1, depth_limit + 1)]
        yields: list[tuple[list[float], int]] = []
        for i in allowed:
            factor = self._request(sequences[i].id).factors.get(name)
            covered = sum(trees[i].survival) - 1
            alive, total, chain = 1.0, 0.0, [0.0]
            for one in usual[: max(0, longest_draft(sequences[i], self._max_model_len))]:
                alive *= factor.apply(one) if factor is not None else one
                total += alive
                chain.append(max(0.0, total - covered))
            yields.append((chain, i))
        yields.sort(key=lambda pair: (-pair[0][-1], pair[1]))
        contexts = sum(len(sequence.tokens) for sequence in sequences)
        free = sum(tree.num_nodes for tree in trees)
        covered_tokens = len(sequences) + sum(sum(tree.survival) - 1 for tree in trees)

        def seconds(nodes: int) -> float:
            return self.cost.seconds(len(sequences) + nodes, contexts * (1 + SHARED_KEY * nodes / len(sequences)))

        plain = len(sequences) / (self._draft_s + seconds(0))
        with_free = covered_tokens / (self._draft_s + seconds(min(free, self._max_rows)))
        nodes = free if with_free > plain else 0
        tokens = covered_tokens if nodes else float(len(sequences))
        plan = plan_paid(
            [chain for chain, _ in yields],
            (depth_limit, max(1, self._max_rows)),
            seconds,
            self._paid[name].times,
            (tokens, self._draft_s + seconds(min(nodes, self._max_rows))),
        )
        return plan, [i for _, i in yields]

    # ---- the proposals ----

    def calibrate(self, drafter: Drafter, sequence: Sequence, tree: DraftTree) -> DraftTree:
        request, calibration = self._request(sequence.id), self._calibration(drafter.name)
        request.proposals.append((drafter.name, tree))
        factor = request.factors.setdefault(drafter.name, RequestFactor())
        if tree.draft_probs:
            return tree.with_scores(scores_of_drawn(tree, calibration, factor))
        scores = [1.0]
        known: dict[tuple[int, float], float] = {}  # many nodes have the same score
        for depth, score in zip(tree.depths[1:], tree.score[1:], strict=True):
            key = (depth, score)
            value = known.get(key)
            if value is None:
                value = known[key] = factor.apply(calibration.usual(depth, score))
            scores.append(value)
        return tree.with_scores(scores)

    def choose(
        self, sequences: Seq[Sequence], rooms: Seq[int], trees: Seq[DraftTree], num_other_rows: int
    ) -> list[DraftTree]:
        if any(len(tree.tokens) > 1 for tree in trees):
            choice = self._choose(sequences, rooms, trees, num_other_rows)
            self._draft_s = 0.0
        else:
            choice = no_nodes(trees)
            self._since_plain, self._draft_s = 0, 0.0
        if choice.num_nodes:
            self._nap.wake()
        else:
            self._nap.fruitless()
        chosen: list[DraftTree] = []
        for sequence, room, tree, rows in zip(sequences, rooms, trees, choice.rows, strict=True):
            if room <= 0:
                chosen.append(tree)
                continue
            request = self._request(sequence.id)
            if rows:
                self.decisions[WORTH] += 1
                request.idle = 0
                if sum(alive >= GROW_AT for alive in tree.survival[1:]) >= request.reach:
                    request.reach = min(2 * request.reach, MAX_NODES, max(self._max_depth, self._max_rows))
                elif 4 * len(rows) < request.reach:
                    request.reach //= 2
                chosen.append(tree.keep(rows))
                continue
            request.idle += 1
            if choice.num_nodes:  # some pay, this one does not; those that nap wake up together
                period = min(LONGEST_NAP, 1 << max(0, (request.idle - PATIENCE) // 2))
                request.nap = period - 1 - int(self._num_rooms) % period
            if len(tree.tokens) == 1:
                self.decisions[NO_PROPOSALS] += 1
                chosen.append(tree)
                continue
            self.decisions[NOT_WORTH] += 1
            request.reach = max(LEAST_REACH, request.reach - 1)
            chosen.append(DraftTree.root_only(tree.tokens[0]))
        return chosen

    def _choose(self, sequences: Seq[Sequence], rooms: Seq[int], trees: Seq[DraftTree], num_other_rows: int) -> Choice:
        cost, num = self.cost, len(sequences)
        contexts = [len(sequence.tokens) for sequence in sequences]
        table, per_key = cost.table, cost.per_key * SHARED_KEY
        # Rows of a prompt are many and alike: they add to the step without changing where its tiles end.
        fixed = cost.per_key * sum(contexts) + num_other_rows * cost.per_row
        limit = min(self._max_rows, MAX_ROWS - num)
        known = cost.seen[num] if num <= MAX_ROWS else TRUSTED
        if self._since_plain >= (REFRESH if known >= TRUSTED else FIRST_REFRESH * (1 + known)):
            limit = 0
        more = 0.0

        def seconds(nodes: int, last: int) -> float:
            nonlocal more
            if nodes:
                more += per_key * contexts[last]
            return table[num + nodes] + fixed + more

        if limit <= 0:  # a huge batch: no row is left to draft with
            self._since_plain = 0
            return no_nodes(trees)
        choice = best_nodes(trees, rooms, limit, seconds, self._draft_s)
        if choice.num_nodes == 0:
            return self._try_anyway(trees, rooms, limit) or choice
        self._explore.paid()
        if known < TRUSTED / 2 or choice.speed < DOUBTFUL_GAIN * choice.plain_speed:
            self._since_plain += 1
        return choice

    def _try_anyway(self, trees: Seq[DraftTree], rooms: Seq[int], limit: int) -> Choice | None:
        """Nothing seems worth it. But a cost that was overestimated is corrected only where it is measured: so nodes
        that are likely to be accepted are verified now and then."""
        self._since_plain = 0
        likely = sum(alive >= LIKELY for tree in trees for alive in alive_in_order(tree)[1:])
        if not likely or not self._explore.is_due():
            return None
        return best_nodes(trees, rooms, min(limit, likely), lambda nodes, last: 1.0, 0.0)

    # ---- after the step ----

    def observe(self, sequences: Seq[Sequence], outcomes: Seq[Outcome], facts: StepFacts) -> None:
        nodes = tokens = contexts = 0
        for sequence, outcome in zip(sequences, outcomes, strict=True):
            nodes += len(outcome.tree.tokens) - 1
            tokens += len(outcome.tokens)
            contexts += len(sequence.tokens) - len(outcome.tokens)
            request = self._requests.get(sequence.id)
            if request is not None and request.proposals:
                self._learn(request, outcome)
        self._steps.append(_Step(len(outcomes), nodes, tokens, contexts, self.guard.is_off, facts))
        for _ in range(facts.steps):
            self.guard.rest()
        if len(self._steps) >= LEARN_EVERY:
            self._learn_times()

    def _learn(self, request: _Request, outcome: Outcome) -> None:
        for name, tree in request.proposals:
            num_rows = outcome.tree.num_nodes if tree.draft_probs else None
            if outcome.tokens and tree.child(0, outcome.tokens[0]) is not None:
                request.idle = 0
                self._nap.stir()
            self._calibration(name).observe(tree, outcome.tokens, request.factors[name], num_rows)
        request.proposals.clear()

    def _learn_times(self) -> None:
        """Costs and guard learn from steps without prefill; several at a time, since code that ran just before is
        several times as fast as code that the weights have driven out of the caches."""
        cost, guard = self.cost, self.guard
        by_rows: dict[int, list[tuple[float, float]]] = {}
        for step in self._steps:
            facts, rows = step.facts, step.num + step.nodes
            if rows != facts.rows or rows > MAX_ROWS:
                continue
            seconds = facts.total_s - facts.draft_s
            keys = step.contexts + SHARED_KEY * max(0, facts.keys - step.contexts)
            by_rows.setdefault(rows, []).append((seconds, keys))
            plain_s = cost.seconds(step.num, step.contexts)
            if step.nodes == 0:
                guard.observe_plain(seconds, plain_s)
            if not (step.was_off or guard.is_off):
                guard.observe(step.tokens, facts.total_s, step.num, plain_s)
        for rows, samples in by_rows.items():
            samples.sort()
            seconds, keys = samples[len(samples) // 2]
            cost.observe(rows, keys, seconds, len(samples))
        self._num_steps += len(self._steps)
        self._steps.clear()
        if self._keep is not None and self._num_steps >= self._next_keep:
            self._next_keep = min(4 * self._next_keep, self._next_keep + 8192)
            self._keep(cost)

    def end(self, sequence_id: int) -> None:
        self._requests.pop(sequence_id, None)
        self._nap.stir()

    # ---- state ----

    def _request(self, sequence_id: int) -> _Request:
        request = self._requests.get(sequence_id)
        if request is None:
            request = self._requests[sequence_id] = _Request()
        return request

    def _calibration(self, name: str) -> Calibration:
        calibration = self._calibrations.get(name)
        if calibration is None:
            calibration = self._calibrations[name] = Calibration()
        if name in self._paid:
            calibration.unknown = HOPEFUL
        return calibration
