"""A parser of the pseudo-code by which AMD's ISA documents define instructions.

A program becomes Python closures that work on one lane.
"""

from __future__ import annotations

import functools
import math
import re

from pseudo_nodes import (
    Break,
    Code,
    Env,
    Joined,
    Name,
    Part,
    Return,
    Typed,
    call,
    combined,
    constant,
    number_of,
    raise_break,
)  # fmt: skip
from pseudo_values import Unknown, Value, arithmetic

_TOKEN = re.compile(
    r"\s*(?://[^\n]*)?(?:(?P<cast>\d+'(?:BF|[UIFB]))|(?P<sized>\d+'-?(?:0x[0-9a-fA-F]+|[\d.]+)U?)"
    r"|(?P<number>0x[0-9a-fA-F]+|\d+\.\d+|\d+)(?P<suffix>ULL|LL|U|F|L)?"
    r"|(?P<name>[A-Za-z_]\w*)|(?P<mark>\*\*|<<|>>|<=|>=|==|!=|<>|&&|\|\||\+=|-=|\+:|\|=|&="
    r"|[-+*/%&|^~!<>=?:.,;()\[\]{}]))"
)
_TYPE = re.compile(r"(?!bf8)(bf|[uifb])(\d+)\Z|(fp8|bf8)\Z")
_WORDS = {"if", "then", "elsif", "else", "endif", "for", "do", "endfor", "break", "return",
          "declare", "lambda", "in"}  # fmt: skip
_LEVELS = (("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!=", "<>"), ("<", "<=", ">", ">="),
           ("<<", ">>"), ("+", "-"), ("*", "/", "%"), ("**",))  # fmt: skip


def _tokens(text: str) -> list[tuple[str, str]]:
    found, at = [], 0
    text = re.sub(r"//[^\n]*", "", text).rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise Unknown(f"at {text[at : at + 20]!r}")
        at = match.end()
        kind = match.lastgroup if match.lastgroup != "suffix" else "number"
        assert kind is not None
        value = match[kind]
        if kind == "number":
            value += f" {match['suffix'] or ''}"
        found.append((kind, value))
    return found


