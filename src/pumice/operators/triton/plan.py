"""A GPU kernel's contract: a problem in, a plan of launches out. No driver, no tensors, no Triton.

One plan serves every runner: PyTorch's just-in-time launches, compilation ahead of time for an
absent GPU, the interpreter on the CPU, the emulated GPU, and a captured graph of the driver.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from pumice.dtypes import itemsize
from pumice.targets import Target

if TYPE_CHECKING:
    from pumice.operators.base import OperatorSpec

Config = Mapping[str, int]


def cdiv(a: int, b: int) -> int:
    """a / b rounded up."""
    return -(-a // b)


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is at least n; 1 for n < 1."""
    return 1 if n < 1 else 1 << (n - 1).bit_length()


@dataclass(frozen=True)
class TensorSpec:
    """A tensor without its data. strides: in elements; None is C order. aligned: the address is a
    multiple of 16 bytes."""

    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...] | None = None
    aligned: bool = True

    @property
    def stride(self) -> tuple[int, ...]:
        """Strides in elements, those of C order filled in."""
        if self.strides is not None:
            return self.strides
        found, step = [], 1
        for size in reversed(self.shape):
            found.append(step)
            step *= max(size, 1)
        return tuple(reversed(found))

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of its elements, gaps between them left out."""
        return self.elements * itemsize(self.dtype)

    @property
    def contiguous(self) -> bool:
        """Whether the elements lie in C order without gaps (axes of one element do not matter)."""
        step = 1
        for size, stride in zip(reversed(self.shape), reversed(self.stride), strict=True):
            if size != 1 and stride != step:
                return self.elements == 0
            step *= size
        return True


@dataclass(frozen=True)
class Problem:
    """One call of an operator: hashable, so that plans are made once.

    tensors: argument name → its spec, inputs and outputs, named as in the operator's `spec.py`; an
    optional argument that is not given is absent. attrs: static values ("causal", "eps", …).
    outputs: names of tensors that the call only writes.
    """

    operator: str
    tensors: Mapping[str, TensorSpec]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    outputs: frozenset[str] = frozenset()

    @property
    def inputs(self) -> dict[str, TensorSpec]:
        """The tensors that are given, those changed in place among them."""
        return {name: t for name, t in self.tensors.items() if name not in self.outputs}

    def __post_init__(self) -> None:
        key = (
            self.operator,
            tuple(sorted(self.tensors.items(), key=lambda item: item[0])),
            tuple(sorted(self.attrs.items(), key=lambda item: item[0])),
        )
        object.__setattr__(self, "_key", key)
        object.__setattr__(self, "_hash", hash(key))

    def __hash__(self) -> int:
        return self._hash  # type: ignore[attr-defined,no-any-return]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Problem) and self._key == other._key  # type: ignore[attr-defined]

    def __getitem__(self, name: str) -> TensorSpec:
        return self.tensors[name]

    def __contains__(self, name: str) -> bool:
        return name in self.tensors


def make_problem(
    spec: OperatorSpec, attrs: Mapping[str, Any], inputs: Mapping[str, TensorSpec]
) -> Problem:
    """The problem of a call: its inputs, and the outputs that follow from them."""
    assert spec.output_specs is not None, f"{spec.name} is no GPU operator"
    made = spec.output_specs(attrs, inputs)
    return Problem(spec.name, {**inputs, **made}, attrs, frozenset(made) - frozenset(inputs))


@dataclass(frozen=True)
class Launch:
    """One kernel launch.

    kernel:    a `triton.jit` function.
    grid:      programs along x, y, z; none of them 0.
    arguments: the kernel's run-time parameters by name: a str is the name of a tensor of the
               problem or of a workspace (its pointer), an int or float is itself.
    constants: its `tl.constexpr` parameters by name.
    options:   of the compiler on one vendor only ("waves_per_eu", "maxnreg", …), for that api.
    scratch:   the workspace that holds what the compiler lets the kernel keep in memory, as
               descriptors of tensors that it makes itself; "" for none. int8, a row a program.
    """

    kernel: Any
    grid: tuple[int, int, int]
    arguments: Mapping[str, str | int | float]
    constants: Mapping[str, Any] = field(default_factory=dict)
    num_warps: int = 4
    num_stages: int = 2
    options: Mapping[str, Any] = field(default_factory=dict)
    scratch: str = ""


@dataclass(frozen=True)
class ProductStep:
    """A plan's launches from `first` to its end are one `gemm`, which something else may compute.
    problem: that gemm. names: its tensors' names → the plan's (of tensors or workspaces)."""

    first: int
    problem: Problem
    names: Mapping[str, str]


@dataclass(frozen=True)
class Plan:
    """Launches in order. workspaces: scratch tensors by name, alive for these launches only; those
    named in `zeroed` must be zero before the first; the launches leave those in `restored` zero
    again, so that they need zeroing once for many runs. A plan without launches has nothing to do
    (no rows): outputs then have no elements. product: of a plan that ends in a `gemm`."""

    launches: tuple[Launch, ...]
    workspaces: Mapping[str, TensorSpec] = field(default_factory=dict)
    zeroed: frozenset[str] = frozenset()
    restored: frozenset[str] = frozenset()
    product: ProductStep | None = None


def begins_early(target: Target) -> bool:
    """Whether a GPU can start a launch before the one in front of it has ended (CUDA's programmatic
    launches, from Hopper on)."""
    return target.matrix_unit in ("wgmma", "tcgen05")


class TritonKernel(Protocol):
    """One way to compute an operator on GPUs. Instances hold no state."""

    name: str  # "gemm.triton.tiled"

    def supports(self, problem: Problem, target: Target) -> str | None:
        """None when this kernel can run the problem there, else why not, for a person."""

    def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
        """Candidate configurations, the analytic favourite first. Never empty when supported."""

    def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
        """The launches under a configuration. Pure: it touches no device."""


@dataclass(frozen=True)
class Work:
    """What a problem costs at least. bytes: every input read and every output written once. flops:
    operations by the dtype that the peak is looked up with."""

    bytes: int
    flops: float = 0.0
    dtype: str = "float32"

    def floor_s(self, bandwidth: float, peak: Mapping[str, float]) -> float:
        """Seconds below which no kernel gets on a device of that bandwidth (bytes/s) and peak."""
        compute = self.flops / peak[self.dtype] if self.flops and self.dtype in peak else 0.0
        return max(self.bytes / bandwidth, compute)
