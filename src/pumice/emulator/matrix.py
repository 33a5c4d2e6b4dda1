"""Matrix instructions (WMMA, SWMMAC, MFMA, SMFMAC) of many waves at once.

`matrix_multiply` reads A, B and C from registers, multiplies, and returns D's registers. EXEC plays
no part: these instructions act on all lanes. Products and sums are made in float64 and rounded once
to D's type. Hardware rounds partial sums, in an order that AMD doesn't document (measured on CDNA
by Xie et al., "MMA-Sim", arXiv 2511.10909): results here differ from it by those roundings. What is
known is kept: gfx90a's F16 and BF16 forms take denormals for zeros and return none (MIOpen's "MI200
MFMA behavior specifics"), XF32 drops the low 13 bits of its inputs, integers wrap or clamp.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from pumice.emulator import numbers
from pumice.emulator.matrix_layouts import Place, index_place, input_place, output_place
from pumice.emulator.matrix_operands import codes_of, lane_of_b, source_blocks, values_of
from pumice.emulator.matrix_table import BITS, F8F6F4, MatrixInstruction, instruction
from pumice.errors import DeviceError, UnsupportedError, UsageError

Registers = npt.NDArray[np.uint32]
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Modifiers:
    """An instruction's fields beside its operands, named as in the ISA documents.

    neg, neg_hi: 3 bits each, of A, B, C. Floating point: neg negates even places along K, neg_hi
    odd ones; of C, neg negates and neg_hi takes the absolute value. IU8 and IU4: neg marks A or B
    signed. clamp: integer results saturate. opsel: bit 2, the half of RDNA3's 16-bit results; bits
    0 and 1, RDNA4's sparse index set. cbsz, abid, blgp: CDNA's broadcasts (F64 from gfx942 on: blgp
    negates A, B and C; F8F6F4: cbsz and blgp are formats; sparse: abid chooses the index set, the
    first if cbsz ≠ 0). scale_byte_a, scale_byte_b: which byte of a lane's scale register.
    check_copies: RDNA3 wants every row again in each further group of 16 lanes; differing copies
    are an error.
    """

    arch: str
    wave: int = 32
    neg: int = 0
    neg_hi: int = 0
    clamp: bool = False
    opsel: int = 0
    cbsz: int = 0
    abid: int = 0
    blgp: int = 0
    scale_byte_a: int = 0
    scale_byte_b: int = 0
    check_copies: bool = True


def matrix_multiply(
    mnemonic: str,
    a: Registers,
    b: Registers,
    c: Registers,
    *,
    modifiers: Modifiers,
    index: Registers | None = None,
    scale_a: Registers | None = None,
    scale_b: Registers | None = None,
) -> Registers:
    """D = A·B + C. All operands and the result: uint32 [waves, registers, lanes].

    c broadcasts: an inline constant is [1, 1, 1], already in the pattern of C's registers (16-bit
    constants in both halves), or [1, 2, 1] for f64. RDNA3's 16-bit results leave the other half as
    it is in c, which is D's register there. index: src2 of sparse instructions, [waves, 1, lanes];
    c is then D's old value. scale_a, scale_b: V_MFMA_SCALE's scale registers, [waves, 1, lanes].
    Errors: UnsupportedError for unknown instructions and fields, UsageError for misshapen operands,
    DeviceError for RDNA3 inputs whose copies differ.
    """
    plan = _plan(mnemonic, modifiers)
    spec = plan.spec
    a = _checked(a, plan.a.place, "A", mnemonic, modifiers)
    b = _checked(b, plan.b.place, "B", mnemonic, modifiers)
    waves, lanes = max(len(a), len(b)), modifiers.wave
    if waves == 0:
        return np.zeros((0, plan.d_registers, lanes), np.uint32)
    if spec.out == "f64" and c.shape[1] == 2:  # a constant's two halves
        c = np.tile(c, (1, plan.d_registers // 2, 1))
    c = np.broadcast_to(c, (waves, plan.d_registers, lanes))
    left = plan.a.values(a)  # [waves, blocks, m, k], sparse: k/2
    right = plan.b.values(b)  # [waves, blocks, n, k]
    if spec.scaled:
        if scale_a is None or scale_b is None:
            raise UsageError(f"{mnemonic} needs scale_a and scale_b")
        left = left * _scales(scale_a, spec.m, spec.k, modifiers.scale_byte_a)
        right = right * _scales(scale_b, spec.n, spec.k, modifiers.scale_byte_b)
    with np.errstate(invalid="ignore", over="ignore"):
        if plan.index is None:
            product = np.matmul(left, right.swapaxes(-1, -2))  # [waves, blocks, m, n]
        else:
            if index is None:
                raise UsageError(f"{mnemonic} needs index, the register of src2")
            product = _sparse_product(left, right, codes_of(index, 2).take(plan.index, axis=1))
        ordered = product.reshape(waves, -1).take(plan.order, axis=1)
        return _accumulate(plan, ordered, c)


@dataclass(frozen=True)
class _Operand:
    """One input, ready to be read: flat indices of its elements' codes, and how to decode them."""

    place: Place
    flat: npt.NDArray[np.int64]  # [blocks, rows, k]
    kind: str
    signed: bool
    flush: bool
    signs: npt.NDArray[np.float64] | None  # [k]

    def values(self, registers: Registers) -> Array:
        """float64 [waves, blocks, rows, k]."""
        codes = codes_of(registers, self.place.bits).take(self.flat, axis=1)
        values = values_of(codes, self.kind, signed=self.signed, flush=self.flush)
        return values if self.signs is None else values * self.signs


