"""8-bit floats by integer operations, against ml_dtypes: every code, every 16-bit value, and what
lies between; interpreted, and as AMD's machine code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl
from triton_emulated import launch_emulated
from triton_harness import interpret, to_numpy, to_torch

from pumice.dtypes import numpy_dtype
from pumice.emulator.emulator import Emulator
from pumice.operators.triton.float8 import bitwise
from pumice.operators.triton.float8_triton import narrow, widen
from pumice.operators.triton.plan import Launch, Plan, Problem, TensorSpec, cdiv
from pumice.targets import ROCM_TARGETS, get_target

TYPES = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2")
BLOCK = 1024


@triton.jit
def decode_all(x, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, widen(tl.load(x + at), out.dtype.element_ty, True))


@triton.jit
def encode_all(x, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, narrow(tl.load(x + at), out.dtype.element_ty, True))


def _values(name: str) -> np.ndarray:
    """float32: all float16 and bfloat16 values, the ties between codes, their neighbours, and
    random bits."""
    bits = np.arange(1 << 16, dtype=np.uint16)
    codes = np.arange(256, dtype=np.uint8).view(numpy_dtype(name)).astype(np.float64)
    codes = np.unique(codes[np.isfinite(codes)])
    ties = ((codes[1:] + codes[:-1]) / 2).astype(np.float32)
    ends = np.array([464, 465, 248, 61440, 65504, np.inf, np.nan, 0.0, 1e-45, 3e38], np.float32)
    exact = np.concatenate([codes.astype(np.float32), ties, ends, -ends])
    near = np.concatenate([np.nextafter(exact, np.float32(s)) for s in (-np.inf, np.inf)])
    random = np.random.default_rng(1).integers(0, 1 << 32, 20_000, np.uint32).view(np.float32)
    halves = [bits.view(numpy_dtype(kind)).astype(np.float32) for kind in ("float16", "bfloat16")]
    found = np.concatenate([*halves, exact, near, random])
    return np.resize(found, cdiv(found.size, BLOCK) * BLOCK)


def _problem(kernel: Any, x: np.ndarray, name: str) -> tuple[Problem, Plan]:
    tensors = {"x": TensorSpec(x.shape, x.dtype.name), "out": TensorSpec(x.shape, name)}
    launch = Launch(kernel, (x.size // BLOCK, 1, 1), {"x": "x", "out": "out"}, {"BLOCK": BLOCK})
    return Problem("float8", tensors), Plan((launch,))


def _interpreted(kernel: Any, x: np.ndarray, name: str) -> np.ndarray:
    problem, plan = _problem(kernel, x, name)
    tensors = {"x": to_torch(x), "out": to_torch(np.zeros(x.shape, numpy_dtype(name)))}
    interpret(problem, plan, tensors)
    return to_numpy(tensors["out"])


def _emulated(arch: str) -> Callable[[Any, np.ndarray, str], np.ndarray]:
    def run(kernel: Any, x: np.ndarray, name: str) -> np.ndarray:
        problem, plan = _problem(kernel, x, name)
        emulator = Emulator(arch)
        out = np.zeros(x.shape, numpy_dtype(name))
        places = {"x": emulator.upload(x), "out": emulator.upload(out)}
        launch_emulated(emulator, problem, plan, places, get_target(arch))
        return emulator.download(places["out"], x.shape, out.dtype)

    return run


RUNS = {"interpreted": _interpreted, "gfx1201": _emulated("gfx1201"), "gfx942": _emulated("gfx942")}


def same(got: np.ndarray, expected: np.ndarray) -> None:
    bits = np.dtype(f"uint{8 * expected.dtype.itemsize}")
    given, wanted = got.view(bits), expected.view(bits)
    wrong = np.nonzero((given != wanted) & ~(np.isnan(got) & np.isnan(expected)))[0]
    assert not wrong.size, (wrong.size, expected[wrong[:5]], got[wrong[:5]])


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("name", TYPES)
def test_every_code_is_decoded(name: str, run: str) -> None:
    codes = np.resize(np.arange(256, dtype=np.uint8), BLOCK).view(numpy_dtype(name))
    for kind in ("float16", "bfloat16", "float32"):
        with np.errstate(all="ignore"):
            same(RUNS[run](decode_all, codes, kind), codes.astype(numpy_dtype(kind)))


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("name", TYPES)
def test_values_are_encoded_to_nearest_even(name: str, run: str) -> None:
    """NaN by its bits too: its sign is kept where the type has one."""
    values = _values(name)
    with np.errstate(all="ignore"):
        expected = values.astype(numpy_dtype(name)).view(np.uint8)
    got = RUNS[run](encode_all, values, name).view(np.uint8)
    wrong = np.nonzero(got != expected)[0]
    assert not wrong.size, (wrong.size, values[wrong[:5]], expected[wrong[:5]], got[wrong[:5]])


def test_where_kernels_use_it() -> None:
    """On every RDNA card for every 8-bit float; elsewhere where the card has no such type."""
    for target in ROCM_TARGETS:
        for name in TYPES:
            expected = target.matrix_unit == "wmma" or name not in target.dtypes
            assert bitwise(name, target) == expected, (target.name, name)
        assert not bitwise("bfloat16", target)
    assert not bitwise("float8_e4m3fn", get_target("sm_90"))
