"""The suite draws the same noise many times over: once for plain decoding, once for every engine."""

import pytest

from forerun.sampling import walk
from tests.fakes import cached_gumbel


@pytest.fixture(autouse=True)
def remember_noise(monkeypatch):
    monkeypatch.setattr(walk, "gumbel", cached_gumbel)
