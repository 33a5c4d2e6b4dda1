"""Single instructions on registers that a test fills, and exact references for floating point."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np

from assembler import machine_code
from pumice.emulator.decode import decode, family
from pumice.emulator.global_memory import VectorMemory
from pumice.emulator.lds import Lds
from pumice.emulator.memory import Memory
from pumice.emulator.program import Program
from pumice.emulator.spaces import Global, Private
from pumice.emulator.state import State
from pumice.emulator.traffic import Traffic

ARCHS = ("gfx1100", "gfx942", "gfx1201")
MEMORY = Memory(1 << 26)


class Machine:
    """Registers of `waves` waves; `run` executes assembly text without branches.

    m.v[3] is vector register 3, uint32 [lanes of all waves]; m.f, m.i: the same as float32, int32.
    """

    def __init__(self, arch: str, waves: int = 1, *, lds: int = 1024, scratch: int = 64) -> None:
        self.arch = arch
        lanes = 64 if arch.startswith("gfx9") else 32
        self.state = State(arch, family(arch), waves, lanes, 512 if lanes == 64 else 64)
        self.memory = MEMORY
        self.lds = Lds(self.state, None, lds, waves, 4)
        space = Global(self.state, None, MEMORY)
        self.traffic = Traffic()
        vector = VectorMemory(
            self.state, space, self.lds, Private(self.state, None, scratch), self.traffic
        )
        code: Any = SimpleNamespace(
            arch=arch, kernel=SimpleNamespace(name="test"), targets=frozenset()
        )
        self.program = Program(code, self.state, vector, self.lds, self.traffic, None, 0)
        self.set_exec(np.ones((waves, lanes), bool))

    @property
    def size(self) -> int:
        return self.state.waves * self.state.lanes

    @property
    def v(self) -> np.ndarray:
        return self.state.v.reshape(len(self.state.v), -1)

    @property
    def f(self) -> np.ndarray:
        return self.v.view(np.float32)

    @property
    def i(self) -> np.ndarray:
        return self.v.view(np.int32)

    @property
    def s(self) -> np.ndarray:
        return self.state.s

    def set_exec(self, lanes: np.ndarray) -> None:
        packed = self.state.pack(np.asarray(lanes, bool).reshape(self.state.waves, -1))
        if self.state.lanes == 32:
            self.state.s[:, 126:127] = packed
        else:
            self.state.s64[:, 63:64] = packed
        self.state.dirty = True

    def mask(self, register: int) -> np.ndarray:
        """A lane mask as bool [lanes of all waves]; register 106 is VCC."""
        return self.state.lanes_of(register).reshape(-1)

    def run(self, text: str) -> None:
        code = machine_code(text, self.arch)
        at = 0
        with np.errstate(all="ignore"):
            while at < len(code):
                inst = decode(code, at, self.arch)
                step = self.program.bind(inst)
                if step is not None:
                    step()
                at += inst.size


def machine_for(arch: str, *columns: Sequence[Any] | np.ndarray, dtype: Any) -> Machine:
    """A machine whose v1, v2 ... hold columns of 32-bit values, the last ones repeated."""
    count = len(columns[0])
    lanes = 64 if arch.startswith("gfx9") else 32
    machine = Machine(arch, -(-count // lanes))
    for i, column in enumerate(columns, 1):
        full = np.resize(np.asarray(column, dtype), machine.size)
        machine.v[i] = full.view(np.uint32)
    return machine


EDGES = np.array(
    [
        0.0, -0.0, 1.0, -1.0, 1.5, -2.75, 3.0, 0.1, 1 + 2.0**-23, 1 - 2.0**-24, 8388609.0,
        16777216.0, -33554430.0, 65504.0, 65520.0, 2.0**-14, 2.0**-24, 2.0**-126, -(2.0**-126),
        2.0**-149, -3 * 2.0**-149, 2.0**-127, 3.4028234663852886e38, -3.4028234663852886e38,
        1e20, -1e-20, 2147483648.0, 4294967040.0, np.inf, -np.inf, np.nan,
    ],
    np.float32,
)  # fmt: skip


def rounded(value: Fraction, *, digits: int = 24, least: int = -126, top: int = 127) -> float:
    """The nearest float of `digits` bits, ties to even; beyond the largest: infinity."""
    if value == 0:
        return 0.0
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if Fraction(2) ** exponent > size:
        exponent -= 1
    quantum = Fraction(2) ** (max(exponent, least) - digits + 1)
    result = round(value / quantum) * quantum
    if abs(result) >= Fraction(2) ** (top + 1):
        return math.inf if value > 0 else -math.inf
    return float(result) if result else 0.0 if value > 0 else -0.0


def fma(a: float, b: float, c: float, **form: int) -> float:
    """a·b + c, exact, rounded once, IEEE 754's special cases by hand."""
    if any(math.isnan(x) for x in (a, b, c)):
        return math.nan
    sign = math.copysign(1, a) * math.copysign(1, b)
    if math.isinf(a) or math.isinf(b):
        if a == 0 or b == 0 or (math.isinf(c) and math.copysign(1, c) != sign):
            return math.nan
        return sign * math.inf
    if math.isinf(c):
        return c
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        both_negative = sign < 0 and math.copysign(1, c) < 0 and (a * b == 0 and c == 0)
        return -0.0 if both_negative else 0.0
    return rounded(exact, **form)


def same_bits(got: np.ndarray, want: Sequence[float] | np.ndarray) -> None:
    """Equal as float32 bits, but any NaN is as good as another."""
    want = np.asarray(want, np.float32)
    got = got[: len(want)]
    nan = np.isnan(want)
    np.testing.assert_array_equal(np.isnan(got), nan)
    np.testing.assert_array_equal(got.view(np.uint32)[~nan], want.view(np.uint32)[~nan])
