"""The decoder by masks gives what the tables' own decoder gives, on words of every encoding."""

from __future__ import annotations

import numpy as np
import pytest
from tinygrad.renderer import amd

from pumice.emulator.decode import decode
from pumice.emulator.encodings import _encodings, decode_word
from pumice.errors import UnimplementedInstructionError


def theirs(data: bytes, isa: str) -> tuple[str, str, dict[str, int], int] | None:
    """None when the tables have no such instruction."""
    try:
        done = amd.decode_inst(data, isa)
        if type(done).__name__.startswith("VOPD"):
            name = f"{done.opx.name.lower()} :: {done.opy.name.lower()}"
        else:
            name = done.op.name.lower()
    except (ValueError, AssertionError, AttributeError, TypeError):
        return None
    fields = {}
    for key, field in type(done)._fields:
        value = done._raw >> field.lo & field.mask
        kind = type(field).__name__
        value += 256 * (kind == "VGPRField")
        value *= {"SBaseField": 2, "SRsrcField": 4}.get(kind, 1)
        if kind == "VDSTYField":
            value = done.vdsty.offset
        fields[key] = value
    return name, type(done).__name__, fields, done.size()


def mine(data: bytes, isa: str) -> tuple[str, str, dict[str, int], int] | None:
    try:
        return decode_word(data, isa)
    except ValueError:
        return None


@pytest.mark.parametrize("isa", ["rdna3", "rdna4", "cdna"])
def test_every_encoding(isa: str) -> None:
    """Every operation with random bits; sources that announce literals, DPP and SDWA among them."""
    rng = np.random.default_rng(5)
    found: dict[str, int] = {}
    for encoding in _encodings(isa):
        most = max((len(names) for *_, names, _ in encoding.operations), default=0)
        for turn in range(max(60, most + most // 4)):
            raw = int.from_bytes(rng.bytes(16), "little") & ~encoding.mask | encoding.value
            for _, low, mask, names, _ in encoding.operations:
                if turn < most:
                    raw = raw & ~(mask << low) | list(names)[turn % len(names)] << low
            for low, mask, _ in encoding.sources:
                if rng.random() < 0.3:
                    raw = raw & ~(mask << low) | int(rng.choice([249, 250, 255])) << low
            data = raw.to_bytes(16, "little")[: 8 if isa == "cdna" and encoding.words < 3 else 16]
            expected = theirs(data, isa)
            assert mine(data, isa) == expected, (encoding.name, data.hex())
            if expected is not None:
                found[expected[1]] = found.get(expected[1], 0) + 1
    assert {e.name for e in _encodings(isa)} - set(found) <= {"VOP3PX2"}


def test_words_of_no_encoding() -> None:
    assert mine(bytes(16), "rdna3") == theirs(bytes(16), "rdna3")
    assert mine(b"\xff" * 16, "cdna") is None


def test_the_cache_of_gfx90a() -> None:
    """`buffer_wbinvl1_vol`, as LLVM writes it behind an acquire; gfx942's tables have no such."""
    word = bytes.fromhex("0000fce000000000")
    assert decode(word, 0, "gfx90a").name == "buffer_wbinvl1_vol"
    with pytest.raises(UnimplementedInstructionError):
        decode(word, 0, "gfx942")
