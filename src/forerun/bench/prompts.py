"""Prompts of `bench speculation`: short ones of our own, by category, or the questions of a Spec-Bench file.

Drafts live on what a text repeats, so that a speed-up says nothing without its kind of text. A run takes the next
prompts of its category, so that what a drafter has learned in one run is not the answer of the next.
"""

import json
import tomllib
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from forerun.errors import UsageError

COPY = "copy"  # the category of our own whose answers are mostly in the prompt


@dataclass(frozen=True)
class Prompt:
    """What a user says, turn by turn. `id` is unique in its set."""

    id: str
    category: str
    turns: tuple[str, ...]


@dataclass(frozen=True)
class PromptSet:
    """Prompts by category, in order. `name` says which they are: figures on different prompts are not comparable."""

    name: str
    categories: dict[str, tuple[Prompt, ...]]

    def only(self, names: Seq[str]) -> "PromptSet":
        """The set with some of its categories. Raises UsageError for one that it does not have."""
        unknown = [name for name in names if name not in self.categories]
        if unknown:
            known = ", ".join(self.categories)
            raise UsageError(f"{self.name} has no category {unknown[0]!r}: choose of {known}")
        return PromptSet(self.name, {name: self.categories[name] for name in dict.fromkeys(names)})


def own_prompts() -> PromptSet:
    """The prompts of the package."""
    text = resources.files("forerun.bench").joinpath("prompts.toml").read_text(encoding="utf-8")
    document = tomllib.loads(text)
    prompts = [
        Prompt(f"{category['name']}-{index}", category["name"], (text,))
        for category in document["category"]
        for index, text in enumerate(_combined(category["ask"], category["about"]))
    ]
    return PromptSet(document["name"], _by_category(prompts))


def spec_bench(path: Path, all_turns: bool = False) -> PromptSet:
    """The questions of a Spec-Bench file (question.jsonl): one JSON object with category and turns a line.

    all_turns  ask the later turns too; else only the first

    Raises UsageError when the file holds anything else, OSError when it cannot be read.
    """
    prompts = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if line.strip():
            prompts.append(_question(line, f"{path}:{number}", all_turns))
    if not prompts:
        raise UsageError(f"{path} holds no questions: give a Spec-Bench question file, one JSON object a line")
    return PromptSet(path.name, _by_category(prompts))


def text_lines(path: Path) -> PromptSet:
    """A text file, a prompt a line. Raises UsageError without one, OSError when it cannot be read."""
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not lines:
        raise UsageError(f"{path} holds no prompts: write one a line")
    prompts = [Prompt(f"line-{number}", "text", (line,)) for number, line in enumerate(lines, start=1)]
    return PromptSet(path.name, _by_category(prompts))


def _question(line: str, where: str, all_turns: bool) -> Prompt:
    try:
        question: Any = json.loads(line)
        turns = tuple(str(turn) for turn in question["turns"])
        made = Prompt(str(question["question_id"]), str(question["category"]), turns if all_turns else turns[:1])
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"{where}: no JSON object with question_id, category and turns") from None
    if not made.turns:
        raise UsageError(f"{where}: the question has no turns")
    return made


def _combined(ask: Seq[str], about: Seq[str]) -> list[str]:
    """Every `ask` with every `about`; of two neighbours both differ."""
    count = len(ask) * len(about)
    pairs = ((i % len(ask), (i // len(ask) + i % len(ask)) % len(about)) for i in range(count))
    return [ask[a].replace("{}", about[b]) for a, b in pairs]


def _by_category(prompts: Iterable[Prompt]) -> dict[str, tuple[Prompt, ...]]:
    groups: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        groups.setdefault(prompt.category, []).append(prompt)
    return {name: tuple(group) for name, group in groups.items()}
