"""Every scalar instruction of the emulator against the pseudo-code of AMD's ISA documents; as
test_emulator_pseudo_code.py, with waves in the place of lanes.
"""

from __future__ import annotations

import importlib
import re
from typing import Any

import numpy as np
import pytest
from emulator_machine import EDGES, Machine
from pseudo_code import program
from pseudo_library import library, plain_name
from pseudo_values import Unknown, Value
from tinygrad.renderer import amd

from pumice.emulator.decode import decode
from pumice.errors import UnimplementedInstructionError, UnsupportedError

ARCHS = {"rdna3": "gfx1100", "rdna4": "gfx1201", "cdna": "gfx942"}
WAVES, S0, S1, DST = 48, 40, 44, 48
SIMM16, LITERAL = 0x9C41, 0x3FA00000
KINDS = ("SOP1", "SOP2", "SOPC", "SOPK", "SOP2_LIT")
# Control flow, modes, messages, barriers, and registers chosen by M0.
OTHERS = re.compile(
    r"s_(.*pc_|set|get|call|movrel|rfe|send|barrier|alloc|wait|version|cbranch|cmovk?_|sub?vector"
    r"|sleep|ttrace|prefetch|.*gpr_idx|.*saveexec|.*wrexec)"
)
SETTLED = {
    "s_bcnt0_i32_b64": "SCC follows the 32 bits that are written",
    "s_bcnt1_i32_b64": "the same",
    "s_rndne_f16": "keeps the sign of zero, as IEEE 754 has it",
    "s_rndne_f32": "the same",
}


def word(kind: Any, op: Any) -> bytes:
    raw = 0
    for name, field in kind._fields:
        values = {"op": op.value, "ssrc0": S0, "ssrc1": S1, "sdst": DST, "simm16": SIMM16,
                  "literal": LITERAL}  # fmt: skip
        value = values.get(name, 0)
        if type(field).__name__ == "FixedBitField":
            value = field.default
        raw |= (value & field.mask) << field.lo
    return raw.to_bytes(16, "little")[: kind._base_size].ljust(16, b"\0")


def fill(machine: Machine, rng: np.random.Generator, text: str) -> np.ndarray:
    """Edge values and random ones; gives SCC of the waves."""
    machine.s[:, :100] = rng.integers(0, 2**32, (WAVES, 100), np.uint32)
    edges: np.ndarray = np.array([0, 1, 31, 32, 63, 0x7FFF, 0x8000, 1 << 31, (1 << 31) - 1,
                                  (1 << 32) - 1], np.uint32)  # fmt: skip
    if re.search(r"S0(\[[^]]*\])?\.f", text):
        edges = EDGES.view(np.uint32)
        if "f16" in text:
            with np.errstate(over="ignore"):
                edges = EDGES.astype(np.float16).view(np.uint16).astype(np.uint32)
    for first in (S0, S1, DST):
        shape = (WAVES, 4)
        chosen = rng.random(shape) < (1.0 if ".f" in text else 0.5)
        machine.s[:, first : first + 4] = np.where(
            chosen, rng.choice(edges, shape), machine.s[:, first : first + 4]
        )
    scc = rng.random(WAVES) < 0.5
    machine.state.scc[...] = scc[:, None]
    return scc


def wide(machine: Machine, first: int, wave: int) -> int:
    return sum(int(part) << 32 * i for i, part in enumerate(machine.s[wave, first : first + 4]))


def differs(machine: Machine, env: dict[str, Any], wave: int, text: str) -> str:
    """What is wrong in a wave, or nothing."""
    written = env.get("written", {})
    if "SCC" in written and bool(machine.state.scc[wave, 0]) != bool(env["SCC"].raw() & 1):
        return f"SCC is {bool(machine.state.scc[wave, 0])}"
    mask = written.get("D0", 0)
    got, want = wide(machine, DST, wave), env["D0"].raw()
    if got & mask == want & mask:
        return ""
    floats = re.findall(r"D0\.f(\d+)\s*\+?=", text)
    if floats:
        bits = int(floats[0])
        a, b = (Value("b", bits, x).typed("f", bits).number for x in (got, want))
        if np.isnan(a) and np.isnan(b):
            return ""
    return f"{got & mask:x}, not {want & mask:x}"


def compared(isa: str) -> tuple[set[str], list[str]]:
    """Names of the operations that were compared, and sentences about those that differ."""
    rng = np.random.default_rng(5)
    machine = Machine(ARCHS[isa], WAVES)
    pseudo = importlib.import_module(f"tinygrad.runtime.autogen.amd.{isa}.str_pcode").PCODE
    checked: set[str] = set()
    wrong: list[str] = []
    for kind in amd._load_formats()[isa]:
        if kind.__name__ not in KINDS:
            continue
        for op in sorted(dict(kind._fields)["op"].allowed, key=lambda o: o.value):
            name, text = plain_name(op.name), pseudo.get(op)
            if text is None or name in checked or name in SETTLED or OTHERS.match(name):
                continue
            try:
                step = machine.program.bind(decode(word(kind, op), 0, machine.arch))
                run = program(text)
            except (UnimplementedInstructionError, UnsupportedError, Unknown):
                continue
            scc = fill(machine, rng, text)
            envs: list[dict[str, Any]] = []
            for wave in range(WAVES):
                env = {
                    "S0": Value("b", 128, wide(machine, S0, wave)),
                    "S1": Value("b", 128, wide(machine, S1, wave)),
                    "D0": Value("b", 128, wide(machine, DST, wave)),
                    "SCC": Value("b", 64, int(scc[wave])), "SIMM16": Value("b", 16, SIMM16),
                    "SIMM32": Value("b", 32, LITERAL), "library": library(isa),
                }  # fmt: skip
                if kind.__name__ == "SOPK":  # the register and the constant are operands there
                    register, constant = env["D0"], env["SIMM16"]
                    alone = "S1" not in text and "SIMM16" not in text
                    env |= {"S0": constant if alone else register, "S1": constant}
                envs.append(env)
            try:
                for env in envs:
                    run(env)
            except Unknown:
                continue
            assert step is not None
            with np.errstate(all="ignore"):
                step()
            found = [(w, d) for w, env in enumerate(envs) if (d := differs(machine, env, w, text))]
            if found:
                wave, what = found[0]
                env = envs[wave]
                wrong.append(f"{name}: {what} of {env['S0'].raw():x}, {env['S1'].raw():x}")
            checked.add(name)
    return checked, wrong


@pytest.mark.parametrize(("isa", "least"), [("rdna3", 165), ("rdna4", 160), ("cdna", 110)])
def test_every_scalar_instruction(isa: str, least: int) -> None:
    checked, wrong = compared(isa)
    assert wrong == []
    assert len(checked) >= least
