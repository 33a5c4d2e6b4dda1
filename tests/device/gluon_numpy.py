"""Runs kernels written in Gluon as NumPy on the CPU: layouts say nothing here, and programs run one
after another. Asynchronous copies happen when they are waited for, and not before; what they are
about to overwrite is poisoned where they begin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import triton
from asm_emulator import execute

from pumice.operators.triton.plan import Launch

_WORD = {1: np.uint8, 2: np.uint16, 4: np.uint32}


class Tensor(np.ndarray[Any, Any]):
    """A block of values, as kernels use it."""

    @property
    def type(self) -> Any:
        return SimpleNamespace(layout=None)

    def to(self, dtype: Any, bitcast: bool = False) -> Tensor:
        return tensor(np.ascontiguousarray(self).view(dtype) if bitcast else self.astype(dtype))

    def __iadd__(self, other: Any) -> Tensor:
        """A new one: values have no place that two names could share."""
        return tensor(self + other)


def tensor(values: Any) -> Tensor:
    """Values of a kernel."""
    return np.asarray(values).view(Tensor)


class Pointer:
    """Places in a flat array."""

    def __init__(self, memory: np.ndarray, place: Any = 0) -> None:
        self.memory, self.place = memory, np.asarray(place, np.int64)

    def __add__(self, offset: Any) -> Pointer:
        return Pointer(self.memory, self.place + np.asarray(offset, np.int64))

    def __getitem__(self, where: Any) -> Pointer:
        return Pointer(self.memory, self.place[where])

    @property
    def dtype(self) -> Any:
        return SimpleNamespace(element_ty=self.memory.dtype)

    def to(self, dtype: Any) -> Pointer:
        assert not self.place.any()
        return Pointer(self.memory.view(dtype))

    def read(self, mask: Any = None, other: Any = 0) -> Tensor:
        place, wanted = np.broadcast_arrays(self.place, True if mask is None else mask)
        assert (place[wanted] >= 0).all() and (place[wanted] < self.memory.size).all()
        values = self.memory[np.where(wanted, place, 0)]
        return tensor(np.where(wanted, values, np.asarray(other, values.dtype)))

    def write(self, values: Any, mask: Any = None) -> None:
        place, wanted = np.broadcast_arrays(self.place, True if mask is None else mask)
        assert (place[wanted] >= 0).all() and (place[wanted] < self.memory.size).all()
        self.memory[place[wanted]] = np.broadcast_to(np.asarray(values), place.shape)[wanted]


class Shared:
    """Shared memory, or a part of it."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def index(self, place: Any) -> Shared:
        return Shared(self.values[int(place)])

    def slice(self, start: int, length: int, dim: int = 0) -> Shared:
        return Shared(self.values[(slice(None),) * dim + (slice(start, start + length),)])

    def permute(self, order: Any) -> Shared:
        return Shared(self.values.transpose(order))

    def _reinterpret(self, dtype: Any, shape: Any, layout: Any) -> Shared:
        return Shared(self.values.reshape(-1)[: int(np.prod(shape))].reshape(shape))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @property
    def dtype(self) -> Any:
        return self.values.dtype

    @property
    def layout(self) -> None:
        return None

    def load(self, layout: Any = None) -> Tensor:
        return tensor(self.values.copy())

    def store(self, values: Any) -> None:
        self.values[...] = values


def poison(values: np.ndarray) -> None:
    """NaN for floats, all bits set."""
    values[...] = np.frombuffer(b"\xff" * values.itemsize, values.dtype)[0]


