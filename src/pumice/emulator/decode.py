"""Bytes → instructions, by the tables that the package `tinygrad` makes out of AMD's ISA XML.

Only the encodings come from there; what an instruction does is this package's own. RDNA3's MUBUF
and RDNA4's VBUFFER words, which those tables leave out, are decoded here (RDNA3 ISA, section 15.6;
RDNA4 ISA, section 15.9).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from pumice.emulator.encodings import decode_word
from pumice.emulator.matrix_table import GFX90A_OPCODES
from pumice.emulator.names import canonical
from pumice.errors import UnimplementedInstructionError, UnsupportedError

_FAMILIES = {
    "cdna": ("gfx90a", "gfx942", "gfx950"),
    "rdna3": ("gfx11",),
    "rdna4": ("gfx1200", "gfx1201"),
}
_DPP = (233, 234, 250)
_VOP3P_CDNA = 0b110100111
_SCALED_MFMA = 0xD3AC
_GFX90A_CACHE = {0b111000_0_0111110: "buffer_wbinvl1", 0b111000_0_0111111: "buffer_wbinvl1_vol"}


@dataclass(frozen=True)
class Instruction:
    """One decoded instruction.

    name: canonical ("v_add_nc_u32"); encoding: "VOP3", "SOP2" ...; fields: raw bits by name,
    sources in the 9-bit numbering (256 is v0, 128 is the constant 0); pc: byte in .text.
    """

    name: str
    encoding: str
    fields: Mapping[str, int]
    pc: int
    size: int
    raw: bytes
    mnemonic: str

    def __getattr__(self, name: str) -> int:
        try:
            return self.fields[name]
        except KeyError:
            raise AttributeError(name) from None

    def get(self, name: str, default: int = 0) -> int:
        return self.fields.get(name, default)

    def __str__(self) -> str:
        return f"{self.mnemonic} ({self.encoding} {self.raw.hex()}) at 0x{self.pc:x}"


@functools.cache
def family(arch: str) -> str:
    """ "cdna" | "rdna3" | "rdna4" of an LLVM processor name; UnsupportedError for another."""
    for name, prefixes in _FAMILIES.items():
        if arch.startswith(prefixes):
            return name
    raise UnsupportedError(
        f"the emulator has no {arch}; it has CDNA2 to 4 (gfx90a, gfx942, gfx950), "
        "RDNA3 (gfx11xx) and RDNA4 (gfx1200, gfx1201)"
    )


@functools.cache
def _buffer_names(isa: str) -> dict[int, str]:
    from importlib import import_module

    enum = import_module(f"tinygrad.runtime.autogen.amd.{isa}.enum")
    return {row.value: row.name for row in (enum.MUBUFOp if isa == "rdna3" else enum.VBUFFEROp)}


def _bits(word: int, high: int, low: int) -> int:
    return word >> low & ((1 << (high - low + 1)) - 1)


def _mubuf(data: bytes, pc: int) -> Instruction:
    word = int.from_bytes(data[:8], "little")
    places = {
        "offset": (11, 0), "slc": (12, 12), "dlc": (13, 13), "glc": (14, 14), "op": (25, 18),
        "vaddr": (39, 32), "vdata": (47, 40), "srsrc": (52, 48), "tfe": (53, 53),
        "offen": (54, 54), "idxen": (55, 55), "soffset": (63, 56),
    }  # fmt: skip
    fields = {name: _bits(word, *place) for name, place in places.items()}
    fields["vaddr"] += 256
    fields["vdata"] += 256
    fields["srsrc"] *= 4
    name = _buffer_names("rdna3").get(fields["op"], f"MUBUF_{fields['op']}")
    return Instruction(canonical(name), "MUBUF", fields, pc, 8, data[:8], name.lower())


def _vbuffer(data: bytes, pc: int) -> Instruction:
    word = int.from_bytes(data[:12], "little")
    places = {
        "soffset": (6, 0), "op": (21, 14), "tfe": (22, 22), "vdata": (39, 32), "srsrc": (49, 41),
        "scope": (51, 50), "th": (54, 52), "offen": (62, 62), "idxen": (63, 63),
        "vaddr": (71, 64), "offset": (95, 72),
    }  # fmt: skip
    fields = {name: _bits(word, *place) for name, place in places.items()}
    fields["vaddr"] += 256
    fields["vdata"] += 256
    fields["glc"] = fields["th"] & 1
    name = _buffer_names("rdna4").get(fields["op"], f"VBUFFER_{fields['op']}")
    return Instruction(canonical(name), "MUBUF", fields, pc, 12, data[:12], name.lower())


@functools.lru_cache(maxsize=200_000)
def _decode_word(data: bytes, isa: str) -> tuple[str, str, str, dict[str, int], int]:
    mnemonic, encoding, fields, size = decode_word(data, isa)
    if encoding.startswith("VOPD"):
        return "vopd", encoding, mnemonic, fields, size
    return canonical(mnemonic), encoding, mnemonic, fields, size


def decode(code: bytes, pc: int, arch: str) -> Instruction:
    """The instruction at byte `pc` of .text."""
    isa = family(arch)
    data = code[pc : pc + 16]
    if len(data) < 4:
        raise UnsupportedError(f"the program runs off its code at byte 0x{pc:x} of {len(code)}")
    word = int.from_bytes(data[:4], "little")
    data = data.ljust(16, b"\0")
    if isa == "rdna3" and word >> 26 == 0b111000:
        return _mubuf(data, pc)
    if isa == "rdna4" and word >> 26 == 0b110001:
        return _vbuffer(data, pc)
    if arch == "gfx90a" and word >> 23 == _VOP3P_CDNA and (word >> 16 & 127) in GFX90A_OPCODES:
        # gfx942, whose table the rest is decoded by, gave these opcodes to other instructions.
        return _mfma(data, pc, GFX90A_OPCODES[word >> 16 & 127].lower())
    if arch == "gfx90a" and word >> 18 in _GFX90A_CACHE:
        name = _GFX90A_CACHE[word >> 18]  # gfx942 has other instructions for its caches
        return Instruction(name, "MUBUF", {}, pc, 8, data[:8], name)
    if isa == "cdna" and word >> 16 != _SCALED_MFMA:
        data = data[:8]  # the tables take any 8 bytes before a matrix instruction for its scales
    try:
        name, encoding, mnemonic, fields, size = _decode_word(data, isa)
    except ValueError as why:
        raise UnimplementedInstructionError(
            f"the word 0x{word:08x} at byte 0x{pc:x} is no known instruction of {arch}: {why}"
        ) from why
    if encoding == "VOP3P" and name.startswith(("v_mfma", "v_smfmac")):
        return _mfma(data, pc, mnemonic)  # XF32's, which the tables leave among the packed ones
    if fields.get("src0") in _DPP and "DPP" not in encoding and isa != "cdna":
        more = _dpp_fields(fields["src0"], int.from_bytes(data[size : size + 4], "little"))
        encoding += "_DPP16" if fields["src0"] == 250 else "_DPP8"
        fields, size = {**fields, **more}, size + 4
    return Instruction(name, encoding, fields, pc, size, data[:size], mnemonic)


def _dpp_fields(source: int, word: int) -> dict[str, int]:
    """The word behind a DPP instruction that the tables don't take for one: a register, and 3 bits
    for each of 8 lanes, or DPP16's control and masks.
    """
    if source == 250:
        places = {
            "dpp": (16, 8), "fi": (18, 18), "bc": (19, 19), "src0_neg": (20, 20),
            "src0_abs": (21, 21), "src1_neg": (22, 22), "src1_abs": (23, 23),
            "bank_mask": (27, 24), "row_mask": (31, 28),
        }  # fmt: skip
        found = {name: _bits(word, *place) for name, place in places.items()}
    else:
        found = {f"lane_sel_{i}": word >> 8 + 3 * i & 7 for i in range(8)}
        found["fi"] = int(source == 234)
    found["vsrc0"] = 256 + (word & 255)
    return found


def _mfma(data: bytes, pc: int, name: str) -> Instruction:
    """A matrix instruction of CDNA (VOP3P-MAI: "CDNA3 ISA", section 13.3.6)."""
    word = int.from_bytes(data[:8], "little")
    places = {
        "vdst": (7, 0), "cbsz": (10, 8), "abid": (14, 11), "acc_cd": (15, 15), "op": (22, 16),
        "src0": (40, 32), "src1": (49, 41), "src2": (58, 50), "acc": (60, 59), "blgp": (63, 61),
    }  # fmt: skip
    fields = {name: _bits(word, *place) for name, place in places.items()}
    fields["vdst"] += 256
    return Instruction(name, "VOP3P_MFMA", fields, pc, 8, data[:8], name)
