"""Drafters that run a model or trained heads, along the axes of speculation: nothing changes what is said."""

import itertools
from dataclasses import fields

import pytest

from tests.lossless.matrix import BATCHES, DEPTHS, METHODS
from tests.lossless.model_drafters import DRAFTERS, OPTIONS, WIDTHS, Cell, Matrix, all_cells, rotating_cells


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Matrix:
    return Matrix(tmp_path_factory.mktemp("matrix"))


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_every_drafter_says_what_plain_decoding_says(drafter: str, matrix: Matrix) -> None:
    for cell in rotating_cells(drafter):
        assert matrix.differences(cell) == [], cell
    assert matrix.deepest[drafter] > 8


@pytest.mark.slow
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_every_combination(drafter: str, matrix: Matrix) -> None:
    for cell in all_cells(drafter):
        assert matrix.differences(cell) == [], cell


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_values_meet(drafter: str) -> None:
    """With every drafter, any two values of the other axes."""
    axes = {"depth": DEPTHS, "width": WIDTHS, "batch": BATCHES, "option": tuple(OPTIONS), "method": tuple(METHODS)}
    assert {field.name for field in fields(Cell)} == {"drafter", *axes}
    cells = rotating_cells(drafter)
    for a, b in itertools.combinations(axes, 2):
        met = {(getattr(cell, a), getattr(cell, b)) for cell in cells}
        assert met == set(itertools.product(axes[a], axes[b])), (a, b)


def test_a_token_of_another_answer_is_found(matrix: Matrix) -> None:
    cell = Cell("draft-model", 4, 3, 3, "penalties", "seeded")
    matrix.differences(cell)
    plain = matrix._plain["penalties", "seeded"]
    tokens, *others = plain[2]
    plain[2] = ([*tokens[:-1], tokens[-1] + 1], *others)  # type: ignore[misc]
    try:
        assert len(matrix.differences(cell)) == 1
    finally:
        plain[2] = (tokens, *others)
