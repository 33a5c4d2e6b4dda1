"""Phase 6: machine code for a set of kernels, in parallel, into one shared library."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from pumice.compiler.link import link
from pumice.compiler.replay import SYMBOL as REPLAY_SYMBOL
from pumice.compiler.replay import replay_function
from pumice.errors import CompileError
from pumice.operators.base import KernelSource
from pumice.targets import Target

Report = Callable[[int, int, str], None]  # done, total, what


def tvm_target(target: Target) -> Any:
    """TVM's target object for a CPU target row."""
    import tvm

    return tvm.target.Target(dict(target.llvm))


def compile_function(function: Any, target: Target) -> Any:
    """One PrimFunc → a TVM module that holds its machine code.

    Symbols are kept; CompileError carries what TVM said.
    """
    import tvm

    name = str(function.attrs["global_symbol"])
    try:
        executable = tvm.compile(tvm.IRModule({name: function}), target=tvm_target(target))
    except Exception as error:  # TVM raises its own kinds; the kernel's name must not be lost
        raise CompileError(
            f"kernel {name!r} does not compile for {target.name}: {error}"
        ) from error
    return getattr(executable, "mod", executable)


def build_library(
    sources: Sequence[KernelSource],
    target: Target,
    output: Path,
    *,
    workers: int,
    report: Report | None = None,
    keep_assembly: Path | None = None,
) -> str:
    """Compiles kernels on `workers` threads (TVM and LLVM release the interpreter's lock) and links
    them.

    keep_assembly: a directory that gets one .s file a kernel.
    Returns the linker's name.
    """
    functions: dict[str, Any] = {source.symbol: source.function for source in sources}
    functions[REPLAY_SYMBOL] = replay_function()
    objects = output.parent / "objects"
    objects.mkdir()

    def one(item: tuple[str, Any]) -> Path:
        symbol, function = item
        module = compile_function(function.with_attr("global_symbol", symbol), target)
        path = objects / f"{symbol}.o"
        module.write_to_file(str(path))
        if keep_assembly is not None:
            (keep_assembly / f"{symbol}.s").write_text(module.inspect_source("asm"))
        return path

    paths: list[Path] = []
    with ThreadPoolExecutor(max_workers=max(1, workers)) as pool:
        futures = {pool.submit(one, item): item[0] for item in functions.items()}
        try:
            for future in as_completed(futures):
                paths.append(future.result())
                if report is not None:
                    report(len(paths), len(futures), futures[future])
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    triple = str(target.llvm["mtriple"])
    native = triple.split("-")[0] == {"AMD64": "x86_64", "arm64": "aarch64"}.get(
        platform.machine(), platform.machine()
    )
    linker = link(sorted(paths), output, triple=None if native else triple)
    _remove(objects, paths)
    return linker


def _remove(folder: Path, files: Iterable[Path]) -> None:
    for file in files:
        file.unlink()
    folder.rmdir()
