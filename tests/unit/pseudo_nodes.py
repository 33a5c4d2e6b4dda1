"""Pieces of a program in pseudo-code: names, parts of them, calls; each is a closure over an
environment of values, and those that can be assigned to have `store`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from pseudo_values import FUNCTIONS, Unknown, Value, arithmetic, compare, round_to

Env = dict[str, Any]
Code = Callable[[Env], Any]


class Break(Exception):
    """Out of a loop."""


class Return(Exception):
    """Out of a function, with its value."""


def raise_break(env: Env) -> None:
    raise Break


def constant(value: Value) -> Code:
    return lambda env: value


def number_of(digits: str, suffix: str) -> Value:
    if "." in digits or suffix == "F":
        return Value("f", 32 if suffix == "F" else 64, float(digits))
    number = int(digits, 0)
    return {"": Value("n", 0, number), "U": Value("u", 32, number)}.get(
        suffix, Value("u" if suffix == "ULL" else "n", 64 if suffix == "ULL" else 0, number)
    )


def combined(operator: str, left: Code, right: Code) -> Code:
    if operator == "&&":
        return lambda env: Value("u", 1, int(bool(left(env).number and right(env).number)))
    if operator == "||":
        return lambda env: Value("u", 1, int(bool(left(env).number or right(env).number)))
    if operator in ("==", "!=", "<>", "<", "<=", ">", ">="):
        return lambda env: compare(operator, left(env), right(env))
    return lambda env: arithmetic(operator, left(env), right(env))


def call(env: Env, name: str, arguments: list[Value]) -> Value:
    function = env.get(name) or FUNCTIONS.get(name)
    if function is None and name in env["library"]:
        return _instruction(env, name, arguments)
    if function is None:
        raise Unknown(f"function {name}")
    if name == "f32_to_f16" and env.get("ROUND_MODE", 0) and env["ROUND_MODE"].number == 1:
        number = arguments[0].number
        return Value("f", 16, round_to(number, "f", 16, toward_zero=True))
    done = function(*arguments)
    assert isinstance(done, Value)
    return done


def _instruction(env: Env, name: str, arguments: list[Value]) -> Value:
    """Another instruction as a function: the type of its result is the last in its name."""
    inner: Env = {"D0": Value("b", 64, 0), "library": env["library"]}
    for number, argument in enumerate(arguments):
        inner[f"S{number}"] = Value("b", 128, argument.raw())
    env["library"][name](inner)
    kind, bits = re.findall(r"_([fiu])(\d+)", name)[-1]
    return inner["D0"].typed(kind, 32 if bits == "8" else int(bits))


class Name:
    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, env: Env) -> Any:
        if self.name not in env:
            raise Unknown(f"name {self.name}")
        return env[self.name]

    def store(self, env: Env, value: Value) -> None:
        old = env.get(self.name)
        if self.name in ("D0", "D1", "VCC", "EXEC", "SCC"):
            assert isinstance(old, Value)
            _write(env, self.name, 0, value.bits or 32, value.raw())
        else:
            env[self.name] = value


class Typed:
    def __init__(self, inner: Code, kind: str, bits: int) -> None:
        self.inner, self.kind, self.bits = inner, kind, bits

    def __call__(self, env: Env) -> Value:
        value = self.inner(env)
        assert isinstance(value, Value)
        if value.kind == "denormal":
            return Value(value.kind, self.bits, 0.0)
        if value.real and self.kind in ("f", "bf"):
            return value.cast(self.kind, self.bits)
        return value.typed(self.kind, self.bits)

    def store(self, env: Env, value: Value) -> None:
        if value.real or self.kind in ("f", "bf"):
            value = value.cast(self.kind, self.bits) if value.real else value
        bits = value.raw() & (1 << self.bits) - 1
        inner = self.inner
        if isinstance(inner, Name):
            _write(env, inner.name, 0, self.bits, bits)
        elif isinstance(inner, Part):
            inner.store(env, Value("b", self.bits, bits))
        else:
            raise Unknown("a store to this")


class Part:
    def __init__(self, inner: Code, first: Code, second: Code | None, width: bool) -> None:
        self.inner, self.first, self.second, self.width = inner, first, second, width

    def _range(self, env: Env) -> tuple[int, int]:
        first = self.first(env).number
        if self.second is None:
            return first, first
        second = self.second(env).number
        return (first + second - 1, first) if self.width else (first, second)

    def __call__(self, env: Env) -> Value:
        value = self.inner(env)
        high, low = self._range(env)
        if isinstance(value, list):
            return value[low]
        raw = value.raw()
        if high < low:  # the bits in reverse order
            size = low - high + 1
            return Value(
                "u", size, int(format(raw >> high & (1 << size) - 1, f"0{size}b")[::-1], 2)
            )
        return Value("u", high - low + 1, raw >> low)

    def store(self, env: Env, value: Value) -> None:
        high, low = self._range(env)
        base = self.inner.inner if isinstance(self.inner, Typed) else self.inner
        if not isinstance(base, Name):
            raise Unknown("a store to a part of this")
        if isinstance(env.get(base.name), list):
            env[base.name] = [value if i == low else v for i, v in enumerate(env[base.name])]
            return
        _write(env, base.name, low, high - low + 1, value.raw())


class Joined:
    def __init__(self, parts: list[Code]) -> None:
        self.parts = parts

    def __call__(self, env: Env) -> Value:
        bits = total = 0
        for part in self.parts:
            value = part(env)
            total = total << value.bits | value.raw()
            bits += value.bits
        return Value("u", bits, total)

    def store(self, env: Env, value: Value) -> None:
        raw = value.raw()
        for part in reversed(self.parts):
            assert isinstance(part, Typed)
            part.store(env, Value("b", part.bits, raw))
            raw >>= part.bits


def _write(env: Env, name: str, low: int, bits: int, raw: int) -> None:
    """Bits of a variable; what is written of D0 is noted."""
    mask = (1 << bits) - 1 << low
    old = env.get(name)
    before = old.raw() if isinstance(old, Value) else 0
    size = max(old.bits if isinstance(old, Value) else 0, low + bits)
    env[name] = Value("b", size, before & ~mask | raw << low & mask)
    written = env.setdefault("written", {})
    written[name] = written.get(name, 0) | mask
