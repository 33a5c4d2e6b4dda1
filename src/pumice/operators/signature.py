"""Do given tensors fit an operator's inputs? From the lines of `OperatorSpec.inputs`.

A line is TYPES[AXES], then words for a person:

    "bfloat16 | float16 [M, K]"         one of two types, two axes
    "as w [N, K]"                       of another input's type
    "float32 [] | [1] | [Hk], optional" one of three shapes; may be absent
    "int32[N, K/8]"                     sizes with 2F, K/8, S+1, ceil(K/128)
    "float32 of 1 or M elements"        without brackets: the kernels look at the shape themselves

An input is optional where its words hold "optional" or "with". "float" is any of 16 or 32 bits,
"dtype" one of those that all inputs so named share. A kernel's `supports` judges what it can do;
what can't be a call of the operator at all is refused here, before a kernel reads past an end.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pumice.errors import UsageError
from pumice.operators.base import OperatorSpec

_FLOATS = frozenset({"float16", "bfloat16", "float32"})
_FLOATS8 = frozenset({"float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"})
_KINDS = {
    "float": _FLOATS, "any float": _FLOATS, "dtype": _FLOATS, "8-bit float": _FLOATS8,
    "float8": _FLOATS8, "16-bit float": _FLOATS - {"float32"},
}  # fmt: skip
_FORM = re.compile(r"([^\[\];]*)\[([^\]]*)\]")
_AXIS = re.compile(
    r"(?P<up>ceil\()?(?P<times>\d*)(?P<name>[A-Za-z_]*)(?:/(?P<over>\d+))?\)?(?:\+(?P<plus>\d+))?"
)


@dataclass(frozen=True)
class _Axis:
    """⌈times · name / over⌉ + plus, without a name: times."""

    name: str
    times: int
    over: int
    plus: int
    up: bool

    @staticmethod
    def parse(text: str) -> _Axis | None:
        """None for what this cannot judge."""
        found = _AXIS.fullmatch(text.replace(" ", ""))
        if found is None:
            return None
        times, over, plus = (found[key] or "" for key in ("times", "over", "plus"))
        return _Axis(found["name"], int(times or 1), int(over or 1), int(plus or 0), "(" in text)

    @property
    def plain(self) -> bool:
        return bool(self.name) and (self.times, self.over, self.plus) == (1, 1, 0)

    def fits(self, size: int, sizes: dict[str, int]) -> bool:
        """Whether an axis has this size; a name's first appearance says what it is."""
        if not self.name:
            return size == self.times
        if self.name not in sizes:
            if self.up:
                return True
            whole, rest = divmod((size - self.plus) * self.over, self.times)
            if rest == 0 and whole >= 0:
                sizes[self.name] = whole
                return True
            return False
        whole, rest = divmod(self.times * sizes[self.name], self.over)
        if self.up:
            return size == whole + (rest > 0) + self.plus
        return rest == 0 and size == whole + self.plus


@dataclass(frozen=True)
class _Form:
    """One of an input's shapes. types: None when anything goes; "as x" is {"=x"}. axes: None when
    they are the kernels' matter."""

    types: frozenset[str] | None
    shared: bool
    axes: tuple[_Axis | None, ...] | None


@dataclass(frozen=True)
class _Input:
    text: str
    optional: bool
    forms: tuple[_Form, ...]


def _types(text: str) -> tuple[frozenset[str] | None, bool]:
    words = [word.strip(" ,|") for word in re.split(r"\||,| or ", text)]
    found: set[str] = set()
    for word in filter(None, words):
        if word.startswith("as "):
            found.add("=" + word[3:])
        elif word in _KINDS:
            found |= _KINDS[word]
        elif re.fullmatch(r"(float|bfloat|u?int)\d+(_\w+)?", word):
            found.add(word)
        else:
            return None, False
    return frozenset(found) or None, "dtype" in words


@functools.cache
def _inputs(spec_name: str, lines: tuple[tuple[str, str], ...]) -> dict[str, _Input]:
    found = {}
    for name, text in lines:
        forms: list[_Form] = []
        types: frozenset[str] | None = None
        shared = False
        for before, axes in _FORM.findall(text):
            if before.strip(" |,") not in ("", "or"):
                types, shared = _types(re.sub(r"^\s*or ", "", before))
            parts = [_Axis.parse(part) for part in axes.split(",")] if axes.strip() else []
            forms.append(_Form(types, shared, tuple(parts)))
        if not forms:
            types, shared = _types(re.split(r" of | \(|,", text)[0])
            forms = [_Form(types, shared, None)]
        words = text[text.rfind("]") + 1 :]
        found[name] = _Input(text, bool(re.search(r"optional|\bwith\b", words)), tuple(forms))
    return found


def check_inputs(
    spec: OperatorSpec, given: Mapping[str, Any], name: str = "", names: Mapping[str, str] = {}
) -> None:
    """UsageError where tensors cannot be an operator's: one is missing or unknown, or its type or
    shape is not what the spec allows with the others' sizes.

    given: argument → what has a `shape` and a `dtype` (its name). Sizes that are no int, as while
    PyTorch traces with symbols, fit everything. name: the operator's, as its caller knows it.
    names: what its caller calls its tensors, where they are called otherwise.
    """
    name = name or spec.name
    inputs = _inputs(spec.name, tuple(spec.inputs.items()))
    if unknown := [one for one in given if one not in inputs]:
        raise UsageError(
            f"{name} has no tensor {unknown[0]!r}; its tensors are {', '.join(inputs)}"
        )
    for one, line in inputs.items():
        if one not in given and not line.optional:
            raise UsageError(f"{name}: {names.get(one, one)} is missing; it is {line.text}")
    sizes: dict[str, int] = {}
    for plain in (True, False):
        for one, tensor in given.items():
            line = inputs[one]
            if not any(_fits(form, tensor, given, sizes, plain) for form in line.forms):
                known = ", ".join(f"{axis} = {size}" for axis, size in sizes.items())
                raise UsageError(
                    f"{name}: {names.get(one, one)} is {tensor.dtype}{list(tensor.shape)}; "
                    f"allowed: {line.text}" + (f"; here {known}" if known else "")
                )


def _fits(
    form: _Form, tensor: Any, given: Mapping[str, Any], sizes: dict[str, int], plain: bool
) -> bool:
    """plain: only axes that are a name are looked at, so that others find the names' sizes."""
    types = form.types
    if types is not None:
        allowed = {
            given[one[1:]].dtype if one[1:] in given else tensor.dtype
            for one in types
            if one[0] == "="
        }
        if tensor.dtype not in types | allowed:
            return False
    if form.shared and tensor.dtype in _FLOATS:
        first = next((t for t in given.values() if t.dtype in _FLOATS), tensor)
        if tensor.dtype != first.dtype:
            return False
    if form.axes is None:
        return True
    if len(form.axes) != len(tensor.shape):
        return False
    tried = dict(sizes)
    for axis, size in zip(form.axes, tensor.shape, strict=True):
        if axis is None or type(size) is not int or (plain and not axis.plain):
            continue
        if not axis.fits(size, tried):
            return False
    sizes.update(tried)
    return True
