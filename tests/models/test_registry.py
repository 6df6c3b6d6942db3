"""open_model: what it reports, and what paths that hold no model get."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from forerun.errors import ModelFileError, ModelNotFound
from forerun.models.registry import open_model
from tests.tiny import tiny_spec, write_tiny_folder, write_tiny_gguf


def test_facts_of_a_gguf_file(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    write_tiny_gguf(path, "llama", formats={"embed": "Q8_0"}, metadata={"general.license": "apache-2.0"})
    model = open_model(path)
    assert (model.kind, model.name, model.licence, model.folder) == ("gguf", "tiny", "apache-2.0", None)
    assert model.formats == {"Q8_0": 1, "F32": 19}
    assert model.size_bytes == path.stat().st_size
    assert model.metadata["llama.block_count"] == 2
    assert model.config == {}


def test_facts_of_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    write_tiny_folder(folder, "qwen2", dtype="BF16", shards=2)
    (folder / "README.md").write_text("---\nlicense: mit\ntags: [x]\n---\nlicense: none of this\n")
    model = open_model(folder)
    assert (model.kind, model.name, model.licence, model.folder) == ("folder", "my-model", "mit", folder)
    assert model.formats == {"BF16": 26}
    assert model.size_bytes == sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    assert model.config["model_type"] == "qwen2"
    assert model.metadata == {}


def test_a_snapshot_of_the_hub_cache_has_its_model_s_name(tmp_path: Path) -> None:
    folder = tmp_path / "models--org--tiny-1b" / "snapshots" / "0123abcd"
    write_tiny_folder(folder)
    assert open_model(folder).name == "org/tiny-1b"
    assert open_model(folder).licence is None


def test_what_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "empty.gguf").touch()
    (tmp_path / "text.gguf").write_text("hello, this is text")
    (tmp_path / "model.safetensors").write_bytes(bytes(100))
    with pytest.raises(ModelNotFound, match="does not exist"):
        open_model(tmp_path / "nothing")
    with pytest.raises(ModelFileError, match=r"has no config\.json"):
        open_model(tmp_path)
    with pytest.raises(ModelFileError, match=r"empty\.gguf is empty"):
        open_model(tmp_path / "empty.gguf")
    with pytest.raises(ModelFileError, match=r"text\.gguf is not a GGUF file"):
        open_model(tmp_path / "text.gguf")
    with pytest.raises(ModelFileError, match="give its folder"):
        open_model(tmp_path / "model.safetensors")


def test_a_file_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.gguf"
    write_tiny_gguf(path)

    def refuse(*_: object, **__: object) -> None:  # chmod does not stop root
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ModelFileError, match=r"cannot read .*a\.gguf: Permission denied; check"):
        open_model(path)


def test_a_tied_checkpoint_may_carry_a_copy_of_its_output_matrix(tmp_path: Path) -> None:
    write_tiny_folder(tmp_path)
    path = tmp_path / "model.safetensors"
    arrays = load_file(path)
    save_file(arrays | {"lm_head.weight": arrays["model.embed_tokens.weight"]}, path)
    assert open_model(tmp_path).spec == tiny_spec()
    save_file(arrays | {"model.layers.0.self_attn.q_proj.bias": np.zeros(64, np.float32)}, path)
    with pytest.raises(ModelFileError, match=r"q_proj\.bias"):
        open_model(tmp_path)


def test_a_folder_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_file", refuse)
    with pytest.raises(ModelFileError, match=r"cannot read .*: Permission denied; check"):
        open_model(tmp_path)
