"""load_llm: from a command's options to a loaded model, with a progress bar on a terminal.

Engine and numpy are imported here, when a command needs them, so that `forerun --help` does not wait for them.
"""

import contextlib

from forerun.backends.base import Progress
from forerun.cli.console import progress
from forerun.cli.options import ModelOptions
from forerun.config import SpeculationConfig
from forerun.llm import DEFAULT_MODEL, LLM, EngineOptions


def load_llm(chosen: ModelOptions, speculation: str | SpeculationConfig, options: EngineOptions | None = None) -> LLM:
    """Load the model that the options name; what LLM raises passes through.

    options  the engine's settings, where they are not those of `engine_options`
    """
    with contextlib.ExitStack() as bars:

        def report(title: str) -> Progress:
            bars.close()  # a terminal shows one bar at a time
            return bars.enter_context(progress(title))

        return LLM(
            model_name(chosen),
            speculation=speculation,
            threads=chosen.threads,
            kv_cache_bytes=chosen.kv_cache_bytes,
            max_model_len=chosen.max_model_len,
            options=options or engine_options(chosen),
            progress=report,
        )


def model_name(chosen: ModelOptions) -> str:
    """The model as the user named it, or the default."""
    return DEFAULT_MODEL if chosen.model is None else chosen.model


def engine_options(chosen: ModelOptions) -> EngineOptions:
    """The engine's settings among the options; `LLM.reconfigure` wants them again."""
    return EngineOptions(backend=chosen.backend, weights=chosen.weights, kv_format=chosen.kv_format)
