"""Trained heads: published layouts are read, damaged ones refused, and the passes compute what the papers say."""

import json

import numpy as np
import pytest

from forerun.backends.base import Limits, LoadedModel, ProgramSpec
from forerun.backends.cpu import CpuBackend
from forerun.backends.reference import ReferenceBackend
from forerun.cache.layout import KvLayout, KvStack
from forerun.errors import ModelFileError, UnsupportedModel
from forerun.models import heads
from forerun.models.files.heads_block import read_block_head, write_block_head
from forerun.models.files.heads_eagle import read_eagle
from forerun.models.files.heads_medusa import read_medusa
from tests import heads_dense
from tests.backends.native_ops import TABLES
from tests.head_files import (
    block_arrays,
    block_spec,
    eagle1_arrays,
    eagle3_arrays,
    eagle_config,
    medusa_arrays,
    medusa_config,
    random,
    write,
    write_torch,
)
from tests.steps import Rows, make_batch
from tests.tiny import RandomWeights, tiny_spec

TARGET = tiny_spec(layers=8, tied=False)
E, V, C = TARGET.hidden, TARGET.vocab_size, 40
LIMITS = Limits(64, 64, 128)
ROWS = 37
TOKENS = [int(t) for t in np.random.default_rng(0).integers(0, V, ROWS)]
WEIGHTS = RandomWeights(TARGET)
MODEL = LoadedModel(TARGET, WEIGHTS)
MEDUSA_FILE = "medusa_lm_head.safetensors"
BACKENDS = {"reference": ReferenceBackend, **{table: (lambda table=table: CpuBackend(2, table)) for table in TABLES}}
every_backend = pytest.mark.parametrize("backend", BACKENDS)
every_file = pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])


def program(backend, weights, shapes, forward, stack=None):
    """A head's pass beside a loaded target."""
    made = BACKENDS[backend]()
    made.load(MODEL, LIMITS)
    mixer = TARGET.layers[0].mixer
    stacks = (
        KvStack("target", TARGET.num_layers, mixer.num_kv_heads, mixer.head_dim, "fp32"),
        *([stack] if stack else []),
    )
    made.allocate_kv(KvLayout(8, 16, stacks))
    every = {**TARGET.weight_shapes(), **shapes}
    return made.add_program(ProgramSpec("head", MODEL, forward, LIMITS, shapes=every, further=weights))


def close(backend, got, want):
    """Equal but for the inputs of products, which the cpu backend rounds to bfloat16."""
    atol = (1e-4 if backend == "reference" else 0.02) * np.abs(want).max()
    np.testing.assert_allclose(got, want, atol=atol)


def batch(tokens=TOKENS, context=0):
    return make_batch([Rows(tokens, context, [4, 1, 6])], 16)


class TestMedusa:
    @every_backend
    @pytest.mark.parametrize(("blocks", "output"), [(1, True), (2, True), (1, False)])
    def test_scores(self, backend, blocks, output, tmp_path):
        arrays = medusa_arrays(E, V, 3, blocks, output)
        spec, weights = read_medusa(write(tmp_path, medusa_config(3, blocks), arrays, MEDUSA_FILE), TARGET)
        assert (spec.num_heads, spec.num_blocks, spec.num_columns) == (3, blocks, V if output else 0)
        features = random((ROWS, E), 9)
        head = program(backend, weights, spec.weight_shapes(), lambda ops: heads.medusa(spec, TARGET, ops))
        result = head.forward(batch(), features)
        for index in range(3):
            own = None if output else WEIGHTS.read("output")
            want = heads_dense.medusa(arrays, index, blocks, features, own)
            close(backend, result.captured(heads.scores_name(index), range(ROWS)), want)

    @pytest.mark.parametrize("prefix", ["", "medusa_head.", "heads."])
    @pytest.mark.parametrize("file", [MEDUSA_FILE, "medusa_lm_head.pt", "model.safetensors"])
    def test_round_trip(self, prefix, file, tmp_path):
        arrays = medusa_arrays(E, V, 2, prefix=prefix)
        _, weights = read_medusa(write(tmp_path, {}, arrays, file), TARGET)
        np.testing.assert_array_equal(weights.read("head.1.output"), arrays[f"{prefix}1.1.weight"])
        np.testing.assert_array_equal(weights.read("head.1.output", 5, 9), arrays[f"{prefix}1.1.weight"][5:9])
        np.testing.assert_array_equal(weights.read("head.0.block.0"), arrays[f"{prefix}0.0.linear.weight"])
        np.testing.assert_array_equal(weights.read("head.0.block.0.bias"), arrays[f"{prefix}0.0.linear.bias"])

    def test_fewer_heads_than_there_are(self, tmp_path):
        spec, _ = read_medusa(write(tmp_path, medusa_config(2), medusa_arrays(E, V, 4), MEDUSA_FILE), TARGET)
        assert spec.num_heads == 2

    def test_more_heads_than_there_are(self, tmp_path):
        with pytest.raises(ModelFileError, match="medusa_num_heads is 5 but there are 4"):
            read_medusa(write(tmp_path, medusa_config(5), medusa_arrays(E, V, 4), MEDUSA_FILE), TARGET)

    def test_half_precision_and_a_single_file(self, tmp_path):
        arrays = {name: array.astype(np.float16) for name, array in medusa_arrays(E, V, 1).items()}
        folder = write(tmp_path, medusa_config(1), arrays, MEDUSA_FILE)
        _, weights = read_medusa(folder / MEDUSA_FILE, TARGET)
        assert weights.stored_format("head.0.output") == "F16"
        np.testing.assert_array_equal(weights.read("head.0.output"), arrays["0.1.weight"].astype(np.float32))


