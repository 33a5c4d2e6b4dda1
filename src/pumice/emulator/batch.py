"""Several workgroups of one kernel, run together: registers, scheduling of waves, barriers.

Waves at the lowest program counter run first, as one vector; they meet again where branches join. A
group of waves that keeps the others waiting too long (it spins on what they should write) yields.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pumice.emulator.global_memory import VectorMemory
from pumice.emulator.lds import Lds
from pumice.emulator.memory import PRIVATE_APERTURE, Memory
from pumice.emulator.program import Block, Code, Program
from pumice.emulator.sanitizer import Watch
from pumice.emulator.spaces import Global, Private
from pumice.emulator.state import ACC, EXEC, Array, State
from pumice.emulator.traffic import Traffic
from pumice.errors import KernelFaultError, UnimplementedInstructionError

_PATIENCE = 2000  # blocks that one group may run while others wait
_UNDEFINED = 0xFFC1_2345  # what registers hold before they are written: NaN in float32
_TTMP = 108


WatchFactory = Callable[
    [State, Callable[[int], tuple[tuple[int, int, int], int]]], Watch
]  # (registers, wave → workgroup and wave in it)


@dataclass(frozen=True)
class Launch:
    """The arguments of one launch that every batch needs."""

    grid: tuple[int, int, int]  # workgroups
    block: tuple[int, int, int]  # threads of a workgroup
    kernarg: int  # address
    kernarg_bytes: bytes
    dispatch: int  # address of the dispatch packet
    lds_bytes: int


class Batch:
    """`groups` workgroups of `waves` waves each, with registers, LDS and bound code."""

    def __init__(
        self,
        code: Code,
        memory: Memory,
        code_address: int,
        groups: int,
        waves: int,
        lds_bytes: int,
        traffic: Traffic,
        watch_factory: WatchFactory | None,
        granule: int,
    ) -> None:
        kernel = code.kernel
        self.kernel = kernel
        self.code = code
        self.groups = groups
        self.waves_per_group = waves
        lanes = kernel.wave
        rows = max(8, -(-min(kernel.vgprs, ACC) // 8) * 8)
        self.rows = [slice(0, rows)]  # registers that the kernel can have
        if kernel.agprs:
            self.rows.append(slice(ACC, ACC + kernel.agprs))
            rows = ACC + kernel.agprs
        state = State(code.arch, code.isa, groups * waves, lanes, rows)
        self.state = state
        descriptor = kernel.descriptor
        if descriptor.round_mode_32 or descriptor.round_mode_16_64:
            raise UnimplementedInstructionError(
                f"kernel {kernel.name} starts with rounding mode {descriptor.round_mode_32}, "
                f"{descriptor.round_mode_16_64}; the emulator rounds to nearest even (0)"
            )
        state.flush32 = descriptor.denorm_mode_32 != 3
        self.watch = watch_factory(state, self.where) if watch_factory is not None else None
        self.lds = Lds(state, self.watch, lds_bytes, waves, granule)
        private = Private(state, self.watch, kernel.scratch_bytes)
        self.vector_memory = VectorMemory(
            state, Global(state, self.watch, memory), self.lds, private, traffic
        )
        self.program = Program(
            code, state, self.vector_memory, self.lds, traffic, self.watch, code_address
        )
        self.ids: list[tuple[int, int, int]] = []
        self.pcs: Array = np.zeros(groups * waves, np.int64)
        self.alive: Array = np.zeros(groups * waves, bool)
        self.waiting: Array = np.zeros(groups * waves, bool)
        self.group_of: Array = np.repeat(np.arange(groups), waves)

    @property
    def nbytes(self) -> int:
        """Bytes of registers and LDS; bound code takes about as much again for small batches."""
        used = sum(rows.stop - rows.start for rows in self.rows)
        state = self.state
        return 4 * used * state.waves * state.lanes + 3 * self.lds.data.nbytes + (1 << 20)

    def where(self, wave: int) -> tuple[tuple[int, int, int], int]:
        """(workgroup, wave in it) of a wave of the batch."""
        group, number = divmod(wave, self.waves_per_group)
        return (self.ids[group] if group < len(self.ids) else (-1, -1, -1)), number

    # -- set-up -----------------------------------------------------------------------------------

    def start(self, launch: Launch, ids: Sequence[tuple[int, int, int]]) -> None:
        """Registers as the hardware sets them for these workgroups (at most `groups`)."""
        state, kernel, descriptor = self.state, self.kernel, self.kernel.descriptor
        self.ids = list(ids)
        live = len(ids) * self.waves_per_group
        for rows in self.rows:
            state.v[rows] = _UNDEFINED
        state.s[...] = 0
        state.scc[...] = False
        self.lds.reset()
        at = self._user_scalars(launch)
        self._system_scalars(ids, at)
        threads = launch.block[0] * launch.block[1] * launch.block[2]
        self._lanes(launch, threads)
        entry = kernel.entry + (256 if descriptor.preload[0] else 0)
        self.pcs[...] = entry
        self.alive[...] = False
        self.alive[:live] = True
        self.waiting[...] = False
        state.set_active(None)
        state.dirty = True

    def _user_scalars(self, launch: Launch) -> int:
        state, descriptor = self.state, self.kernel.descriptor
        layout = descriptor.user_sgpr_layout
        at = 0
        while at < len(layout):
            name = layout[at]
            width = layout.count(name)
            if name == "kernarg_segment_ptr":
                self._pair(at, launch.kernarg)
            elif name == "dispatch_ptr":
                self._pair(at, launch.dispatch)
            elif name == "private_segment_buffer":
                self._pair(at, PRIVATE_APERTURE)
                state.s[:, at + 2] = 0xFFFF_FFFF
                state.s[:, at + 3] = 0x00E8_0000
            elif name == "private_segment_size":
                state.s[:, at] = self.kernel.scratch_bytes
            at += width
        count, first = descriptor.preload
        if count:
            words = np.frombuffer(launch.kernarg_bytes.ljust(4 * (count + first), b"\0"), np.uint32)
            state.s[:, at : at + count] = words[first : first + count]
        return descriptor.user_sgprs

    def _pair(self, at: int, value: int) -> None:
        self.state.s[:, at] = value & 0xFFFF_FFFF
        self.state.s[:, at + 1] = value >> 32

    def _system_scalars(self, ids: Sequence[tuple[int, int, int]], at: int) -> None:
        state = self.state
        table = np.zeros((self.groups, 3), np.uint32)
        table[: len(ids)] = np.array(ids, np.uint32).reshape(-1, 3)
        per_wave = np.repeat(table, self.waves_per_group, axis=0)
        if state.isa == "rdna4":
            state.s[:, _TTMP + 9] = per_wave[:, 0]
            state.s[:, _TTMP + 7] = per_wave[:, 1] & np.uint32(0xFFFF) | per_wave[:, 2] << 16
            wave = np.tile(np.arange(self.waves_per_group, dtype=np.uint32), self.groups)
            state.s[:, _TTMP + 8] = wave << np.uint32(25)
            return
        for axis, wanted in enumerate(self.kernel.descriptor.workgroup_id):
            if wanted:
                state.s[:, at] = per_wave[:, axis]
                at += 1

    def _lanes(self, launch: Launch, threads: int) -> None:
        """EXEC, and the packed thread id x | y << 10 | z << 20 in v0."""
        state = self.state
        thread = np.arange(self.waves_per_group * state.lanes)
        x = thread % launch.block[0]
        y = thread // launch.block[0] % launch.block[1]
        z = thread // (launch.block[0] * launch.block[1])
        packed = np.minimum(x | y << 10 | z << 20, 2**32 - 1).astype(np.uint32)
        packed = packed.reshape(self.waves_per_group, state.lanes)
        state.v[0] = np.tile(packed, (self.groups, 1))
        there = np.tile((thread < threads).reshape(self.waves_per_group, -1), (self.groups, 1))
        mask = state.pack(there)
        if state.lanes == 32:
            state.s[:, EXEC : EXEC + 1] = mask
        else:
            state.s64[:, EXEC // 2 : EXEC // 2 + 1] = mask

    # -- scheduling -------------------------------------------------------------------------------

    def run(self) -> None:
        """Execute until every wave has ended."""
        avoid: Array | None = None
        while True:
            runnable = self.alive & ~self.waiting
            if not runnable.any():
                if not self.alive.any():
                    return
                raise KernelFaultError(
                    f"kernel {self.kernel.name}: {int(self.waiting.sum())} waves wait at a barrier "
                    "that no other wave will reach"
                )
            choice = runnable
            if avoid is not None and (runnable & ~avoid).any():
                choice = runnable & ~avoid
            pc = int(self.pcs[choice].min())
            group = runnable & (self.pcs == pc)
            avoid = self._run_group(pc, group, runnable & ~group)

    def _run_group(self, pc: int, group: Array, others: Array) -> Array | None:
        """Run `group` from `pc` until it parts, waits, ends or meets others. Returns whom to
        avoid.
        """
        state = self.state
        state.set_active(None if group.all() else group)
        count = int(group.sum())
        alone = not others.any()
        meeting = None if alone else int(self.pcs[others].min())
        visits = 0
        blocks, program = self.program.blocks, self.program
        while True:
            block = blocks.get(pc) or program.block(pc)
            for step in block.steps:
                step()
            block.executions += count
            block.visits += 1
            end = block.end
            if end == "fall":
                pc = block.following
            elif end == "when":
                assert block.condition is not None
                taken = block.condition()[:, 0]
                if state.all_active:
                    number = int(np.count_nonzero(taken))
                else:
                    taken = taken & group
                    number = int(np.count_nonzero(taken))
                if number == 0:
                    pc = block.following
                elif number == count:
                    pc = block.target
                else:
                    self.pcs[group] = block.following
                    self.pcs[taken] = block.target
                    return None
            elif end == "branch":
                pc = block.target
            elif end == "barrier":
                self.pcs[group] = block.following
                self.waiting |= group
                if self._release(block) and alone and not self.waiting.any():
                    pc = block.following
                    continue
                return None
            elif end == "end":
                self.alive &= ~group
                self.pcs[group] = -1
                self._release(block)
                return None
            else:
                assert block.jump is not None
                targets = block.jump()
                self.pcs[group] = targets[group]
                return None
            if meeting is not None:
                visits += 1
                if pc >= meeting or visits > _PATIENCE:
                    self.pcs[group] = pc
                    return group if visits > _PATIENCE else None

    def _release(self, block: Block) -> bool:
        """Let the workgroups go whose live waves all wait at a barrier."""
        if not self.waiting.any():
            return False
        live = np.bincount(self.group_of[self.alive], minlength=self.groups)
        waits = np.bincount(self.group_of[self.waiting], minlength=self.groups)
        ready = (waits > 0) & (waits == live)
        if not ready.any():
            return False
        if self.watch is not None and block.last is not None:
            self._check_barrier(block, ready)
        self.waiting &= ~ready[self.group_of]
        self.lds.advance(ready, bool((ready == (live > 0)).all()))
        return True

    def _check_barrier(self, block: Block, ready: Array) -> None:
        """Report workgroups whose waves met at different barriers, or of which some had ended."""
        assert self.watch is not None and block.last is not None
        pcs = self.pcs.reshape(self.groups, self.waves_per_group)
        waiting = self.waiting.reshape(self.groups, self.waves_per_group)
        for group in np.flatnonzero(ready):
            held = waiting[group]
            places = np.unique(pcs[group][held])
            if len(places) == 1 and held.all():
                continue
            wave = int(group) * self.waves_per_group + int(np.flatnonzero(held)[0])
            if len(places) > 1:
                text = f"waves of a workgroup wait at different barriers, before {places.tolist()}"
            else:
                ended = int((~held).sum())
                text = f"{ended} waves of the workgroup ended before a barrier the others wait at"
            inst = block.last
            flat = np.array([wave * self.state.lanes])
            self.watch.report("divergent-barrier", inst, flat, text)
            return
