"""Builders that the sampling tests share."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from forerun.batch import Batch, DrawRequest
from forerun.speculation.tree import DraftTree


@pytest.fixture(scope="session")
def make_request() -> Callable[..., DrawRequest]:
    """DrawRequest from keywords; lists become arrays, history and bias are given as maps."""

    def build(**options: Any) -> DrawRequest:
        history = options.pop("history", {})
        bias = options.pop("bias", {})
        options.setdefault("first_output", 0)
        options.setdefault("tree", DraftTree.root_only(0))
        options.setdefault("position", 10)
        options.setdefault("key", (1, 2))
        if "allowed" in options:
            bits = sum(1 << token for token in options.pop("allowed"))
            options["masks"] = np.array([[bits]], np.uint32)
        return DrawRequest(
            history_ids=np.array(list(history), np.int32),
            history_counts=np.array(list(history.values()), np.int32),
            bias_ids=np.array(list(bias), np.int32),
            bias_values=np.array(list(bias.values()), np.float64),
            banned=np.array(options.pop("banned", []), np.int32),
            **options,
        )

    return build


@pytest.fixture(scope="session")
def make_batch() -> Callable[..., Batch]:
    """A batch of which only output_rows and draws matter."""

    def build(num_outputs: int, *draws: DrawRequest) -> Batch:
        none = np.empty(0, np.int32)
        rows = np.arange(num_outputs, dtype=np.int32)
        return Batch(
            none, none, none, none, none, np.empty((0, 0), np.int32), none, np.empty(0, np.uint64), rows, draws
        )

    return build