class TestEagle1:
    @every_backend
    @pytest.mark.parametrize(("bias", "embed", "layers"), [(True, 0, 1), (False, V, 1), (True, 0, 2)])
    def test_scores_and_states(self, backend, bias, embed, layers, tmp_path):
        arrays = eagle1_arrays(E, bias, embed, layers)
        head = read_eagle(write(tmp_path, eagle_config(1, E, V, num_hidden_layers=layers), arrays), TARGET)
        assert head.spec.captures == (TARGET.num_layers,)
        features = random((ROWS, E), 9)
        embedded = (arrays["embed_tokens.weight"] if embed else WEIGHTS.read("embed"))[TOKENS]
        want = heads_dense.eagle1(arrays, embedded, features, layers)
        result = run_eagle(backend, head, features)
        close(backend, result.captured(heads.STATE, range(ROWS)), want)
        close(backend, result.logits(range(ROWS)), want @ WEIGHTS.read("output").T)

    @every_file
    def test_round_trip(self, file, tmp_path):
        arrays = eagle1_arrays(E, embed=V)
        head = read_eagle(write(tmp_path, eagle_config(1, E, V), arrays, file), TARGET)
        read = head.weights.read
        np.testing.assert_array_equal(read("head.fc.embed"), arrays["fc.weight"][:, :E])
        np.testing.assert_array_equal(read("head.fc.feature", 3, 8), arrays["fc.weight"][3:8, E:])
        np.testing.assert_array_equal(read("head.layers.0.mlp.down"), arrays["layers.0.mlp.down_proj.weight"])
        np.testing.assert_array_equal(read("head.embed"), arrays["embed_tokens.weight"])
        assert head.columns.tolist() == list(range(V))


def run_eagle(backend, head, features):
    mixer = head.spec.layers[0].mixer
    stack = KvStack("eagle", len(head.spec.layers), mixer.num_kv_heads, mixer.head_dim, "fp32")

    def forward(ops):
        return heads.eagle(head.spec, TARGET, TARGET.num_layers, ops)

    return program(backend, head.weights, head.spec.weight_shapes(), forward, stack).forward(batch(), features)