@dataclass(frozen=True)
class _Plan:
    spec: MatrixInstruction
    a: _Operand
    b: _Operand
    index: npt.NDArray[np.int64] | None  # [m, k/2], of 2-bit codes
    order: npt.NDArray[np.int64]  # of [blocks, m, n], by place in D
    positions: npt.NDArray[np.int64]  # D's elements of out's bits, ascending
    d_registers: int
    flush: bool
    negate_c: bool
    absolute_c: bool
    clamp: bool


@lru_cache(maxsize=512)
def _plan(mnemonic: str, modifiers: Modifiers) -> _Plan:
    spec = instruction(mnemonic)
    arch, wave = modifiers.arch, modifiers.wave
    _check_arch(spec, mnemonic, modifiers)
    mfma = spec.kind in ("mfma", "smfmac")
    mixed = spec.a == "f8f6f4"
    negation = mfma and spec.a == "f64" and arch != "gfx90a"
    formats = (_f8f6f4(modifiers.cbsz), _f8f6f4(modifiers.blgp)) if mixed else (None, None)
    flush = arch == "gfx90a" and spec.a in ("f16", "bf16")
    a = input_place(spec, arch, wave, "a", _bits(formats[0]))
    b = input_place(spec, arch, wave, "b", _bits(formats[1]))
    a_flat, b_flat = a.flat(wave), b.flat(wave)
    if mfma and not mixed and not negation:
        if not spec.sparse and modifiers.cbsz:
            a_flat = a_flat[source_blocks(spec.blocks, modifiers.cbsz, modifiers.abid)]
        if modifiers.blgp:
            moved = lane_of_b(modifiers.blgp)[b.lane]
            b_flat = Place(b.bits, b.register, b.slot, moved).flat(wave)
    neg = modifiers.blgp if negation else modifiers.neg
    neg_hi = neg if negation else modifiers.neg_hi
    floating = not spec.integer
    operand_a, operand_b = (
        _Operand(
            place,
            flat,
            _kind(spec, arch, operand, chosen),
            bool(neg >> bit & 1) if spec.integer and not mfma else True,
            flush,
            _signs(neg >> bit & 1, neg_hi >> bit & 1, flat.shape[-1]) if floating else None,
        )
        for bit, (operand, place, flat, chosen) in enumerate(
            (("a", a, a_flat, formats[0]), ("b", b, b_flat, formats[1]))
        )
    )
    half = modifiers.opsel >> 2 & 1 if arch.startswith("gfx11") else 0
    d = output_place(spec, arch, wave, half)
    positions = d.flat(wave).reshape(-1)
    order = np.argsort(positions)
    chosen_set = (0 if modifiers.cbsz else modifiers.abid) if mfma else modifiers.opsel & 3
    return _Plan(
        spec,
        operand_a,
        operand_b,
        index_place(spec, arch, wave, chosen_set).flat(wave) if spec.sparse else None,
        order,
        positions[order],
        d.registers,
        flush,
        floating and bool(neg >> 2 & 1),
        floating and not negation and bool(neg_hi >> 2 & 1),
        modifiers.clamp,
    )


def _check_arch(spec: MatrixInstruction, mnemonic: str, modifiers: Modifiers) -> None:
    arch, wave = modifiers.arch, modifiers.wave
    families = {
        "wmma": ("gfx11", "gfx12"),
        "swmmac": ("gfx12",),
        "mfma": ("gfx90a", "gfx942", "gfx950"),
        "smfmac": ("gfx942", "gfx950"),
    }[spec.kind]
    if not arch.startswith(families):
        raise UnsupportedError(f"{mnemonic} is not an instruction of {arch}, but of {families}")
    allowed = (64,) if spec.kind in ("mfma", "smfmac") else (32, 64)
    if wave not in allowed:
        raise UnsupportedError(f"{mnemonic} on {arch} with {wave} lanes; allowed: {allowed}")
    if modifiers.cbsz and spec.kind == "mfma" and spec.a != "f8f6f4":
        size = 1 << modifiers.cbsz
        if size > spec.blocks or modifiers.abid >= size:
            raise UnsupportedError(
                f"{mnemonic} with cbsz {modifiers.cbsz} and abid {modifiers.abid}; allowed are "
                f"2^cbsz up to its {spec.blocks} blocks, and abid below 2^cbsz"
            )


