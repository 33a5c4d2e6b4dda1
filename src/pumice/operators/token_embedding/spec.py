"""token_embedding: rows of a table, times a factor (Gemma's √width). Also a gather of rows: tokens
are then row numbers.

The table holds floats, or codes as the head's product reads them, so that tied embeddings share the
bytes: int32[V, H/8] as `gemm_w4`, int8 or uint8 [V, H] as `gemm_w8`, with their scales.

attrs: scale, the factor (default 1); out_dtype (default: that of the table; codes need one); of
codes: group, zero (default 0), packing (4-bit codes: "rows" by default, or "blocks"). A token
outside the table, as −1, gives zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from pumice.dtypes import numpy_dtype
from pumice.operators.base import OperatorSpec
from pumice.operators.gemm_w4.spec import dense_weight as dense_weight4
from pumice.operators.gemm_w4.spec import make_weight, weight_specs
from pumice.operators.gemm_w8.spec import dense_weight as dense_weight8
from pumice.operators.triton.plan import Problem, TensorSpec, Work

FLOATS = ("float16", "bfloat16", "float32")
_BITS = {"int32": 4, "int8": 8, "uint8": 8}


def bits_of(weight: TensorSpec) -> int:
    """Bits of a table's codes; 0 for floats."""
    return _BITS.get(weight.dtype, 0)


def width_of(weight: TensorSpec) -> int:
    """Elements of a row."""
    return weight.shape[1] * (8 if bits_of(weight) == 4 else 1)


def reference(
    attrs: Mapping[str, Any], inputs: Mapping[str, np.ndarray]
) -> Mapping[str, np.ndarray]:
    weight, tokens = inputs["weight"], inputs["tokens"].astype(np.int64)
    bits = _BITS.get(weight.dtype.name, 0)
    if bits == 0:
        table = weight.astype(np.float64)
    else:
        table = (dense_weight4 if bits == 4 else dense_weight8)(attrs, {**inputs, "w": weight})
    inside = (tokens >= 0) & (tokens < len(table))
    rows = table[np.where(inside, tokens, 0)] * attrs.get("scale", 1.0)
    dtype = numpy_dtype(str(attrs.get("out_dtype", weight.dtype.name)))
    return {"out": (rows * inside[:, None]).astype(np.float32).astype(dtype)}


def output_specs(
    attrs: Mapping[str, Any], specs: Mapping[str, TensorSpec]
) -> Mapping[str, TensorSpec]:
    weight = specs["weight"]
    shape = (specs["tokens"].shape[0], width_of(weight))
    return {"out": TensorSpec(shape, str(attrs.get("out_dtype", weight.dtype)))}


def work(problem: Problem) -> Work:
    """The rows that are read, not the table."""
    table = [n for n in ("weight", "scales", "zeros", "mins") if n in problem]
    row = sum(problem[n].nbytes / max(problem[n].shape[0], 1) for n in table)
    rows = problem["out"].shape[0]
    return Work(int(rows * row) + problem["out"].nbytes + problem["tokens"].nbytes)


def _tokens(rng: np.random.Generator, count: int, vocabulary: int, index: Any) -> np.ndarray:
    """Random ones, four of them at the table's edges and beyond."""
    ids = rng.integers(0, vocabulary, count).astype(index)
    if count > 3:
        ids[:4] = (0, vocabulary - 1, -1, vocabulary)
    return ids


