"""Rows whose tokens the device takes from its last step, copied in stretches."""

from __future__ import annotations

import numpy as np
import pytest

from pumice.runtime.gpu_sampling import runs


@pytest.mark.parametrize(
    ("sources", "wanted"),
    [
        ([], []),
        ([-1, -1], []),
        ([0, 1, 2], [(0, 0, 3)]),
        ([3, -1, 0, 1, 7], [(0, 3, 1), (2, 0, 2), (4, 7, 1)]),
    ],
)
def test_stretches_of_rows(sources: list[int], wanted: list[tuple[int, int, int]]) -> None:
    assert list(runs(np.array(sources, np.int32))) == wanted


# Loading