def _f8f6f4(code: int) -> str:
    if code >= len(F8F6F4):
        raise UnsupportedError(f"F8F6F4 format {code}; allowed: 0 to {len(F8F6F4) - 1}")
    return F8F6F4[code]


def _bits(chosen: str | None) -> int:
    return numbers.FORMATS[chosen].bits if chosen else 0


def _kind(spec: MatrixInstruction, arch: str, operand: str, chosen: str | None) -> str:
    """A key of numbers.FORMATS, or "f64", "xf32", "integer", "integer4"."""
    element = spec.a if operand == "a" else spec.b
    if chosen:
        return chosen
    if spec.integer:
        return "integer4" if BITS[element] == 4 else "integer"
    if element in ("fp8", "bf8"):
        ocp = "e4m3" if element == "fp8" else "e5m2"
        return ocp + "fnuz" if arch == "gfx942" else ocp
    return element


def _signs(even: int, odd: int, depth: int) -> npt.NDArray[np.float64] | None:
    if not (even or odd):
        return None
    return np.where(np.arange(depth) % 2, 1.0 - 2 * odd, 1.0 - 2 * even)


def _checked(
    registers: Registers, place: Place, name: str, mnemonic: str, modifiers: Modifiers
) -> Registers:
    need = (place.registers, modifiers.wave)
    if registers.ndim != 3 or registers.shape[1] < need[0] or registers.shape[2] != need[1]:
        raise UsageError(
            f"{name} of {mnemonic} is {registers.shape}; it must be (waves, {need[0]}, {need[1]})"
        )
    registers = registers[:, : need[0]]
    if place.copies > 1 and modifiers.check_copies:
        groups = registers.reshape(len(registers), need[0], place.copies, 16)
        if not (groups[:, :, 1:] == groups[:, :, :1]).all():
            wave, register, copy, lane = np.argwhere(groups[:, :, 1:] != groups[:, :, :1])[0]
            raise DeviceError(
                f"{name} of {mnemonic} on {modifiers.arch}: lane {16 * (copy + 1) + lane} differs "
                f"from lane {lane} in register {register} of wave {wave}; a row must be the same "
                "in every group of 16 lanes",
            )
    return registers


def _scales(registers: Registers, rows: int, depth: int, byte: int) -> Array:
    """float64 [waves, 1, rows, k]: the byte of lane `rows·g + row` scales the row's values 32·g to
    32·g + 31 of K, whichever lanes hold them.
    """
    codes = (registers[:, 0] >> np.uint32(8 * byte)) & 0xFF  # [waves, lanes]
    factors = numbers.table(numbers.E8M0, dtype="float64").take(codes)
    by_row = factors.reshape(len(registers), depth // 32, rows).swapaxes(1, 2)
    by_element: Array = by_row.repeat(32, axis=2)[:, None]
    return by_element


def _sparse_product(left: Array, right: Array, index: Array) -> Array:
    """[waves, 1, m, n] of A's stored values [waves, 1, m, k/2], B [waves, 1, n, k] and the stored
    values' places in their groups of four [waves, m, k/2].
    """
    stored = np.arange(left.shape[-1])
    k = 4 * (stored // 2) + index  # [waves, m, k/2]
    waves = np.arange(len(right))[:, None, None]
    chosen = right[:, 0].swapaxes(1, 2)[waves, k]  # [waves, m, k/2, n]
    product: Array = np.einsum("wms,wmsn->wmn", left[:, 0], chosen)[:, None]
    return product


def _accumulate(plan: _Plan, product: Array, c: Registers) -> Registers:
    """D's registers of products in the order of D's elements."""
    spec = plan.spec
    bits = BITS[spec.out]
    old = codes_of(c, bits)
    start = old.take(plan.positions, axis=1) if bits == 16 else old
    if spec.integer:
        total = product.astype(np.int64) + start.view(np.int32)
        if plan.clamp:
            total = np.clip(total, -(1 << 31), (1 << 31) - 1)
        return total.astype(np.uint32).reshape(c.shape)
    addend = values_of(start, spec.out, signed=True, flush=plan.flush)
    if plan.absolute_c:
        addend = np.abs(addend)
    if plan.negate_c:
        addend = -addend
    total = product + addend
    if bits == 64:
        halves = total.view(np.uint32).reshape(len(c), plan.d_registers // 2, -1, 2)
        return np.ascontiguousarray(halves.swapaxes(2, 3)).reshape(c.shape)
    if bits == 32:
        single = total.astype(np.float32)
        if plan.flush:
            tiny = np.abs(single) < np.finfo(np.float32).tiny
            single = np.where(tiny, np.copysign(np.float32(0), single), single)
        return single.view(np.uint32).reshape(c.shape)
    codes = numbers.encode(total, numbers.FORMATS[spec.out])
    if plan.positions.size == old.shape[1]:
        return codes.view(np.uint32).reshape(c.shape)
    kept = old.copy()
    kept[:, plan.positions] = codes
    result: Registers = kept.view(np.uint32).reshape(c.shape)
    return result
