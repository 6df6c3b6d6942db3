"""SkipProfile: which sub-layers a model leaves out when it drafts for itself, as a small file.

Place: written by `forerun bench layer-skip`, read by the drafter `layer-skip` when it loads. A profile belongs to one
model: it is refused for any other, because what one model can do without another may need.
"""

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from forerun.errors import UsageError
from forerun.speculation.host import OpenedModel

FORMAT = "forerun-layer-skip-1"
COMMAND = "forerun bench layer-skip"


@dataclass(frozen=True)
class ModelIdentity:
    """Tells models apart: name of the file or folder, bytes of its weights, number of layers."""

    name: str
    weight_bytes: int
    num_layers: int

    @classmethod
    def of(cls, opened: OpenedModel) -> "ModelIdentity":
        """The identity of an opened model."""
        spec, weights = opened.model.spec, opened.model.weights
        total = sum(weights.num_bytes(name) for name in spec.weight_shapes())
        return cls(Path(opened.name).name, total, spec.num_layers)

    def __str__(self) -> str:
        return f"{self.name} ({self.num_layers} layers, {self.weight_bytes} bytes)"


@dataclass(frozen=True)
class SkipProfile:
    """Sub-layers to leave out ("layers.3.attn", "layers.3.mlp"), and what the search expected of it.

    same_token, overlap, cost, speedup, depth  see layer_skip_search
    origin  text, versions and numerics of the measurement, for people
    """

    model: ModelIdentity
    skip: tuple[str, ...]
    same_token: float
    overlap: float
    cost: float
    speedup: float
    depth: int
    origin: Mapping[str, str]


def default_path(folder: Path, model: ModelIdentity) -> Path:
    """Where a model's profile is kept in a cache folder."""
    return folder / f"layer-skip-{model.name}.json"


def write_profile(profile: SkipProfile, path: Path) -> None:
    """Write a profile; a reader sees the old file or the whole new one. Raises UsageError when it cannot be written."""
    document = {"format": FORMAT, **asdict(profile), "origin": dict(profile.origin)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, prefix=path.name, suffix=".part", delete=False, encoding="utf-8"
        ) as file:
            json.dump(document, file, indent=1)
        try:
            os.replace(file.name, path)
        except OSError:
            os.unlink(file.name)
            raise
    except OSError as error:
        raise UsageError(f"cannot write the profile {path}: {error.strerror}; choose another --out") from None


def read_profile(path: Path, model: ModelIdentity, reference: str = "") -> SkipProfile:
    """Read the profile of a model. Raises UsageError when it is missing, malformed or another model's.

    reference  what to give as --model to make a profile; without it, the model's name
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(
            f"there is no layer-skip profile {path}: make one with {COMMAND} --model {reference or model.name}"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the layer-skip profile {path}: {error}; make it again with {COMMAND}") from None
    try:
        profile = _parse(json.loads(text))
    except (ValueError, TypeError, KeyError):
        raise UsageError(f"{path} is not a layer-skip profile of this version: make it again with {COMMAND}") from None
    if profile.model != model:
        raise UsageError(f"{path} is the profile of {profile.model}, not of {model}: make one with {COMMAND}")
    unknown = sorted(set(profile.skip) - set(sub_layers(model.num_layers)))
    if unknown:
        raise UsageError(f"{path} names {unknown[0]!r}, which this model does not have: make it again with {COMMAND}")
    return profile


def sub_layers(num_layers: int) -> list[str]:
    """Every sub-layer of a model, in order."""
    return [f"layers.{index}.{part}" for index in range(num_layers) for part in ("attn", "mlp")]


def _parse(document: Any) -> SkipProfile:
    """Raises ValueError, TypeError or KeyError on anything but what write_profile writes."""
    values = dict(document)
    if values.pop("format") != FORMAT:
        raise ValueError("another format")
    skip = values.pop("skip")
    if not (isinstance(skip, list) and all(isinstance(name, str) for name in skip)):
        raise ValueError("skip is a list of names")
    return SkipProfile(model=ModelIdentity(**values.pop("model")), skip=tuple(skip), **values)
