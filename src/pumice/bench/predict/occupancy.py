"""How many blocks of a kernel a compute unit holds at once.

AMD's register files are the targets'; a SIMD of RDNA3 and later (two a compute unit) has at most 16
waves, one of CDNA2 and later (four) 8 (LLVM's AMDGPUUsage). NVIDIA's are in the CUDA C++
Programming Guide's table of compute capabilities: 65,536 registers a multiprocessor, given to warps
in units of 256, and 1 KiB of shared memory that every block takes beside its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from pumice.artifact import KernelRecord
from pumice.targets import Target

KIB = 1 << 10
# Compute capability → warps and blocks that a multiprocessor holds at most.
_CUDA_LIMITS = {
    "sm_80": (64, 32), "sm_86": (48, 16), "sm_89": (48, 24), "sm_90": (64, 32),
    "sm_100": (64, 32), "sm_120": (48, 24),
}  # fmt: skip


@dataclass(frozen=True)
class Occupancy:
    """blocks, waves: of one compute unit at once. part: of the waves it could hold. limit: what
    there is not more of: "waves", "registers", "shared memory" or "blocks"."""

    blocks: int
    waves: int
    part: float
    limit: str


def occupancy(record: KernelRecord, target: Target) -> Occupancy:
    """Of a GPU's kernel, by its threads, registers and shared memory (LDS). A CUDA kernel whose
    registers are not recorded is limited by the rest."""
    waves = -(-record.threads // target.wave)
    if target.api == "rocm":
        found, most = _amd(record, target, waves)
    else:
        found, most = _nvidia(record, target, waves)
    limit = min(found, key=lambda name: found[name])
    blocks = max(1, found[limit])  # one runs, however large it is
    return Occupancy(blocks, blocks * waves, blocks * waves / most, limit)


def _amd(record: KernelRecord, target: Target, waves: int) -> tuple[dict[str, int], int]:
    a_simd, simds = (16, 2) if target.wave == 32 else (8, 4)
    file = target.simd_vgprs
    registers = _rounded(max(1, record.resources.get("vgprs", 0)), target.vgpr_granule)
    shared = max(record.shared_bytes, record.resources.get("lds_bytes", 0))
    found = {
        "waves": simds * a_simd // waves,
        "registers": simds * (file // registers) // waves,
    }
    if shared:
        found["shared memory"] = target.shared_bytes // shared
    return found, simds * a_simd


def _nvidia(record: KernelRecord, target: Target, waves: int) -> tuple[dict[str, int], int]:
    most, blocks = _CUDA_LIMITS[target.name]
    found = {"waves": most // waves, "blocks": blocks}
    if record.resources.get("vgprs"):
        warp = _rounded(record.resources["vgprs"] * target.wave, 256)
        found["registers"] = 65536 // warp // waves
    shared = record.shared_bytes + KIB
    found["shared memory"] = (target.shared_bytes + KIB) // shared
    return found, most


def _rounded(n: int, step: int) -> int:
    return -(-n // step) * step
