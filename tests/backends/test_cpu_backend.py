"""CpuBackend: whole models against the oracle, loading, limits, errors, KV memory, and the fault for self-tests."""

import dataclasses

import numpy as np
import pytest

from forerun import _native
from forerun.backends import reference
from forerun.backends.base import Limits, LoadedModel, SlotMove
from forerun.backends.cpu import INT16_TABLES, KERNELS_VERSION, CpuBackend, choose_table, cpu_info
from forerun.backends.reference import NumpyOps, ReferenceBackend
from forerun.backends.reference_kv import round_to_bf16
from forerun.batch import DrawRequest
from forerun.cache.layout import KvLayout, KvStack
from forerun.errors import CapacityError, ModelFileError, UnsupportedModel, UsageError
from forerun.models.spec import RopeSpec
from forerun.speculation.tree import DraftTree
from tests.backends.native_ops import TABLES
from tests.steps import Rows, make_batch
from tests.tiny import RandomWeights, tiny_spec

LIMITS = Limits(max_rows=96, max_outputs=96, max_model_len=256)
SPECS = {
    "llama, grouped, tied": tiny_spec(),
    "qwen2, biases, one key head": tiny_spec("qwen2", kv_heads=1, tied=False, hidden=72, intermediate=40, vocab=131),
    "all heads their own, every bias": tiny_spec(kv_heads=4, qkv_bias=True, out_bias=True, mlp_bias=True),
    "odd sizes, partial rotation": tiny_spec(
        hidden=33, heads=3, kv_heads=3, head_dim=6, intermediate=21, vocab=19, rope=RopeSpec(theta=500.0, rotary_dim=4)
    ),
}


class Bf16Ops(NumpyOps):
    """The oracle with the native rule that a linear layer's input is rounded to bfloat16."""

    def linear(self, x, weights, biases=()):
        return super().linear(round_to_bf16(x), weights, biases)


class TiledOps(Bf16Ops):
    """Attention too on rounded inputs: queries, and the weights of each chunk of 64."""

    def attention(self, layer, q, spec):
        if self._kv.layout.codecs[0] != "bf16" or spec.head_dim % 16:
            return super().attention(layer, q, spec)
        octaves = np.float32(spec.scale) * np.float32(np.log2(np.e))
        heads = round_to_bf16(q * octaves).reshape(len(q), spec.num_kv_heads, -1, spec.head_dim)
        rows = [self._row(heads[row], layer, slots) for row, slots in enumerate(self._slots_of_row)]
        return np.array(rows, np.float32).reshape(q.shape)

    def _row(self, q, layer, slots):
        m, total, mixed = np.full(q.shape[:2], -np.inf), np.zeros(q.shape[:2]), np.zeros(q.shape)
        for start in range(0, len(slots), 64):  # the tests stay inside one span
            chunk = slots[start : start + 64]
            scores = np.einsum("grd,ngd->grn", q, self._kv.keys[layer][chunk])
            largest = scores.max(axis=-1)
            new_m = np.where(m + 8 < largest, largest, m)  # it follows in steps of 8 octaves
            weights = np.exp2(scores - new_m[..., None]).astype(np.float32)
            alpha, m = np.exp2(m - new_m), new_m
            total = total * alpha + weights.sum(axis=-1)
            values = np.einsum("grn,ngd->grd", round_to_bf16(weights), self._kv.values[layer][chunk])
            mixed = mixed * alpha[..., None] + values
        return mixed / total[..., None]


def prepared(backend, spec, codec="bf16", weights=None, num_blocks=24, limits=LIMITS, progress=None):
    backend.load(LoadedModel(spec, weights or RandomWeights(spec)), limits, progress)
    attention = spec.layers[0].mixer
    stack = KvStack("target", spec.num_layers, attention.num_kv_heads, attention.head_dim, codec)
    backend.allocate_kv(KvLayout(num_blocks, 16, (stack,)))
    return backend


def tokens(spec, count, seed=0):
    return [int(t) for t in np.random.default_rng(seed).integers(0, spec.vocab_size, count)]


