"""open_model: a path to a checked model, and the table of families.

Place: first step of loading. A ModelFiles has passed every check that needs no weight values: the architecture is
known, every option is understood, every weight exists in its shape and no tensor is left over.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from forerun.errors import ModelFileError, ModelNotFound, UnsupportedModel
from forerun.models.families.family import Family, Reading
from forerun.models.families.llama import LLAMA
from forerun.models.families.qwen2 import QWEN2
from forerun.models.files.gguf import GgufFile
from forerun.models.files.safetensors import CONFIG, SafetensorsFolder
from forerun.models.spec import ModelSpec
from forerun.models.weights import FileWeights, TensorFile

FAMILIES: tuple[Family, ...] = (LLAMA, QWEN2)
CARD_BYTES = 4096  # how much of a README may be read for its licence


@dataclass(frozen=True)
class ModelFiles:
    """An opened model.

    metadata    GGUF metadata, {} for a folder        folder      the Hugging Face folder, None for GGUF
    config      config.json, {} for GGUF              formats     number of tensors the model reads, by stored format
    size_bytes  of all weight files                   licence     as the file or its card states it
    """

    path: Path
    kind: Literal["gguf", "folder"]
    name: str
    spec: ModelSpec
    weights: FileWeights
    metadata: Mapping[str, Any]
    config: Mapping[str, Any]
    folder: Path | None
    size_bytes: int
    formats: dict[str, int]
    licence: str | None


def open_model(path: Path) -> ModelFiles:
    """Open a .gguf file (any part of a split one) or a Hugging Face folder, and check it.

    Raises ModelNotFound when nothing is there, ModelFileError, UnsupportedModel.
    """
    try:
        if not path.exists():
            raise ModelNotFound(f"{path} does not exist; give a .gguf file or a Hugging Face folder")
        return _open_folder(path) if path.is_dir() else _open_gguf(path)
    except OSError as error:
        raise ModelFileError(f"cannot read {path}: {error.strerror}; check its permissions") from error


def _open_gguf(path: Path) -> ModelFiles:
    if path.suffix == ".safetensors":
        raise ModelFileError(f"{path} is one weight file; give its folder, which has {CONFIG} too")
    file = GgufFile(path)
    metadata = file.metadata
    kind = metadata.get("general.type", "model")
    if kind != "model":
        raise UnsupportedModel(f"{path} holds {kind!r:.60}, not a model; give the model it belongs to")
    architecture = metadata.get("general.architecture")
    family = next((f for f in FAMILIES if architecture in f.gguf_architectures), None)
    if family is None:
        known = ", ".join(name for f in FAMILIES for name in f.gguf_architectures)
        raise UnsupportedModel(f"{path}: the architecture {architecture!r:.60} is unknown; forerun runs {known}")
    reading = family.from_gguf(metadata, file, str(path))
    tokens = metadata.get("tokenizer.ggml.tokens", [])
    if not isinstance(tokens, list) or len(tokens) > reading.spec.vocab_size:
        raise ModelFileError(f"{path}: more tokens than the {reading.spec.vocab_size} embeddings; fetch it again")
    weights, formats = _weights(file, reading, path)
    name, licence = metadata.get("general.name"), metadata.get("general.license")
    return ModelFiles(
        path=path,
        kind="gguf",
        name=name if isinstance(name, str) and name and name.isprintable() else path.stem,
        spec=reading.spec,
        weights=weights,
        metadata=metadata,
        config={},
        folder=None,
        size_bytes=file.size_bytes,
        formats=formats,
        licence=licence if isinstance(licence, str) and licence.isprintable() else None,
    )


def _open_folder(path: Path) -> ModelFiles:
    file = SafetensorsFolder(path)
    where = str(path / CONFIG)
    architectures = file.config.get("architectures")
    family = next((f for f in FAMILIES for name in f.hf_architectures if architectures == [name]), None)
    if family is None:
        known = ", ".join(name for f in FAMILIES for name in f.hf_architectures)
        raise UnsupportedModel(f"{where}: the architecture {architectures!r:.60} is unknown; forerun runs {known}")
    reading = family.from_config(file.config, where)
    weights, formats = _weights(file, reading, path)
    return ModelFiles(
        path=path,
        kind="folder",
        name=_folder_name(path),
        spec=reading.spec,
        weights=weights,
        metadata={},
        config=file.config,
        folder=path,
        size_bytes=file.size_bytes,
        formats=formats,
        licence=_card_licence(path),
    )


def _weights(file: TensorFile, reading: Reading, path: Path) -> tuple[FileWeights, dict[str, int]]:
    weights = FileWeights(file, reading.spec, reading.sources, reading.ignored, str(path))
    return weights, dict(Counter(weights.stored_format(name) for name in reading.sources))


def _folder_name(path: Path) -> str:
    """The folder's name, or organisation/model for a snapshot in the hub's cache."""
    match = re.search(r"models--([^/\\]+)[/\\]snapshots[/\\]", str(path.absolute()))
    return match[1].replace("--", "/") if match else path.absolute().name


def _card_licence(folder: Path) -> str | None:
    """The licence in the model card's front matter, if there is one."""
    try:
        with (folder / "README.md").open("rb") as card:
            text = card.read(CARD_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    match = re.search(r"^license:[ \t]*['\"]?([\w.+-]+)", text, re.MULTILINE) if text.startswith("---") else None
    return match[1] if match else None
