"""A kernel's code as basic blocks, bound to the registers of one batch when first executed.

A block ends at a branch, a barrier, the program's end, or before an address that some branch of the
kernel names, so that waves which parted can meet again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from pumice.binary.amdgpu import CodeObject, Kernel
from pumice.emulator.control import NOTHING, bind_control
from pumice.emulator.decode import Instruction, decode, family
from pumice.emulator.gfx950 import bind_gfx950
from pumice.emulator.global_memory import VectorMemory
from pumice.emulator.lanes import LANES
from pumice.emulator.lds import Lds
from pumice.emulator.local_memory import bind_local
from pumice.emulator.masks import MASKED, compare
from pumice.emulator.matrix_steps import bind_matrix, is_matrix
from pumice.emulator.matrix_table import instruction as matrix_row
from pumice.emulator.packed import bind_packed
from pumice.emulator.sanitizer import Watch
from pumice.emulator.scalar import bind_scalar
from pumice.emulator.state import EXEC, VCC, Array, State
from pumice.emulator.traffic import Traffic
from pumice.emulator.vector import bind_dual, bind_vector
from pumice.errors import UnimplementedInstructionError, UnsupportedError

Step = Callable[[], None]
_ENDS = ("s_endpgm", "s_barrier", "s_barrier_wait", "s_setpc_b64", "s_swappc_b64", "s_call_b64")


class Code:
    """Decoded instructions of a kernel, by their byte in .text, and the addresses of branches."""

    def __init__(self, code: CodeObject, kernel: Kernel) -> None:
        self.text = code.text
        self.kernel = kernel
        self.isa = family(code.arch)
        self.arch = code.arch
        self._decoded: dict[int, Instruction] = {}
        self.targets = self._find_targets()

    def at(self, pc: int) -> Instruction:
        found = self._decoded.get(pc)
        if found is None:
            found = self._decoded[pc] = decode(self.text, pc, self.arch)
        return found

    def _find_targets(self) -> frozenset[int]:
        found = set()
        pc, end = self.kernel.entry, self.kernel.entry + self.kernel.code_bytes
        while pc < end:
            try:
                inst = self.at(pc)
            except UnsupportedError:
                pc += 4  # data, or an instruction that matters only when it is executed
                continue
            if inst.name.startswith(("s_branch", "s_cbranch")):
                found.add(branch_target(inst))
            pc += inst.size
        return frozenset(found)

    def listing(self) -> list[Instruction]:
        """All instructions of the kernel in order."""
        found = []
        pc, end = self.kernel.entry, self.kernel.entry + self.kernel.code_bytes
        while pc < end:
            inst = self.at(pc)
            found.append(inst)
            pc += inst.size
        return found


def branch_target(inst: Instruction) -> int:
    """Where a branch with a 16-bit offset goes."""
    offset = inst.simm16
    offset = offset - 0x10000 if offset & 0x8000 else offset
    return inst.pc + 4 + 4 * offset


@dataclass
class Block:
    """Steps to run, then how it ends: "fall", "branch", "when", "barrier", "end" or "jump"."""

    pc: int
    steps: list[Step]
    end: str
    following: int
    target: int = 0
    condition: Callable[[], Array] | None = None  # bool [waves, 1]: whether the branch is taken
    jump: Callable[[], Array] | None = None  # int64 [waves]: the next pc
    last: Instruction | None = None
    counts: Counter[str] = field(default_factory=Counter)
    flops: Counter[str] = field(default_factory=Counter)  # of one wave, by A's element type
    executions: int = 0  # summed over waves
    visits: int = 0


def instruction_class(inst: Instruction) -> str:
    """The class under which a report counts an instruction."""
    name = inst.name
    if name.startswith("s_"):
        if name.startswith("s_wait"):
            return "wait"
        if name.startswith("s_barrier"):
            return "barrier"
        if name.startswith(("s_branch", "s_cbranch", "s_setpc", "s_swappc", "s_call")):
            return "branch"
        if inst.encoding == "SMEM":
            return "scalar-memory"
        return "scalar" if name not in NOTHING else "other"
    if is_matrix(name):
        return "matrix"
    if name.startswith("ds_"):
        return "lds"
    if name.startswith(("global_", "flat_", "buffer_", "scratch_")):
        if "_inv" in name or "_wb" in name:
            return "wait"
        return "global" if not name.startswith("scratch_") else "scratch"
    return "vector"


class Program:
    """The blocks of a kernel for one batch."""

    def __init__(
        self,
        code: Code,
        state: State,
        memory: VectorMemory,
        lds: Lds,
        traffic: Traffic,
        watch: Watch | None,
        code_address: int,
    ) -> None:
        self.code = code
        self.state = state
        self.memory = memory
        self.lds = lds
        self.traffic = traffic
        self.watch = watch
        self.code_address = code_address  # of .text in memory
        self.blocks: dict[int, Block] = {}

    def block(self, pc: int) -> Block:
        found = self.blocks.get(pc)
        if found is None:
            found = self.blocks[pc] = self._make(pc)
        return found

    def _make(self, pc: int) -> Block:
        steps: list[Step] = []
        counts: Counter[str] = Counter()
        begin = pc
        flops: Counter[str] = Counter()
        while True:
            inst = self.code.at(pc)
            counts[instruction_class(inst)] += 1
            pc += inst.size
            name = inst.name
            if name.startswith(("s_branch", "s_cbranch")) or name in _ENDS:
                block = self._end(inst, steps, begin, pc)
                break
            if is_matrix(name):
                spec = matrix_row(inst.mnemonic.removesuffix("_e64"))
                flops[spec.a] += 2 * spec.m * spec.n * spec.k * spec.blocks
            step = self.bind(inst)
            if step is not None:
                steps.append(step)
            if pc in self.code.targets:
                block = Block(begin, steps, "fall", pc)
                break
        block.counts, block.flops = counts, flops
        return block

    def _end(self, inst: Instruction, steps: list[Step], begin: int, following: int) -> Block:
        name = inst.name
        block = Block(begin, steps, "end", following, last=inst)
        if name == "s_branch":
            block.end, block.target = "branch", branch_target(inst)
        elif name.startswith("s_cbranch"):
            block.end, block.target = "when", branch_target(inst)
            block.condition = self._condition(inst)
        elif name.startswith("s_barrier"):
            block.end = "barrier"
        elif name in ("s_setpc_b64", "s_swappc_b64", "s_call_b64"):
            block.end = "jump"
            block.jump = self._jump(inst, following)
        return block

    def _condition(self, inst: Instruction) -> Callable[[], Array]:
        state = self.state
        name = inst.name.removeprefix("s_cbranch_")
        if name == "scc0":
            return lambda: ~state.scc
        if name == "scc1":
            return lambda: state.scc
        register = {"execz": EXEC, "execnz": EXEC, "vccz": VCC, "vccnz": VCC}.get(name)
        if register is None:
            raise self._unimplemented(inst, "a kind of branch")
        kind = "u32" if state.lanes == 32 else "u64"
        column = state.column(kind, register)
        if name.endswith("nz"):
            return lambda: column != 0
        return lambda: column == 0

    def _jump(self, inst: Instruction, following: int) -> Callable[[], Array]:
        state = self.state
        here = self.code_address

        def run() -> Array:
            if inst.name == "s_call_b64":
                offset = inst.simm16 - 0x10000 if inst.simm16 & 0x8000 else inst.simm16
                to = np.full(state.waves, following + 4 * offset, np.int64)
            else:
                to = state.s64[:, inst.ssrc0 // 2].astype(np.int64) - here
            if inst.name != "s_setpc_b64":
                state.put_scalar64(inst.sdst, np.uint64(here + following))
            return to

        return run

    def bind(self, inst: Instruction) -> Step | None:
        """A closure for one instruction, None when it does nothing."""
        try:
            return self._bind(inst)
        except UnimplementedInstructionError as why:
            raise self._unimplemented(inst, why.message) from why

    def _unimplemented(self, inst: Instruction, why: str) -> UnimplementedInstructionError:
        return UnimplementedInstructionError(
            f"the emulator can't execute {inst}, in kernel {self.code.kernel.name} for "
            f"{self.code.arch}: {why}"
        )

    def _bind(self, inst: Instruction) -> Step | None:
        state, name = self.state, inst.name
        if name in NOTHING or name.startswith("s_wait"):
            return None
        if name.startswith("v_"):
            return self._bind_vector(inst)
        if name == "vopd":
            return bind_dual(state, inst, self.watch)
        if inst.encoding == "SMEM":
            if "load" in name:
                return self.memory.scalar_load(inst)
            return bind_control(state, inst, self.code_address)
        if name.startswith("s_"):
            step = bind_scalar(state, inst)
            return step if step is not None else bind_control(state, inst, self.code_address)
        if name.startswith("ds_"):
            return bind_local(state, inst, self.lds, self.traffic)
        if name.startswith("global_"):
            return self.memory.global_(inst)
        if name.startswith("flat_"):
            return self.memory.flat(inst)
        if name.startswith("scratch_"):
            return self.memory.scratch(inst)
        if name.startswith("buffer_"):
            return self.memory.buffer(inst)
        raise UnimplementedInstructionError("no such instruction is known")

    def _bind_vector(self, inst: Instruction) -> Step:
        state, name = self.state, inst.name
        if is_matrix(name):
            return bind_matrix(state, inst)
        step = bind_vector(state, inst, self.watch) or compare(state, inst)
        if step is not None:
            return step
        special = MASKED.get(name) or LANES.get(name)
        if special is not None:
            return special(state, inst)
        step = bind_packed(state, inst, self.watch) or bind_gfx950(state, inst)
        if step is None:
            raise UnimplementedInstructionError("no such vector instruction is known")
        return step
