"""`bench trace`: one run of a batch, with the time of every phase of the engine and of every operation on every thread.

The model runs once without being recorded, so that the trace shows no page that is touched for the first time.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Any

from forerun.bench import corpus
from forerun.bench.decode import DecodeWish
from forerun.llm import LLM, EngineOptions
from forerun.profile import Profile
from forerun.sequence import Request, SamplingParams


@dataclass(frozen=True)
class TraceWish:
    """What to run: `batch` prompts that are answered together. Raises UsageError for impossible numbers."""

    prompt_tokens: int = 128
    new_tokens: int = 16
    batch: int = 1
    speculation: str = "off"

    def __post_init__(self) -> None:
        self._as_decode()

    def options(self, options: EngineOptions) -> EngineOptions:
        """What the model must be loaded with; the profile in it is filled by `run_trace`."""
        return replace(self._as_decode().options(options), profile=Profile(keep_timeline=True))

    def _as_decode(self) -> DecodeWish:
        return DecodeWish(self.prompt_tokens, self.new_tokens, (self.batch,), (self.speculation,), 1)


def run_trace(llm: LLM, wish: TraceWish, options: EngineOptions) -> Profile:
    """Run the batch and return what was recorded.

    options  those of `wish.options`, which the model was loaded with

    Raises UsageError or RequestError when the prompts do not fit.
    """
    assert options.profile is not None, "the model must be loaded with the options of the wish"
    prompts = corpus.excerpts(llm.tokenizer.encode(corpus.text()), wish.prompt_tokens, wish.batch)
    for _ in range(2):
        options.profile.clear()
        llm.reconfigure(speculation=wish.speculation, options=options)
        _answer(llm, prompts, wish.new_tokens)
    return options.profile


def trace_document(profile: Profile, about: dict[str, Any]) -> dict[str, Any]:
    """The JSON object that https://ui.perfetto.dev and chrome://tracing open. about  what the trace was made with"""
    return {"traceEvents": profile.trace_events(), "displayTimeUnit": "ms", "otherData": about}


def _answer(llm: LLM, prompts: Seq[tuple[int, ...]], new_tokens: int) -> None:
    params = SamplingParams(max_tokens=new_tokens, ignore_eos=True)
    for index, prompt in enumerate(prompts):
        llm.engine.add(Request(str(index), prompt, params, eos_ids=llm.tokenizer.eos_ids))
    while llm.engine.has_work:
        llm.engine.step()
