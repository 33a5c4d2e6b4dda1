"""Links object files into a shared library with whatever linker the machine has."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from pumice.errors import CompileError


def linkers(arch_is_native: bool = True) -> list[tuple[str, list[str]]]:
    """Usable linkers, best first: (name, command before the file names)."""
    found: list[tuple[str, list[str]]] = []
    if arch_is_native:
        for name in ("cc", "gcc", "clang"):
            if path := shutil.which(name):
                found.append((name, [path, "-shared", "-fPIC", "-lm"]))
    for name in ("ld.lld", "lld", "ld") if arch_is_native else ("ld.lld",):
        if path := shutil.which(name):
            found.append((name, [path, "-shared"]))
    if importlib.util.find_spec("ziglang") is not None:
        # Zig's own lld through its `cc`, for machines without any compiler.
        zig = [sys.executable, "-m", "ziglang", "cc", "-shared", "-fPIC"]
        found.append(("zig cc", zig))
    return found


def link(objects: Sequence[Path], output: Path, *, triple: str | None = None) -> str:
    """Writes `output` from object files; returns the linker's name.

    triple: LLVM's, when the target is another machine than this one.
    Raises CompileError when there is no linker, or with the linker's own words when it fails.
    """
    candidates = linkers(triple is None)
    if triple is not None:
        machine = triple.split("-")[0]
        cross = shutil.which(f"{machine}-linux-gnu-gcc")
        if cross:
            candidates.insert(0, (cross, [cross, "-shared", "-fPIC"]))
        candidates = [
            (name, [*command, "-target", f"{machine}-linux-gnu"] if name == "zig cc" else command)
            for name, command in candidates
        ]
    if not candidates:
        raise CompileError(
            "no linker was found; looked for cc, gcc, clang, ld.lld, ld and the package ziglang"
            + ("" if triple is None else f" (for {triple}: ld.lld, a cross gcc, or ziglang)"),
            hint="Install one: `apt-get install gcc`, or `pip install ziglang`.",
        )
    name, command = candidates[0]
    line = [*command, "-o", str(output), *map(str, objects)]
    result = subprocess.run(line, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise CompileError(f"linking with {name} failed: {result.stderr.strip()[:2000]}")
    return name