class TestEagle3:
    @every_backend
    @pytest.mark.parametrize("stem", ["midlayer", "layers.0"])
    def test_scores_and_states(self, backend, stem, tmp_path):
        arrays = eagle3_arrays(E, V, C, stem=stem)
        head = read_eagle(write(tmp_path, eagle_config(3, E, V), arrays), TARGET)
        assert head.spec.captures == (2, 4, 5)
        features = random((ROWS, E), 9)
        named = {name.replace(stem, "midlayer"): array for name, array in arrays.items()}
        want = heads_dense.eagle3(named, WEIGHTS.read("embed")[TOKENS], features)
        result = run_eagle(backend, head, features)
        close(backend, result.captured(heads.STATE, range(ROWS)), want)
        close(backend, result.logits(range(ROWS)), heads_dense.eagle3_scores(named, want))

    @every_backend
    def test_fusing(self, backend, tmp_path):
        arrays = eagle3_arrays(E, V, C)
        head = read_eagle(write(tmp_path, eagle_config(3, E, V), arrays), TARGET)
        hidden = random((ROWS, 3 * E), 9)
        fuse = program(backend, head.weights, head.spec.weight_shapes(), lambda ops: heads.fuse(head.spec, ops))
        close(backend, fuse.forward(batch(), hidden).logits(range(ROWS)), hidden @ arrays["fc.weight"].T)

    @every_file
    @pytest.mark.parametrize("prefix", ["", "model."])
    def test_round_trip_and_the_draft_vocabulary(self, file, prefix, tmp_path):
        arrays = eagle3_arrays(E, V, C)
        named = {name if name in ("d2t", "t2d") else prefix + name: array for name, array in arrays.items()}
        head = read_eagle(write(tmp_path, eagle_config(3, E, V), named, file), TARGET)
        assert head.columns.tolist() == np.flatnonzero(arrays["t2d"]).tolist()
        q = arrays["midlayer.self_attn.q_proj.weight"]
        np.testing.assert_array_equal(head.weights.read("head.layers.0.attn.q"), q[:, :E])
        np.testing.assert_array_equal(head.weights.read("head.layers.0.attn.q.feature"), q[:, E:])
        np.testing.assert_array_equal(head.weights.read("head.feature_norm"), arrays["midlayer.hidden_norm.weight"])
        np.testing.assert_array_equal(head.weights.read("head.output"), arrays["lm_head.weight"])

    def test_layers_that_the_config_names(self, tmp_path):
        aux = {"eagle_aux_hidden_state_layer_ids": [0, 2, 4], "use_aux_hidden_state": True}
        arrays = eagle3_arrays(E, V, C)
        head = read_eagle(write(tmp_path, eagle_config(3, E, V, eagle_config=aux), arrays), TARGET)
        assert head.spec.captures == (1, 3, 5)

    def test_tokens_that_the_target_lacks_are_never_proposed(self, tmp_path):
        arrays = eagle3_arrays(E, V + 30, C)
        head = read_eagle(write(tmp_path, eagle_config(3, E, V + 30), arrays), TARGET)
        ids = arrays["d2t"] + np.arange(C)
        assert (ids >= V).any()
        assert head.columns.tolist() == np.where(ids < V, ids, -1).tolist()


class TestBlockHead:
    SPEC = block_spec(E, (1, 3), C, markov_rank=3, has_confidence=True)

    @every_backend
    def test_injected_kv_and_a_block(self, backend):
        """Committed rows in two passes, then a block behind them, against all of it at once."""
        spec, arrays = self.SPEC, block_arrays(self.SPEC, V)

        class Arrays(RandomWeights):
            def __init__(self):
                self._shapes = {name: array.shape for name, array in arrays.items()}

            def read(self, name, start=0, stop=None):
                return np.ascontiguousarray(arrays[name][start:stop])

        stack = KvStack("head", len(spec.layers), 2, 16, "fp32")
        backend_of = BACKENDS[backend]()
        backend_of.load(MODEL, LIMITS)
        mixer = TARGET.layers[0].mixer
        target = KvStack("target", TARGET.num_layers, mixer.num_kv_heads, mixer.head_dim, "fp32")
        backend_of.allocate_kv(KvLayout(8, 16, (target, stack)))
        shapes = {**TARGET.weight_shapes(), **spec.weight_shapes()}
        first = TARGET.num_layers

        def add(forward):
            return backend_of.add_program(ProgramSpec("head", MODEL, forward, LIMITS, shapes=shapes, further=Arrays()))

        inject, block = add(lambda ops: heads.inject(spec, first, ops)), add(lambda ops: heads.block(spec, first, ops))
        hidden, size = random((ROWS, 2 * E), 9), 4
        inject.forward(batch(TOKENS[:20]), hidden[:20])
        fused = inject.forward(batch(TOKENS[20:], 20), hidden[20:]).logits([ROWS - 21])
        tokens = [TOKENS[0], *[spec.mask_token] * (size - 1)]
        learned = arrays["head.mask_hidden"] + arrays["head.positions"][: size - 1]
        result = block.forward(batch(tokens, ROWS), np.concatenate([fused, learned]))
        rows = WEIGHTS.read("embed")[tokens] + np.concatenate([np.zeros((1, E), np.float32), learned])
        all_fused, states = heads_dense.block_head(arrays, spec, hidden, rows, ROWS)
        close(backend, fused, all_fused[-1:])
        close(backend, result.captured(heads.STATE, range(size)), states)
        close(backend, result.logits(range(size)), states @ arrays["head.output"].T)

    @pytest.mark.parametrize("tokens", [None, np.arange(C)[::-1] * 2], ids=["same ids", "own ids"])
    def test_round_trip(self, tokens, tmp_path):
        arrays = block_arrays(self.SPEC, V)
        write_block_head(tmp_path / "block_head.safetensors", self.SPEC, V, arrays, tokens)
        head = read_block_head(tmp_path, TARGET)
        assert head.spec == self.SPEC
        assert head.columns.tolist() == (np.arange(C) if tokens is None else tokens).tolist()
        for name in self.SPEC.weight_shapes():
            np.testing.assert_array_equal(head.weights.read(name), arrays[name])
        for name in self.SPEC.array_shapes(V):
            np.testing.assert_array_equal(head.arrays[name], arrays[name])

    def test_other_files_and_versions(self, tmp_path):
        path = write(tmp_path, {}, medusa_arrays(E, V, 1), MEDUSA_FILE) / MEDUSA_FILE
        with pytest.raises(ModelFileError, match="no block head"):
            read_block_head(path, TARGET)
        spec = block_spec(E, (1,), C)
        write_block_head(tmp_path / "a.safetensors", spec, V, block_arrays(spec, V))
        raw = (tmp_path / "a.safetensors").read_bytes()
        (tmp_path / "b.safetensors").write_bytes(raw.replace(b'"version": "1"', b'"version": "2"'))
        with pytest.raises(UnsupportedModel, match="version '2'"):
            read_block_head(tmp_path / "b.safetensors", TARGET)


