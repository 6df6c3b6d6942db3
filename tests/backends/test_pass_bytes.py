"""Bytes that a pass reads: what the packed matrices have, known before anything is loaded."""

import math

import pytest

from forerun.backends.base import Limits, LoadedModel, ProgramSpec
from forerun.backends.cpu import CpuBackend
from forerun.backends.reference import ReferenceBackend
from forerun.models import decoder
from tests.tiny import RandomWeights, tiny_spec

SKIP = frozenset({"layers.1.attn", "layers.0.mlp"})


def read_by(model: LoadedModel, skip: frozenset[str] = frozenset(), weights: str | None = None) -> ProgramSpec:
    return ProgramSpec("p", model, lambda ops: decoder.logits(model.spec, ops, skip), Limits(1, 1, 1), weights)


@pytest.mark.parametrize("tied", [True, False])
def test_every_matrix_that_is_multiplied_counts_once(tied: bool) -> None:
    """Sizes are multiples of a panel here, so nothing is padded; embedding rows are looked up, not multiplied."""
    spec = tiny_spec(vocab=96, tied=tied)
    model = LoadedModel(spec, RandomWeights(spec))
    shapes = spec.weight_shapes()
    matrices = {name: math.prod(shape) for name, shape in shapes.items() if len(shape) == 2 and name != "embed"}
    whole = sum(matrices.values()) + (math.prod(shapes["embed"]) if tied else 0)
    part = whole - sum(count for name, count in matrices.items() if name.rpartition(".")[0] in SKIP)
    reference, cpu = ReferenceBackend(), CpuBackend(threads=1, isa="portable", weights="bf16")
    assert reference.pass_bytes(read_by(model)) == 4 * whole
    assert reference.pass_bytes(read_by(model, SKIP)) == 4 * part
    bits = cpu.pass_bytes(read_by(model)) / whole  # two or four bytes a weight, as the table stores bfloat16
    assert bits in (2, 4)
    assert cpu.pass_bytes(read_by(model, SKIP)) == bits * part


def test_formats_count_with_their_bits() -> None:
    spec = tiny_spec(vocab=96)
    model = LoadedModel(spec, RandomWeights(spec))
    cpu = CpuBackend(threads=1, weights="int8")
    int8, int4 = cpu.pass_bytes(read_by(model)), cpu.pass_bytes(read_by(model, weights="int4"))
    assert cpu.pass_bytes(read_by(model, weights="int8")) == int8
    assert 0.5 < int4 / int8 < 0.7  # 5 bits with scales and minima, against 8.5
