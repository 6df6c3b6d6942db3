"""recycle drafter: what it learns from rows, the shape of its trees, and its file."""

import itertools
import logging
from types import SimpleNamespace

import numpy as np
import pytest

from forerun.batch import Outcome
from forerun.errors import UsageError
from forerun.speculation.drafter import Ask, HostedDrafter, Seen, make_drafter
from forerun.speculation.drafters import recycle
from forerun.speculation.drafters.recycle import RecycleDrafter, best_shape
from forerun.speculation.drafting.successors import SuccessorTable, file_of
from forerun.speculation.tree import DraftTree
from tests.fakes import VOCAB, Setup, path_logits, prompt_of, request, run
from tests.speculation.free_drafters import CASES, propose, run_like_plain, sequence_of

HITS = [4.0, 2.0, 1.0, 3.0]


class Rows:
    """Logits whose best successors are written down: row -> ids."""

    def __init__(self, best):
        self._best = best

    def top(self, outputs, count):
        return np.array([(self._best[output] + list(range(20, 20 + count)))[:count] for output in outputs], np.int32)


def seen(tree, best, tokens, accepted=(), is_finite=True, first_output=0, salt=""):
    outcome = Outcome(tree, tuple(accepted), tuple(tokens), tuple(range(len(tokens))), is_finite)
    return Seen(sequence_of([1], salt=salt), outcome, first_output, Rows(best))


def host_of(folder, name="model.gguf", vocab_size=64):
    spec = SimpleNamespace(vocab_size=vocab_size)
    target = SimpleNamespace(name=name, model=SimpleNamespace(spec=spec))
    return SimpleNamespace(target=target, cache_folder=folder)


def learned(**options):
    """A drafter that knows 1 -> 2, 3; 2 -> 4; 3 -> 5; 4 -> 6."""
    drafter = RecycleDrafter(width=2, **options)
    tree = DraftTree.of((1, 2, 3, 4), (-1, 0, 0, 1), (1.0,) * 4, "s")
    drafter.observe([seen(tree, [[2, 3], [4, 7], [5, 8], [6, 9]], [9])])
    return drafter


class TestDrafts:
    def test_nothing_known_nothing_proposed(self):
        assert propose(RecycleDrafter(), sequence_of([1, 2])) is None
        assert propose(learned(), sequence_of([1, 60])) is None

    def test_rows_on_and_off_the_path_are_learned(self):
        tree = propose(learned(min_prob=0.001), sequence_of([9, 1]), max_nodes=6, max_depth=3)
        paths = [[tree.tokens[row] for row in tree.path(leaf)] for leaf in range(1, len(tree))]
        assert [2, 4, 6] in paths
        assert [3, 5] in paths
        assert tree.source == "recycle"
        assert all(0 < score < 1 for score in tree.score[1:])

    def test_the_last_word_counts(self):
        drafter = learned()
        drafter.observe([seen(DraftTree.root_only(1), [[11, 12]], [9])])
        tree = propose(drafter, sequence_of([1]), max_nodes=1)
        assert tree.tokens == (1, 11)

    def test_of_equal_tokens_the_accepted_row_counts(self):
        drafter = RecycleDrafter(width=2)
        tree = DraftTree.of((1, 5, 2, 5), (-1, 0, 0, 1), (1.0,) * 4, "s")
        drafter.observe([seen(tree, [[5, 2], [30, 31], [40, 41], [50, 51]], [5, 9], accepted=[1])])
        assert propose(drafter, sequence_of([5]), max_nodes=1).tokens == (5, 30)

    def test_rows_of_a_step_with_nan_are_not_learned(self):
        drafter = RecycleDrafter()
        drafter.observe([seen(DraftTree.root_only(1), [[2, 3]], [], is_finite=False)])
        assert propose(drafter, sequence_of([1])) is None

    def test_rows_are_counted_from_the_first_output(self):
        drafter = RecycleDrafter(width=2)
        drafter.observe([seen(DraftTree.root_only(1), [[2, 3], [4, 5]], [9], first_output=1)])
        assert propose(drafter, sequence_of([1]), max_nodes=1).tokens == (1, 4)

    @pytest.mark.parametrize(("max_nodes", "max_depth"), [(1, 1), (3, 1), (3, 9), (15, 2)])
    def test_limits_hold(self, max_nodes, max_depth):
        tree = propose(learned(min_prob=0.001), sequence_of([1]), max_nodes, max_depth)
        assert tree.num_nodes <= max_nodes
        assert max(tree.depths) <= max_depth

    def test_chances_of_ranks_are_learned(self):
        drafter = learned()
        before = propose(drafter, sequence_of([1]), max_depth=1).score
        for _ in range(400):  # the second successor is always the right one
            drafter.observe([seen(DraftTree.root_only(1), [[2, 3]], [3])])
        after = propose(drafter, sequence_of([1]), max_depth=1).score
        assert after[2] > before[2]
        assert after[1] == after[2]  # no rank is trusted less than one behind it
        for _ in range(4000):
            drafter.observe([seen(DraftTree.root_only(1), [[2, 3]], [2])])
        assert propose(drafter, sequence_of([1]), max_depth=1).score[1] > 0.9

    def test_sequences_leave_nothing_behind(self):
        drafter = RecycleDrafter()
        for number in range(5):
            drafter.begin(sequence_of([1], number))
        for number in range(5):
            drafter.end(number)
            drafter.end(number)
        assert not drafter._active