class Language:
    """What stands for `gluon.language` and its parts for Hopper, in one program of a grid."""

    float16, bfloat16, float32 = np.float16, ml_dtypes.bfloat16, np.float32
    int8, int16, int32, int64 = np.int8, np.int16, np.int32, np.int64
    constexpr = staticmethod(lambda value: value)
    exp, minimum, maximum, sqrt, abs = np.exp, np.minimum, np.maximum, np.sqrt, np.abs
    where = staticmethod(np.where)
    reshape, expand_dims = staticmethod(np.reshape), staticmethod(np.expand_dims)
    static_range = range

    def __init__(self, program: int, programs: int) -> None:
        self.program, self.programs = program, programs
        self.begun: list[Callable[[], None]] = []
        self.groups: list[list[Callable[[], None]]] = []

    def stands(self) -> dict[str, Any]:
        """What takes the place of a name of a kernel's module."""
        return {
            "gl": self, "async_copy": self, "warpgroup_mma": self.warpgroup_mma,
            "warpgroup_mma_wait": self.warpgroup_mma_wait, "begin_copy": self.begin_copy,
            "barrier": lambda: None,
        }  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        if name.endswith("Layout"):
            return lambda *_, **__: None
        raise AttributeError(f"the NumPy form of Gluon does not know {name!r}")

    def program_id(self, axis: int) -> int:
        return self.program if axis == 0 else 0

    def num_programs(self, axis: int) -> int:
        return self.programs if axis == 0 else 1

    def arange(self, start: int, end: int, layout: Any = None) -> Tensor:
        return tensor(np.arange(start, end))

    def zeros(self, shape: Any, dtype: Any, layout: Any = None) -> Tensor:
        return self.full(shape, 0, dtype)

    def full(self, shape: Any, value: Any, dtype: Any, layout: Any = None) -> Tensor:
        return tensor(np.full(shape, value, dtype))

    def permute(self, value: Any, order: Any) -> Tensor:
        return tensor(value.transpose(order))

    def sum(self, value: Any, axis: int) -> Tensor:
        return tensor(value.sum(axis))

    def max(self, value: Any, axis: int) -> Tensor:
        return tensor(value.max(axis))

    def pointer_type(self, dtype: Any) -> Any:
        return dtype

    def join(self, a: Any, b: Any) -> Tensor:
        return tensor(np.stack([a, b], -1))

    def split(self, value: Any) -> tuple[Tensor, Tensor]:
        assert value.shape[-1] == 2
        return tensor(value[..., 0]), tensor(value[..., 1])

    def convert_layout(self, value: Any, layout: Any, assert_trivial: bool = False) -> Any:
        return value

    def multiple_of(self, value: Any, multiples: Any) -> Any:
        for axis, multiple in enumerate(multiples):
            first = np.asarray(value).take(range(0, value.shape[axis], multiple), axis)
            assert (first % multiple == 0).all()
        return value

    def max_contiguous(self, value: Any, counts: Any) -> Any:
        for axis, count in enumerate(counts):
            parts = np.moveaxis(np.asarray(value), axis, -1).reshape(-1, count)
            assert (np.diff(parts) == 1).all()
        return value

    def load(self, pointer: Pointer, mask: Any = None, other: Any = 0, **_: Any) -> Tensor:
        return pointer.read(mask, other)

    def store(self, pointer: Pointer, value: Any, mask: Any = None, **_: Any) -> None:
        pointer.write(value, mask)

    def atomic_xchg(self, pointer: Pointer, value: Any, **_: Any) -> Any:
        before = pointer.read()
        pointer.write(value)
        return before

    def atomic_add(self, pointer: Pointer, value: Any, **_: Any) -> Any:
        before = pointer.read()
        pointer.write(before + value)
        return before

    def atomic_cas(self, pointer: Pointer, expected: Any, value: Any, **_: Any) -> Any:
        before = pointer.read()
        assert before == expected, "waits for a program that comes later"
        pointer.write(value)
        return before

    def inline_asm_elementwise(
        self, asm: Any, constraints: Any, args: Any, dtype: Any, is_pure: bool, pack: int
    ) -> Any:
        if not args:
            return None
        text, several = getattr(asm, "value", asm), isinstance(dtype, tuple)
        types = dtype if several else (dtype,)
        given = np.broadcast_arrays(*args)
        registers = {
            f"${len(types) + i}": (
                value.astype(np.int64).astype(np.uint32)
                if value.dtype.kind in "iu"
                else np.ascontiguousarray(value).view(_WORD[value.itemsize]).astype(np.uint32)
            )
            for i, value in enumerate(given)
        }
        execute(text, registers)
        found = []
        for i, kind in enumerate(types):
            word = _WORD[np.dtype(kind).itemsize]
            bits = np.ascontiguousarray(np.broadcast_to(registers[f"${i}"], given[0].shape))
            found.append(tensor(bits.astype(word).view(kind).reshape(given[0].shape)))
        return tuple(found) if several else found[0]

    def allocate_shared_memory(self, dtype: Any, shape: Any, layout: Any) -> Shared:
        values = np.empty(shape, dtype)
        poison(values)
        return Shared(values)

    def begin_copy(self, shared: Shared, pointer: Pointer, mask: Any = None) -> None:
        """Where the mask is false, nothing is copied, and what was there is no more."""
        assert shared.values.shape == pointer.place.shape
        poison(shared.values)

        def copy() -> None:
            nothing = np.frombuffer(b"\xff" * shared.values.itemsize, shared.values.dtype)[0]
            shared.store(pointer.read(mask, nothing))

        self.begun.append(copy)

    def commit_group(self) -> None:
        self.groups.append(self.begun)
        self.begun = []

    def wait_group(self, count: int) -> None:
        while len(self.groups) > count:
            for copy in self.groups.pop(0):
                copy()

    def warpgroup_mma(
        self, a: Any, b: Shared, acc: Any, use_acc: Any = True, is_async: bool = False
    ) -> Tensor:
        rows = a.values if isinstance(a, Shared) else a
        kind = acc.dtype
        product = rows.astype(kind) @ b.values.astype(kind)
        return tensor(product + acc if use_acc else product)

    def warpgroup_mma_wait(self, count: int, deps: Any) -> Any:
        return deps[0] if len(deps) == 1 else deps


def _called(function: Any, *args: Any, **named: Any) -> Any:
    return function.fn(*args, **named)


@contextmanager
def _replaced(module: dict[str, Any], language: Language) -> Iterator[None]:
    """A kernel's module, and those of the functions that it calls, with NumPy in Gluon's place."""
    stands = language.stands()
    jit = triton.runtime.jit.JITFunction
    modules = [module]
    for each in modules:  # which grows
        for value in each.values():
            if isinstance(value, jit) and not any(value.fn.__globals__ is m for m in modules):
                modules.append(value.fn.__globals__)
    before = [{name: m[name] for name in stands if name in m} for m in modules]
    call = jit.__call__
    for each, names in zip(modules, before, strict=True):
        each.update({name: stands[name] for name in names})
    jit.__call__ = _called
    try:
        yield
    finally:
        jit.__call__ = call
        for each, names in zip(modules, before, strict=True):
            each.update(names)


def run(launch: Launch, arrays: Mapping[str, np.ndarray], form: type[Language] = Language) -> None:
    """One launch over arrays, changed in place. A named tensor is given as it lies in memory, in C
    order without gaps. form: Gluon's parts that the kernel uses."""
    for program in range(launch.grid[0]):
        language = form(program, launch.grid[0])
        arguments = {
            name: Pointer(arrays[value].reshape(-1)) if isinstance(value, str) else value
            for name, value in launch.arguments.items()
        }
        with (
            _replaced(launch.kernel.fn.__globals__, language),
            np.errstate(all="ignore"),
        ):
            launch.kernel.fn(**arguments, **launch.constants)
