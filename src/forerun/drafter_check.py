"""check_drafters: does a drafter that runs a model agree with the target at all?

Place: LLM calls it once it has loaded. A draft model of another family, another tokenizer or a chat template that it
does not know are no errors: everything works, and nothing is accepted. So built-in prompts are answered with each such
drafter alone, and acceptance below a floor is logged with its likely cause. Drafters that run no model are not checked:
they depend on the text.
"""

import logging
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

from forerun.config import SpeculationConfig
from forerun.engine import Engine, EngineStats
from forerun.errors import ForerunError
from forerun.results import Generation, GenerationStats
from forerun.sequence import SamplingParams, SpeculationParams
from forerun.speculation.budget import FixedBudget
from forerun.speculation.drafter import Drafter
from forerun.speculation.speculator import SpeculationStats
from forerun.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

FLOOR = 0.2  # of the first tokens of drafts; drafters that are of any use have twice that
NOTHING = 0.03  # below this the agreement is chance
NEW_TOKENS = 24
DEPTH = 3
TEXTS = (
    "The water cycle begins when the sun warms the sea. Water rises into the air as vapour, cools and forms clouds,",
    "def count_words(text):\n    counts = {}\n    for word in text.split():\n        counts[word] =",
)
QUESTIONS = ("Why does the moon change its shape?", "Write a Python function that returns the larger of two numbers.")


class Loaded(Protocol):
    """A loaded model as the check sees it; llm.LLM is one."""

    engine: Engine
    tokenizer: Tokenizer
    max_model_len: int

    @property
    def has_chat_template(self) -> bool: ...

    def chat_prompt(self, messages: Seq[Mapping[str, str]]) -> list[int]:
        """Token ids of a conversation."""
        ...

    def generate(
        self, prompts: Seq[Seq[int]], params: SamplingParams | None = None, *, salt: str = ""
    ) -> list[Generation]:
        """Continue each prompt."""
        ...


@dataclass(frozen=True)
class DrafterCheck:
    """How often the first token of a draft was accepted; None where nothing was drafted.

    text   continuing plain text
    chat   answering through the chat template; None without one
    cause  the likely cause of acceptance below FLOOR, else None
    """

    drafter: str
    text: float | None
    chat: float | None
    cause: str | None


def check_drafters(llm: Loaded) -> list[DrafterCheck]:
    """Check the configured drafters that run a model; logs a warning for each that agrees too rarely.

    Answers a few short prompts, so it is called when no request is running. Prompts that do not fit the context are
    left out.
    """
    engine, speculator = llm.engine, llm.engine.speculator
    checked = [drafter for drafter in speculator.drafters if drafter.is_paid]
    if not checked:
        return []
    kept = speculator.budget, speculator.stats, engine.stats
    speculator.budget = FixedBudget(SpeculationConfig(max_depth=DEPTH), llm.max_model_len)  # one that learns may refuse
    speculator.stats, engine.stats = SpeculationStats(), EngineStats()  # of requests that nobody made
    try:
        texts = _fitting(llm, [llm.tokenizer.encode_prompt(text) for text in TEXTS])
        chats = _fitting(llm, _conversations(llm))
        return [_check(llm, drafter, texts, chats) for drafter in checked]
    finally:
        speculator.budget, speculator.stats, engine.stats = kept


def _conversations(llm: Loaded) -> list[list[int]]:
    """Prompts of QUESTIONS; none where the model has no chat template, or one that refuses them."""
    if not llm.has_chat_template:
        return []
    try:
        return [llm.chat_prompt([{"role": "user", "content": question}]) for question in QUESTIONS]
    except ForerunError as error:
        log.info("drafters are not checked on conversations: %s", error)
        return []


def _fitting(llm: Loaded, prompts: list[list[int]]) -> list[list[int]]:
    return [prompt for prompt in prompts if len(prompt) + NEW_TOKENS <= llm.max_model_len]


def _check(llm: Loaded, drafter: Drafter, texts: list[list[int]], chats: list[list[int]]) -> DrafterCheck:
    name = drafter.name
    params = SamplingParams(max_tokens=NEW_TOKENS, speculation=SpeculationParams(drafter=name))
    stats = [answer.stats for answer in llm.generate(texts + chats, params, salt="forerun.drafter_check")]
    text, chat = _acceptance(stats[: len(texts)]), _acceptance(stats[len(texts) :])
    found = DrafterCheck(name, text, chat, likely_cause(text, chat, getattr(drafter, "weakness", None)))
    if found.cause is not None:
        shares = [f"{share:.0%} of {kind}" for kind, share in (("text", text), ("chat", chat)) if share is not None]
        log.warning(
            "drafter %s agrees with the model on %s, and below %.0f %% it is of no use: %s",
            name,
            " and ".join(shares),
            100 * FLOOR,
            found.cause,
        )
    return found


def _acceptance(answers: Seq[GenerationStats]) -> float | None:
    """Of the drafts, the part whose first token was accepted; None without any."""
    drafted = sum(stats.drafted_at[0] for stats in answers if stats.drafted_at)
    accepted = sum(stats.accepted_at[0] for stats in answers if stats.accepted_at)
    return accepted / drafted if drafted else None


def likely_cause(text: float | None, chat: float | None, weakness: str | None = None) -> str | None:
    """Why acceptance is below FLOOR, and the remedy; None when it is not, or when nothing was drafted.

    weakness  of a drafter that is a part of the model itself, for which no other model can be to blame
    """
    shares = [share for share in (text, chat) if share is not None]
    if not shares or min(shares) >= FLOOR:
        return None
    if weakness is not None:
        return weakness
    if max(shares) < NOTHING:
        return "it was likely made for another tokenizer or another model: choose one of the same family"
    if text is not None and chat is not None and text >= FLOOR:
        return "it likely does not know this model's chat template: choose an instruction-tuned one of the same family"
    return "it was likely made for another version of this model: choose one of the same family and generation"