class TestSalts:
    """What one tenant's requests taught is never proposed to another."""

    ONE = DraftTree.root_only(1)

    @pytest.mark.parametrize(("teacher", "pupil"), [("", "a"), ("a", ""), ("a", "b"), ("a", "A"), ("a", "a ")])
    def test_others_learn_nothing(self, teacher, pupil):
        drafter = RecycleDrafter(width=2)
        drafter.observe([seen(self.ONE, [[2, 3]], [9], salt=teacher)])
        assert propose(drafter, sequence_of([1], salt=pupil)) is None
        assert propose(drafter, sequence_of([1], salt=teacher)) is not None

    def test_one_call_serves_several(self):
        drafter = RecycleDrafter(width=2)
        learning = [
            seen(self.ONE, [[token, token + 1]], [9], salt=salt) for token, salt in ((2, ""), (4, "a"), (6, "b"))
        ]
        drafter.observe(learning)
        asks = [Ask(sequence_of([1], number, salt), 1, 1) for number, salt in enumerate(("b", "", "c", "a", "b"))]
        assert [tree and tree.tokens[1] for tree in drafter.propose(asks)] == [6, 2, None, 4, 6]

    def test_chances_are_learned_apart(self):
        drafter = RecycleDrafter(width=2)
        for _ in range(300):
            drafter.observe([seen(self.ONE, [[2, 3]], [2], salt="a"), seen(self.ONE, [[2, 3]], [9], salt="b")])
        tree = propose(drafter, sequence_of([1], salt="a"), max_nodes=1)
        assert tree is not None
        assert tree.score[1] > 0.8
        assert propose(drafter, sequence_of([1], salt="b")) is None  # it was never right: too unlikely to be proposed

    def test_the_least_recently_used_is_forgotten_within_the_budget(self, tmp_path):
        size = SuccessorTable(64, RecycleDrafter()._prior).num_bytes
        drafter = RecycleDrafter(salted_bytes=3 * size + 5)
        drafter.load(host_of(tmp_path), 1)
        for salt in "abc":
            drafter.observe([seen(self.ONE, [[2, 3]], [9], salt=salt)])
        assert drafter._tables.salted_bytes == 3 * size
        assert propose(drafter, sequence_of([1], salt="a")) is not None  # so "b" is the oldest
        drafter.observe([seen(self.ONE, [[2, 3]], [9], salt="d")])
        assert drafter._tables.salted_bytes == 3 * size
        assert [propose(drafter, sequence_of([1], salt=salt)) is not None for salt in "acd"] == [True] * 3
        assert propose(drafter, sequence_of([1], salt="b")) is None

    def test_a_budget_below_one_table_drafts_for_no_salt(self, tmp_path):
        drafter = RecycleDrafter(salted_bytes=100)
        drafter.load(host_of(tmp_path), 1)
        for salt in ("", "a"):
            drafter.observe([seen(self.ONE, [[2, 3]], [9], salt=salt)])
        assert propose(drafter, sequence_of([1], salt="a")) is None
        assert propose(drafter, sequence_of([1])) is not None
        assert drafter._tables.salted_bytes == 0

    def test_only_the_unsalted_table_reaches_the_file(self, tmp_path, monkeypatch):
        monkeypatch.setattr(recycle, "SAVE_EVERY", 1)
        drafter = RecycleDrafter()
        drafter.load(host_of(tmp_path), 1)
        for _ in range(3):
            drafter.observe([seen(self.ONE, [[2, 3]], [2], salt="a")])
        drafter.end(0)
        assert list(tmp_path.iterdir()) == []  # nothing of its own to keep
        for _ in range(3):
            drafter.observe([seen(self.ONE, [[4, 5]], [4])])
        drafter.end(0)
        again = RecycleDrafter()
        again.load(host_of(tmp_path), 1)
        assert propose(again, sequence_of([1]), max_nodes=1).tokens == (1, 4)
        assert propose(again, sequence_of([1], salt="a")) is None


