"""Choice of packed formats, and whole models with weights in the file's bits and in fewer."""

import numpy as np
import pytest

from forerun.backends.cpu import CpuBackend
from forerun.backends.reference import ReferenceBackend
from forerun.backends.weight_formats import packed_format, parts_of
from forerun.errors import UsageError
from forerun.models.registry import open_model
from tests.backends.test_cpu_backend import logits, prepared, tokens
from tests.steps import Rows
from tests.tiny import write_tiny_gguf


@pytest.mark.parametrize(
    ("stored", "cols", "weights", "expected"),
    [
        ("Q4_1", 64, "file", "Q4_1"),
        ("Q6_K", 256, "file", "Q6_K"),
        ("F16", 64, "file", "BF16"),
        ("Q4_1", 64, "bf16", "BF16"),
        ("BF16", 64, "int8", "Q8_0"),
        ("Q4_K", 256, "int8", "Q4_K"),
        ("Q8_0", 64, "int4", "Q4_1"),
        ("Q4_K", 256, "int4", "Q4_K"),
        ("F32", 40, "int4", "BF16"),
    ],
)
def test_format_of_a_matrix(stored, cols, weights, expected):
    assert packed_format(stored, cols, weights) == expected


def test_stacks_are_cut_where_the_format_changes_or_a_panel_is_left_open():
    shapes = {"q": (64, 32), "k": (24, 32), "v": (24, 32)}
    same = parts_of(("q", "k", "v"), shapes, lambda _name: "Q8_0")
    assert [part.names for part in same] == [("q", "k"), ("v",)]
    mixed = parts_of(("q", "k", "v"), shapes, {"q": "Q4_0", "k": "BF16", "v": "BF16"}.__getitem__)
    assert [(part.names, part.format, part.num_rows) for part in mixed] == [
        (("q",), "Q4_0", 64),
        (("k", "v"), "BF16", 48),
    ]


def test_unknown_choice_is_refused():
    with pytest.raises(UsageError, match="unknown weight format 'int2'"):
        CpuBackend(1, weights="int2")


MIXED = {"embed": "Q8_0", "layers.0.attn.q": "Q4_0", "layers.0.attn.k": "Q5_1", "layers.0.mlp.down": "Q5_0"}


@pytest.mark.parametrize("formats", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", MIXED], ids=str)
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_models_in_the_files_bits_are_nearer_to_the_reference_than_models_in_bf16(tmp_path, family, formats):
    """Llama's rows move inside heads; Qwen has biases and may have several matrices on one input."""
    write_tiny_gguf(tmp_path / "model.gguf", family, formats=formats)
    files = open_model(tmp_path / "model.gguf")
    file, bf16 = (
        prepared(CpuBackend(2, weights=choice), files.spec, weights=files.weights) for choice in ("file", "bf16")
    )
    reference = prepared(ReferenceBackend(), files.spec, weights=files.weights)
    rows = (Rows(tokens(files.spec, 40), 0, [3, 9, 1]), Rows(tokens(files.spec, 5, 1), 0, [7]))
    want = logits(reference, *rows)
    errors = [float(np.sqrt(((logits(cpu, *rows) - want) ** 2).mean() / (want**2).mean())) for cpu in (file, bf16)]
    assert errors[0] < 1.1 * errors[1] < 0.01
    assert file.memory().weights < bf16.memory().weights
    assert file.numerics_id.split("/")[2] != bf16.numerics_id.split("/")[2] == "w-bf16"


@pytest.mark.parametrize(("choice", "bound"), [("int8", 0.04), ("int4", 0.4)])
def test_quantised_models_stay_close(tmp_path, choice, bound):
    write_tiny_gguf(tmp_path / "model.gguf", "llama", formats="F32")
    files = open_model(tmp_path / "model.gguf")
    small, bf16 = (
        prepared(CpuBackend(2, weights=name), files.spec, weights=files.weights) for name in (choice, "bf16")
    )
    rows = Rows(tokens(files.spec, 40), 0, [3, 9, 1])
    got, want = logits(small, rows), logits(bf16, rows)
    error = float(np.sqrt(((got - want) ** 2).mean() / (want**2).mean()))
    assert 1e-4 < error < bound
