"""Names of matrix instructions against LLVM's assembler and tinygrad's tables."""

from __future__ import annotations

import importlib
import re
import struct

import pytest

from assembler import machine_code
from pumice.emulator.matrix_layouts import input_place, output_place
from pumice.emulator.matrix_table import GFX90A_OPCODES, instruction

# LLVM's spelling of each of gfx90a's own opcodes.
GFX90A = {
    84: "v_mfma_i32_32x32x8i8",
    85: "v_mfma_i32_16x16x16i8",
    99: "v_mfma_f32_32x32x4bf16_1k",
    100: "v_mfma_f32_16x16x4bf16_1k",
    101: "v_mfma_f32_4x4x4bf16_1k",
    102: "v_mfma_f32_32x32x8bf16_1k",
    103: "v_mfma_f32_16x16x16bf16_1k",
    104: "v_mfma_f32_32x32x2bf16",
    105: "v_mfma_f32_16x16x2bf16",
    107: "v_mfma_f32_4x4x2bf16",
    108: "v_mfma_f32_32x32x4bf16",
    109: "v_mfma_f32_16x16x8bf16",
}


def span(first: int, registers: int) -> str:
    return f"v{first}" if registers == 1 else f"v[{first}:{first + registers - 1}]"


@pytest.mark.parametrize("opcode", GFX90A_OPCODES)
def test_opcodes_of_gfx90a(opcode: int) -> None:
    """LLVM accepts exactly the registers that the layout says, and writes that opcode."""
    spec = instruction(GFX90A_OPCODES[opcode])
    assert spec == instruction(GFX90A[opcode])
    sizes = [input_place(spec, "gfx90a", 64, operand).registers for operand in "ab"]
    d = span(0, output_place(spec, "gfx90a", 64).registers)
    a, b = span(64, sizes[0]), span(80, sizes[1])
    code = machine_code(f"{GFX90A[opcode]} {d}, {a}, {b}, {d}", "gfx90a")
    (word,) = struct.unpack_from("<I", code)
    assert word >> 23 == 0b110100111 and word >> 16 & 127 == opcode


@pytest.mark.parametrize(
    ("table", "arch", "wave"),
    [("rdna3", "gfx1100", 32), ("rdna4", "gfx1201", 32), ("cdna", "gfx950", 64)],
)
def test_every_name_in_tinygrads_tables(table: str, arch: str, wave: int) -> None:
    module = f"tinygrad.runtime.autogen.amd.{table}"
    enum = pytest.importorskip(f"{module}.enum", reason="needs tinygrad's tables")
    operands = importlib.import_module(f"{module}.operands").OPERANDS
    seen = 0
    for group in (enum.VOP3POp, *([enum.VOP3PX2Op] if table == "cdna" else [])):
        for op in group:
            if not re.match(r"V_(S?WMMA|SWMMAC|MFMA_(?!LD)|SMFMAC)", op.name):
                continue
            spec = instruction(op.name)
            if op not in operands or spec.a == "f8f6f4":
                continue
            places = {
                "src0": input_place(spec, arch, wave, "a"),
                "src1": input_place(spec, arch, wave, "b"),
                "vdst": output_place(spec, arch, wave),
            }
            for key, place in places.items():
                assert place.registers == operands[op][key][1] // 32, (op.name, key)
            seen += 1
    assert seen >= 6
