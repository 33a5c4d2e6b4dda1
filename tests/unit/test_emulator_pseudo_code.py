"""Every vector instruction of the emulator against the pseudo-code of AMD's ISA documents.

The package tinygrad extracts the pseudo-code from the documents. A word of each opcode is encoded
by the tables, executed on edge values and random ones, and compared bit for bit with what the
pseudo-code gives a lane. Transcendental functions may differ by their last bits.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from emulator_machine import EDGES, Machine
from pseudo_code import program
from pseudo_library import library, plain_name
from pseudo_values import Unknown, Value
from tinygrad.renderer import amd

from pumice.emulator.decode import decode
from pumice.emulator.vector_table import VECTOR
from pumice.errors import UnimplementedInstructionError, UnsupportedError

ARCHS = {"rdna3": "gfx1100", "rdna4": "gfx1201", "cdna": "gfx950"}
S0, S1, S2, DST, SDST, CARRY = 2, 6, 10, 14, 20, 24  # vector registers; scalar registers
KINDS = ("VOP1", "VOP2", "VOP2_LIT", "VOP3", "VOP3_SDST", "VOP3SD", "VOP3P", "VOPC", "VOP1_LIT")
LITERAL = 0x3FA00000
INEXACT = re.compile(r"pow\(|log2\(|sqrt\(|sin\(|cos\(|1\.0F? / |16'1\.0 / ")


def words(isa: str) -> Iterator[tuple[str, str, str, int, int]]:
    """(mnemonic, encoding, pseudo-code, word, bytes) of every vector opcode."""
    pseudo = importlib.import_module(f"tinygrad.runtime.autogen.amd.{isa}.str_pcode").PCODE
    for kind in amd._load_formats()[isa]:
        if kind.__name__ not in KINDS:
            continue
        fields = dict(kind._fields)
        for op in sorted(fields["op"].allowed or list(fields["op"]._enum), key=lambda o: o.value):
            text = pseudo.get(op)
            if text is None:
                continue
            yield op.name.lower(), kind.__name__, text, *encode(kind, fields, op, text)


def encode(kind: Any, fields: dict[str, Any], op: Any, text: str) -> tuple[int, int]:
    """Sources in S0, S1, S2, results in DST and SDST, lane masks in CARRY and VCC."""
    carries = "VCC.u64[laneId]" in text and "S2" not in text
    chosen = {
        "src0": 256 + S0, "vsrc0": 256 + S0, "src1": 256 + S1, "vsrc1": 256 + S1,
        "src2": CARRY if carries else 256 + S2, "vdst": 256 + DST, "sdst": SDST, "opsel_hi": 3,
        "opsel_hi2": 1, "literal": LITERAL,
    }  # fmt: skip
    if "OPSEL_HI" in text:  # mixed precision: float16's high half, float32, float16's low half
        chosen |= {"opsel_hi": 1, "opsel_hi2": 1, "opsel": 1}
    raw = 0
    for name, field in fields.items():
        what = type(field).__name__
        if what == "FixedBitField":
            value = field.default
        elif name == "op":
            value = op.value
        elif name == "vdst" and what in ("SGPRField", "SSrcField"):
            value = SDST
        else:
            value = chosen.get(name, 0)
            if what == "VGPRField":
                value -= 256 if value >= 256 else 0
        raw |= (value & field.mask) << field.lo
    return raw, kind._base_size


def fill(machine: Machine, rng: np.random.Generator, text: str) -> None:
    """Sources as the pseudo-code types them: edge values in some lanes, any numbers in others."""
    machine.v[:40] = rng.integers(0, 2**32, machine.v[:40].shape, np.uint32)
    for number, register in ((0, S0), (1, S1), (2, S2), (3, DST)):
        name = f"S{number}" if number < 3 else "D0"
        types = {t for t in re.findall(rf"{name}(?:\[[^]]*\])?\.([a-z]+\d+)", text)}
        row = machine.v[register : register + 4]
        if types & {"f64"}:
            wide = rng.standard_normal(machine.size) * 2.0 ** rng.integers(-60, 60, machine.size)
            edges = np.concatenate([EDGES.astype(np.float64), [1e300, -1e-310, 2.0**-1022]])
            picked = rng.choice(edges, machine.size)
            wide = np.where(rng.random(machine.size) < 0.6, picked, wide)
            row[0], row[1] = wide.view(np.uint32).reshape(-1, 2).T
        elif types & {"f16", "bf16"}:
            halves = rng.standard_normal((4, machine.size, 2)) * 2.0 ** rng.integers(
                -8, 8, (4, machine.size, 2)
            )
            with np.errstate(over="ignore"):
                edges16 = EDGES.astype(np.float16).astype(np.float64)
                halves = np.where(
                    rng.random(halves.shape) < 0.5, rng.choice(edges16, halves.shape), halves
                )
                if "bf16" in types:
                    bits = halves.astype(np.float32).view(np.uint32) >> 16
                    halves16 = np.ascontiguousarray(bits.astype(np.uint16))
                else:
                    halves16 = np.ascontiguousarray(halves.astype(np.float16)).view(np.uint16)
            row[...] = halves16.view(np.uint32)[..., 0]
        elif types & {"f32"}:
            single = rng.standard_normal((4, machine.size)) * 2.0 ** rng.integers(
                -40, 40, (4, machine.size)
            )
            near = np.rint(single * 4) / 4
            single = np.where(rng.random(single.shape) < 0.3, near, single)
            some = rng.random(single.shape) < 0.5
            row[...] = (
                np.where(some, rng.choice(EDGES, single.shape), single)
                .astype(np.float32)
                .view(np.uint32)
            )
        else:
            edges_i = np.array([0, 1, 2, 31, 32, 33, 127, 128, 255, 0x7FFF, 0x8000, 0xFFFF, 1 << 31,
                                (1 << 31) - 1, (1 << 32) - 1, 0x00FFFFFF], np.uint32)  # fmt: skip
            some = rng.random(row.shape) < 0.4
            row[...] = np.where(some, rng.choice(edges_i, row.shape), row)
    for register in (CARRY, 106):
        machine.s[:, register : register + 2] = machine.s[:, 30:32] = 0
    masks = rng.integers(0, 2**32, (machine.state.waves, 2), np.uint32)
    for register in (CARRY, 106):
        machine.s[:, register : register + 2] = masks
    machine.s[:, SDST : SDST + 2] = 0


def wide(machine: Machine, register: int, lane: int) -> Value:
    parts = machine.v[register : register + 4, lane]
    return Value("b", 128, sum(int(part) << 32 * i for i, part in enumerate(parts)))


def expected(machine: Machine, text: str, isa: str) -> list[dict[str, Any]]:
    """Environments after the pseudo-code, a lane each."""
    found, run = [], program(text)
    carry = machine.mask(106)
    for lane in range(machine.size):
        inside = lane % machine.state.lanes
        bit = int(carry[lane])
        env: dict[str, Any] = {
            "S0": wide(machine, S0, lane), "S1": wide(machine, S1, lane),
            "S2": wide(machine, S2, lane), "D0": wide(machine, DST, lane),
            "VCC": Value("b", 64, bit << inside), "EXEC": Value("b", 64, 0),
            "D1": Value("b", 64, 0), "laneId": Value("n", 0, inside),
            "SIMM32": Value("b", 32, LITERAL), "OPSEL": Value("b", 3, "OPSEL_HI" in text),
            "OPSEL_HI": Value("b", 3, 5), "NEG": Value("b", 3, 0), "library": library(isa),
        }  # fmt: skip
        env["VGPR"] = [[env["S0"]]] * 64  # [lane][register], of which only S0 is asked for
        env["SRC0"] = Value("n", 0, 0)
        env["S"] = [env["S0"], env["S1"], env["S2"]]
        run(env)
        found.append(env)
    return found


def check(machine: Machine, before: np.ndarray, envs: list[dict[str, Any]], text: str,
          name: str, encoding: str) -> None:  # fmt: skip
    """Registers and masks after the instruction, against the environments."""
    to_mask = re.search(r"(D0|VCC|EXEC|D1)\.u(?:64|1)(?:\[laneId\]|,| })|VCC = ", text)
    lanes = machine.state.lanes
    for lane, env in enumerate(envs):
        written = env.get("written", {})
        inside = lane % lanes
        for target in ("VCC", "EXEC", "D1") if to_mask else ():
            if target not in written:
                continue
            register = 126 if target == "EXEC" else 106 if encoding.startswith("VOP2") else SDST
            bit = env[target].raw() >> (0 if target == "D1" or "VCC = 0x" in text else inside) & 1
            assert machine.mask(register)[lane] == bool(bit), (name, target, lane)
        mask = written.get("D0", 0)
        if not mask:
            continue
        if "D0.u64[laneId]" in text:
            register = 106 if encoding == "VOPC" else SDST
            assert machine.mask(register)[lane] == bool(env["D0"].raw() >> inside & 1), (name, lane)
            continue
        got, want = wide(machine, DST, lane).raw(), env["D0"].raw()
        # Of CDNA's minimum and maximum the documents leave open which zero they give.
        zeros = machine.state.cdna and re.search("min|max|med3", name) is not None
        assert same(got, want, mask, text, flushes(env), zeros), (
            f"{name} ({encoding}) lane {lane}: {got & mask:x}, not {want & mask:x}, of "
            f"{[f'{env[s].raw():x}' for s in ('S0', 'S1', 'S2')]}"
        )
        if machine.state.cdna and mask in (0xFFFF, 0xFFFF0000):
            continue  # CDNA clears the other half of most 16-bit results
        keep = (1 << 128) - 1 & ~mask
        old = sum(int(part) << 32 * i for i, part in enumerate(before[:, lane]))
        assert got & keep == old & keep, (name, encoding, lane, "wrote too much")


def flushes(env: dict[str, Any]) -> bool:
    """Whether a transcendental function takes or gives a denormal float32: those are zero."""
    numbers = [env[name].typed("f", 32).number for name in ("S0", "D0")]
    return any(0 < abs(number) < 2.0**-125 for number in numbers)


def same(got: int, want: int, mask: int, text: str, flushed: bool, either_zero: bool) -> bool:
    """Equal bits, where the results are floats any NaN for a NaN, and some ulps where allowed."""
    if got & mask == want & mask:
        return True
    kinds = re.findall(r"(?:D0|tmp)(?:\[[^]]*\])?\.(b?f)(\d+)\s*\+?=[^=]", text)
    if not kinds:
        return False
    kind, bits = kinds[0][0], int(kinds[0][1])
    ulps = 2 if INEXACT.search(text) else 4 if "tmp +=" in text else 0
    for low in range(0, 128, bits):
        part = (1 << bits) - 1
        if not mask >> low & part:
            continue
        a, b = (Value("b", bits, x >> low & part).typed(kind, bits) for x in (got, want))
        if np.isnan(a.number) and np.isnan(b.number):
            continue
        if either_zero and a.number == b.number == 0:
            continue
        if INEXACT.search(text) and bits == 32 and flushed:
            continue
        if abs(Value("i", bits, a.raw()).number - Value("i", bits, b.raw()).number) > ulps:
            return False
    return True


# What the emulator knowingly does otherwise, and why.
SETTLED = {
    "v_div_scale_f32": "the documents' condition on denormals can't be right: docs/emulator.md",
    "v_div_scale_f64": "the same",
    "v_div_fmas_f32": "scales by 2^±64 as a correct division needs: docs/emulator.md",
    "v_div_fmas_f64": "the same",
    "v_fmac_dx9_zero_f32": "the pseudo-code names S2 for what is D0 in the next line",
    "v_cvt_nearest_i32_f32": "S0 + 0.5 is not rounded before the floor",
    "v_rndne_f16": "keeps the sign of zero and large odd numbers, as IEEE 754 has it",
    "v_rndne_f32": "the same",
    "v_rndne_f64": "the same",
    "v_fract_f16": "stays below 1 for tiny negative numbers",
    "v_fract_f32": "the same",
    "v_fract_f64": "the same",
    "v_frexp_exp_i16_f16": "denormals and zero as C's frexp",
    "v_frexp_exp_i32_f32": "the same",
    "v_frexp_exp_i32_f64": "the same",
    "v_sin_f16": "2π·S0 is reduced before it is rounded",
    "v_sin_f32": "the same",
    "v_cos_f16": "the same",
    "v_cos_f32": "the same",
    "v_cvt_off_f32_i4": "its table is not in the pseudo-code",
    "v_cvt_pk_u8_f32": "rounds to nearest, as the mode says",
    "v_cvt_rpi_i32_f32": "as v_cvt_nearest_i32_f32",
    "v_div_fixup_f16": "a quotient that is not finite becomes an infinity: the documents look for "
    "it in the denominator's exponent, where it can't be",
    "v_div_fixup_f32": "the same",
    "v_div_fixup_f64": "the same",
    "v_div_fixup_legacy_f16": "the same",
    "v_mad_mix_f32": "fused, as LLVM takes it for on gfx90a and later",
    "v_mad_mixlo_f16": "the same",
    "v_mad_mixhi_f16": "the same",
    "v_dot2_f16_f16": "rounds once: docs/emulator.md",
    "v_dot2_bf16_bf16": "the same",
}


# Pseudo-code over all lanes, with tables, or of matrices: tested elsewhere.
UNREAD = re.compile(r"v_(wmma|swmmac|bitop3|cvt_scalef32|cvt_pk_[fb][fp]8|cvt_.*[bf][fp]8)")


@dataclasses.dataclass
class Outcome:
    """Names of operations: compared, without a readable definition, unknown to the emulator; and
    sentences about those that differ.
    """

    checked: set[str] = dataclasses.field(default_factory=set)
    unread: set[str] = dataclasses.field(default_factory=set)
    refused: set[str] = dataclasses.field(default_factory=set)
    wrong: list[str] = dataclasses.field(default_factory=list)


def compared(isa: str, only: str = "") -> Outcome:
    """All vector instructions of a set, or those whose name begins with `only`."""
    rng = np.random.default_rng(11)
    machine = Machine(ARCHS[isa], 2 if isa != "cdna" else 1)
    found = Outcome()
    for name, encoding, text, raw, size in words(isa):
        plain = plain_name(name)
        if not plain.startswith(only) or plain in SETTLED or plain in found.checked:
            continue
        if plain.startswith("v_s_") or re.search("permlane|readlane|writelane|readfirst", plain):
            continue  # functions tested by their vector form; moves between lanes
        try:
            inst = decode(raw.to_bytes(16, "little")[:size].ljust(16, b"\0"), 0, machine.arch)
            step = machine.program.bind(inst)
        except (UnimplementedInstructionError, UnsupportedError):
            found.refused.add(plain)
            continue
        fill(machine, rng, text)
        machine.set_exec(np.ones((machine.state.waves, machine.state.lanes), bool))
        before = machine.v[DST : DST + 4].copy()
        try:
            envs = expected(machine, text, isa)
        except Unknown:
            found.unread.add(plain)
            continue
        assert step is not None
        with np.errstate(all="ignore"):
            step()
        try:
            check(machine, before, envs, text, plain, encoding)
        except AssertionError as fault:
            found.wrong.append(str(fault).splitlines()[0])
        found.checked.add(plain)
    return found


@pytest.mark.parametrize(("isa", "least"), [("rdna3", 420), ("rdna4", 410), ("cdna", 425)])
def test_every_vector_instruction(isa: str, least: int) -> None:
    found = compared(isa)
    assert found.wrong == []
    assert len(found.checked) >= least
    assert {name for name in found.unread if not UNREAD.match(name)} == set()
    assert not found.refused & {"v_add_f32", "v_fma_f32", "v_exp_f32", "v_perm_b32"}


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("v_bfe_u32", lambda a, b, c: a >> (b & 31)), ("v_med3_f32", lambda a, b, c: np.fmax(a, b))],
)
def test_a_wrong_operation_is_found(name: str, wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VECTOR, name, dataclasses.replace(VECTOR[name], function=wrong))
    found = compared("rdna3", name)
    assert len(found.wrong) == 1 and found.wrong[0].startswith(name)
