"""Profile files: what is written is read, everything else is refused in one line."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from forerun.backends.base import LoadedModel
from forerun.errors import UsageError
from forerun.speculation.drafting.skip_profile import (
    ModelIdentity,
    SkipProfile,
    default_path,
    read_profile,
    write_profile,
)
from forerun.speculation.host import OpenedModel
from tests.tiny import RandomWeights, tiny_spec

MODEL = ModelIdentity("tiny.gguf", 1234, 4)
PROFILE = SkipProfile(MODEL, ("layers.2.attn", "layers.2.mlp"), 0.8, 0.75, 0.9, 1.02, 3, {"text": "t", "seed": "0"})


def test_identity_of_a_model() -> None:
    spec = tiny_spec(layers=3)
    weights = RandomWeights(spec)
    made = ModelIdentity.of(OpenedModel("some/folder/tiny.gguf", LoadedModel(spec, weights), vocabulary=None))  # type: ignore[arg-type]
    assert made == ModelIdentity("tiny.gguf", sum(weights.num_bytes(name) for name in spec.weight_shapes()), 3)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = default_path(tmp_path / "new" / "folder", MODEL)
    write_profile(PROFILE, path)
    assert read_profile(path, MODEL) == PROFILE
    write_profile(replace(PROFILE, depth=5), path)
    assert read_profile(path, MODEL).depth == 5
    assert [file.name for file in path.parent.iterdir()] == [path.name]  # nothing half-written beside it


def refusal(path: Path, model: ModelIdentity = MODEL) -> str:
    with pytest.raises(UsageError) as error:
        read_profile(path, model)
    assert "\n" not in str(error.value)
    assert "forerun bench layer-skip" in str(error.value)
    return str(error.value)


def test_a_missing_profile_names_the_command(tmp_path: Path) -> None:
    assert "there is no layer-skip profile" in refusal(tmp_path / "none.json")


@pytest.mark.parametrize(
    "other", [replace(MODEL, name="other.gguf"), replace(MODEL, weight_bytes=1235), replace(MODEL, num_layers=5)]
)
def test_another_models_profile_is_refused(tmp_path: Path, other: ModelIdentity) -> None:
    write_profile(PROFILE, tmp_path / "p.json")
    assert "is the profile of tiny.gguf (4 layers" in refusal(tmp_path / "p.json", other)


@pytest.mark.parametrize(
    "change",
    [
        {"format": "forerun-layer-skip-9"},
        {"skip": "layers.2.attn"},
        {"skip": [1]},
        {"model": {"name": "tiny.gguf"}},
        {"surplus": 1},
    ],
)
def test_malformed_files_are_refused(tmp_path: Path, change: dict) -> None:
    path = tmp_path / "p.json"
    write_profile(PROFILE, path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert "is not a layer-skip profile of this version" in refusal(path)


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", "{"])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(text)
    assert "is not a layer-skip profile of this version" in refusal(path)


def test_sub_layers_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    write_profile(replace(PROFILE, skip=("layers.4.mlp",)), tmp_path / "p.json")
    assert "names 'layers.4.mlp'" in refusal(tmp_path / "p.json")


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write the profile"):
        write_profile(PROFILE, tmp_path / "file" / "p.json")