def logits(backend, *parts, all_outputs=True):
    batch = make_batch(parts, 16, all_outputs)
    return backend.forward(batch).logits(range(len(batch.output_rows)))


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("codec", ["bf16", "fp32"])
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_models_agree_with_the_oracle(table, codec, spec, monkeypatch):
    monkeypatch.setattr(reference, "NumpyOps", TiledOps if table.startswith("amx") else Bf16Ops)
    oracle, cpu = (prepared(b, spec, codec) for b in (ReferenceBackend(), CpuBackend(2, table)))
    tree = DraftTree.from_paths(1, [[2, 3], [2, 4, 5], [6]])
    steps = [
        (Rows(tokens(spec, 70), 0, [3, 9, 1, 0, 2]), Rows(tokens(spec, 5, 1), 0, [7])),
        (Rows([1], 70, [3, 9, 1, 0, 2]), Rows([], 5, [7], tree), Rows(tokens(spec, 17, 2), 0, [5, 4])),
    ]
    for parts in steps:
        got, want = logits(cpu, *parts), logits(oracle, *parts)
        # A sum's last bits can flip the rounding of the next layer's input: one bfloat16 step is 2^-8 of a value.
        np.testing.assert_allclose(got, want, atol=0.006 * np.abs(want).max())
        # On tiles also an error of 1e-4 in a weight, once in twenty.
        mean = 0.001 if table.startswith("amx") and codec == "bf16" else 0.0006
        assert np.mean(np.abs(got - want)) < mean * np.abs(want).max()


def test_last_rows_only():
    spec = SPECS["llama, grouped, tied"]
    cpu = prepared(CpuBackend(2), spec)
    parts = Rows(tokens(spec, 20), 0, [0, 1]), Rows(tokens(spec, 9, 1), 0, [2])
    every, last = logits(cpu, *parts), logits(cpu, *parts, all_outputs=False)
    np.testing.assert_array_equal(last, every[[19, 28]])
    batch = make_batch([Rows([3], 20, [0, 1])], 16)
    none = dataclasses.replace(batch, output_rows=np.empty(0, np.int32))
    assert cpu.forward(none).logits([]).shape == (0, spec.vocab_size)


def test_draw_walks_the_tree():
    spec = SPECS["llama, grouped, tied"]
    cpu = prepared(CpuBackend(2), spec)
    prompt = tokens(spec, 12)
    first = int(logits(cpu, Rows(prompt, 0, [0, 1]))[-1].argmax())
    second = int(logits(cpu, Rows([first], 12, [0, 1]))[0].argmax())
    tree = DraftTree.from_paths(prompt[-1], [[first], [(first + 1) % spec.vocab_size]])
    batch = make_batch([Rows([], 11, [0, 1], tree)], 16)
    ask = DrawRequest(first_output=0, tree=tree, position=12, key=(1, 2), logits_hash=True)
    batch = dataclasses.replace(batch, draws=(ask,))
    drawn = cpu.draw(cpu.forward(batch), batch)
    assert drawn.tokens.tolist() == [first, second, -1]
    assert [len(h) for h in drawn.hashes] == [8, 8, 0]


class TestKvMemory:
    spec = SPECS["qwen2, biases, one key head"]

    def run_and_compare(self, codec, change, blocks):
        """Prompt in blocks 0 and 1, `change`, then one more row that reads `blocks`."""
        prompt = tokens(self.spec, 25)
        cpu = prepared(CpuBackend(2), self.spec, codec)
        plain = logits(cpu, Rows(prompt, 0, [0, 1]), all_outputs=False), logits(cpu, Rows([7], 25, [0, 1]))
        change(cpu)
        return plain[1], logits(cpu, Rows([7], 25, blocks))

    @pytest.mark.parametrize("codec", ["bf16", "fp32"])
    def test_copied_blocks(self, codec):
        before, after = self.run_and_compare(codec, lambda cpu: cpu.copy_blocks([(0, 5), (5, 6), (1, 9)]), [6, 9])
        np.testing.assert_array_equal(before, after)

    @pytest.mark.parametrize("codec", ["bf16", "fp32"])
    def test_moved_slots(self, codec):
        moves = [SlotMove(slot, 160 + slot) for slot in range(25)]
        before, after = self.run_and_compare(codec, lambda cpu: cpu.move_kv(moves), [10, 11])
        np.testing.assert_array_equal(before, after)

    def test_cleared_blocks(self):
        before, after = self.run_and_compare("bf16", lambda cpu: cpu.clear_blocks([0]), [0, 1])
        assert (before != after).any()
        assert np.isfinite(after).all()

    def test_what_does_not_exist_is_refused(self):
        cpu = prepared(CpuBackend(1), self.spec)
        for call in (
            lambda: cpu.copy_blocks([(0, 24)]),
            lambda: cpu.clear_blocks([-1]),
            lambda: cpu.move_kv([SlotMove(0, 24 * 16)]),
        ):
            with pytest.raises(IndexError):
                call()


