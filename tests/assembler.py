"""The AMD assembler inside Triton, whose place differs between versions."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable

import pytest


@functools.cache
def _assembler() -> Callable[[str, str, str], bytes]:
    pytest.importorskip("triton", reason="needs Triton's assembler")
    from triton._C import libtriton
    from triton.backends.amd import compiler

    libtriton.llvm.init_targets()
    # From 3.9 on a library of its own; Triton's LLVM knows some old instructions no more.
    found = getattr(compiler, "assemble_amdgcn", None) or libtriton.amd.assemble_amdgcn
    assert callable(found)
    return found


def assemble(text: str, arch: str) -> bytes:
    """An object file of a whole assembly file."""
    # Names of 16-bit operands as they are without halves of registers, which later versions assume.
    features = "-real-true16" if arch.startswith(("gfx11", "gfx12")) else ""
    return bytes(_assembler()(text, arch, features))


@functools.cache
def machine_code(text: str, arch: str) -> bytes:
    """The bytes of .text of some instructions."""
    image = assemble(f".text\n{text}\n", arch)
    offset, size, count, names = struct.unpack_from("<Q10xHHH", image, 40)
    sections = [struct.unpack_from("<IIQQQQ", image, offset + size * i) for i in range(count)]
    strings = sections[names][4]
    for section in sections:
        if image[strings + section[0] :].startswith(b".text\0"):
            return bytes(image[section[4] : section[4] + section[5]])
    raise AssertionError("no .text")
