"""Prompts: enough of our own in every category, and Spec-Bench files read or refused."""

import json
from pathlib import Path

import pytest

from forerun.bench.prompts import COPY, own_prompts, spec_bench
from forerun.errors import UsageError

CATEGORIES = ["chat", "code", "summary", "translation", "maths", "retrieval", COPY]


def test_own_prompts() -> None:
    prompts = own_prompts()
    assert list(prompts.categories) == CATEGORIES
    for category, group in prompts.categories.items():
        assert len(group) >= 32
        assert {prompt.category for prompt in group} == {category}
        texts = [prompt.turns[0] for prompt in group]
        assert len(set(texts)) == len(texts)
        assert not any("{}" in text or "\\\n" in text for text in texts)
    ids = [prompt.id for group in prompts.categories.values() for prompt in group]
    assert len(set(ids)) == len(ids)


def test_neighbours_share_neither_the_question_nor_its_object() -> None:
    first, second = (prompt.turns[0] for prompt in own_prompts().categories["translation"][:2])
    assert first.split(":")[0] != second.split(":")[0]
    assert first.split(":")[1] != second.split(":")[1]


def test_only() -> None:
    assert list(own_prompts().only(["copy", "chat"]).categories) == ["copy", "chat"]
    with pytest.raises(UsageError, match="no category 'poems': choose of chat, code"):
        own_prompts().only(["poems"])


def question(number: int, category: str = "qa", turns: tuple[str, ...] = ("One?", "Two?")) -> str:
    return json.dumps({"question_id": number, "category": category, "turns": turns})


def test_spec_bench(tmp_path: Path) -> None:
    path = tmp_path / "question.jsonl"
    path.write_text("\n".join([question(1), "", question(2, "rag", ("Three?",)), question(3)]), encoding="utf-8")
    prompts = spec_bench(path)
    assert prompts.name == "question.jsonl"
    assert {name: [p.turns for p in group] for name, group in prompts.categories.items()} == {
        "qa": [("One?",), ("One?",)],
        "rag": [("Three?",)],
    }
    assert spec_bench(path, all_turns=True).categories["qa"][0].turns == ("One?", "Two?")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no questions"),
        ("{", ":1: no JSON object with question_id"),
        ("[1]", ":1: no JSON object"),
        (question(1) + "\n" + json.dumps({"category": "qa"}), ":2: no JSON object"),
        (question(1, turns=()), "has no turns"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=words):
        spec_bench(path)