class TestBadBatches:
    """Refused before anything is computed: no index may leave its array."""

    spec = SPECS["llama, grouped, tied"]

    @pytest.mark.parametrize(
        ("field", "values", "message"),
        [
            ("tokens", [0, 97], "token id 97"),
            ("tokens", [-1, 0], "token id -1"),
            ("positions", [0, 256], "position 256"),
            ("slots", [0, 384], "slot 384"),
            ("positions", [0], "positions has 1 entries"),
            ("output_rows", [0, 2], "output row 2"),
            ("query_start", [0, 1], "last query_start"),
            ("query_start", [1, 2], "first query_start"),
            ("block_table", [[-1]], "block -1"),
            ("block_table", [[24]], "block 24"),
            ("positions", [0, 16], "blocks needed 2"),
            ("tree_root", [256], "tree root 256"),
        ],
    )
    def test_index(self, field, values, message):
        cpu = prepared(CpuBackend(1), self.spec)
        batch = make_batch([Rows([1, 2], 0, [0])], 16)
        with pytest.raises(ValueError, match=message):
            cpu.forward(dataclasses.replace(batch, **{field: np.array(values, np.int32)}))

    @pytest.mark.parametrize("mask", [0b10, 0b101, 0b1111], ids=bin)
    def test_ancestors(self, mask):
        cpu = prepared(CpuBackend(1), self.spec)
        batch = make_batch([Rows([], 0, [0], DraftTree.from_paths(1, [[2], [3]]))], 16)
        ancestors = batch.ancestors.copy()
        ancestors[1] = mask
        with pytest.raises(ValueError, match="tree"):
            cpu.forward(dataclasses.replace(batch, ancestors=ancestors))

    def test_another_type(self):
        cpu = prepared(CpuBackend(1), self.spec)
        batch = make_batch([Rows([1, 2], 0, [0])], 16)
        with pytest.raises(TypeError):
            cpu.forward(dataclasses.replace(batch, tokens=batch.tokens.astype(np.int64)))

    def test_too_many_rows(self):
        cpu = prepared(CpuBackend(1), self.spec)
        with pytest.raises(ValueError, match="number of rows 97"):
            logits(cpu, Rows(tokens(self.spec, 97), 0, list(range(7))))