class TestShape:
    @staticmethod
    def value(shape, chances):
        """Sum over the nodes of their probability to be reached, and the deepest level."""
        reached, depths = [1.0], [0]
        for parent, rank in shape:
            reached.append(reached[parent] * chances[rank])
            depths.append(depths[parent] + 1)
        return sum(reached[1:]), max(depths)

    @pytest.mark.parametrize("chances", [(0.5, 0.2, 0.1), (0.9, 0.05, 0.01), (0.34, 0.33, 0.33), (0.6, 0.6)])
    @pytest.mark.parametrize(("max_nodes", "max_depth"), [(1, 3), (3, 3), (4, 2), (5, 3), (4, 1)])
    def test_no_tree_is_better(self, chances, max_nodes, max_depth):
        shape = best_shape(chances, max_nodes, max_depth, 0.0)
        value, deepest = self.value(shape, chances)
        assert deepest <= max_depth
        assert len(shape) == len(set(shape)) <= max_nodes
        best = 0.0
        for size in range(max_nodes + 1):  # every tree: the nodes' parents and ranks, each node new
            for parents in itertools.product(*(range(row + 1) for row in range(size))):
                for ranks in itertools.product(range(len(chances)), repeat=size):
                    tree = list(zip(parents, ranks, strict=True))
                    if len(set(tree)) == size and self.value(tree, chances)[1] <= max_depth:
                        best = max(best, self.value(tree, chances)[0])
        assert value == pytest.approx(best)

    def test_unlikely_nodes_are_left_out(self):
        assert best_shape((0.5, 0.1), 10, 5, 0.2) == ((0, 0), (1, 0))


