"""What an operator and a kernel are.

A *graph operator* is a `call_dps_packed("pumice.<operator>", …)` in a Relax graph. After fusion,
selection turns each call into
an `OperatorCall`, asks the operator's kernels in order, and lowers the chosen one into a launch.

The launch convention is the same on every device: **raw pointers and integers**, in the order of
`Kernel.arguments`. A kernel
sees no tensor objects: sizes that vary come as integers, sizes that the model fixes are compiled in
or come as integers as the
kernel prefers. A buffer that does not exist for a call (no bias, say) is simply not among its
arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from pumice.quantization.base import PackedLayout, QuantFormat
from pumice.targets import Target


@dataclass(frozen=True)
class OperatorCall:
    """One call, with all that is known of it before it runs.

    operator: "linear", "attention", …
    attrs:    static integers, floats and strings (N, K, head_dim, eps, epilogue …)
    weights:  argument name → (format, layout) of a quantized or dense weight
    entry:    "decode" (one token a sequence) or "extend" (any ragged batch)
    """

    operator: str
    attrs: Mapping[str, Any]
    weights: Mapping[str, tuple[QuantFormat, PackedLayout]] = field(default_factory=dict)
    entry: str = "extend"


@dataclass(frozen=True)
class KernelSource:
    """A compiled-to-be kernel.

    symbol:    unique for (kernel, everything that is compiled in): two calls with one symbol share
    the code
    arguments: names of pointer and integer arguments in launch order. Pointers are named as in the
    operator's `spec.py`
               ("x_codes", "w.scales", "out"); integers are the names of sizes ("T", "N", "K", "S",
               "M")
    function:  a TensorIR PrimFunc (api cpu/vulkan/opencl) or a Triton source object
    workspace: bytes of scratch at the size bounds (`bounds` maps a size's name to its largest
    value), passed as "workspace"
    """

    symbol: str
    arguments: tuple[str, ...]
    function: Any
    workspace: Callable[[Mapping[str, int]], int] | None = None


class Kernel(Protocol):
    """One way to compute an operator on a family of targets."""

    name: str  # "linear.tir.int8"

    def supports(self, call: OperatorCall, target: Target) -> str | None:
        """None when this kernel can run the call there, else the reason why not, for a person."""

    def configs(self, call: OperatorCall, target: Target) -> Sequence[Mapping[str, int]]:
        """Candidate configurations, the analytic favourite first. Never empty when supported."""

    def source(self, call: OperatorCall, target: Target, config: Mapping[str, int]) -> KernelSource:
        """The code for a call under a configuration."""


@dataclass(frozen=True)
class OperatorSpec:
    """The meaning of an operator: what tests, benchmarks, tuning and documentation read.

    formula:    one line of mathematics
    axes:       axis name → meaning
    inputs:     argument name → "dtype[axes]"
    outputs:    argument name → "dtype[axes]"
    reference:  NumPy, float64 inside: (attrs, inputs) → outputs by name
    tolerance:  relative error ‖out − ref‖ / ‖ref‖ that a kernel may show, per output dtype or
    numeric path
    cases:      (random generator) → list of (attrs, inputs); odd shapes first
    kernels:    lazy "module:attribute" strings of TensorIR kernels, in order of preference
    triton_kernels: the same for GPUs (`operators/triton/plan.py` has their contract)
    output_specs: (attrs, input specs by name) → specs of the outputs by name, for GPU operators. An
    output whose name is also an input's is that input, changed in place
    work:       (problem) → `triton.plan.Work`, its least bytes and operations; for GPU operators
    """

    name: str
    formula: str
    axes: Mapping[str, str]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    reference: Callable[[Mapping[str, Any], Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]
    tolerance: Mapping[str, float]
    cases: Callable[[np.random.Generator], list[tuple[dict[str, Any], dict[str, np.ndarray]]]]
    kernels: tuple[str, ...] = ()
    triton_kernels: tuple[str, ...] = ()
    output_specs: Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]] | None = None
    work: Callable[[Any], Any] | None = None