class TestRefusals:
    """One line that names the file and what is wrong with it."""

    def read(self, folder, config, arrays, file="model.safetensors"):
        return read_eagle(write(folder, config, arrays, file), TARGET)

    @pytest.mark.parametrize(
        ("changes", "error", "fact"),
        [
            ({"hidden_act": "gelu"}, UnsupportedModel, "hidden_act"),
            ({"norm_before_residual": True}, UnsupportedModel, "norm_before_residual"),
            ({"num_hidden_layers": 2}, UnsupportedModel, "2 layers"),
            ({"num_attention_heads": None}, ModelFileError, "num_attention_heads"),
            ({"intermediate_size": 49}, ModelFileError, "mlp.gate"),
            ({"eagle_aux_hidden_state_layer_ids": [1, 2, 9]}, UnsupportedModel, "the model has 8 layers"),
            ({"eagle_aux_hidden_state_layer_ids": "all"}, ModelFileError, "whole numbers"),
        ],
    )
    def test_configs(self, changes, error, fact, tmp_path):
        with pytest.raises(error, match=fact) as found:
            self.read(tmp_path, eagle_config(3, E, V, **changes), eagle3_arrays(E, V, C))
        assert "\n" not in str(found.value)

    @pytest.mark.parametrize("name", ["fc.weight", "midlayer.self_attn.k_proj.weight", "norm.weight", "lm_head.weight"])
    def test_missing_tensors(self, name, tmp_path):
        arrays = eagle3_arrays(E, V, C)
        del arrays[name]
        with pytest.raises((ModelFileError, UnsupportedModel)) as found:
            self.read(tmp_path, eagle_config(3, E, V), arrays)
        assert "\n" not in str(found.value)

    def test_tensors_that_nobody_reads(self, tmp_path):
        arrays = {**eagle3_arrays(E, V, C), "gate.weight": random((E, E), 1)}
        with pytest.raises(UnsupportedModel, match=r"gate\.weight"):
            self.read(tmp_path, eagle_config(3, E, V), arrays)

    def test_maps_that_contradict_each_other(self, tmp_path):
        arrays = eagle3_arrays(E, V, C)
        arrays["t2d"] = ~arrays["t2d"]
        with pytest.raises(ModelFileError, match="contradict"):
            self.read(tmp_path, eagle_config(3, E, V), arrays)

    def test_no_config(self, tmp_path):
        folder = write(tmp_path, {}, eagle1_arrays(E))
        (folder / "config.json").unlink()
        with pytest.raises(ModelFileError, match=r"no config\.json"):
            read_eagle(folder, TARGET)

    def test_a_pickle_that_calls_something(self, tmp_path):
        import zipfile

        path = tmp_path / "pytorch_model.bin"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", b"cos\nsystem\n(S'true'\ntR.")
        (tmp_path / "config.json").write_text(json.dumps(eagle_config(1, E, V)))
        with pytest.raises(UnsupportedModel, match=r"os\.system") as found:
            read_eagle(tmp_path, TARGET)
        assert "\n" not in str(found.value)

    def test_damaged_pytorch_files(self, tmp_path):
        path = tmp_path / "pytorch_model.bin"
        (tmp_path / "config.json").write_text(json.dumps(eagle_config(1, E, V)))
        write_torch(path, eagle1_arrays(E))
        raw = path.read_bytes()
        for damaged in (raw[: len(raw) // 2], b"", b"nothing"):
            path.write_bytes(damaged)
            with pytest.raises(ModelFileError, match="fetch it again"):
                read_eagle(tmp_path, TARGET)

    def test_matrices_that_are_stored_by_columns(self, tmp_path):
        arrays = eagle1_arrays(E)
        arrays["fc.weight"] = np.asfortranarray(arrays["fc.weight"])
        with pytest.raises(UnsupportedModel, match="row by row"):
            self.read(tmp_path, eagle_config(1, E, V), arrays, "pytorch_model.bin")
