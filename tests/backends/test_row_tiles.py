"""Every kernel table that exists says how many rows one pass over the weights serves."""

from forerun import _native
from forerun.backends.cpu import ROW_TILES


def test_every_table_has_a_row_tile() -> None:
    assert set(_native.all_tables()) <= set(ROW_TILES)
