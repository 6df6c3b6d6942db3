"""The names that users import from the package."""

import ast
from pathlib import Path

import pytest

import forerun


@pytest.mark.parametrize("name", forerun.__all__)
def test_every_public_name_loads(name: str) -> None:
    assert getattr(forerun, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        forerun.nonsense  # noqa: B018


def test_type_checkers_see_the_same_names() -> None:
    stub = ast.parse(Path(forerun.__file__).with_suffix(".pyi").read_text())
    imported = {alias.asname for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert imported | {"__version__"} == set(forerun.__all__)
