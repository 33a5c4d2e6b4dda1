"""A card of one architecture: memory, loaded code, launches.

gpu = Emulator("gfx1100")
module = gpu.load(path.read_bytes())
x = gpu.allocate(4096)
gpu.write(x, data)
report = gpu.launch("vector_add", (4, 1, 1), (128, 1, 1), [x, y, out, 1000]).check()
"""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pumice.binary.amdgpu import CodeObject, Kernel, read_code_object
from pumice.binary.dwarf import LineTable, read_lines
from pumice.binary.relocations import words
from pumice.emulator.batch import Batch, Launch
from pumice.emulator.decode import family
from pumice.emulator.memory import Memory
from pumice.emulator.program import Code
from pumice.emulator.report import LaunchReport
from pumice.emulator.sanitizer import Watch
from pumice.emulator.state import State
from pumice.emulator.traffic import Traffic
from pumice.errors import ArtifactError, UsageError

_MAX_LANES = 8192  # lanes that run as one vector
_KEPT = 256 << 20  # bytes of batches that are kept for the next launch
_LDS = {"gfx950": 160 * 1024}  # bytes a workgroup; 64 KiB elsewhere
_GOLDEN = 0.6180339887498949


@dataclass(eq=False)
class Module:
    """A loaded code object. `address` is where its .text lies."""

    code: CodeObject
    address: int
    allocation: int
    codes: dict[str, Code] = field(default_factory=dict)

    @functools.cached_property
    def lines(self) -> LineTable:
        """Source lines, read when a fault is placed."""
        return read_lines(self.code.elf)

    def kernel(self, name: str) -> Kernel:
        try:
            return self.code.kernels[name]
        except KeyError:
            raise UsageError(
                f"kernel {name!r} is not in the code object; it has {', '.join(self.code.kernels)}"
            ) from None


