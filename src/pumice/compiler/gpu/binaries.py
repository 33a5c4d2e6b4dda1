"""Compiles every distinct kernel of a model once, in processes beside each other.

Two launches share a binary when everything that is compiled in is the same: the constants, the
arguments' types, which of them are multiples of 16, and the compiler's options.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
from collections.abc import Callable, Mapping
from concurrent.futures import Future, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pumice.artifact import KernelRecord
from pumice.errors import CompileError
from pumice.operators.triton.build import binary_key, build
from pumice.operators.triton.plan import Launch, TensorSpec
from pumice.operators.triton.resources import read_resources
from pumice.processes import worker_pool
from pumice.targets import Target, get_target

KINDS = {"i1": "int32", "i32": "int32", "i64": "int64", "fp32": "float32", "fp64": "float64"}
FILES = {"rocm": "hsaco", "cuda": "cubin"}
FEW = 3  # kernels that are not worth starting processes for


@dataclass(frozen=True)
class Built:
    """A compiled kernel, as it comes back from a process."""

    code: bytes
    assembly: str
    entry: str
    kinds: tuple[str, ...]  # of the parameters in launch order; two pointers follow (see `lower`)
    parameters: tuple[str, ...]
    threads: int
    shared_bytes: int
    resources: Mapping[str, int]


@dataclass(frozen=True)
class Task:
    """A launch that can be sent to another process: its function by name."""

    module: str
    name: str
    launch: Launch
    tensors: Mapping[str, TensorSpec]
    target: str


@dataclass
class Binaries:
    """The kernels of a model on one target. symbols are made of the function's name and a digest of
    what it is compiled with."""

    target: Target
    tasks: dict[str, Task] = field(default_factory=dict)
    _symbols: dict[Any, str] = field(default_factory=dict)

    def symbol(self, launch: Launch, tensors: Mapping[str, TensorSpec]) -> str:
        """The symbol of a launch's kernel, which is compiled later."""
        key = binary_key(launch, tensors, self.target)
        if key not in self._symbols:
            function = launch.kernel.fn
            name = f"{function.__name__}_{_digest(launch, key)}"
            self._symbols[key] = name
            given = (*launch.arguments.values(), launch.scratch)
            used = {v: tensors[v] for v in given if isinstance(v, str) and v}
            self.tasks[name] = Task(
                function.__module__,
                function.__name__,
                replace(launch, kernel=None),
                used,
                self.target.name,
            )
        return self._symbols[key]

    def build(
        self, workers: int, report: Callable[[int, int], None] | None = None
    ) -> dict[str, Built]:
        """Compiles all; CompileError names the kernel that does not."""
        total, found = len(self.tasks), {}
        for symbol, built in _each(self.tasks, min(workers, max(1, total // FEW))):
            found[symbol] = built
            if report is not None:
                report(len(found), total)
        return found


def _each(tasks: Mapping[str, Task], workers: int) -> Any:
    if workers <= 1:
        for symbol, task in tasks.items():
            yield symbol, build_task(task)
        return
    # A fresh process each: this one has threads and a compiler's state that a fork would tear.
    with worker_pool(workers) as pool:
        futures: dict[Future[Built], str] = {
            pool.submit(build_task, task): symbol for symbol, task in tasks.items()
        }
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BrokenProcessPool:
            raise CompileError(
                "a process that compiled kernels died",
                hint="Too little memory is the usual cause: try fewer processes (pumice compile "
                "--workers 1).",
            ) from None


def build_task(task: Task) -> Built:
    """Compiles in this process, which Triton's LLVM may end."""
    kernel = getattr(importlib.import_module(task.module), task.name)
    binary = build(replace(task.launch, kernel=kernel), task.tensors, get_target(task.target))
    return Built(
        code=binary.code,
        assembly=binary.assembly,
        entry=binary.symbol,
        kinds=tuple(KINDS.get(kind, "pointer") for _, kind in binary.parameters),
        parameters=tuple(name for name, _ in binary.parameters),
        threads=binary.threads,
        shared_bytes=binary.shared_bytes,
        resources=_resources(binary.code, binary.symbol, binary.shared_bytes),
    )


def _resources(code: bytes, symbol: str, shared_bytes: int) -> dict[str, int]:
    """Registers and memory, from a code object's own metadata. vgprs: of a CUDA thread its
    registers; what spills there is in scratch_bytes alone."""
    found = read_resources(code, symbol, shared_bytes)
    return {
        "vgprs": found.vgprs,
        "sgprs": found.sgprs,
        "spills": found.spilled,
        "lds_bytes": found.shared_bytes,
        "scratch_bytes": found.scratch_bytes,
    }


def _digest(launch: Launch, key: Any) -> str:
    described = repr((launch.kernel.fn.__module__, key[1:]))
    return hashlib.sha256(described.encode()).hexdigest()[:12]


def write_kernels(
    built: Mapping[str, Built],
    records: Mapping[str, KernelRecord],
    target: Target,
    folder: Path,
    keep_assembly: Path | None,
) -> list[KernelRecord]:
    """One file a kernel below `folder`; returns the records with what compiling told."""
    found = []
    for symbol, binary in built.items():
        file = f"kernels/{symbol}.{FILES[target.api]}"
        path = folder / file
        path.parent.mkdir(exist_ok=True)
        try:
            path.write_bytes(binary.code)
        except OSError as error:
            from pumice.files import storage_error

            raise storage_error(error, path) from error
        if keep_assembly is not None:
            with contextlib.suppress(OSError):
                (keep_assembly / f"{symbol}.s").write_text(binary.assembly)
        record = records[symbol]
        if binary.resources["spills"] or binary.resources["scratch_bytes"]:
            record = replace(record, reason=record.reason + "; it spills registers")
        found.append(
            replace(
                record,
                file=file,
                entry=binary.entry,
                arguments=(*binary.parameters, "scratch", "profile"),
                kinds=(*binary.kinds, "pointer", "pointer"),
                threads=binary.threads,
                shared_bytes=binary.shared_bytes,
                resources=dict(binary.resources),
            )
        )
    if len(found) != len(records):
        raise CompileError("a kernel of the plans was not compiled")
    return found
