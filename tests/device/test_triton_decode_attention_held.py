"""decode_attention's kernel for few keys, in Triton's interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from triton_harness import make_problem, relative_error, run_case

from pumice.operators.decode_attention.held import HeldAttention
from pumice.operators.decode_attention.spec import SPEC
from pumice.targets import get_target

HOPPER = get_target("sm_90")
KERNEL = HeldAttention()


def _case(
    heads: int, kv_heads: int, dim: int, contexts: list[int], page: int, *parts: str
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    rng = np.random.default_rng(heads + dim + contexts[0])
    count, most = len(contexts), max(contexts)
    width = -(-most // page)
    blocks = rng.permutation(count * width + 2)

    def some(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float16)

    table = blocks[: count * width].reshape(count, width).astype(np.int32)
    last = np.array(contexts) - 1
    slots = table[np.arange(count), np.maximum(last, 0) // page] * page + last % page
    inputs = {
        "q": some(count, heads, dim), "k": some(count, kv_heads, dim),
        "v": some(count, kv_heads, dim),
        "positions": np.maximum(last, 0).astype(np.int32),
        "inv_freq": (10000.0 ** (-np.arange(dim // 2) / (dim // 2))).astype(np.float32),
        "slots": np.where(last >= 0, slots, -1).astype(np.int32),
        "k_cache": some(len(blocks), page, kv_heads, dim),
        "v_cache": some(len(blocks), page, kv_heads, dim),
        "block_table": table, "context_len": np.array(contexts, np.int32),
    }  # fmt: skip
    attrs: dict[str, Any] = {}
    if "norm" in parts:
        attrs = {"eps": 1e-6, "weight_offset": 1.0}
        inputs |= {n: (some(dim) / 4).astype(np.float16) for n in ("q_weight", "k_weight")}
    if "interleaved" in parts:
        attrs["interleaved"] = True
        inputs["inv_freq"] = inputs["inv_freq"][: dim // 4]
    return attrs, inputs


@pytest.mark.parametrize(
    ("case", "config"),
    [
        ((2, 2, 128, [1], 32), {}),
        ((2, 2, 128, [31, 33], 32), {}),
        ((4, 1, 128, [32, 0, 255], 32), {"BLOCK_N": 64, "SPLITS": 4, "PARTS": 2}),
        ((8, 1, 64, [150], 16, "norm"), {"BLOCK_N": 64, "SPLITS": 2}),
        ((2, 1, 64, [129, 5], 16, "interleaved"), {"BLOCK_N": 64, "SPLITS": 2}),
        ((2, 1, 128, [1000], 32), {"BLOCK_N": 256, "SPLITS": 4}),
        ((1, 1, 128, [300], 32), {"BLOCK_N": 64, "SPLITS": 1, "PARTS": 4}),
    ],
    ids=str,
)
def test_cases(case: Any, config: Any) -> None:
    attrs, inputs = _case(*case)
    assert KERNEL.supports(make_problem(SPEC, attrs, inputs), HOPPER) is None
    config = {"BLOCK_N": 128, "SPLITS": 2, "PARTS": 1, "warps": 8, "early": 0, **config}
    got = run_case(SPEC, KERNEL, attrs, inputs, HOPPER, config)
    for name, expected in SPEC.reference(attrs, inputs).items():
        assert relative_error(got[name], expected) < SPEC.tolerance["float16"], name
