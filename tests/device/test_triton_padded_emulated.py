"""A chunk in a batch padded with empty sequences, as its compiled AMD code: programs of tiles
without rows take shares of its keys."""

from __future__ import annotations

import numpy as np
import pytest
from triton_emulated import check_emulated
from triton_harness import make_problem

from pumice.operators.paged_prefill.spec import SPEC
from pumice.operators.paged_prefill.triton_plan import PagedPrefill
from pumice.targets import get_target


@pytest.mark.parametrize(("arch", "index"), [("gfx1100", 3), ("gfx942", 0)])
def test_padded_batch(arch: str, index: int) -> None:
    attrs, inputs = SPEC.cases(np.random.default_rng(0))[index]
    count, tokens = 30, int(inputs["query_start"][-1])
    padded = dict(
        inputs,
        query_start=np.pad(inputs["query_start"], (0, count), constant_values=tokens),
        context_len=np.pad(inputs["context_len"], (0, count)),
        block_table=np.pad(inputs["block_table"], ((0, count), (0, 0))),
    )
    kernel, target = PagedPrefill(), get_target(arch)
    assert kernel.configs(make_problem(SPEC, attrs, padded), target)[0]["SPARE"]
    check_emulated(SPEC, kernel, attrs, padded, target)
