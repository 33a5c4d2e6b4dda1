"""fused_w4 in Triton's interpreter, against float64: in plain arithmetic, and in each vendor's packed
instructions, emulated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from asm_emulator import create_inline_asm
from triton.runtime.interpreter import InterpreterBuilder
from triton_cases import check, runs
from triton_harness import make_problem

from pumice.operators.fused_w4.spec import SPEC
from pumice.targets import get_target

# Devices so small that a program walks over several tiles.
HOPPER = replace(get_target("sm_90"), compute_units=2)
CDNA3 = replace(get_target("gfx942"), compute_units=2)


@pytest.fixture(autouse=True)
def assembly(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(InterpreterBuilder, "create_inline_asm", create_inline_asm, raising=False)
    yield


def _small(kernel: Any, attrs: Any, inputs: Any, target: Any) -> dict[str, int]:
    """The favourite configuration, in slices and programs small enough for an interpreter."""
    config = dict(kernel.configs(make_problem(SPEC, attrs, inputs), target)[0])
    return config | {"groups": min(config["groups"], 16), "units": 1}


@pytest.mark.parametrize("target", [HOPPER, CDNA3], ids=lambda t: t.name)
def test_cases(target: Any) -> None:
    for _, kernel, attrs, inputs, target_ in runs(SPEC, (target,)):
        check(SPEC, kernel, attrs, inputs, target_, _small(kernel, attrs, inputs, target_))
