"""Attention of new tokens in one launch as its compiled AMD code, several shares a sequence: they
meet at counters in memory. No access out of bounds, no race."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from triton_harness import make_problem, poisoned

from pumice.emulator.emulator import Emulator
from pumice.operators.decode_attention.spec import SPEC
from pumice.operators.decode_attention.triton_plan import DecodeAttention
from pumice.operators.triton.build import build_plan
from pumice.targets import get_target
from pumice.verify.judge import relative_error

KERNEL = DecodeAttention()
CASES = SPEC.cases(np.random.default_rng(0))


@pytest.mark.parametrize(
    ("arch", "index", "changes"),
    [
        ("gfx1100", 0, {"SPLITS": 4, "BLOCK_N": 16}),
        ("gfx942", 2, {"SPLITS": 4, "BLOCK_N": 16}),
        ("gfx942", 4, {"SPLITS": 3, "BLOCK_N": 16, "BLOCK_V": 64}),
        ("gfx1201", 3, {"SPLITS": 4, "BLOCK_N": 32}),
    ],
)
def test_shares_meet(arch: str, index: int, changes: dict[str, Any]) -> None:
    """Twice with the same counters: they are zero again after a launch."""
    attrs, inputs = CASES[index]
    target = get_target(arch)
    problem = make_problem(SPEC, attrs, inputs)
    plan = KERNEL.plan(problem, target, {**KERNEL.configs(problem, target)[0], **changes})
    assert plan.restored == {"counters"} and len(plan.launches) == 1
    arrays = {n: inputs[n] if n in inputs else poisoned(s) for n, s in problem.tensors.items()}
    for name, spec in plan.workspaces.items():
        zero = name in plan.zeroed
        arrays[name] = np.zeros(spec.shape, np.int32) if zero else poisoned(spec)
    emulator = Emulator(target.arch)
    places = {n: emulator.upload(np.ascontiguousarray(a)) for n, a in arrays.items()}
    (binary,) = build_plan(problem, plan, target)
    module = emulator.load(binary.code)
    launch = plan.launches[0]
    values = [launch.arguments[name] for name, _ in binary.parameters]
    expected = SPEC.reference(attrs, inputs)
    bits = []
    for _ in range(2):
        report = emulator.launch(
            (module, binary.symbol), launch.grid, (binary.threads, 1, 1),
            [places[v] if isinstance(v, str) else v for v in values], lds_bytes=binary.shared_bytes,
        )  # fmt: skip
        # A division's intermediate NaN is mended by its last instruction (v_div_fixup).
        assert [f for f in report.faults if "nan-from-infinity" not in str(f)] == []
        for name, reference in expected.items():
            got = emulator.download(places[name], reference.shape, arrays[name].dtype)
            assert relative_error(got, reference) <= SPEC.tolerance[got.dtype.name], name
        counters = plan.workspaces["counters"].shape
        assert not emulator.download(places["counters"], counters, np.dtype(np.int32)).any()
        bits.append(emulator.download(places["out"], problem["out"].shape, arrays["out"].dtype))
    assert np.array_equal(bits[0].view(np.uint16), bits[1].view(np.uint16))
