"""forerun: lossless speculative decoding over an exact, paged KV cache.

    from forerun import LLM, SamplingParams

The names below are loaded when first used, so that `forerun --help` needs neither numpy nor the kernels.
"""

import importlib
import logging

# Who embeds forerun decides what is shown; the command line shows a log with FORERUN_DEBUG=1.
logging.getLogger(__name__).addHandler(logging.NullHandler())

__version__ = "0.1.0"

_HOMES = {
    "LLM": "forerun.llm",
    "EngineOptions": "forerun.llm",
    "SamplingParams": "forerun.sequence",
    "FinishReason": "forerun.sequence",
    "TokenLogprob": "forerun.sequence",
    "SpeculationConfig": "forerun.config",
    "Generation": "forerun.results",
    "Choice": "forerun.results",
    "StreamChunk": "forerun.results",
    "ForerunError": "forerun.errors",
    "RequestError": "forerun.errors",
}

__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
