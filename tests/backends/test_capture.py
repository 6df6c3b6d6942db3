"""Captured values, features and silu: every backend and kernel table, fused or not; and capturing changes no bit."""

import numpy as np
import pytest

from forerun import _native
from forerun.backends.base import Limits, LoadedModel, ProgramSpec
from forerun.backends.cpu import CpuBackend
from forerun.backends.recorder import Recorder, plan_buffers
from forerun.backends.reference import ReferenceBackend
from forerun.cache.layout import KvLayout, KvStack
from forerun.errors import UsageError
from forerun.models import decoder
from forerun.models.decoder import hidden_name
from forerun.speculation.tree import DraftTree
from tests.backends.native_ops import TABLES, Bench, exact, new_view, pack, plain_batch, run
from tests.steps import Rows, make_batch
from tests.tiny import RandomWeights, tiny_spec

SPEC = tiny_spec(layers=3, hidden=72, intermediate=40)
LIMITS = Limits(64, 64, 128)
EVERY = tuple(range(SPEC.num_layers + 1))
BACKENDS = [ReferenceBackend, *(lambda table=table: CpuBackend(2, table) for table in TABLES)]
every_backend = pytest.mark.parametrize("make", BACKENDS, ids=["reference", *TABLES])


def prepared(backend, captures=(), model=None):
    backend.load(model or LoadedModel(SPEC, RandomWeights(SPEC)), LIMITS, None, captures)
    attention = SPEC.layers[0].mixer
    stack = KvStack("target", SPEC.num_layers, attention.num_kv_heads, attention.head_dim, "bf16")
    backend.allocate_kv(KvLayout(24, 16, (stack,)))
    return backend


def steps():
    """A prompt, then one row beside a tree and another prompt of which only some rows are output."""
    tree = DraftTree.from_paths(1, [[2, 3], [2, 4, 5], [6]])
    tokens = [int(t) for t in np.random.default_rng(0).integers(0, SPEC.vocab_size, 60)]
    yield make_batch([Rows(tokens[:37], 0, [3, 9, 1])], 16, all_outputs=False)
    yield make_batch([Rows([1], 37, [3, 9, 1]), Rows([], 0, [7], tree), Rows(tokens[40:], 0, [5, 4])], 16)


def logits_of(backend):
    return [backend.forward(batch).logits(range(len(batch.output_rows))).tobytes() for batch in steps()]


@every_backend
@pytest.mark.parametrize("captures", [(0,), (1, 2), (SPEC.num_layers,), EVERY], ids=str)
def test_capturing_changes_no_bit(make, captures):
    assert logits_of(prepared(make(), captures)) == logits_of(prepared(make()))


@every_backend
def test_loading_again_with_other_captures_keeps_weights_and_kv(make):
    model = LoadedModel(SPEC, RandomWeights(SPEC))
    backend = prepared(make(), (), model)
    first, second = steps()
    backend.forward(first)
    weights = backend.memory().weights
    backend.load(model, LIMITS, None, EVERY)
    extra = backend.memory().weights - weights
    assert extra <= 4 * SPEC.hidden  # the final norm, which is applied twice
    result = backend.forward(second)
    want = prepared(make(), EVERY)
    want.forward(first)
    right = want.forward(second)
    assert result.logits([0, 3]).tobytes() == right.logits([0, 3]).tobytes()
    assert result.captured(hidden_name(2), [0, 5]).tobytes() == right.captured(hidden_name(2), [0, 5]).tobytes()


