"""paged_prefill: attention of ragged chunks of new tokens over a paged cache.

attrs, cache and optional inputs: those of `paged_attention`. Sequence s owns the queries
query_start[s] … query_start[s+1] − 1, the last ones of its context_len[s] keys, which are all in
the cache already. A batch may mix whole prompts, chunks, and single new tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pumice.operators.base import OperatorSpec
from pumice.operators.paged_attention.spec import (
    AXES,
    INPUTS,
    attend_ragged,
    bench_integers,
    output_specs,
    paged_inputs,
    paged_specs,
    with_options,
    work,
)
from pumice.operators.triton.plan import TensorSpec

__all__ = ["BENCH", "SPEC", "bench_integers"]


def reference(
    attrs: Mapping[str, Any], inputs: Mapping[str, np.ndarray]
) -> Mapping[str, np.ndarray]:
    """softmax(scale · q·kᵀ + causal mask)·v, a sequence at a time, float64."""
    return attend_ragged(attrs, inputs, inputs["query_start"].tolist())


_BF16, _FP16 = ("bfloat16", "bfloat16"), ("float16", "float16")
_Shape = tuple[
    tuple[str, str], tuple[int, int, int, int], int, list[int], list[int], dict[str, Any]
]
# dtypes of q and the cache, (H, Hk, D, Dv), block size, queries, contexts, attrs
_SHAPES: list[_Shape] = [
    (_BF16, (3, 1, 80, 80), 16, [5, 0, 33], [5, 3, 70], {}),
    (_FP16, (4, 2, 64, 64), 16, [1, 1, 60], [97, 1, 60], {}),
    (_BF16, (8, 2, 128, 128), 32, [40], [170], {}),
    (_FP16, (6, 2, 64, 64), 64, [40, 3], [150, 131], {"window_left": 33}),
    (_BF16, (7, 1, 96, 96), 16, [20, 1], [20, 77], {"softcap": 3.0, "sinks": True}),
    (("bfloat16", "float8_e4m3fn"), (4, 2, 64, 64), 16, [9, 2], [70, 3], {"scales": 2}),
    (_FP16, (2, 2, 256, 256), 16, [21], [40], {"scale": 0.02, "sinks": True}),
    (_BF16, (4, 2, 64, 64), 16, [], [], {}),
    (_FP16, (6, 3, 16, 16), 16, [5, 1, 20], [5, 40, 37], {}),
    (_FP16, (3, 1, 32, 32), 16, [17, 1], [17, 33], {}),
    (_BF16, (1, 1, 128, 128), 16, [50], [64], {}),  # rows enough for Hopper's kernel
]


def cases(rng: np.random.Generator) -> list[tuple[dict[str, Any], dict[str, np.ndarray]]]:
    """Prompts, chunks and single tokens in one batch, sequences without queries, partial blocks."""
    found: list[tuple[dict[str, Any], dict[str, np.ndarray]]] = []
    for dtypes, shape, block_size, queries, contexts, options in _SHAPES:
        attrs = dict(options)
        inputs = paged_inputs(rng, dtypes, shape, block_size, queries, contexts)
        inputs["query_start"] = np.cumsum([0, *queries]).astype(np.int32)
        with_options(rng, attrs, inputs)
        found.append((attrs, inputs))
    return found


def _bench(
    label: str,
    shape: tuple[int, int, int, int],
    batch: int,
    queries: int,
    context: int,
    *rest: Any,
    **attrs: Any,
) -> tuple[str, dict[str, Any], dict[str, TensorSpec]]:
    tensors = paged_specs(shape, batch, context, batch * queries, *rest)
    return label, attrs, {**tensors, "query_start": TensorSpec((batch + 1,), "int32")}


_LLAMA3_8B = (32, 8, 128, 128)
# label, attrs, inputs; `bench_integers` fills the integer ones
BENCH: tuple[tuple[str, dict[str, Any], dict[str, TensorSpec]], ...] = (
    _bench("Llama-3-8B 4×2048 of 2048", _LLAMA3_8B, 4, 2048, 2048),
    _bench("Llama-3-8B 1×2048 of 16384", _LLAMA3_8B, 1, 2048, 16384),
    _bench("Llama-3-8B 1×2048 of 16384, blocks of 64", _LLAMA3_8B, 1, 2048, 16384, 64),
    _bench("Llama-3-8B 1×512 of 8192, fp8 cache", _LLAMA3_8B, 1, 512, 8192, 16, "float8_e4m3fn"),
    _bench("Llama-3-8B 16×5 of 4096", _LLAMA3_8B, 16, 5, 4096),
    _bench("Llama-2-7B 2×2048 of 4096", (32, 32, 128, 128), 2, 2048, 4096),
    _bench("Llama-3-70B 1×4096 of 8192", (64, 8, 128, 128), 1, 4096, 8192),
    _bench("Mixtral-8x7B 1×2048 of 8192, window 4096", _LLAMA3_8B, 1, 2048, 8192, window_left=4095),
    _bench("gpt-oss 1×2048 of 8192, head 64", (64, 8, 64, 64), 1, 2048, 8192),
    *(
        (
            f"{name} 1×{chunk} and 63×1 of 1024",
            {},
            {
                **paged_specs(shape, 64, 1024, chunk + 63, 32),
                "query_start": TensorSpec((65,), "int32"),
            },
        )
        for name, shape in (("Llama-3-8B", _LLAMA3_8B), ("Llama-2-7B", (32, 32, 128, 128)))
        for chunk in (64, 448)
    ),
)

SPEC = OperatorSpec(
    name="paged_prefill",
    formula="out[t, h] = Σ_p softmax_p(scale · q[t, h]·k[p]) v[p], p ≤ position(t)",
    axes={"T": "queries of all sequences", **AXES},
    inputs={**INPUTS, "q": "dtype[T, H, D]", "query_start": "int32[S+1]"},
    outputs={"out": "dtype[T, H, Dv]"},
    reference=reference,
    tolerance={"bfloat16": 6e-3, "float16": 1e-3},
    cases=cases,
    triton_kernels=(
        "pumice.operators.paged_prefill.triton_plan:PagedPrefill",
        "pumice.operators.paged_prefill.hopper_plan:PagedPrefillHopper",
    ),
    output_specs=output_specs,
    work=work,
)
