"""Negative controls: every damage that the suite exists for is done here, and the same comparison must find it.

A comparison that passes on a damaged engine proves nothing about a sound one.
"""

from dataclasses import replace

import pytest

from forerun.batch import NOT_FINITE, Outcome
from forerun.cache.block_pool import BlockPool
from forerun.cache.prefix_index import PrefixIndex, PrefixMatch
from forerun.sampling import walk
from forerun.sampling.noise import gumbel
from forerun.sampling.processors import History
from forerun.scheduler import build, finish, scheduler
from forerun.scheduler.scheduler import Scheduler
from forerun.speculation import verify
from forerun.speculation.tree import DraftTree
from tests.fakes import FakeBackend, Setup, facts, plain_decode, prompt_of, request, run
from tests.lossless.cases import Case, mismatches, model_of, setup_of

TREES = Case("oracle-branches", "seeded")
CHAINS = Case("oracle-errors", "seeded")
FORKS = Case("none", "seeded", n=3, batch=8, prefix_caching=False)
CACHED = Case("none", "seeded", arrival="again")
TIGHT = Case("none", "to-the-end", batch=8, pool="tight", prefix_caching=False)


def is_found(case: Case, backend: FakeBackend | None = None) -> bool:
    """Does the comparison notice? An invariant of the engine that breaks counts too, as it does in the suite."""
    try:
        return bool(mismatches(case, setup_of(case, backend).engine()))
    except (AssertionError, ValueError):
        return True


@pytest.mark.parametrize("case", [TREES, CHAINS, FORKS, CACHED, TIGHT], ids=str)
def test_undamaged_cases_pass(case):
    assert not is_found(case)


class MaskBlind(FakeBackend):
    """Tree rows see every node before them instead of their ancestors."""

    def _path(self, batch, row, owner):
        mask = batch.ancestors.copy()
        if mask[row]:
            mask[row] = (1 << int(mask[row]).bit_length()) - 1
        everything = replace(batch, ancestors=mask, positions=batch.positions)
        return super()._path(everything, row, owner)


class SiblingBlind(FakeBackend):
    """A tree row sees the sibling before it in place of its parent: as many keys, the wrong ones."""

    def _path(self, batch, row, owner):
        path = super()._path(batch, row, owner)
        if int(batch.ancestors[row]).bit_length() >= 3:
            return (*path[:-2], int(batch.tokens[row - 1]), path[-1])
        return path


class CopiesNothing(FakeBackend):
    """Copy on write gets a fresh block but not its content."""

    def allocate_kv(self, layout):
        super().allocate_kv(layout)
        self._held[:] = 1  # something readable, so that the audit of unwritten slots does not help

    def copy_blocks(self, pairs):
        pass


class MovesNothing(FakeBackend):
    """Accepted tree nodes stay at the slots of their rows."""

    def move_kv(self, moves):
        pass


@pytest.mark.parametrize(
    ("backend", "case"),
    [(MaskBlind, TREES), (SiblingBlind, TREES), (CopiesNothing, FORKS), (CopiesNothing, CACHED), (MovesNothing, TREES)],
)
def test_a_damaged_backend_is_found(backend, case):
    assert is_found(case, backend(model_of(case)))


class TestScheduler:
    def test_forgotten_moves(self, monkeypatch):
        monkeypatch.setattr(Scheduler, "_moves", lambda *_: [])
        assert is_found(TREES)

    def test_moves_in_descending_depth(self, monkeypatch):
        forward = Scheduler._moves
        monkeypatch.setattr(Scheduler, "_moves", lambda *a: forward(*a)[::-1])
        assert is_found(TREES)

    @pytest.mark.parametrize("case", [FORKS, CACHED])
    def test_writing_into_shared_blocks(self, monkeypatch, case):
        monkeypatch.setattr(BlockPool, "is_writable", lambda *_: True)
        assert is_found(case)

    def test_preemption_that_forgets_to_recompute(self, monkeypatch):
        release = Scheduler._release
        take = Scheduler._take_after
        lost = {}

        def keep_count(self, sequence):
            lost[sequence.id] = max(sequence.num_computed, lost.get(sequence.id, 0))
            release(self, sequence)

        def take_stale(self, prefix, sequence, selection):
            taken = take(self, prefix, sequence, selection)
            if taken and sequence.stats.preemptions:
                sequence.num_computed = min(lost[sequence.id], len(sequence.tokens) - 1)
            return taken

        monkeypatch.setattr(Scheduler, "_release", keep_count)
        monkeypatch.setattr(Scheduler, "_take_after", take_stale)
        assert is_found(TIGHT)

    def test_one_accepted_token_too_many_counts_as_computed(self, monkeypatch):
        moves = Scheduler._moves

        def off_by_one(self, sequence, root, rows):
            sequence.num_computed = min(sequence.num_computed + 1, len(sequence.tokens) - 1)
            return moves(self, sequence, root, rows)[1:]

        monkeypatch.setattr(Scheduler, "_moves", off_by_one)
        assert is_found(TREES)

    def test_a_whole_draft_is_kept_behind_a_stop(self, monkeypatch):
        append = finish.append_tokens

        def without_cut(sequence, outcome, drawn, max_model_len, now):
            cut = append(sequence, outcome, drawn, max_model_len, now)
            sequence.tokens.extend(outcome.tokens[len(cut.tokens) :])
            return outcome

        monkeypatch.setattr(scheduler, "append_tokens", without_cut)
        assert is_found(replace(CHAINS, drafter="oracle", sampling="everything", batch=8, arrival="again"))

    def test_positions_of_the_row_instead_of_the_depth(self, monkeypatch):
        monkeypatch.setattr(DraftTree, "depths", property(lambda tree: tuple(range(len(tree)))))
        assert is_found(TREES)

    def test_output_rows_off_by_one(self, monkeypatch):
        make_draw = build.make_draw
        monkeypatch.setattr(build, "make_draw", lambda s, t, first: make_draw(s, t, max(0, first - 1)))
        assert is_found(Case(batch=8))