@every_backend
def test_hidden_states_are_those_of_the_pass(make):
    """Against the reference; and the last one, through the output matrix, gives the logits."""
    backend, oracle = prepared(make(), EVERY), prepared(ReferenceBackend(), EVERY)
    output = RandomWeights(SPEC).read("embed")
    for batch in steps():
        rows = range(batch.num_rows)
        got, want = backend.forward(batch), oracle.forward(batch)
        for index in EVERY:
            mine, right = got.captured(hidden_name(index), rows), want.captured(hidden_name(index), rows)
            assert mine.shape == (batch.num_rows, SPEC.hidden)
            np.testing.assert_allclose(mine, right, atol=0.03 * np.abs(right).max())  # inputs are rounded to bfloat16
            assert np.mean(np.abs(mine - right)) < 0.003 * np.abs(right).max()
        last = got.captured(hidden_name(SPEC.num_layers), batch.output_rows)
        logits = got.logits(range(len(batch.output_rows)))
        np.testing.assert_allclose(last @ output.T, logits, atol=0.01 * np.abs(logits).max())
        embedded = got.captured(hidden_name(0), rows)
        np.testing.assert_array_equal(embedded, output[batch.tokens])


@every_backend
def test_rows_are_copies_in_the_order_asked_for(make):
    backend = prepared(make(), (1,))
    batch, other = steps()
    result = backend.forward(batch)
    rows = result.captured(hidden_name(1), [5, 2, 5])
    again = result.captured(hidden_name(1), range(batch.num_rows))
    np.testing.assert_array_equal(rows, again[[5, 2, 5]])
    before = rows.copy()
    backend.forward(other)
    np.testing.assert_array_equal(rows, before)


@every_backend
def test_what_was_not_captured_is_unknown(make):
    backend = prepared(make(), (1,))
    result = backend.forward(next(steps()))
    with pytest.raises(KeyError):
        result.captured(hidden_name(2), [0])
    with pytest.raises(UsageError, match="hidden state 4 does not exist"):
        make().load(LoadedModel(SPEC, RandomWeights(SPEC)), LIMITS, None, (4,))


class Further(RandomWeights):
    """A matrix beside a model's."""

    def __init__(self, shapes):
        self._shapes, self._seed, self._zero = shapes, 5, frozenset()


def head_program(backend, model, matrix_rows=24):
    """silu(W f) W2 on output rows, `inner` captured; W is the head's, the embedding the model's."""

    def forward(ops):
        total = ops.add(ops.features(SPEC.hidden), ops.embed("embed"))
        inner = ops.silu(ops.linear(ops.select_outputs(total), ("head.a",)))
        ops.capture("inner", inner)
        ops.capture("total", total)
        return ops.linear(inner, ("head.b",))

    shapes = {"head.a": (40, SPEC.hidden), "head.b": (matrix_rows, 40)}
    weights = Further(shapes)
    spec = ProgramSpec("head", model, forward, LIMITS, shapes={**SPEC.weight_shapes(), **shapes}, further=weights)
    return backend.add_program(spec), weights


@every_backend
def test_a_head_reads_features_its_own_weights_and_the_models(make):
    model = LoadedModel(SPEC, RandomWeights(SPEC))
    backend = prepared(make(), (), model)
    program, weights = head_program(backend, model)
    batch = make_batch([Rows([4, 9, 1], 0, [0]), Rows([7, 7], 3, [1])], 16, all_outputs=False)
    features = exact((5, SPEC.hidden), 1)
    result = program.forward(batch, features)
    total = features + model.weights.read("embed")[batch.tokens]
    np.testing.assert_allclose(result.captured("total", range(5)), total, rtol=1e-6)
    hidden = total[[2, 4]] @ weights.read("head.a").T
    inner = hidden / (1 + np.exp(-hidden))
    np.testing.assert_allclose(result.captured("inner", [1, 0]), inner[[1, 0]], atol=0.03)
    np.testing.assert_allclose(result.logits([0, 1]), inner @ weights.read("head.b").T, atol=0.03)
    # the model's embedding is shared: what is counted is the head's own
    assert program.num_bytes > 0


def test_matrices_of_the_target_are_shared():
    model = LoadedModel(SPEC, RandomWeights(SPEC))
    backend = prepared(CpuBackend(1), (), model)
    program, _ = head_program(backend, model)
    assert program.packed_bytes < _native.PackedMatrix.bytes(SPEC.vocab_size, SPEC.hidden)


