"""What a compiled kernel takes of a GPU, read from its code object rather than from assembly text:
that is what a driver goes by, and its form does not change with Triton's version."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from pumice.binary.amdgpu import read_code_object
from pumice.binary.cubin import read_cubin
from pumice.errors import ArtifactError


@dataclass(frozen=True)
class Resources:
    """vgprs: vector registers of a lane (AMD: with accumulation registers) or of a thread. sgprs:
    of a wave, AMD only. spilled: registers that did not fit (NVIDIA tells none: see scratch_bytes).
    scratch_bytes: private memory of a lane. shared_bytes: of a workgroup. wave: lanes."""

    vgprs: int
    sgprs: int
    spilled: int
    scratch_bytes: int
    shared_bytes: int
    wave: int

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


def read_resources(code: bytes, symbol: str, dynamic_shared: int) -> Resources:
    """Of one kernel of an hsaco or cubin. dynamic_shared: the bytes that a launch asks for.
    ArtifactError when the code object is damaged or has no such kernel."""
    if code[7:8] == b"\x40":  # the ELF header's OS ABI: AMD's runtime
        kernels = read_code_object(code).kernels
        if symbol not in kernels:
            raise _missing(symbol, kernels)
        amd = kernels[symbol]
        return Resources(
            amd.vgprs,
            amd.sgprs,
            amd.vgpr_spills + amd.sgpr_spills,
            amd.scratch_bytes,
            # What Triton asks for at a launch is what its metadata calls static, too.
            max(amd.lds_bytes, dynamic_shared),
            amd.wave,
        )
    found = read_cubin(code)
    if symbol not in found:
        raise _missing(symbol, found)
    cuda = found[symbol]
    # Static shared memory is what the system reserves; Triton's kernels have none of their own.
    return Resources(cuda.registers, 0, 0, cuda.local_bytes, dynamic_shared, 32)


def _missing(symbol: str, known: Iterable[str]) -> ArtifactError:
    return ArtifactError(f"the code object has no kernel {symbol!r}; it has {', '.join(known)}")