class TestLoading:
    spec = SPECS["llama, grouped, tied"]

    def test_progress_counts_file_bytes(self):
        seen = []
        prepared(CpuBackend(1), self.spec, progress=lambda done, total: seen.append((done, total)))
        total = sum(RandomWeights(self.spec).num_bytes(name) for name in self.spec.weight_shapes())
        assert seen[-1] == (total, total)
        assert seen == sorted(seen)

    def test_small_chunks_load_the_same(self, monkeypatch):
        whole = logits(prepared(CpuBackend(1), self.spec), Rows([1, 2, 3], 0, [0]))
        monkeypatch.setattr("forerun.backends.packing.CHUNK_BYTES", 4 * 64 * 7)
        np.testing.assert_array_equal(logits(prepared(CpuBackend(2), self.spec), Rows([1, 2, 3], 0, [0])), whole)

    def test_memory_is_what_was_asked_for(self):
        cpu = prepared(CpuBackend(1), self.spec)
        packed = 2 * sum(np.prod(s) for s in self.spec.weight_shapes().values())
        report = cpu.memory()
        assert packed <= report.weights <= 1.3 * packed  # the vocabulary of 97 is padded to 112
        assert report.kv == 24 * 16 * 2 * 2 * 2 * 16 * 2
        assert report.workspace > LIMITS.max_outputs * self.spec.vocab_size * 4

    def test_workspace_does_not_grow_with_layers(self):
        few, many = (prepared(CpuBackend(1), tiny_spec(layers=n)).memory().workspace for n in (2, 12))
        assert few == many

    def test_wrong_shape(self):
        class Narrow(RandomWeights):
            def shape(self, name):
                return (64, 63) if name == "layers.1.attn.o" else super().shape(name)

        with pytest.raises(ModelFileError, match=r"layers.1.attn.o has shape \(64, 63\), expected \(64, 64\)"):
            prepared(CpuBackend(1), self.spec, weights=Narrow(self.spec))

    def test_missing_weight(self):
        class Incomplete(RandomWeights):
            def __contains__(self, name):
                return name != "final_norm"

        with pytest.raises(ModelFileError, match="final_norm is missing"):
            prepared(CpuBackend(1), self.spec, weights=Incomplete(self.spec))

    def test_too_little_memory(self, monkeypatch):
        monkeypatch.setattr("forerun.backends.cpu.available_memory", lambda: 10_000)
        with pytest.raises(CapacityError, match="0 MB are free"):
            prepared(CpuBackend(1), self.spec)
        monkeypatch.setattr("forerun.backends.cpu.available_memory", lambda: 200_000)
        with pytest.raises(CapacityError, match="the KV cache need"):
            prepared(CpuBackend(1), self.spec, num_blocks=240)

    @pytest.mark.parametrize(
        ("layout", "error"),
        [
            (KvLayout(4, 20, (KvStack("target", 2, 2, 16, "bf16"),)), UsageError),
            (KvLayout(4, 16, (KvStack("target", 2, 2, 16, "int3"),)), UsageError),
            (KvLayout(4, 16, (KvStack("target", 2, 2, 32, "bf16"),)), UnsupportedModel),
        ],
        ids=["block size", "codec", "shape"],
    )
    def test_wrong_layout(self, layout, error):
        cpu = prepared(CpuBackend(1), self.spec)
        with pytest.raises(error):
            cpu.allocate_kv(layout)


class TestTables:
    def test_the_best_usable_one_is_chosen(self, monkeypatch):
        monkeypatch.delenv("FORERUN_ISA", raising=False)
        assert choose_table() == TABLES[0]
        assert TABLES[-1] == "portable"
        inputs = "int16" if TABLES[0] in INT16_TABLES else "bf16"
        assert CpuBackend(1).numerics_id == f"{TABLES[0]}/{KERNELS_VERSION}/w-file/a-{inputs}/kv-none"

    def test_environment_and_argument(self, monkeypatch):
        monkeypatch.setenv("FORERUN_ISA", "portable")
        assert choose_table() == "portable"
        assert choose_table(TABLES[0]) == TABLES[0]
        assert cpu_info()["table"] == "portable"

    def test_unknown(self, monkeypatch):
        monkeypatch.setenv("FORERUN_ISA", "avx9000")
        with pytest.raises(UsageError, match=r"FORERUN_ISA=avx9000 is no kernel table; this machine runs: .*portable"):
            CpuBackend(1)
        assert cpu_info()["table"] is None

    def test_lacking_features_are_named(self, monkeypatch):
        monkeypatch.setattr(_native, "missing_features", lambda t: [] if t == "portable" else ["amx_tile", "amx_bf16"])
        monkeypatch.setattr(_native, "all_tables", lambda: ["amx_bf16", "portable"])
        with pytest.raises(
            UsageError, match="isa=amx_bf16 needs amx_tile, amx_bf16, which this CPU lacks; use portable"
        ):
            CpuBackend(1, isa="amx_bf16")
        assert choose_table() == "portable"

    def test_impossible_arguments(self):
        with pytest.raises(UsageError, match="unknown fault"):
            CpuBackend(1, fault="fire")
        with pytest.raises(UsageError, match="threads must be between"):
            CpuBackend(0)

    def test_numerics_id_names_the_codec(self):
        cpu = prepared(CpuBackend(1, "portable"), SPECS["llama, grouped, tied"], "fp32")
        assert cpu.numerics_id == f"portable/{KERNELS_VERSION}/w-bf16/a-bf16/kv-fp32"