@every_backend
def test_features_of_another_shape_are_refused(make):
    model = LoadedModel(SPEC, RandomWeights(SPEC))
    backend = prepared(make(), (), model)
    program, _ = head_program(backend, model)
    batch = make_batch([Rows([4, 9], 0, [0])], 16)
    for features in (None, np.zeros((1, SPEC.hidden), np.float32), np.zeros((2, 5), np.float32)):
        with pytest.raises(ValueError, match="reads features"):
            program.forward(batch, features)
    plain = backend.add_program(ProgramSpec("plain", model, lambda ops: decoder.logits(SPEC, ops), LIMITS))
    if isinstance(backend, CpuBackend):
        with pytest.raises(ValueError, match="reads features"):
            plain.forward(batch, np.zeros((2, SPEC.hidden), np.float32))


class TestNative:
    @pytest.mark.parametrize("table", TABLES)
    @pytest.mark.parametrize("width", [1, 16, 33, 700])
    def test_silu_is_silu_mul_with_ones(self, table, width):
        x = exact((5, width), 0, 3.0)
        ones = np.ones((5, width), np.float32)

        def product(program, views):
            out = new_view(program, width)
            program.silu_mul(views[0], views[1], out)
            return out

        def silu(program, views):
            out = new_view(program, width)
            program.silu(views[0], out)
            return out

        want = Bench(table).run([x, ones], product, width)
        assert Bench(table).run([x], silu, width).tobytes() == want.tobytes()

    @pytest.mark.parametrize("table", TABLES)
    @pytest.mark.parametrize("fuse", [True, False])
    def test_a_kept_value_is_written_though_only_a_rounding_reads_it(self, table, fuse):
        x, pool = exact((20, 96), 0, 3.0), _native.ThreadPool(2)
        program = _native.Program(table, pool, 20, 20, 64)
        given, normed, out = (_native.View(program.add_input(96), 0, 96), new_view(program, 96), new_view(program, 24))
        program.rms_norm(given, program.add_vector(exact((96,), 2)), 1e-5, normed)
        program.linear(normed, pack(exact((24, 96), 3), pool), -1, out)
        result = _native.View(program.add_buffer(24, True), 0, 24)
        program.select_outputs(out, result)
        program.keep(normed)
        program.finish(result, fuse=fuse)
        program.rows(given)[:] = x
        run(program, _native.KvStore(table, 4, 16, [(1, 16, "bf16")]), plain_batch(20))
        want = x / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + 1e-5) * exact((96,), 2)
        np.testing.assert_allclose(program.rows(normed), want, rtol=1e-5)

    def test_only_inputs_and_kept_values_can_be_read(self):
        pool = _native.ThreadPool(1)
        program = _native.Program(TABLES[0], pool, 4, 4, 64)
        given, result = _native.View(program.add_input(16), 0, 16), _native.View(program.add_buffer(16, True), 0, 16)
        program.select_outputs(given, result)
        with pytest.raises(ValueError, match="finished"):
            program.rows(given)
        program.finish(result)
        with pytest.raises(ValueError, match="only inputs and kept"):
            program.rows(result)
        with pytest.raises(ValueError, match="finished"):
            program.keep(result)


def test_captured_values_share_their_buffer_with_nobody():
    recorder = Recorder(dict(SPEC.weight_shapes()))
    result = decoder.logits(SPEC, recorder, captures=EVERY)
    plan = plan_buffers(recorder, result)
    for value in recorder.captured.values():
        assert [plan.buffer_of[other] for other in plan.buffer_of].count(plan.buffer_of[value.id]) == 1


def test_a_captured_value_cannot_be_rotated():
    recorder = Recorder(dict(SPEC.weight_shapes()))
    x = recorder.embed("embed")
    recorder.capture("x", x)
    with pytest.raises(ValueError, match="rotated"):
        recorder.rope(x, 4, SPEC.layers[0].mixer.rope)
    with pytest.raises(ValueError, match="twice"):
        recorder.capture("x", x)
