"""Settings: types and ranges of single values, and nothing left unread."""

from typing import Any

import pytest

from forerun.errors import ModelFileError, UnsupportedModel
from forerun.models.families.settings import Settings


def settings(**values: Any) -> Settings:
    return Settings(values, "config.json")


def test_values_and_defaults() -> None:
    s = settings(a=3, b=0.5, c=True, d="x", e=None, f=[4, 4])
    assert (s.integer("a"), s.number("a"), s.number("b"), s.flag("c"), s.text("d", "")) == (3, 3.0, 0.5, True, "x")
    assert (s.integer("e", 7), s.number("e", 0.25), s.flag("e"), s.text("e", "y"), s.integer("f")) == (
        7,
        0.25,
        False,
        "y",
        4,
    )
    assert s.has("a")
    assert not s.has("e")
    s.refuse_rest()


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "3", 2**40, [], {}])
def test_a_bad_integer_is_refused(value: Any) -> None:
    with pytest.raises(ModelFileError, match=r"config\.json: n must be a whole number"):
        settings(n=value).integer("n")


@pytest.mark.parametrize("value", [0, -0.5, float("nan"), float("inf"), True, "3", [1.0]])
def test_a_bad_number_is_refused(value: Any) -> None:
    with pytest.raises(ModelFileError, match="n must be a finite number above 0"):
        settings(n=value).number("n")


def test_missing_and_mistyped_values_are_named() -> None:
    with pytest.raises(ModelFileError, match="n is missing"):
        settings().integer("n")
    with pytest.raises(ModelFileError, match="n is missing"):
        settings().number("n")
    with pytest.raises(ModelFileError, match="n must be true or false, got 1"):
        settings(n=1).flag("n")
    with pytest.raises(ModelFileError, match="n must be a string"):
        settings(n=1).text("n", "")
    with pytest.raises(ModelFileError, match="n must be an object"):
        settings(n=[1]).section("n")


def test_values_that_differ_between_layers_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match="n differs between layers"):
        settings(n=[1, 2]).integer("n")


def test_require_compares_types_too() -> None:
    settings(n=False).require("n", False, False)
    settings().require("n", False, False)
    with pytest.raises(UnsupportedModel, match="n is 0"):
        settings(n=0).require("n", False, False)
    with pytest.raises(UnsupportedModel, match="n is 'gelu'; forerun runs only models with 'silu'"):
        settings(n="gelu").require("n", "silu", "silu")


def test_the_rest_is_refused_by_key_and_value() -> None:
    settings(a=None, b=False, c=[], d={}, e="").refuse_rest()
    settings(a=1).refuse_rest({"a"})
    with pytest.raises(UnsupportedModel, match="'num_experts' is 8"):
        settings(num_experts=8).refuse_rest()
    with pytest.raises(UnsupportedModel, match="'scale' is 0"):
        settings(scale=0).refuse_rest()


def test_only_keys_under_the_prefix_count() -> None:
    s = Settings({"llama.a": 1, "general.b": 2}, "file", "llama.")
    assert s.integer("a") == 1
    s.refuse_rest()
    with pytest.raises(ModelFileError, match=r"file: llama\.c is missing"):
        s.integer("c")