class Parser:
    """Recursive descent over tokens; every method returns a closure over an environment."""

    def __init__(self, text: str) -> None:
        self.tokens = _tokens(text)
        self.at = 0

    def peek(self, ahead: int = 0) -> str:
        place = self.at + ahead
        return self.tokens[place][1] if place < len(self.tokens) else ""

    def take(self, wanted: str = "") -> str:
        value = self.peek()
        if wanted and value != wanted:
            raise Unknown(f"{value!r} where {wanted!r} should be")
        self.at += 1
        return value

    def accept(self, value: str) -> bool:
        if self.peek() == value and self.at < len(self.tokens):
            self.at += 1
            return True
        return False

    def block(self, *ends: str) -> Code:
        steps = []
        while self.at < len(self.tokens) and self.peek() not in ends:
            if self.accept(";"):
                continue
            steps.append(self.statement())

        def run(env: Env) -> None:
            for step in steps:
                step(env)

        return run

    def statement(self) -> Code:
        word = self.peek()
        if word == "if":
            return self.conditional()
        if word == "for":
            return self.loop()
        if self.accept("break"):
            return raise_break
        if self.accept("return"):
            value = self.expression()

            def give(env: Env) -> None:
                raise Return(value(env))

            return give
        if self.accept("declare"):
            return self.declaration()
        if self.peek(1) == "=" and self.peek(2) == "lambda":
            return self.function()
        target = self.postfix()
        operator = self.take()
        if operator not in ("=", "+=", "-="):
            raise Unknown(f"statement with {operator!r}")
        value = self.expression()
        if self.accept("="):  # a = b = value
            also, value = value, self.expression()
            store_also = getattr(also, "store", None)
            if store_also is None:
                raise Unknown("an assignment to this")

            def both(env: Env) -> None:
                target.store(env, value(env))  # type: ignore[attr-defined]
                store_also(env, value(env))

            return both
        if operator != "=":
            old, new = target, value
            value = lambda env: arithmetic(operator[0], old(env), new(env))  # noqa: E731
        store = getattr(target, "store", None)
        if store is None:
            raise Unknown("an assignment to this")
        return lambda env: store(env, value(env))

    def conditional(self) -> Code:
        branches = []
        self.take("if")
        condition = self.expression()
        self.take("then")
        branches.append((condition, self.block("elsif", "else", "endif")))
        while self.accept("elsif"):
            condition = self.expression()
            self.take("then")
            branches.append((condition, self.block("elsif", "else", "endif")))
        otherwise = self.block("endif") if self.accept("else") else None
        self.take("endif")

        def run(env: Env) -> None:
            for test, body in branches:
                if test(env).number:
                    return body(env)
            if otherwise is not None:
                otherwise(env)
            return None

        return run

    def loop(self) -> Code:
        self.take("for")
        name = self.take()
        self.take("in")
        first = self.expression()
        self.take(":")
        last = self.expression()
        self.take("do")
        body = self.block("endfor")
        self.take("endfor")

        def run(env: Env) -> None:
            for i in range(first(env).number, last(env).number + 1):
                env[name] = Value("n", 0, i)
                try:
                    body(env)
                except Break:
                    break

        return run

    def declaration(self) -> Code:
        name = self.take()
        self.take(":")
        bits, _, letter = self.take().partition("'")
        count = 0
        if self.accept("["):
            count = int(self.take().split()[0])
            self.take("]")
        kind = {"U": "u", "I": "i", "F": "f", "B": "b", "BF": "bf"}[letter]
        width = int(bits)

        def run(env: Env) -> None:
            if count and name != "S":
                env[name] = [Value("b", width, 0)] * count
            elif not count and name != "i":
                env[name] = Value("b", width, 0).typed(kind, width)

        return run

    def function(self) -> Code:
        name = self.take()
        self.take("=")
        self.take("lambda")
        self.take("(")
        names = [self.take()]
        while self.accept(","):
            names.append(self.take())
        self.take(")")
        self.take("(")
        body: Code
        if self.peek() in ("if", "declare"):
            body = self.block(")")
        else:
            value = self.expression()

            def body(env: Env) -> None:
                raise Return(value(env))

        self.take(")")

        def run(env: Env) -> None:
            def called(*arguments: Value) -> Value:
                inner = {**env, **dict(zip(names, arguments, strict=True))}
                try:
                    body(inner)
                except Return as given:
                    return given.args[0]
                raise Unknown(f"{name} gave nothing")

            env[name] = called

        return run

    def expression(self) -> Code:
        condition = self.binary(0)
        if not self.accept("?"):
            return condition
        yes = self.expression()
        self.take(":")
        no = self.expression()
        return lambda env: yes(env) if condition(env).number else no(env)

    def binary(self, level: int) -> Code:
        if level == len(_LEVELS):
            return self.unary()
        left = self.binary(level + 1)
        while self.peek() in _LEVELS[level] and self.tokens[self.at][0] == "mark":
            left = combined(self.take(), left, self.binary(level + 1))
        return left

    def unary(self) -> Code:
        operator = self.peek()
        if operator not in ("-", "+", "~", "!") or self.tokens[self.at][0] != "mark":
            return self.postfix()
        self.take()
        inner = self.unary()

        def run(env: Env) -> Value:
            a = inner(env)
            if operator == "!":
                return Value("u", 1, int(not a.number))
            if operator == "+":
                return a
            if operator == "-":
                return Value(a.kind, a.bits, -a.number)
            return Value(a.kind, a.bits, ~a.number)

        return run

    def postfix(self) -> Code:
        value = self.primary()
        while True:
            if self.accept("."):
                if self.peek() in ("IEEE", "INVALID"):  # they matter to signalling NaN only
                    return Name(self.take())
                found = _TYPE.match(self.take())
                if found is None:
                    raise Unknown("a field that is no type")
                if found[3]:
                    value = Typed(value, "fp" if found[3] == "fp8" else "bf8", 8)
                else:
                    value = Typed(value, found[1], int(found[2]))
            elif self.accept("["):
                first = self.expression()
                second = None
                width = False
                if self.accept(":"):
                    second = self.expression()
                elif self.accept("+:"):
                    second, width = self.expression(), True
                self.take("]")
                value = Part(value, first, second, width)
            else:
                return value

    def primary(self) -> Code:
        kind, text = self.tokens[self.at] if self.at < len(self.tokens) else ("", "")
        self.at += 1
        if kind == "number":
            return constant(number_of(*text.split(" ")))
        if kind == "sized":
            bits, _, rest = text.partition("'")
            if "." in rest:
                return constant(Value("f", int(bits), float(rest)))
            return constant(Value("u", int(bits), int(rest.rstrip("U"), 0)))
        if kind == "cast":
            bits, _, letter = text.partition("'")
            self.take("(")
            inner = self.expression()
            self.take(")")
            to = {"U": "u", "I": "i", "F": "f", "B": "b", "BF": "bf"}[letter]
            return lambda env: inner(env).cast(to, int(bits))
        if text == "(":
            inner = self.expression()
            self.take(")")
            return inner
        if text == "{":
            parts = [self.expression()]
            while self.accept(","):
                parts.append(self.expression())
            self.take("}")
            return Joined(parts)
        if kind != "name" or text in _WORDS - {"in"}:
            raise Unknown(f"{text!r} as a value")
        if self.accept("("):
            arguments = []
            while not self.accept(")"):
                arguments.append(self.expression())
                self.accept(",")
            return lambda env: call(env, text, [a(env) for a in arguments])
        return Name(text)


_CONSTANTS: dict[str, Value] = {
    "INF": Value("f", 64, math.inf),
    "NAN": Value("f", 64, math.nan),
    "PI": Value("f", 64, math.pi),
    "DENORM": Value("denormal", 64, 0.0),
    "MAX_FLOAT_F32": Value("f", 32, 3.4028234663852886e38),
    "UNDERFLOW_F32": Value("f", 32, 0.0),
    "OVERFLOW_F32": Value("f", 32, math.inf),
    "UNDERFLOW_F64": Value("f", 64, 0.0),
    "OVERFLOW_F64": Value("f", 64, math.inf),
    "IEEE": Value("u", 1, 0),
    "ROUND_MODE": Value("n", 0, 0),
    "ROUND_NEAREST_EVEN": Value("n", 0, 0),
    "ROUND_TOWARD_ZERO": Value("n", 0, 1),
}


@functools.cache
def program(text: str) -> Code:
    """A closure that runs pseudo-code on an environment of Values. Unknown: notation beyond it."""
    parser = Parser(text)
    body = parser.block()

    def run(env: Env) -> None:
        env.update(_CONSTANTS)
        body(env)

    return run
