"""Llama and what shares its architecture: Llama 2 and 3, SmolLM2, TinyLlama, Mistral without a sliding window.

GGUF stores q and k of this architecture with interleaved rotary pairs; the readings say so and `FileWeights` undoes it.
"""

from collections.abc import Mapping
from typing import Any

from forerun.models.families.dense import (
    HARMLESS_CONFIG_KEYS,
    ROPE_FREQS,
    Biases,
    gguf_biases,
    gguf_sources,
    hf_ignored,
    hf_sources,
    spec_from_config,
    spec_from_gguf,
)
from forerun.models.families.family import Family, Reading
from forerun.models.families.settings import Settings
from forerun.models.weights import TensorFile


def _from_config(config: Mapping[str, Any], where: str) -> Reading:
    settings = Settings(config, where)
    is_mistral = config["architectures"] == ["MistralForCausalLM"]
    biases = Biases()  # Mistral has none; were its config to ask for them, the flags would be refused as unread
    if not is_mistral:
        attention_bias = settings.flag("attention_bias")
        biases = Biases(qkv=attention_bias, out=attention_bias, mlp=settings.flag("mlp_bias"))
    spec = spec_from_config("llama", settings, biases, kv_heads_default=not is_mistral)
    settings.refuse_rest(HARMLESS_CONFIG_KEYS)
    return Reading(spec, hf_sources(spec), hf_ignored(spec))


def _from_gguf(metadata: Mapping[str, Any], file: TensorFile, where: str) -> Reading:
    spec = spec_from_gguf("llama", Settings(metadata, where, "llama."), file, gguf_biases(file))
    return Reading(spec, gguf_sources(spec, interleaved=True), frozenset((ROPE_FREQS,)))


LLAMA = Family("llama", ("LlamaForCausalLM", "MistralForCausalLM"), ("llama",), _from_config, _from_gguf)
