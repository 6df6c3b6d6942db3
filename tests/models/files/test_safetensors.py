"""Hugging Face folders: single and sharded weights, every data type, and damage."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forerun.errors import ForerunError, ModelFileError, UnsupportedModel
from forerun.models.files.safetensors import SafetensorsFolder
from forerun.models.registry import open_model
from tests.tiny import RandomWeights, hf_name, tiny_spec, write_tiny_folder

SMALL = tiny_spec("qwen2", layers=1, hidden=32, heads=2, kv_heads=1, vocab=33, intermediate=32)


def write_raw(folder: Path, header: Any, data: bytes = b"") -> Path:
    """A folder whose weight file has this header (bytes, or an object for JSON)."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw + data)
    return folder


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_weights_are_read_as_written(tmp_path: Path, dtype: str, shards: int) -> None:
    write_tiny_folder(tmp_path, SMALL, dtype=dtype, shards=shards)
    folder, weights = SafetensorsFolder(tmp_path), RandomWeights(SMALL)
    assert set(folder.names()) == {hf_name(name) for name in SMALL.weight_shapes()}
    for name, shape in SMALL.weight_shapes().items():
        expected = weights.read(name)
        expected = expected.astype(np.float16).astype(np.float32) if dtype == "F16" else expected
        assert folder.shape(hf_name(name)) == shape
        assert folder.stored_format(hf_name(name)) == dtype
        assert folder.num_bytes(hf_name(name)) == expected.size * (4 if dtype == "F32" else 2)
        assert folder.read(hf_name(name), 0, shape[0]).tobytes() == expected.tobytes()
        assert folder.read(hf_name(name), 2, 7).tobytes() == expected[2:7].tobytes()


def test_every_truncation_is_an_error(tmp_path: Path) -> None:
    write_tiny_folder(tmp_path, SMALL)
    path = tmp_path / "model.safetensors"
    raw = path.read_bytes()
    for length in [*range(0, 1500, 11), *range(1500, len(raw), 499), len(raw) - 1]:
        path.write_bytes(raw[:length])
        with pytest.raises(ModelFileError, match="fetch it again") as caught:
            SafetensorsFolder(tmp_path)
        assert "\n" not in str(caught.value)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(flips=st.lists(st.tuples(st.integers(0, 1400), st.integers(0, 255)), min_size=1, max_size=3))
def test_flipped_header_bytes_never_escape(tmp_path: Path, flips: list[tuple[int, int]]) -> None:
    write_tiny_folder(tmp_path, SMALL)
    path = tmp_path / "model.safetensors"
    raw = bytearray(path.read_bytes())
    for at, value in flips:
        raw[at] = value
    path.write_bytes(raw)
    error = ""
    try:
        model = open_model(tmp_path)
        for name in model.spec.weight_shapes():
            model.weights.read(name)
    except ForerunError as caught:  # any other exception fails the test
        error = str(caught)
    assert "\n" not in error


def entry(shape: Any = (2,), begin: Any = 0, end: Any = 8, dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("header", "fact"),
    [
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        ([], "not a JSON object"),
        ({"t" * 300: entry()}, "name has 300 characters"),
        ({"t": 3}, "'t' is incomplete"),
        ({"t": {"dtype": "F32", "shape": [2]}}, "'t' is incomplete"),
        ({"t": entry(shape=7)}, "'t' is incomplete"),
        ({"t": entry(end=2**62, shape=[2**60])}, "'t' lies outside"),
        ({"t": entry(begin=-8, end=0)}, "'t' lies outside"),
        ({"t": entry(begin=8, end=0)}, "'t' lies outside"),
        ({"t": entry(begin=0.0)}, "'t' lies outside"),
        ({"t": entry(shape=[3])}, r"'t' of shape \(3,\) does not fill its 8 bytes"),
        ({"t": entry(), "u": entry(begin=4, end=12)}, "'t' and 'u' overlap"),
    ],
)
def test_lying_headers_are_refused(tmp_path: Path, header: Any, fact: str) -> None:
    with pytest.raises(ModelFileError, match=fact):
        SafetensorsFolder(write_raw(tmp_path, header, bytes(16)))


def test_a_huge_header_length_is_refused(tmp_path: Path) -> None:
    write_raw(tmp_path, {})
    (tmp_path / "model.safetensors").write_bytes((2**63).to_bytes(8, "little") + b"{}")
    with pytest.raises(ModelFileError, match="runs past the end"):
        SafetensorsFolder(tmp_path)


def test_an_unknown_data_type_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="'t' is stored as 'I8'"):
        SafetensorsFolder(write_raw(tmp_path, {"t": entry(dtype="I8", shape=[8])}, bytes(8)))


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"has no config\.json"):
        SafetensorsFolder(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelFileError, match=r"neither model\.safetensors nor"):
        SafetensorsFolder(tmp_path)
    write_tiny_folder(tmp_path, SMALL, shards=3)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(ModelFileError, match=r"model-00002-of-00003\.safetensors is missing"):
        SafetensorsFolder(tmp_path)


@pytest.mark.parametrize("text", ["[1, 2]", "{", "", "[" * 100_000])
def test_a_config_that_is_no_object_is_refused(tmp_path: Path, text: str) -> None:
    write_tiny_folder(tmp_path, SMALL)
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelFileError, match=r"config\.json is not"):
        SafetensorsFolder(tmp_path)


@pytest.mark.parametrize("index", [{}, {"weight_map": {}}, {"weight_map": {"t": "../x"}}, {"weight_map": {"t": 3}}])
def test_a_bad_index_is_refused(tmp_path: Path, index: Any) -> None:
    write_tiny_folder(tmp_path, SMALL)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelFileError, match=r"index\.json"):
        SafetensorsFolder(tmp_path)


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    write_tiny_folder(tmp_path, SMALL, shards=2)
    first, second = sorted(tmp_path.glob("model-*.safetensors"))
    second.write_bytes(first.read_bytes())
    with pytest.raises(ModelFileError, match="in two shards"):
        SafetensorsFolder(tmp_path)
