"""Family: how one architecture is read from a Hugging Face config and from GGUF metadata.

To add an architecture: write `families/<name>.py` with a Family, list it in `models/registry.py`, and add a golden case
to `tools/make_parity_golden.py`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from forerun.models.spec import ModelSpec
from forerun.models.weights import TensorFile, TensorSource


@dataclass(frozen=True)
class Reading:
    """What a family makes of a file: the spec, the tensor behind each weight, and tensors that no weight comes from."""

    spec: ModelSpec
    sources: Mapping[str, TensorSource]
    ignored: frozenset[str]


@dataclass(frozen=True)
class Family:
    """One architecture. Both readers raise ModelFileError and UnsupportedModel.

    from_config  (config.json, path for errors) -> Reading
    from_gguf    (metadata, tensors, path for errors) -> Reading
    """

    name: str
    hf_architectures: tuple[str, ...]
    gguf_architectures: tuple[str, ...]
    from_config: Callable[[Mapping[str, Any], str], Reading]
    from_gguf: Callable[[Mapping[str, Any], TensorFile, str], Reading]
