"""mla_decode: decode attention over a latent cache (DeepSeek-V2, arXiv:2405.04434), with the key
and value projections absorbed into q and the output.

attrs: scale (1/sqrt(D) when absent; models give that of their unabsorbed heads, times YaRN's
correction), value_dim (Dv, 512).

All heads of sequence s read its context_len[s] rows of the cache, found as in `paged_attention`:
the whole row of D columns is the key, its first Dv columns (the latent) the value; the other D − Dv
hold the rotated part.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pumice.dtypes import itemsize, numpy_dtype
from pumice.operators.base import OperatorSpec
from pumice.operators.flash_attention.spec import attend
from pumice.operators.paged_attention.spec import bench_integers, context_of, paged_inputs
from pumice.operators.triton.plan import Problem, TensorSpec, Work

__all__ = ["BENCH", "SPEC", "bench_integers"]

VALUE_DIM = 512


def reference(
    attrs: Mapping[str, Any], inputs: Mapping[str, np.ndarray]
) -> Mapping[str, np.ndarray]:
    """softmax(scale · q·cᵀ)·c[:, :Dv], a sequence at a time, float64."""
    q, dim_v = inputs["q"], attrs.get("value_dim", VALUE_DIM)
    paged = {**inputs, "k_cache": inputs["k_cache"][:, :, None]}
    out = np.zeros((*q.shape[:2], dim_v))
    for s in range(len(q)):
        rows = context_of(paged, "k_cache", "", s)
        out[s] = attend(attrs, q[s : s + 1], rows, rows[:, :, :dim_v])[0][0]
    return {"out": out}


def output_specs(
    attrs: Mapping[str, Any], specs: Mapping[str, TensorSpec]
) -> Mapping[str, TensorSpec]:
    sequences, heads, _ = specs["q"].shape
    dim_v = attrs.get("value_dim", VALUE_DIM)
    return {"out": TensorSpec((sequences, heads, dim_v), specs["q"].dtype)}


def work(problem: Problem) -> Work:
    """Least bytes and operations when every context fills its row of the block table."""
    sequences, width = problem["block_table"].shape
    cache, (_, heads, dim) = problem["k_cache"], problem["q"].shape
    keys = sequences * width * cache.shape[1]
    rest = (t.nbytes for name, t in problem.tensors.items() if name != "k_cache")
    return Work(
        bytes=keys * dim * itemsize(cache.dtype) + sum(rest),
        flops=2.0 * heads * keys * (dim + problem["out"].shape[2]),
        dtype=problem["q"].dtype,
    )


# dtype, heads, D, block size, contexts, attrs
_SHAPES: list[tuple[str, int, int, int, list[int], dict[str, Any]]] = [
    ("bfloat16", 8, 576, 16, [70, 0], {"scale": 0.07}),
    ("float16", 20, 160, 64, [130, 1], {"value_dim": 128}),
    ("bfloat16", 128, 192, 32, [33], {"value_dim": 128, "scale": 0.1}),
    ("float16", 3, 144, 16, [300], {"value_dim": 128}),
    ("bfloat16", 16, 192, 16, [], {"value_dim": 128}),
]


def cases(rng: np.random.Generator) -> list[tuple[dict[str, Any], dict[str, np.ndarray]]]:
    """DeepSeek's sizes and small ones, head counts of 3 to 128, no keys, one key, no sequences."""
    found: list[tuple[dict[str, Any], dict[str, np.ndarray]]] = []
    for name, heads, dim, block_size, contexts, attrs in _SHAPES:
        shape = (heads, 1, dim, 16)
        inputs = paged_inputs(rng, (name, name), shape, block_size, [1] * len(contexts), contexts)
        inputs.pop("v_cache")
        inputs["k_cache"] = np.ascontiguousarray(inputs["k_cache"][:, :, 0])
        assert inputs["q"].dtype == numpy_dtype(name)
        found.append((dict(attrs), inputs))
    return found


def _bench(
    label: str, heads: int, batch: int, context: int, block_size: int = 64
) -> tuple[str, dict[str, Any], dict[str, TensorSpec]]:
    width = context // block_size
    tensors = {
        "q": TensorSpec((batch, heads, 576), "bfloat16"),
        "k_cache": TensorSpec((batch * width, block_size, 576), "bfloat16"),
        "block_table": TensorSpec((batch, width), "int32"),
        "context_len": TensorSpec((batch,), "int32"),
    }
    return label, {"scale": 192**-0.5}, tensors


# label, attrs, inputs; `bench_integers` fills the integer ones
BENCH: tuple[tuple[str, dict[str, Any], dict[str, TensorSpec]], ...] = (
    _bench("DeepSeek-V3 128 heads 32×4096", 128, 32, 4096),
    _bench("DeepSeek-V3 128 heads 128×4096", 128, 128, 4096),
    _bench("DeepSeek-V3 16 heads 128×4096", 16, 128, 4096),
    _bench("DeepSeek-V3 16 heads 32×8192", 16, 32, 8192),
    _bench("DeepSeek-V3 16 heads 1×32768", 16, 1, 32768),
    _bench("DeepSeek-V3 8 heads 64×4096", 8, 64, 4096),
    _bench("DeepSeek-V3 32 heads 64×4096", 32, 64, 4096),
    _bench("DeepSeek-V2-Lite 16 heads 32×4096, blocks of 16", 16, 32, 4096, 16),
)

SPEC = OperatorSpec(
    name="mla_decode",
    formula="out[s, h] = Σ_p softmax_p(scale · q[s, h]·c[p]) c[p, :Dv], p < context_len[s]",
    axes={
        "S": "sequences",
        "H": "heads",
        "D": "columns of a cache row (576)",
        "Dv": "columns of the latent (512)",
        "M": "width of the block table",
    },
    inputs={
        "q": "dtype[S, H, D]",
        "k_cache": "dtype[blocks, block_size, D], any strides but the last",
        "block_table": "int32[S, M]",
        "context_len": "int32[S]",
    },
    outputs={"out": "dtype[S, H, Dv]"},
    reference=reference,
    tolerance={"bfloat16": 6e-3, "float16": 1e-3},
    cases=cases,
    triton_kernels=(
        "pumice.operators.mla_decode.hopper_plan:MlaDecodeHopper",
        "pumice.operators.mla_decode.triton_plan:MlaDecode",
    ),
    output_specs=output_specs,
    work=work,
)
