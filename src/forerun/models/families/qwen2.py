"""Qwen2 and Qwen2.5: Llama's layers with biases on q, k and v, and rotary pairs in half-split order in GGUF too."""

from collections.abc import Mapping
from typing import Any

from forerun.models.families.dense import (
    HARMLESS_CONFIG_KEYS,
    Biases,
    gguf_sources,
    hf_ignored,
    hf_sources,
    spec_from_config,
    spec_from_gguf,
)
from forerun.models.families.family import Family, Reading
from forerun.models.families.settings import Settings
from forerun.models.weights import TensorFile

BIASES = Biases(qkv=True)
# Sizes of a window that `use_sliding_window` (false, see below) turns off.
WINDOW_KEYS = ("sliding_window", "max_window_layers")


def _from_config(config: Mapping[str, Any], where: str) -> Reading:
    settings = Settings(config, where)
    settings.require("use_sliding_window", False, False)
    spec = spec_from_config("qwen2", settings, BIASES)
    settings.refuse_rest(HARMLESS_CONFIG_KEYS.union(WINDOW_KEYS))
    return Reading(spec, hf_sources(spec), hf_ignored(spec))


def _from_gguf(metadata: Mapping[str, Any], file: TensorFile, where: str) -> Reading:
    spec = spec_from_gguf("qwen2", Settings(metadata, where, "qwen2."), file, BIASES)
    return Reading(spec, gguf_sources(spec, interleaved=False), frozenset())


QWEN2 = Family("qwen2", ("Qwen2ForCausalLM",), ("qwen2",), _from_config, _from_gguf)
