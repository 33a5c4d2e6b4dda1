"""Flash attention in Triton's interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from triton_harness import interpret, make_problem, relative_error, run_case

from pumice.operators.flash_attention.spec import SPEC
from pumice.operators.flash_attention.triton_plan import FlashAttention
from pumice.operators.triton.plan import Problem, TensorSpec
from pumice.targets import GPU_TARGETS

TARGETS = {target.name: target for target in GPU_TARGETS}
CASES = SPEC.cases(np.random.default_rng(0))
KERNEL = FlashAttention()


def check(attrs: dict[str, Any], inputs: dict[str, np.ndarray], got: dict[str, np.ndarray]) -> None:
    expected = SPEC.reference(attrs, inputs)
    assert got.keys() == expected.keys()
    for name, array in got.items():
        want = expected[name]
        assert np.array_equal(np.isneginf(array.astype(np.float64)), np.isneginf(want))
        limit = SPEC.tolerance[inputs["q"].dtype.name] if name == "out" else 2e-3
        finite = np.isfinite(want)
        assert relative_error(array[finite], want[finite]) < limit, name


@pytest.mark.parametrize("index", range(len(CASES)))
def test_cases(index: int) -> None:
    """Targets take turns: they differ in tile sizes only."""
    attrs, inputs = CASES[index]
    target = TARGETS[("sm_90", "gfx1100", "gfx942", "gfx1201")[index % 4]]
    check(attrs, inputs, run_case(SPEC, KERNEL, attrs, inputs, target))


@pytest.mark.parametrize("index", [0, 4, 7])
def test_another_tile(index: int) -> None:
    attrs, inputs = CASES[index]
    target = TARGETS["gfx1100"]
    config = {**KERNEL.configs(make_problem(SPEC, attrs, inputs), target)[-1], "BLOCK_V": 64}
    check(attrs, inputs, run_case(SPEC, KERNEL, attrs, inputs, target, config))


def test_strided_views() -> None:
    """q, k and v as slices of one fused projection, out as a slice of a wider tensor."""
    rng = np.random.default_rng(1)
    attrs, inputs = {"causal": True}, {}
    fused = rng.standard_normal((37, 6 * 64 + 8)).astype(np.float16)
    views = {
        "q": fused[:, : 4 * 64].reshape(37, 4, 64),
        "k": fused[:, 4 * 64 : 5 * 64].reshape(37, 1, 64),
        "v": fused[:, 5 * 64 : 6 * 64].reshape(37, 1, 64),
    }
    starts = np.array([0, 30, 37], np.int32)
    inputs = {**views, "cu_seqlens_q": starts, "cu_seqlens_k": starts}
    wide = np.full((37, 4, 96), np.nan, np.float16)
    width = fused.shape[1]
    specs = {
        name: TensorSpec(view.shape, "float16", (width, 64, 1)) for name, view in views.items()
    } | {
        "cu_seqlens_q": TensorSpec((3,), "int32"),
        "cu_seqlens_k": TensorSpec((3,), "int32"),
        "out": TensorSpec((37, 4, 64), "float16", (4 * 96, 96, 1)),
    }
    problem = Problem("flash_attention", specs, attrs)
    assert KERNEL.supports(problem, TARGETS["sm_90"]) is None
    plan = KERNEL.plan(problem, TARGETS["sm_90"], KERNEL.configs(problem, TARGETS["sm_90"])[0])
    flat = torch.from_numpy(fused).reshape(-1)
    tensors = {
        "q": flat,
        "k": flat[4 * 64 :],
        "v": flat[5 * 64 :],
        "cu_seqlens_q": torch.from_numpy(starts),
        "cu_seqlens_k": torch.from_numpy(starts),
        "out": torch.from_numpy(wide),
    }
    interpret(problem, plan, tensors)
    assert np.isnan(wide[:, :, 64:].astype(np.float32)).all()
    check(attrs, inputs, {"out": wide[:, :, :64]})


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"q": TensorSpec((5, 3, 80), "float32")}, "float32"),
        ({"k": TensorSpec((8, 2, 80), "bfloat16")}, "do not fit"),
        ({"q": TensorSpec((5, 4, 80), "bfloat16"), "k": TensorSpec((8, 3, 80), "bfloat16"),
          "v": TensorSpec((8, 3, 80), "bfloat16")}, "no multiple"),
        ({"v": TensorSpec((8, 1, 300), "bfloat16")}, "size 300"),
        ({"q": TensorSpec((5, 3, 80), "bfloat16", (240, 1, 3))}, "stride 3"),
        ({"cu_seqlens_k": TensorSpec((3,), "int64")}, "int64"),
        ({"cu_seqlens_k": TensorSpec((4,), "int32")}, "different numbers"),
    ],
)  # fmt: skip
def test_refusals(change: dict[str, TensorSpec], word: str) -> None:
    base = {
        "q": TensorSpec((5, 3, 80), "bfloat16"),
        "k": TensorSpec((8, 1, 80), "bfloat16"),
        "v": TensorSpec((8, 1, 80), "bfloat16"),
        "cu_seqlens_q": TensorSpec((3,), "int32"),
        "cu_seqlens_k": TensorSpec((3,), "int32"),
        "out": TensorSpec((5, 3, 80), "bfloat16"),
    }
    why = KERNEL.supports(Problem("flash_attention", {**base, **change}, {}), TARGETS["sm_90"])
    assert why is not None and word in why


@pytest.mark.parametrize(
    ("attrs", "word"), [({"scale": 0.0}, "scale"), ({"softcap": -1.0}, "softcap"),
                        ({"window_left": -2}, "window_left")]
)  # fmt: skip
def test_refused_attributes(attrs: dict[str, Any], word: str) -> None:
    problem = make_problem(SPEC, attrs, CASES[0][1])
    why = KERNEL.supports(problem, TARGETS["sm_90"])
    assert why is not None and word in why