class TestPrefixIndex:
    """Two texts that differ in the first block and agree in the second."""

    def requests(self):
        tail = prompt_of(3, 16)
        last = prompt_of(4, 4)
        return [request((*prompt_of(seed, 16), *tail, *last), max_tokens=12) for seed in (1, 2, 2)]

    def outputs_differ(self):
        engine = Setup().engine()
        return any(facts(run(engine, [wanted])[0][0]) != plain_decode(wanted) for wanted in self.requests())

    def test_sound(self):
        assert not self.outputs_differ()

    def test_digests_without_the_parent_alone_do_no_harm(self, monkeypatch):
        """Tokens and parent are compared on every hit, so a weak digest costs hits, not correctness."""
        extend = PrefixIndex._extend
        monkeypatch.setattr(PrefixIndex, "_extend", staticmethod(lambda parent, tokens: extend(b"", tokens)))
        assert not self.outputs_differ()

    def test_an_index_that_ignores_the_parent(self, monkeypatch):
        def by_tokens(self, tokens, salt="", limit=None):
            blocks, size = [], self._block_size
            for start in range(0, len(tokens[:limit]) - size + 1, size):
                part = tuple(tokens[start : start + size])
                # The first block is taken from anywhere, as if only the later ones mattered.
                found = [e for e in self._by_block.values() if e.tokens == part or (start == 0 and not e.block)]
                if not found:
                    break
                blocks.append(found[0].block)
            return PrefixMatch(tuple(blocks), len(blocks) * size)

        monkeypatch.setattr(PrefixIndex, "match", by_tokens)
        assert self.outputs_differ()

    def test_publishing_what_is_not_computed_yet(self, monkeypatch):
        publish = PrefixIndex.publish
        monkeypatch.setattr(PrefixIndex, "publish", lambda self, s, upto: publish(self, s, len(s.block_ids) * 16))
        assert is_found(replace(CACHED, drafter="tree"))


class TestSampling:
    def test_noise_keyed_by_the_place_in_the_draft(self, monkeypatch):
        draw_row = walk.draw_row
        monkeypatch.setattr(
            walk, "draw_row", lambda row, request, position, h: draw_row(row, request, position - request.position, h)
        )
        assert is_found(CHAINS)

    def test_noise_keyed_by_the_output_index(self, monkeypatch):
        """Position in the output instead of in the text: plain decoding would not mind, the definition does."""

        def draw_row(row, request, position, history):
            num_prompt = request.banned_until  # min_tokens is 0 here
            return walk_draw(row, request, position - num_prompt, history)

        walk_draw = walk.draw_row
        monkeypatch.setattr(walk, "draw_row", draw_row)
        assert is_found(CHAINS)

    def test_noise_of_the_tree_row(self, monkeypatch):
        calls = iter(range(10**9))
        monkeypatch.setattr(walk, "gumbel", lambda key, position, ids: gumbel(key, next(calls), ids))
        assert is_found(CHAINS)

    @pytest.mark.parametrize("sampling", ["greedy-penalties", "everything"])
    def test_penalties_that_do_not_see_drafted_ancestors(self, monkeypatch, sampling):
        monkeypatch.setattr(History, "add", lambda *_: None)
        assert is_found(Case("oracle", sampling, batch=8))

    def test_min_tokens_checked_at_the_root_only(self, monkeypatch):
        draw_row = walk.draw_row

        def at_root(row, request, position, history):
            if position > request.position:
                request = replace(request, banned_until=0)
            return draw_row(row, request, position, history)

        monkeypatch.setattr(walk, "draw_row", at_root)
        assert is_found(Case("oracle", "greedy-bias", batch=8))


class TestVerification:
    def damage(self, monkeypatch, change):
        walk_tree = verify._walk
        monkeypatch.setattr(verify, "_walk", lambda draw, drawn: change(walk_tree(draw, drawn), draw, drawn))

    def test_drafted_tokens_in_place_of_drawn_ones(self, monkeypatch):
        def accept_first_child(outcome: Outcome, draw, drawn):
            tree = draw.tree
            if not outcome.accepted and tree.num_nodes and NOT_FINITE not in drawn.tokens:
                return replace(outcome, tokens=(tree.tokens[1],), rows=outcome.rows[:1])
            return outcome

        self.damage(monkeypatch, accept_first_child)
        assert is_found(replace(CHAINS, drafter="chain"))

    def test_bonus_token_from_the_root_row(self, monkeypatch):
        def bonus_from_root(outcome: Outcome, draw, drawn):
            return replace(outcome, tokens=(*outcome.tokens[:-1], int(drawn.tokens[draw.first_output])))

        self.damage(monkeypatch, bonus_from_root)
        assert is_found(CHAINS)

    def test_hashes_alone_find_a_changed_bit_of_a_logit(self):
        def nudge(batch, rows):
            for row in rows if len(rows) > 3 else []:
                row[31] -= 1e-6  # never changes a token here

        case = Case("oracle", batch=8)
        found = mismatches(case, setup_of(case, FakeBackend(corrupt=nudge)).engine())
        assert found
        assert all(" hashes: " in line for line in found)
