"""Every case of every Triton operator as machine code of gfx1100, executed on an emulated card that
looks for races, accesses out of bounds and NaN."""

from __future__ import annotations

import pytest
from emulated_cases import all_pass, cases_for

from pumice.operators.registry import GPU_OPERATORS

pytestmark = pytest.mark.timeout(900)  # many are compiled one after the other


@pytest.mark.parametrize("name", GPU_OPERATORS)
def test_every_case(name: str) -> None:
    cases = cases_for(name, "gfx1100")
    assert cases, f"no case of {name} runs on gfx1100"
    all_pass(cases, "gfx1100")
