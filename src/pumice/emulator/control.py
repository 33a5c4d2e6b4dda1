"""Instructions that neither compute nor move data: hints, mode registers, clocks, the program
counter.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from pumice.emulator.decode import Instruction
from pumice.emulator.operands import source
from pumice.emulator.state import State
from pumice.errors import KernelFaultError, UnimplementedInstructionError

Step = Callable[[], None]

# Without effect here: memory is coherent and in order, and a batch has no clock.
NOTHING = frozenset({
    "s_nop", "s_clause", "s_delay_alu", "s_sleep", "s_setprio", "s_set_inst_prefetch_distance",
    "s_inst_prefetch", "s_icache_inv", "s_dcache_inv", "s_dcache_wb", "s_gl1_inv", "s_sendmsg",
    "s_sethalt", "s_ttracedata", "s_ttracedata_imm", "s_code_end", "s_incperflevel",
    "s_decperflevel", "s_barrier_signal", "s_wakeup", "s_setkill", "s_prefetch_data",
    "s_prefetch_inst", "s_prefetch_data_pc_rel", "s_prefetch_inst_pc_rel", "s_sleep_var",
    "s_set_valu_coexec_mode", "buffer_gl0_inv", "buffer_gl1_inv", "buffer_inv", "buffer_wbl2",
    "buffer_wbinvl1", "buffer_wbinvl1_vol", "global_inv", "global_wb", "global_wbinv", "v_nop",
    "v_pipeflush", "s_dcache_inv_vol", "s_dcache_wb_vol", "s_barrier_leave",
})  # fmt: skip
_MODE, _ROUND, _DENORM, _OVERFLOW = 1, 0xF, 0xF0, 1 << 23


def bind_control(state: State, inst: Instruction, code_address: int) -> Step | None:
    """A closure for such an instruction; UnimplementedInstructionError for an unknown one."""
    name = inst.name
    if name == "s_getpc_b64":
        value = np.uint64(code_address + inst.pc + inst.size)
        return lambda: state.put_scalar64(inst.sdst, value)
    if name in ("s_memtime", "s_memrealtime"):
        return lambda: state.put_scalar64(inst.sdata, np.uint64(time.perf_counter_ns() // 10))
    if name.startswith("s_sendmsg_rtn"):
        return _message(state, inst)
    if name == "s_getreg_b32":
        return _get_register(state, inst)
    if name in ("s_setreg_b32", "s_setreg_imm32_b32"):
        return _set_register(state, inst)
    if name == "s_denorm_mode":
        return _denormals(state, inst.simm16 & 0xF)
    if name == "s_round_mode":
        if inst.simm16 & 0xF:
            raise UnimplementedInstructionError(f"rounding mode {inst.simm16 & 15}")
        return None
    if name == "s_trap":
        return _trap(state, inst)
    raise UnimplementedInstructionError("no such scalar instruction is known")


def _trap(state: State, inst: Instruction) -> Step:
    """A failed assertion, or __builtin_trap: the launch ends."""

    def run() -> None:
        wave = int(np.flatnonzero(state.active)[0])
        raise KernelFaultError(f"the kernel trapped: {inst}, wave {wave} of its batch")

    return run


def _message(state: State, inst: Instruction) -> Step:
    """s_sendmsg_rtn: 0x83 asks for the time; anything else is answered with 0."""
    clock = inst.ssrc0 == 0x83
    wide = inst.name.endswith("b64")

    def run() -> None:
        value = time.perf_counter_ns() // 10 if clock else 0
        if wide:
            state.put_scalar64(inst.sdst, np.uint64(value))
        else:
            state.put_scalar(inst.sdst, np.uint32(value & 0xFFFFFFFF))

    return run


def _field(inst: Instruction) -> tuple[int, int, int]:
    return inst.simm16 & 63, inst.simm16 >> 6 & 31, (inst.simm16 >> 11 & 31) + 1


def _get_register(state: State, inst: Instruction) -> Step:
    register, offset, size = _field(inst)

    def run() -> None:
        mode = 0 if state.flush32 else 0x30
        value = (mode | 0xC0) if register == _MODE else 0
        state.put_scalar(inst.sdst, np.uint32(value >> offset & ((1 << size) - 1)))

    return run


def _set_register(state: State, inst: Instruction) -> Step | None:
    register, offset, size = _field(inst)
    if register != _MODE:
        return None  # hardware ids, trap settings: no kernel's results depend on them
    touched = ((1 << size) - 1) << offset
    if not touched & (_ROUND | _DENORM | _OVERFLOW):
        return None
    if inst.name == "s_setreg_imm32_b32":
        return _mode(state, touched, inst.literal << offset)
    value = source(state, "u32", inst.sdst)

    def run() -> None:
        step = _mode(state, touched, int(np.atleast_2d(value.get())[0, 0]) << offset)
        if step is not None:
            step()

    return run


def _mode(state: State, touched: int, value: int) -> Step | None:
    if value & touched & _ROUND:
        raise UnimplementedInstructionError(f"rounding mode 0x{value & touched & _ROUND:x}")
    if touched & _OVERFLOW:

        def overflow() -> None:
            state.fp16_overflow = bool(value & _OVERFLOW)

        return overflow
    return _denormals(state, value >> 4 & 0xF) if touched & 0x30 else None


def _denormals(state: State, mode: int) -> Step | None:
    """Bits 0-1: float32; 2-3: float16 and float64, which are kept here whatever they say."""
    flush = mode & 3 != 3
    if flush == state.flush32:
        return None
    raise UnimplementedInstructionError("a change of the denormal mode within a kernel")