class Emulator:
    """One emulated GPU. memory: shared with another Emulator, or `capacity` bytes of its own."""

    def __init__(self, arch: str, *, capacity: int = 1 << 34, memory: Memory | None = None) -> None:
        family(arch)  # UnsupportedError for an unknown one
        self.arch = arch
        self.memory = memory if memory is not None else Memory(capacity)
        self.modules: list[Module] = []
        self._batches: dict[tuple[object, ...], Batch] = {}  # the last used one at the end

    # -- memory -----------------------------------------------------------------------------------

    def allocate(self, nbytes: int) -> int:
        """Address of new device memory; OutOfMemoryError when there is not enough."""
        return self.memory.allocate(nbytes)

    def free(self, address: int) -> None:
        self.memory.free(address)

    def write(self, address: int, data: bytes | NDArray[np.generic]) -> None:
        """Copy bytes, or an array's bytes, to the device."""
        if isinstance(data, bytes):
            self.memory.write(address, data)
        else:
            self.memory.write(address, np.ascontiguousarray(data).reshape(-1).view(np.uint8))

    def read(self, address: int, nbytes: int) -> bytes:
        """Bytes from the device."""
        return self.memory.read(address, nbytes).tobytes()

    def upload(self, array: NDArray[np.generic]) -> int:
        """Allocate and write."""
        address = self.allocate(array.nbytes)
        self.write(address, array)
        return address

    def download(self, address: int, shape: Sequence[int], dtype: object) -> NDArray[np.generic]:
        """Read an array."""
        kind = np.dtype(dtype)  # type: ignore[call-overload]
        size = int(np.prod(shape)) * kind.itemsize
        result: NDArray[np.generic] = self.memory.read(address, size).view(kind).reshape(shape)
        return result

    # -- code -------------------------------------------------------------------------------------

    def load(self, code: CodeObject | bytes) -> Module:
        """Put a code object into memory. ArtifactError when it is for another architecture."""
        if isinstance(code, bytes):
            code = read_code_object(code)
        if code.arch != self.arch:
            raise ArtifactError(
                f"the code object is for {code.arch}, this emulated GPU is a {self.arch}",
                hint="Compile it for this architecture, or emulate the other one.",
            )
        end = max(s.address + s.memory_size for s in code.segments)
        image = np.zeros(end, np.uint8)
        for segment in code.segments:
            body = np.frombuffer(segment.data, np.uint8)
            image[segment.address : segment.address + body.size] = body
        allocation = self.allocate(end)
        for offset, word in words(code.elf, allocation):
            image[offset : offset + 8] = np.array([word], np.uint64).view(np.uint8)
        self.memory.write(allocation, image)
        module = Module(code, allocation + code.text_address, allocation)
        self.modules.append(module)
        return module

    def unload(self, module: Module) -> None:
        self.modules.remove(module)
        for key in [key for key in self._batches if key[0] == module.address]:
            del self._batches[key]
        self.free(module.allocation)

    # -- launches ---------------------------------------------------------------------------------

    def launch(
        self,
        kernel: str | tuple[Module, str],
        grid: Sequence[int],
        block: Sequence[int],
        arguments: bytes | Sequence[int | float],
        *,
        lds_bytes: int = 0,
        sanitize: bool = True,
        measure: bool | None = None,
        sample: int | None = None,
        together: bool = False,
    ) -> LaunchReport:
        """Run a kernel to its end.

        grid: workgroups; block: threads of one; each 1 to 3 numbers. arguments: the kernarg
        segment's bytes, or one number an argument (what is missing at the end is 0, as Triton's
        scratch pointers are). lds_bytes: dynamic LDS beyond the kernel's own. sanitize: look for
        faults and report them; without it the first access out of bounds raises KernelFaultError.
        measure: count segments and bank conflicts (as `sanitize` says, if None). sample: run only
        so many workgroups, spread over the grid; the report says so, and its counts are theirs.
        together: all workgroups take turns, so that any may wait for any other (otherwise only
        those of a batch do).
        """
        module, name = self._find(kernel)
        row = module.kernel(name)
        grid3, block3 = _three(grid, "grid"), _three(block, "block")
        threads = block3[0] * block3[1] * block3[2]
        if threads > row.max_workgroup:
            raise UsageError(
                f"kernel {name}: {threads} threads in a workgroup; it was compiled for at most "
                f"{row.max_workgroup}"
            )
        lds = row.lds_bytes + lds_bytes
        most = _LDS.get(self.arch, 65536)
        if lds > most:
            raise UsageError(
                f"kernel {name}: {lds} bytes of LDS; a workgroup has at most {most} on {self.arch}"
            )
        data = arguments if isinstance(arguments, bytes) else pack(row, arguments, grid3, block3)
        data = data.ljust(row.kernarg_bytes, b"\0")
        kernarg = self.allocate(max(len(data), 16) + 64)
        dispatch = self.allocate(64)
        try:
            self.memory.write(kernarg, data)
            self.memory.write(dispatch, _packet(grid3, block3, row, kernarg))
            launch = Launch(grid3, block3, kernarg, data, dispatch, lds)
            measured = sanitize if measure is None else measure
            with _without_collector():
                return self._run(module, row, launch, threads, sanitize, measured, sample, together)
        finally:
            self.free(kernarg)
            self.free(dispatch)

    def _find(self, kernel: str | tuple[Module, str]) -> tuple[Module, str]:
        if not isinstance(kernel, str):
            return kernel
        for module in reversed(self.modules):
            if kernel in module.code.kernels:
                return module, kernel
        known = sorted(name for module in self.modules for name in module.code.kernels)
        raise UsageError(f"kernel {kernel!r} is not loaded; loaded: {', '.join(known) or 'none'}")

    def _run(
        self,
        module: Module,
        kernel: Kernel,
        launch: Launch,
        threads: int,
        sanitize: bool,
        measure: bool,
        sample: int | None,
        together: bool,
    ) -> LaunchReport:
        waves = -(-threads // kernel.wave)
        total = launch.grid[0] * launch.grid[1] * launch.grid[2]
        chosen = total if sample is None else min(total, max(1, sample))
        most = max(1, _MAX_LANES // (waves * kernel.wave))
        rounds = 1 if together else -(-chosen // most)
        groups = -(-chosen // rounds) if rounds else 0
        report = LaunchReport(
            kernel.name, self.arch, total, total * waves, lds_bytes=launch.lds_bytes,
            vgprs=kernel.vgprs, sgprs=kernel.sgprs, executed=chosen,
        )  # fmt: skip
        if not total:
            return report
        batch = self._batch(module, kernel, groups, waves, launch.lds_bytes, sanitize)
        traffic = batch.vector_memory.traffic
        _clear(traffic, measure)
        for entry in batch.program.blocks.values():
            entry.executions = entry.visits = 0
        if batch.watch is not None:
            batch.watch.faults, batch.watch.count = [], 0
            batch.watch._seen.clear()
            batch.watch.invalid = False
        ids = _workgroups(launch.grid, chosen)
        quiet = {"over": "ignore", "under": "ignore", "divide": "ignore"}
        with np.errstate(
            **quiet,  # type: ignore[arg-type]
            invalid="log" if batch.watch is not None else "ignore",
            call=batch.watch,  # type: ignore[arg-type]
        ):
            while part := list(itertools.islice(ids, batch.groups)):
                batch.start(launch, part)
                batch.run()
                traffic.settle()
        for entry in batch.program.blocks.values():
            for kind, count in entry.counts.items():
                report.instructions[kind] += count * entry.executions
            for kind, count in entry.flops.items():
                report.flops[kind] += count * entry.executions
        report.traffic = Traffic(**vars(traffic))
        report.traffic.bytes_read = dict(traffic.bytes_read)
        report.traffic.bytes_written = dict(traffic.bytes_written)
        if batch.watch is not None:
            report.faults, report.fault_count = batch.watch.faults, batch.watch.count
        return report

    def _batch(
        self, module: Module, kernel: Kernel, groups: int, waves: int, lds: int, sanitize: bool
    ) -> Batch:
        """Registers and bound code, kept for the next launch of this kernel with as many
        workgroups, or up to half fewer: the others then stay idle.
        """
        shape = (module.address, kernel.name, waves, lds, sanitize)
        fitting = [
            batch.groups
            for key, batch in self._batches.items()
            if key[:-1] == shape and groups <= batch.groups <= 2 * groups
        ]
        if fitting:
            place = (*shape, min(fitting))
            found = self._batches.pop(place)
            self._batches[place] = found
            return found
        code = module.codes.get(kernel.name)
        if code is None:
            code = module.codes[kernel.name] = Code(module.code, kernel)
        base = module.code.text_address

        def line_of(pc: int) -> str | None:
            place = module.lines.find(base + pc)
            return f"{place[0]}:{place[1]}" if place else None

        def watch(state: State, where: Callable[[int], tuple[tuple[int, int, int], int]]) -> Watch:
            return Watch(kernel.name, state, line_of, where)

        granule = _granule(code) if sanitize and lds else 4
        found = Batch(
            code, self.memory, module.address, groups, waves, lds,
            Traffic(waves_per_group=waves),
            watch if sanitize else None, granule,
        )  # fmt: skip
        place = (*shape, groups)
        self._batches[place] = found
        while len(self._batches) > 1 and sum(b.nbytes for b in self._batches.values()) > _KEPT:
            del self._batches[next(iter(self._batches))]
        return found


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Binding a kernel makes tens of thousands of closures that all stay: looking for garbage among
    them takes half of the time and finds none.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _workgroups(grid: tuple[int, int, int], count: int) -> Iterator[tuple[int, int, int]]:
    """All workgroups (x, y, z) in order, or `count` of them, spread by the golden ratio: a regular
    step could meet the same column of the grid each time.
    """
    width, height, depth = grid
    total = width * height * depth
    chosen: Iterable[int] = range(total)
    if count < total:
        spread = (int(step * _GOLDEN % 1 * total) for step in itertools.count())
        picked: set[int] = set()
        while len(picked) < count:
            picked.add(next(spread))
        chosen = sorted(picked)
    for flat in chosen:
        yield flat % width, flat // width % height, flat // (width * height)


def _clear(traffic: Traffic, measure: bool) -> None:
    fresh = Traffic(measure=measure, waves_per_group=traffic.waves_per_group)
    for name, value in vars(fresh).items():
        setattr(traffic, name, value)


def _granule(code: Code) -> int:
    """Bytes of a shadow cell: the smallest LDS access of the kernel."""
    names = [inst.name for inst in code.listing() if inst.name.startswith("ds_")]
    if any("8" in n.split("_")[2] for n in names if "store" in n or "load" in n):
        return 1
    if any("16" in n for n in names):
        return 2
    return 4


def _three(values: Sequence[int], what: str) -> tuple[int, int, int]:
    full = [*values, 1, 1, 1][:3]
    if not 1 <= len(values) <= 3 or any(v < (0 if what == "grid" else 1) for v in full):
        raise UsageError(f"{what} {tuple(values)}; 1 to 3 positive numbers are allowed")
    return full[0], full[1], full[2]


def pack(
    kernel: Kernel,
    arguments: Sequence[int | float],
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
) -> bytes:
    """The kernarg segment of one number an argument; a float is packed as float32 or float64."""
    visible = [a for a in kernel.arguments if not a.kind.startswith("hidden_")]
    if len(arguments) > len(visible):
        raise UsageError(
            f"kernel {kernel.name}: {len(arguments)} arguments given, it takes {len(visible)}"
        )
    data = bytearray(kernel.kernarg_bytes)
    for row, value in zip(visible, arguments, strict=False):
        if isinstance(value, float):
            form = {2: "<e", 4: "<f", 8: "<d"}.get(row.size)
            if form is None:
                raise UsageError(f"argument at {row.offset} has {row.size} bytes: no float")
            data[row.offset : row.offset + row.size] = struct.pack(form, value)
        else:
            whole = int(value) & ((1 << 8 * row.size) - 1)
            data[row.offset : row.offset + row.size] = whole.to_bytes(row.size, "little")
    hidden = {
        **{f"hidden_block_count_{a}": grid[i] for i, a in enumerate("xyz")},
        **{f"hidden_group_size_{a}": block[i] for i, a in enumerate("xyz")},
        "hidden_grid_dims": 3 if grid[2] * block[2] > 1 else 2 if grid[1] * block[1] > 1 else 1,
    }
    for row in kernel.arguments:
        if row.kind in hidden:
            value = int(hidden[row.kind])
            data[row.offset : row.offset + row.size] = value.to_bytes(row.size, "little")
    return bytes(data)


def _packet(
    grid: tuple[int, int, int], block: tuple[int, int, int], kernel: Kernel, kernarg: int
) -> bytes:
    """The AQL kernel dispatch packet (HSA runtime, section 2.9.6)."""
    threads = [g * b for g, b in zip(grid, block, strict=True)]
    return struct.pack(
        "<HHHHHHIIIIIQQQQ", 2, 3, *block, 0, *threads, kernel.scratch_bytes, kernel.lds_bytes,
        0, kernarg, 0, 0,
    )  # fmt: skip
