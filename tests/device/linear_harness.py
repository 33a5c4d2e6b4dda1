"""Random packed weights and padded activations for matmul tests.

Activations and outputs have a multiple of 8 rows, as the compiler's arena gives them; what stands
in the rows beyond T is poison, and what a kernel writes there is not looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from harness import Output, Runner, host_target

from pumice.dtypes import numpy_dtype
from pumice.operators.base import Kernel, OperatorCall
from pumice.operators.linear import layout_for
from pumice.operators.quantized import dequantize_rows, quantize_rows
from pumice.operators.registry import get_spec
from pumice.quantization import AffineWeight, QuantFormat
from pumice.quantization.pack import dequantize, pack_affine, pack_dense
from pumice.targets import Target

# Compiling takes seconds, and formats that differ in name only share a symbol.
_COMPILED: dict[str, Runner] = {}
ROWS = 8  # intermediates are allocated in multiples of this many rows


def random_weight(
    rng: np.random.Generator, fmt: QuantFormat, n: int, k: int, target: Target
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """(packed arrays by argument name, the values they stand for float32[n, k]); every code is
    used.
    """
    layout = layout_for(target, fmt)
    if not fmt.affine:
        data = rng.standard_normal((n, k)).astype(numpy_dtype(str(fmt.dense_dtype)))
        packed = pack_dense(data, fmt, layout)
        values = data.astype(np.float32)
    else:
        codes = rng.integers(0, fmt.code_max + 1, (n, k)).astype(np.uint8)
        codes.flat[: fmt.code_max + 1] = np.arange(min(codes.size, fmt.code_max + 1))
        shape = (n, k // fmt.group)
        dtype = numpy_dtype(fmt.scale_dtype)
        scales = (rng.standard_normal(shape) / fmt.code_max).astype(dtype)
        mins = rng.standard_normal(shape).astype(dtype) if fmt.has_min else None
        weight = AffineWeight(codes, scales, mins)
        packed = pack_affine(weight, fmt, layout)
        values = dequantize(weight, fmt)
    return {f"w.{name}": np.ascontiguousarray(a) for name, a in packed.items()}, values


def _padded(array: np.ndarray) -> np.ndarray:
    """Rows up to a multiple of ROWS, filled with what must not matter."""
    rest = -len(array) % ROWS
    poison = np.nan if array.dtype.kind == "f" else -128
    return np.concatenate([array, np.full((rest, array.shape[1]), poison, array.dtype)])


def linear_call(
    fmt: QuantFormat, attrs: Mapping[str, Any], activations: str, target: Target
) -> OperatorCall:
    planes = {"activations": activations, "planes": 2 if activations == "int16" else 1}
    every = {**attrs, **planes, "sum_group": 16 if fmt.group == 16 else 32}
    return OperatorCall("linear", every, {"w": (fmt, layout_for(target, fmt))})


class LinearRunner:
    """One compiled symbol, called with many sizes."""

    def __init__(
        self, kernel: Kernel, call: OperatorCall, config: Mapping[str, int] | None = None
    ) -> None:
        target = host_target()
        assert kernel.supports(call, target) is None
        config = kernel.configs(call, target)[0] if config is None else config
        self.call = call
        self.fmt = call.weights["w"][0]
        source = kernel.source(call, target, config)
        if source.symbol not in _COMPILED:
            _COMPILED[source.symbol] = Runner(source)
        self.run = _COMPILED[source.symbol]

    def error(self, rng: np.random.Generator, n: int, k: int, tokens: int) -> float:
        """Error of a random problem over the size that such sums have; NaN when an output row
        below T holds one.

        The size is that of K random products: one output alone may happen to be near zero.
        """
        fmt, attrs = self.fmt, self.call.attrs
        packed, weight = random_weight(rng, fmt, n, k, host_target())
        x = rng.standard_normal((tokens, k)).astype(np.float32)
        x[: tokens // 3] *= 1e-3
        if attrs["activations"] == "float32":
            inputs = {"x": _padded(x)}
        else:
            quantized = quantize_rows(x, int(attrs["sum_group"]), int(attrs["planes"]))
            x = dequantize_rows(quantized)
            inputs = {name: _padded(array) for name, array in quantized.items()}
        reference: dict[str, np.ndarray] = {"x": x, "weight": weight}
        if attrs["bias"]:
            reference["bias"] = inputs["bias"] = rng.standard_normal(n).astype(np.float32)
        if attrs["residual"]:
            residual = rng.standard_normal((tokens, n)).astype(np.float32)
            reference["residual"] = residual
            inputs["residual"] = _padded(residual)
        out = Output((tokens + -tokens % ROWS, n), "float32")
        self.run({**inputs, **packed}, {"out": out}, {"T": tokens, "N": n, "K": k})
        expected = get_spec("linear").reference(attrs, reference)["out"]
        size = np.linalg.norm(np.abs(x).astype(np.float64) @ np.abs(weight).T) / np.sqrt(k)
        actual = out.array[:tokens].astype(np.float64)
        scale = max(float(np.linalg.norm(expected)), float(size), 1e-30)
        return float(np.linalg.norm(actual - expected)) / scale
