"""GGUF: what is read equals what was written, and no damaged header does worse than a one-line error."""

import os
import struct
import time
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forerun.errors import ForerunError, ModelFileError, UnsupportedModel
from forerun.models.files.gguf import GgufFile
from forerun.models.registry import open_model
from tests.tiny import RandomWeights, tiny_spec, write_tiny_gguf

SMALL = tiny_spec("llama", layers=1, hidden=32, heads=2, kv_heads=1, vocab=33, intermediate=32)
TOKENS = [f"t{i}é" for i in range(33)]


def write_raw(
    path: Path,
    keys: list[tuple[str, int, bytes]] | None = None,
    tensors: list[tuple[str, list[int], int, int]] | None = None,
    data: bytes = b"",
    version: int = 3,
    counts: tuple[int, int] | None = None,
) -> Path:
    """A GGUF file byte by byte. keys: (name, type, value bytes); tensors: (name, dimensions, type, offset)."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value.encode())) + value.encode()

    keys, tensors = keys or [], tensors or []
    num_tensors, num_keys = counts or (len(tensors), len(keys))
    out = b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_keys)
    for name, kind, value in keys:
        out += text(name) + struct.pack("<I", kind) + value
    for name, dims, kind, offset in tensors:
        out += text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)
    out += b"\0" * (-len(out) % 32) + data
    path.write_bytes(out)
    return path


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    write_tiny_gguf(path, SMALL, metadata={"tokenizer.ggml.tokens": TOKENS, "tokenizer.ggml.token_type": [1] * 33})
    return path


# ---- reading ----


def test_metadata_and_tensors_equal_the_package(small: Path) -> None:
    ours, theirs = GgufFile(small), gguf.GGUFReader(small)
    assert ours.names() == tuple(tensor.name for tensor in theirs.tensors)
    for tensor in theirs.tensors:
        shape = tuple(int(n) for n in tensor.shape[::-1])
        assert ours.shape(tensor.name) == shape
        assert ours.num_bytes(tensor.name) == tensor.n_bytes
        assert ours.read(tensor.name, 0, shape[0]).tobytes() == np.ascontiguousarray(tensor.data).tobytes()
    header = {"GGUF.version", "GGUF.tensor_count", "GGUF.kv_count"}
    assert ours.metadata == {key: field.contents() for key, field in theirs.fields.items() if key not in header}
    assert ours.metadata["tokenizer.ggml.tokens"] == TOKENS


@pytest.mark.parametrize(
    ("kind", "code", "value"),
    [
        (0, "<B", 200),
        (1, "<b", -3),
        (2, "<H", 65535),
        (3, "<h", -300),
        (4, "<I", 2**32 - 1),
        (5, "<i", -7),
        (6, "<f", 0.5),
        (7, "<?", True),
        (10, "<Q", 2**64 - 1),
        (11, "<q", -(2**63)),
        (12, "<d", 0.1),
    ],
)
def test_every_value_type(tmp_path: Path, kind: int, code: str, value: Any) -> None:
    packed = struct.pack(code, value)
    array = struct.pack("<IQ", kind, 3) + packed * 3
    file = GgufFile(write_raw(tmp_path / "a.gguf", [("one", kind, packed), ("three", 9, array)]))
    assert file.metadata == {"one": value, "three": [value] * 3}
    assert type(file.metadata["one"]) is type(value)


@pytest.mark.parametrize("name", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_formats_and_row_ranges(tmp_path: Path, name: str) -> None:
    write_tiny_gguf(tmp_path / "a.gguf", SMALL, formats=name)
    file, tensor = GgufFile(tmp_path / "a.gguf"), "token_embd.weight"
    kind = gguf.GGMLQuantizationType[name]
    stored = gguf.quants.quantize(RandomWeights(SMALL).read("embed"), kind)
    expected = gguf.quants.dequantize(stored, kind).astype(np.float32)
    assert file.stored_format(tensor) == name
    assert file.read(tensor, 0, 33).tobytes() == expected.tobytes()
    assert file.read(tensor, 5, 9).tobytes() == expected[5:9].tobytes()
    assert file.read(tensor, 32, 33).shape == (1, 32)
    assert file.read("output_norm.weight", 3, 5).shape == (2,)


def test_a_big_vocabulary_opens_fast(tmp_path: Path) -> None:
    """Half a million strings; the bound is far above the usual 0.2 s and below a reader that makes arrays of each."""
    strings = b"".join(struct.pack("<Q", 7) + b"token%02d" % (i % 100) for i in range(500_000))
    path = write_raw(tmp_path / "a.gguf", [("tokens", 9, struct.pack("<IQ", 8, 500_000) + strings)])
    start = time.perf_counter()
    assert len(GgufFile(path).metadata["tokens"]) == 500_000
    assert time.perf_counter() - start < 3.0


# ---- parts ----


def test_parts_are_opened_from_any_of_them(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "whole.gguf", SMALL)
    write_tiny_gguf(tmp_path / "split.gguf", SMALL, max_tensors_per_part=4)
    parts = sorted(tmp_path.glob("split-*.gguf"))
    assert len(parts) == 3
    whole = open_model(tmp_path / "whole.gguf")
    for part in parts:
        split = open_model(part)
        assert split.spec == whole.spec
        assert split.size_bytes == sum(path.stat().st_size for path in parts)
        for name in SMALL.weight_shapes():
            assert split.weights.read(name).tobytes() == whole.weights.read(name).tobytes()


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "m.gguf", SMALL, max_tensors_per_part=4)
    (tmp_path / "m-00002-of-00003.gguf").unlink()
    with pytest.raises(ModelFileError, match=r"m-00002-of-00003\.gguf is missing"):
        GgufFile(tmp_path / "m-00001-of-00003.gguf")


def test_renamed_or_exchanged_parts_are_refused(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "m.gguf", SMALL, max_tensors_per_part=4)
    first, second, third = sorted(tmp_path.glob("m-*.gguf"))
    os.replace(second, tmp_path / "hold")
    os.replace(third, second)
    os.replace(tmp_path / "hold", third)
    with pytest.raises(ModelFileError, match="says it is part 2, expected 1"):
        GgufFile(first)
    os.replace(first, tmp_path / "model.gguf")
    with pytest.raises(ModelFileError, match="original names"):
        GgufFile(tmp_path / "model.gguf")


# ---- damage ----


def test_every_truncation_is_an_error(small: Path, tmp_path: Path) -> None:
    raw, cut = small.read_bytes(), tmp_path / "cut.gguf"
    file = GgufFile(small)
    end_of_data = max(tensor.start + tensor.num_bytes for tensor in file.parts[0].tensors.values())
    for length in [*range(0, 3000, 7), *range(3000, end_of_data, 997), end_of_data - 1]:
        cut.write_bytes(raw[:length])
        with pytest.raises(ModelFileError, match=r"fetch it again|is not a GGUF file") as caught:
            GgufFile(cut)
        assert "\n" not in str(caught.value)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(flips=st.lists(st.tuples(st.integers(0, 2400), st.integers(0, 255)), min_size=1, max_size=4))
def test_flipped_header_bytes_never_escape(small: Path, tmp_path: Path, flips: list[tuple[int, int]]) -> None:
    raw = bytearray(small.read_bytes())
    for at, value in flips:
        raw[at] = value
    path = tmp_path / "flipped.gguf"
    path.write_bytes(raw)
    error = ""
    try:
        model = open_model(path)
        for name in model.spec.weight_shapes():
            model.weights.read(name)
    except ForerunError as caught:  # any other exception fails the test
        error = str(caught)
    assert "\n" not in error


HUGE = 2**63


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        ({"counts": (HUGE, 0)}, "runs past the end"),
        ({"counts": (0, HUGE)}, "runs past the end"),
        ({"keys": [("k", 8, struct.pack("<Q", HUGE))]}, "runs past the end"),
        ({"keys": [("k", 9, struct.pack("<IQ", 8, HUGE))]}, "runs past the end"),
        ({"keys": [("k", 9, struct.pack("<IQ", 5, HUGE))]}, "runs past the end"),
        ({"keys": [("k", 9, struct.pack("<IQQ", 8, 1, HUGE))]}, "runs past the end"),
        ({"keys": [("k", 8, struct.pack("<Q", 1) + b"\xff")]}, "not UTF-8"),
        ({"keys": [("k", 77, b"")]}, "unknown type 77"),
        ({"keys": [("split.count", 8, struct.pack("<Q", 1) + b"x")]}, "split.count is 'x'"),
        ({"keys": [("k", 0, b"1"), ("k", 0, b"2")]}, "'k' stands twice"),
        ({"keys": [("general.alignment", 4, struct.pack("<I", 24))]}, "general.alignment is 24"),
        ({"keys": [("general.alignment", 4, struct.pack("<I", 0))]}, "general.alignment is 0"),
        ({"tensors": [("t", [HUGE, HUGE], 0, 0)]}, "tensor 't' ends at byte"),
        ({"keys": [("k" * 9999, 77, b"")]}, "^.{1,400}$"),
        ({"tensors": [("t" * 300, [1], 0, 0)]}, "tensor 0 has 300 characters"),
        ({"tensors": [("t", [], 0, 0)]}, "0 dimensions"),
        ({"tensors": [("t", [1] * 5, 0, 0)]}, "5 dimensions"),
        ({"tensors": [("t", [0], 0, 0)]}, "cannot hold blocks"),
        ({"tensors": [("t", [33], 8, 0)]}, "cannot hold blocks of 32"),
        ({"tensors": [("t", [4], 0, 8)], "data": bytes(64)}, "not a multiple of 32"),
        ({"tensors": [("t", [4], 0, HUGE)], "data": bytes(64)}, "ends at byte"),
        ({"tensors": [("t", [4], 0, 0), ("t", [4], 0, 32)], "data": bytes(64)}, "'t' stands twice"),
        ({"tensors": [("t", [9], 0, 0), ("u", [4], 0, 32)], "data": bytes(64)}, "'t' and 'u' overlap"),
    ],
)
def test_lying_headers_are_refused(tmp_path: Path, arguments: dict[str, Any], fact: str) -> None:
    with pytest.raises(ModelFileError, match=fact):
        GgufFile(write_raw(tmp_path / "a.gguf", **arguments))


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        ({"version": 1}, "version 1"),
        ({"version": 4}, "version 4"),
        ({"version": 0x03000000}, "big-endian"),
        ({"tensors": [("t", [256], 16, 0)], "data": bytes(66)}, "'t' is stored as IQ2_XXS"),
        ({"tensors": [("t", [256], 9999, 0)], "data": bytes(66)}, "stored as type 9999"),
        ({"keys": [("k", 9, struct.pack("<IQ", 9, 0))]}, "array of arrays"),
    ],
)
def test_unsupported_files_are_named(tmp_path: Path, arguments: dict[str, Any], fact: str) -> None:
    with pytest.raises(UnsupportedModel, match=fact):
        GgufFile(write_raw(tmp_path / "a.gguf", **arguments))


def test_version_2_is_read(tmp_path: Path) -> None:
    file = GgufFile(write_raw(tmp_path / "a.gguf", tensors=[("t", [4], 0, 0)], data=bytes(32), version=2))
    assert file.read("t", 0, 4).tolist() == [0.0] * 4
