"""The calls that the self-test makes: each operator's own cases, with weights in every kind of
format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pumice.dtypes import numpy_dtype
from pumice.operators.base import Kernel, KernelSource, OperatorCall, OperatorSpec
from pumice.operators.linear import layout_for
from pumice.operators.quantized import dequantize_rows, quantize_rows
from pumice.operators.registry import get_spec, kernels_of
from pumice.quantization import AffineWeight, QuantFormat, get_format
from pumice.quantization.pack import dequantize, pack_affine, pack_dense
from pumice.targets import Target

CASES = 6  # of each kernel, entry point and format
FORMATS = ("q4f16_1", "q4_1", "q8_0", "q6_k", "f16")
_SEED = 20240229


@dataclass(frozen=True)
class Case:
    """One call of one kernel. inputs: what the kernel reads. expected: what the reference says."""

    spec: OperatorSpec
    kernel: Kernel
    call: OperatorCall
    source: KernelSource
    inputs: Mapping[str, np.ndarray]
    expected: Mapping[str, np.ndarray]


def cases_of(name: str, target: Target) -> list[Case]:
    """The first cases of every kernel of an operator that the target supports, for both entry
    points.
    """
    spec = get_spec(name)
    found: dict[tuple[str, int], Case] = {}
    for kernel in kernels_of(name):
        for fmt, activations in _variants(name):
            for entry in ("decode", "extend"):
                symbols: set[str] = set()
                rng = np.random.default_rng(_SEED)
                taken = 0
                for index, (attrs, inputs) in enumerate(spec.cases(rng)):
                    if taken == CASES or not _fits(entry, inputs):
                        continue
                    given, reference = inputs, inputs
                    call = OperatorCall(name, attrs, entry=entry)
                    if fmt is not None:
                        call = _weighted(call, fmt, activations, target)
                        if inputs["weight"].shape[1] % max(32, fmt.group):
                            continue
                        given, reference = _pack(call, inputs, rng)
                    if kernel.supports(call, target) is not None:
                        continue
                    source = kernel.source(call, target, kernel.configs(call, target)[0])
                    if fmt is not None and symbols - {source.symbol}:
                        continue  # one kernel a format: they take seconds to compile
                    if activations.startswith("int") and "x_codes" not in source.arguments:
                        continue  # a float kernel that would do: it has its own variant
                    symbols.add(source.symbol)
                    expected = spec.reference(call.attrs, reference)
                    case = Case(spec, kernel, call, source, given, expected)
                    found.setdefault((source.symbol, index), case)
                    taken += 1
    return list(found.values())


def _fits(entry: str, inputs: Mapping[str, np.ndarray]) -> bool:
    """`decode` is one token a sequence."""
    if entry == "extend" or "query_start" not in inputs:
        return True
    return bool((np.diff(inputs["query_start"]) == 1).all())


def _variants(name: str) -> list[tuple[QuantFormat | None, str]]:
    """(format, activations) of the weights that an operator is tried with."""
    if name == "linear":
        exact = [(get_format(fmt), "float32") for fmt in ("q4f16_1", "f16")]
        quantized = [(get_format(fmt), "int8") for fmt in FORMATS if fmt != "f16"]
        return [*quantized, (get_format("q4_1"), "int16"), *exact]
    if name == "embedding":
        return [(get_format(fmt), "float32") for fmt in FORMATS]
    return [(None, "")]


def _weighted(
    call: OperatorCall, fmt: QuantFormat, activations: str, target: Target
) -> OperatorCall:
    """The call with a weight of a format."""
    attrs = dict(call.attrs)
    if call.operator == "linear":
        planes = 2 if activations == "int16" else 1
        attrs |= {"activations": activations, "sum_group": min(32, fmt.group), "planes": planes}
    return OperatorCall(
        call.operator, attrs, {"w": (fmt, layout_for(target, fmt))}, entry=call.entry
    )


def random_weight(rng: np.random.Generator, fmt: QuantFormat, n: int, k: int) -> AffineWeight:
    """Random codes over the format's whole range, random scales and minima."""
    groups = (n, k // fmt.group)
    dtype = numpy_dtype(fmt.scale_dtype)
    scales = (rng.uniform(0.5, 1.5, groups) / fmt.code_max).astype(dtype)
    mins = rng.uniform(0, 1, groups).astype(dtype) if fmt.has_min else None
    codes = rng.integers(0, fmt.code_max + 1, (n, k)).astype(np.uint8)
    return AffineWeight(codes, scales, mins)


def _pack(
    call: OperatorCall, inputs: Mapping[str, np.ndarray], rng: np.random.Generator
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """(what the kernel reads, what the reference reads): the weight packed, and the weight's exact
    value.
    """
    fmt, layout = call.weights["w"]
    n, k = inputs["weight"].shape
    given, reference = dict(inputs), dict(inputs)
    if fmt.affine:
        weight = random_weight(rng, fmt, n, k)
        packed, reference["weight"] = pack_affine(weight, fmt, layout), dequantize(weight, fmt)
    else:
        assert fmt.dense_dtype is not None
        dense = inputs["weight"].astype(numpy_dtype(fmt.dense_dtype))
        packed, reference["weight"] = pack_dense(dense, fmt, layout), dense.astype(np.float32)
    given |= {f"w.{part}": array for part, array in packed.items()}
    if str(call.attrs.get("activations", "")).startswith("int"):
        form = int(call.attrs["sum_group"]), int(call.attrs["planes"])
        quantized = quantize_rows(inputs["x"], *form)
        given |= quantized
        reference["x"] = dequantize_rows(quantized)
    return given, reference
