"""compare: prompts answered with speculation off and on, by the same weights in the same process.

First every prompt is answered twice for all to see, with a hash of the logits behind each token. Then the answers are
timed, silently and in turns (off, on, off, on), so that a machine that slows down slows both; the median counts. The
cache is emptied before each run, so every run computes its whole prompt; speeds are of decoding alone.
"""

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from forerun.cli.answer import prompt_ids, stream_answer
from forerun.cli.console import progress
from forerun.cli.render import TextWriter, failure
from forerun.errors import ForerunError
from forerun.llm import LLM, EngineOptions
from forerun.results import Choice
from forerun.sequence import SamplingParams

SETTINGS = ("off", "on")
MAX_ROUNDS = 3  # timed runs of each prompt and setting
BUDGET_S = 45.0  # after the first round, none begins that would end later than this
_WARM_UP = "Count from one to twenty."


@dataclass
class Compared:
    """One prompt: the answers that were shown, and those that were timed, by setting."""

    name: str
    shown: dict[str, Choice] = field(default_factory=dict)
    timed: dict[str, list[Choice]] = field(default_factory=lambda: {setting: [] for setting in SETTINGS})

    @property
    def first_difference(self) -> int | None:
        """Index of the first token that differs, or whose logits do; None when the shown answers are identical."""
        off, on = (list(zip(c.token_ids, c.logits_hashes, strict=True)) for c in (self.shown["off"], self.shown["on"]))
        if off == on:
            return None
        return next((i for i, (a, b) in enumerate(zip(off, on, strict=False)) if a != b), min(len(off), len(on)))

    @property
    def identical(self) -> bool:
        """Same tokens from the same logits, and the same tokens in every timed run."""
        tokens = {choice.token_ids for choices in self.timed.values() for choice in choices}
        return self.first_difference is None and tokens <= {self.shown["off"].token_ids}

    @property
    def num_tokens(self) -> int:
        return len(self.shown["off"].token_ids)

    def decode_s(self, setting: str) -> float:
        """Seconds per token after the first, the median of the timed runs."""
        return statistics.median(choice.stats.time_per_token_s for choice in self.timed[setting])

    @property
    def mean_accepted_len(self) -> float:
        """Tokens per step with speculation on."""
        return self.shown["on"].stats.mean_accepted_len

    @property
    def speedup(self) -> float:
        """Of decoding, by speculation."""
        return self.decode_s("off") / self.decode_s("on")


class Comparison:
    """Runs prompts on one loaded model. `speculation` is the drafter of the setting "on"."""

    def __init__(self, llm: LLM, options: EngineOptions, speculation: str, max_tokens: int) -> None:
        self._llm = llm
        self._options = options
        self._drafters = {"off": "off", "on": speculation}
        self._max_tokens = max_tokens

    def run(self, prompts: Mapping[str, str], writer: TextWriter | None = None) -> list[Compared]:
        """Answer and time all prompts (texts by name); what is shown goes to the writer.

        Raises KeyboardInterrupt after Ctrl-C, ForerunError when a generation fails.
        """
        started = time.perf_counter()
        for setting in SETTINGS:
            self._answer(setting, _WARM_UP, self._params())
        compared = [self._show(name, text, writer) for name, text in prompts.items()]
        done, total = 0, MAX_ROUNDS * len(compared)
        with progress("Timing", unit="runs") as report:
            for _ in range(MAX_ROUNDS):
                round_started = time.perf_counter()
                for one in compared:
                    for setting in SETTINGS:
                        one.timed[setting].append(self._answer(setting, prompts[one.name], self._params()))
                    done += 1
                    report(done, total)
                now = time.perf_counter()
                if now - started + (now - round_started) > BUDGET_S:
                    break
        return compared

    def _params(self, *, logits_hash: bool = False) -> SamplingParams:
        # A speed needs two tokens.
        return SamplingParams(max_tokens=self._max_tokens, min_tokens=2, logits_hash=logits_hash)

    def _show(self, name: str, text: str, writer: TextWriter | None) -> Compared:
        one = Compared(name)
        if writer is not None:
            writer.text(f"\n=== {name} ===\n", "bold")
            writer.text(f"{text}\n", "dim")
        for setting in SETTINGS:
            if writer is not None:
                writer.text(f"\n--- speculation {setting} ---\n", "bold")
            one.shown[setting] = self._answer(setting, text, self._params(logits_hash=True), writer)
        return one

    def _answer(self, setting: str, text: str, params: SamplingParams, writer: TextWriter | None = None) -> Choice:
        self._llm.reconfigure(speculation=self._drafters[setting], options=self._options)  # the cache is empty now
        choice = stream_answer(self._llm, prompt_ids(self._llm, text, None, False), params, writer).choice
        if choice is None:
            raise KeyboardInterrupt
        if (problem := failure(choice)) is not None:
            raise ForerunError(f"the generation failed: {problem}")
        return choice