def cases(rng: np.random.Generator) -> list[tuple[dict[str, Any], dict[str, np.ndarray]]]:
    """Floats, then codes of 4 and of 8 bits; odd widths, no tokens."""
    found: list[tuple[dict[str, Any], dict[str, np.ndarray]]] = []
    half, brain = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
    full = np.dtype(np.float32)
    for tokens, vocabulary, width, dtype, index, attrs in (
        (5, 13, 123, half, np.int32, {}),
        (0, 13, 64, half, np.int32, {}),
        (7, 300, 769, brain, np.int64, {"scale": 3.0}),
        (1, 2, 1, full, np.int64, {}),
        (6, 17, 576, full, np.int32, {"out_dtype": "float16"}),
        (6, 17, 99, half, np.int32, {"out_dtype": "float32", "scale": 0.3}),
    ):
        weight = rng.standard_normal((vocabulary, width)).astype(dtype)
        ids = _tokens(rng, tokens, vocabulary, index)
        found.append((dict(attrs), {"tokens": ids, "weight": weight}))
    for width, group, kind, packing, out in (
        (96, 32, "", "rows", "float32"),
        (256, 64, "zeros", "blocks", "float16"),
        (384, 32, "mins", "blocks", "float32"),
        (2080, 32, "mins", "rows", "bfloat16"),
    ):
        inputs = make_weight(rng, 19, width, group, kind, packing)
        inputs = {"weight": inputs.pop("w"), **inputs}
        attrs = {"group": group, "packing": packing, "out_dtype": out, "scale": 1.5}
        attrs |= {"zero": 7} if not kind else {}
        found.append((attrs, {"tokens": _tokens(rng, 7, 19, np.int32), **inputs}))
    for width, group, codes, mins, scales, out in (
        (160, 160, np.int8, False, half, "float16"),
        (48, 16, np.int8, False, full, "float32"),
        (96, 32, np.uint8, True, half, "bfloat16"),
        (272, 16, np.uint8, True, full, "float32"),
    ):
        shape, bounds = (11, width // group), np.iinfo(codes)
        attrs = {"group": group, "out_dtype": out} | ({} if mins else {"zero": 5})
        inputs = {
            "tokens": _tokens(rng, 5, 11, np.int64),
            "weight": rng.integers(bounds.min, bounds.max + 1, (11, width), codes),
            "scales": ((rng.random(shape) + 0.5) / 64).astype(scales),
        }
        if mins:
            inputs["mins"] = rng.standard_normal(shape).astype(scales)
        found.append((attrs, inputs))
    return found


BENCH: tuple[tuple[str, dict[str, Any], dict[str, TensorSpec]], ...] = tuple(
    (
        f"{tokens} tokens of {vocabulary}x{width}",
        {},
        {
            "tokens": TensorSpec((tokens,), "int32"),
            "weight": TensorSpec((vocabulary, width), "bfloat16"),
        },
    )
    for tokens, vocabulary, width in ((32, 128256, 4096), (4096, 128256, 4096))
) + tuple(
    (
        f"{tokens} tokens of {vocabulary}x{width} in 4 bits",
        {"group": 32, "packing": "rows", "out_dtype": "float16"},
        {
            "tokens": TensorSpec((tokens,), "int32"),
            **{
                "weight" if name == "w" else name: spec
                for name, spec in weight_specs(vocabulary, width, 32, "zeros").items()
            },
        },
    )
    for tokens, vocabulary, width in ((32, 128256, 4096), (4096, 128256, 4096))
)


def bench_integers(
    attrs: Mapping[str, Any], inputs: Mapping[str, TensorSpec]
) -> dict[str, np.ndarray]:
    """Tokens inside the table."""
    count, vocabulary = inputs["tokens"].shape[0], inputs["weight"].shape[0]
    return {"tokens": np.random.default_rng(1).integers(0, vocabulary, count).astype(np.int32)}


SPEC = OperatorSpec(
    name="token_embedding",
    formula="out[t] = scale · weight[tokens[t]], of codes ((code − zero) · scales − mins)",
    axes={"T": "tokens", "V": "vocabulary", "H": "width", "G": "groups a row"},
    inputs={
        "tokens": "int32 or int64 [T]", "weight": "float, int8 or uint8 [V, H]; int32[V, H/8]",
        "scales": "float16 or float32 [V, G], with codes", "zeros": "uint8[V, G] (optional)",
        "mins": "as scales (optional, without zeros)",
    },
    outputs={"out": "out_dtype [T, H]"},
    reference=reference,
    tolerance={"float32": 1e-6, "float16": 1e-3, "bfloat16": 5e-3},
    cases=cases,
    triton_kernels=("pumice.operators.token_embedding.triton_plan:TokenEmbedding",),
    output_specs=output_specs,
    work=work,
)  # fmt: skip
