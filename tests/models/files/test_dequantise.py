"""Every stored format against the gguf package, bit for bit."""

import gguf
import numpy as np
import pytest

from forerun.models.files import dequantise as module
from forerun.models.files.dequantise import DECODERS, PLAIN, bf16_to_float32, dequantise
from forerun.models.files.gguf import FORMATS

# Bytes of a block that are float16: random bits there would be NaN and infinity.
HALVES = {"Q8_0": (0,), "Q4_0": (0,), "Q5_0": (0,), "Q6_K": (208,)}


def random_blocks(kind: gguf.GGMLQuantizationType, num_blocks: int) -> np.ndarray:
    """[num_blocks, block bytes] with every bit pattern of the integers and ordinary scales."""
    rng = np.random.default_rng(7)
    _, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    raw = rng.integers(0, 256, (num_blocks, block_bytes), dtype=np.uint8)
    for at in HALVES.get(kind.name, (0, 2)):
        raw[:, at : at + 2] = rng.standard_normal(num_blocks).astype(np.float16)[:, None].view(np.uint8)
    return raw


def test_every_supported_format_is_decoded() -> None:
    assert set(FORMATS) == set(PLAIN) | set(DECODERS)


@pytest.mark.parametrize("num_blocks", [1, 7, 400])
@pytest.mark.parametrize("name", DECODERS)
def test_equals_the_package(name: str, num_blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = gguf.GGMLQuantizationType[name]
    raw = random_blocks(kind, num_blocks)
    monkeypatch.setattr(module, "GROUP", 3000)  # several groups, the last one not full
    ours = dequantise(raw.reshape(-1), kind, num_blocks * gguf.GGML_QUANT_SIZES[kind][0])
    assert ours.dtype == np.float32
    assert ours.tobytes() == gguf.quants.dequantize(raw, kind).tobytes()


@pytest.mark.parametrize("name", PLAIN)
def test_plain_formats_equal_the_package(name: str) -> None:
    kind = gguf.GGMLQuantizationType[name]
    values = np.random.default_rng(3).standard_normal(64).astype(np.float32)
    raw = gguf.quants.quantize(values, kind).view(np.uint8).reshape(-1)
    assert dequantise(raw, kind, 64).tobytes() == gguf.quants.dequantize(raw, kind).astype(np.float32).tobytes()


def test_a_format_without_a_decoder_goes_through_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = gguf.GGMLQuantizationType.Q5_K
    raw = random_blocks(kind, 3)
    expected = dequantise(raw.reshape(-1), kind, 3 * 256)
    monkeypatch.delitem(DECODERS, "Q5_K")
    assert dequantise(raw.reshape(-1), kind, 3 * 256).tobytes() == expected.tobytes()


def test_bf16_keeps_every_value() -> None:
    bits = np.array([0x3F80, 0xC000, 0x0000, 0x7F80, 0x0001], "<u2")
    np.testing.assert_array_equal(bf16_to_float32(bits.view(np.uint8)), np.float32([1.0, -2.0, 0.0, np.inf, 2.0**-133]))