class TestFile:
    def fill(self, folder, name="model.gguf", vocab_size=64):
        table = SuccessorTable(vocab_size, HITS)
        table.update([1, 5], np.array([[2, 3, 4], [6, 7, 8]], np.int32))
        table.save(folder, name)
        return file_of(folder, name)

    def test_what_was_learned_is_there_again(self, tmp_path, monkeypatch):
        monkeypatch.setattr(recycle, "SAVE_EVERY", 1)
        drafter = RecycleDrafter()
        assert isinstance(drafter, HostedDrafter)
        assert drafter.kv_stacks(host_of(tmp_path)) == ()
        drafter.load(host_of(tmp_path), 1)
        drafter.begin(sequence_of([1]))
        for _ in range(2):
            drafter.observe([seen(DraftTree.root_only(1), [[2, 3]], [2])])
        drafter.end(0)
        again = RecycleDrafter()
        again.load(host_of(tmp_path), 1)
        assert propose(again, sequence_of([1])) == propose(drafter, sequence_of([1])) is not None
        other = RecycleDrafter()
        other.load(host_of(tmp_path, name="other.gguf"), 1)
        assert propose(other, sequence_of([1])) is None
        assert [path.name for path in tmp_path.iterdir()] == [file_of(tmp_path, "model.gguf").name]

    def test_it_is_written_seldom_and_when_nobody_waits(self, tmp_path, monkeypatch):
        monkeypatch.setattr(recycle, "SAVE_EVERY", 5)
        monkeypatch.setattr(recycle, "SAVE_EVERY_BUSY", 20)
        drafter = RecycleDrafter()
        drafter.load(host_of(tmp_path), 1)
        drafter.begin(sequence_of([1], 0))
        path = file_of(tmp_path, "model.gguf")
        for draws, is_written in ((3, False), (16, False), (6, True)):  # the first draw meets an empty table
            for number in range(1, draws + 1):
                drafter.observe([seen(DraftTree.root_only(1), [[2, 3]], [2])])
                drafter.begin(sequence_of([1], number))
                drafter.end(number)
            assert path.exists() == is_written
        path.unlink()
        drafter.end(0)
        assert not path.exists()
        for _ in range(5):
            drafter.observe([seen(DraftTree.root_only(1), [[2, 3]], [2])])
        drafter.end(0)
        assert path.exists()

    def test_persist_off_touches_no_file(self, tmp_path, monkeypatch):
        monkeypatch.setattr(recycle, "SAVE_EVERY", 1)
        self.fill(tmp_path)
        before = file_of(tmp_path, "model.gguf").read_bytes()
        drafter = RecycleDrafter(persist=False)
        drafter.load(host_of(tmp_path), 1)
        assert propose(drafter, sequence_of([1])) is None
        for _ in range(3):
            drafter.observe([seen(DraftTree.root_only(1), [[2, 3]], [2])])
        drafter.end(0)
        assert file_of(tmp_path, "model.gguf").read_bytes() == before

    @pytest.mark.parametrize(
        ("damage", "message"),
        [
            (lambda data: b"", "0 bytes"),
            (lambda data: data[:-1], "bytes instead of"),
            (lambda data: data + b"x", "bytes instead of"),
            (lambda data: b"X" + data[1:], "another version or another model"),
            (lambda data: data[:20] + b"X" + data[21:], "another version or another model"),
            (lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:], "checksum"),
            (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "checksum"),
            (lambda data: bytes(len(data)), "another version or another model"),
        ],
    )
    def test_a_damaged_file_is_ignored(self, tmp_path, caplog, damage, message):
        path = self.fill(tmp_path)
        path.write_bytes(damage(path.read_bytes()))
        table = SuccessorTable(64, HITS)
        with caplog.at_level(logging.WARNING):
            assert not table.load(tmp_path, "model.gguf")
        assert message in caplog.text
        assert table.of(1) == []
        assert table.hits.tolist() == HITS

    @pytest.mark.parametrize(("at", "value"), [(0, 64), (0, -2), (1, np.nan), (1, -1.0), (1, np.inf)])
    def test_numbers_out_of_range_are_ignored(self, tmp_path, caplog, at, value):
        table = SuccessorTable(64, HITS)
        (table.ids, table.hits)[at].flat[2] = value
        table.save(tmp_path, "m")
        assert not SuccessorTable(64, HITS).load(tmp_path, "m")
        assert "out of range" in caplog.text

    def test_a_file_of_another_shape_is_ignored(self, tmp_path, caplog):
        self.fill(tmp_path)
        assert not SuccessorTable(65, HITS).load(tmp_path, "model.gguf")
        assert not SuccessorTable(64, [*HITS, 1.0]).load(tmp_path, "model.gguf")
        assert caplog.text.count("bytes instead of") == 2

    def test_no_file_is_no_news(self, tmp_path, caplog):
        assert not SuccessorTable(64, HITS).load(tmp_path, "model.gguf")
        assert caplog.text == ""

    def test_a_folder_that_cannot_be_written_costs_a_warning_only(self, tmp_path, caplog, monkeypatch):
        monkeypatch.setattr(recycle, "SAVE_EVERY", 1)
        (tmp_path / "file").write_text("not a folder")
        drafter = RecycleDrafter()
        drafter.load(host_of(tmp_path / "file"), 1)
        for _ in range(3):
            drafter.observe([seen(DraftTree.root_only(1), [[2, 3]], [2])])
            drafter.end(0)
        assert caplog.text.count("is not kept") == 1

    def test_a_failed_write_leaves_the_old_file(self, tmp_path, monkeypatch):
        path = self.fill(tmp_path)
        before = path.read_bytes()
        monkeypatch.setattr("pathlib.Path.replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
        with pytest.raises(OSError, match="full"):
            self.fill(tmp_path)
        assert [other.name for other in tmp_path.iterdir()] == [path.name]
        assert path.read_bytes() == before


@pytest.mark.parametrize(("shape", "batch", "sampling"), CASES)
def test_lossless(shape, batch, sampling):
    drafter = RecycleDrafter()
    run_like_plain(drafter, shape, batch, sampling)
    assert not drafter._active


def test_lossless_through_preemption():
    engine = run_like_plain(RecycleDrafter(), "tree", 8, "greedy", num_blocks=10)
    assert engine.scheduler.num_preemptions > 0


def test_lossless_with_a_table_of_nonsense(tmp_path):
    table = SuccessorTable(VOCAB, RecycleDrafter()._prior)
    table.update(range(VOCAB), np.random.default_rng(0).permuted(np.tile(np.arange(VOCAB), (VOCAB, 1)), axis=1)[:, :8])
    table.save(tmp_path, "m")
    drafter = RecycleDrafter()
    drafter.load(host_of(tmp_path, "m", VOCAB), 1)
    run_like_plain(drafter, "tree", 3, "seeded")


def test_it_drafts_where_nothing_repeats():
    """The table knows the target, not the text: with logits that depend on the last token alone it is right at once."""
    drafter = RecycleDrafter()
    setup = Setup(prefill_slowdown=1e9, drafter=drafter, max_depth=6)
    setup.backend._logits = lambda path, vocab: path_logits(path[-1:], vocab)
    engine = setup.engine()
    run(engine, [request(prompt_of(1, 5), ignore_eos=True, max_tokens=60)])
    assert engine.speculator.stats.accepted > 20


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 0}, "width"),
        ({"width": 9}, "width"),
        ({"max_nodes": 0}, "max_nodes"),
        ({"max_nodes": 64}, "max_nodes"),
        ({"min_prob": 0.0}, "min_prob"),
        ({"salted_bytes": -1}, "salted_bytes"),
        ({"depth": 1}, "depth"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(UsageError, match=message):
        make_drafter("recycle", options)


def test_a_vocabulary_smaller_than_the_table_is_refused(tmp_path):
    with pytest.raises(UsageError, match="the model has 4 tokens"):
        RecycleDrafter().load(host_of(tmp_path, vocab_size=4), 1)
