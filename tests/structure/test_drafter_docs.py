"""docs/how-to/speculation.md has a section for every drafter, and its options and defaults are those of the code."""

import inspect
import re
from pathlib import Path

import pytest

from forerun.speculation import drafter as registry
from forerun.speculation import drafters  # noqa: F401  # registers the built-in ones
from forerun.speculation.drafter import about_drafter, known_drafters

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "speculation.md"
ROW = re.compile(r"^\| `(\w+)` \|.*\| (?:`(.*?)`|(\w+)) \|$", re.MULTILINE)


def sections(text: str) -> dict[str, str]:
    """What stands below each heading of the form ## `name`."""
    parts = re.split(r"^## `(.+)`$", text, flags=re.MULTILINE)[1:]
    return {name: body.split("\n## ")[0] for name, body in zip(parts[::2], parts[1::2], strict=True)}


def options(section: str) -> dict[str, str]:
    """Options of a section with their defaults as text."""
    return {name: code or word for name, code, word in ROW.findall(section)}


def shown(default: object) -> str:
    """A default as the page writes it; what is required or empty is called so."""
    if default is inspect.Parameter.empty:
        return "required"
    return "none" if default == "" else str(default)


@pytest.mark.parametrize("name", known_drafters())
def test_every_drafter_is_described(name: str) -> None:
    section = sections(PAGE.read_text(encoding="utf-8")).get(name)
    assert section is not None, f"add a section ## `{name}`"
    parameters = inspect.signature(registry._FACTORIES[name]).parameters.values()
    found, wanted = options(section), {p.name: shown(p.default) for p in parameters}
    assert {key: "none" if value == "required" else value for key, value in found.items()} == {
        key: "none" if value == "required" else value for key, value in wanted.items()
    }
    assert about_drafter(name)


def test_sections_and_options_are_read() -> None:
    rows = "| `a_b` | meaning, `c` | `0.5` |\n| `m` | a model | required |"
    text = f"# A\n\n## `x`\n\n{rows}\n\n## other\n\n| `q` | | `1` |\n"
    assert list(sections(text)) == ["x"]
    assert options(sections(text)["x"]) == {"a_b": "0.5", "m": "required"}
