"""The encodings of one instruction set as integers: which one a word has, and its fields.

The package tinygrad makes its tables out of AMD's XML and matches a word against one class after
the other, a field at a time. Here every class is one mask and one value over the whole instruction,
sorted by the word's uppermost bits: a kernel is decoded some twenty times as fast.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pumice.errors import UnsupportedError

_TOP = 23  # encodings differ in the 9 bits above, mostly
# A source's number → the class behind it that has the following word too.
_VARIANTS = {255: "_LIT", 250: "_DPP16"}
_DUAL_LITERAL = ("v_dual_fmamk", "v_dual_fmaak")
_MARKED = {"_SDWA_SDST": 249, "_SDWA": 249, "_DPP16": 250}


@functools.cache
def tables() -> Any:
    """The package's module; UnsupportedError says how to install it."""
    try:
        from tinygrad.renderer import amd
    except ImportError as missing:
        raise UnsupportedError(
            f"the emulator needs the package tinygrad 0.14 ({missing})",
            hint="pip install 'pumice[emulator]'",
        ) from missing
    return amd


@dataclass(frozen=True)
class Encoding:
    """mask, value: bits that are fixed. words: 32-bit words that must be there. operations: (place,
    mask, names, whether only these are of this encoding) of every opcode. fields: (name, place,
    mask, kind). sources: (place, mask, first number) of those that may announce another word.
    """

    name: str
    size: int
    words: int
    mask: int
    value: int
    operations: tuple[tuple[str, int, int, dict[int, str], bool], ...]
    fields: tuple[tuple[str, int, int, str], ...]
    sources: tuple[tuple[int, int, int], ...]
    variants: dict[str, Encoding]
    cdna: bool  # a source of 249 announces SDWA there, DPP8 elsewhere

    def matches(self, raw: int, nbytes: int) -> bool:
        if raw & self.mask != self.value or 4 * self.words > nbytes:
            return False
        return all(
            raw >> low & mask in names for _, low, mask, names, only in self.operations if only
        )

    def variant(self, raw: int) -> Encoding:
        """The encoding with the literal, DPP or SDWA word that a source announces."""
        for key, low, mask, names, _ in self.operations:
            if key != "op" and names[raw >> low & mask].startswith(
                ("v_dual_fmamk", "v_dual_fmaak")
            ):
                return self.variants.get("_LIT", self)
        for low, mask, first in self.sources:
            number = (raw >> low & mask) + first
            suffix = _VARIANTS.get(number)
            if number == 249:
                suffix = "_SDWA" if self.cdna else "_DPP8"
            if suffix is not None:
                return self.variants.get(suffix, self)
        return self


def _encoding(kind: Any, variants: bool = True) -> Encoding:
    mask = value = words = 0
    operations, fields, sources = [], [], []
    for name, field in kind._fields:
        words = max(words, field.lo // 32 + 1)
        what = type(field).__name__
        fields.append((name, field.lo, field.mask, what))
        if what == "FixedBitField":
            mask |= field.mask << field.lo
            value |= field.default << field.lo
        elif what == "EnumBitField":
            allowed = field.allowed if field.allowed is not None else list(field._enum)
            names = {row.value: row.name.lower() for row in allowed}
            operations.append((name, field.lo, field.mask, names, field.allowed is not None))
        elif what in ("SrcField", "SSrcField"):
            sources.append((field.lo, field.mask, field._valid_range[0]))
    name = kind.__name__
    for suffix, number in _MARKED.items():
        if name.endswith(suffix):
            mask |= 0x1FF
            value |= number
            break
    others = {}
    if variants and not any(s in name for s in ("_LIT", "_DPP8", "_DPP16", "_SDWA")):
        module = sys.modules[kind.__module__]
        for suffix in ("_LIT", "_DPP8", "_DPP16", "_SDWA"):
            other = getattr(module, name + suffix, None)
            if other is not None:
                others[suffix] = _encoding(other, variants=False)
    return Encoding(
        name, kind._base_size, words, mask, value, tuple(operations), tuple(fields),
        tuple(sources) if others else (), others, "cdna" in kind.__module__,
    )  # fmt: skip


@functools.cache
def _encodings(isa: str) -> tuple[Encoding, ...]:
    return tuple(_encoding(kind) for kind in tables()._load_formats()[isa])


@functools.cache
def _candidates(isa: str, top: int) -> tuple[Encoding, ...]:
    """Encodings that a first word with these uppermost bits may have, in the tables' order."""
    high = 0x1FF << _TOP
    return tuple(e for e in _encodings(isa) if (top << _TOP ^ e.value) & e.mask & high == 0)


def decode_word(data: bytes, isa: str) -> tuple[str, str, dict[str, int], int]:
    """(mnemonic, encoding, raw fields by name, bytes) of 4 to 16 bytes. ValueError when no
    encoding fits, or an encoding has no such operation.

    Sources and registers are in the 9-bit numbering: vector registers from 256.
    """
    raw = int.from_bytes(data, "little")
    for found in _candidates(isa, raw >> _TOP & 0x1FF):
        if found.matches(raw, len(data)):
            break
    else:
        raise ValueError(f"no {isa} encoding has this word")
    names = []
    raw &= (1 << 8 * found.size) - 1
    for _, low, mask, known, _ in found.operations:
        name = known.get(raw >> low & mask)
        if name is None:
            raise ValueError(f"{found.name} has no operation {raw >> low & mask}")
        names.append(name)
    chosen = found.variant(raw)
    raw = int.from_bytes(data[: chosen.size], "little")
    fields = {}
    for name, low, mask, what in chosen.fields:
        put: Callable[[int], int] | None = _PLACED.get(what)
        value = raw >> low & mask
        if put is not None:
            value = put(value)
        elif what == "VDSTYField":  # its lowest bit is the complement of vdstx's
            value = (value << 1 | (~(raw >> 56) & 1)) + 256
        fields[name] = value
    return " :: ".join(names), chosen.name, fields, chosen.size


_PLACED: dict[str, Callable[[int], int]] = {
    "VGPRField": lambda value: value + 256,
    "SBaseField": lambda value: value * 2,
    "SRsrcField": lambda value: value * 4,
}
