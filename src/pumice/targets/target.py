"""What a kernel may know of the hardware it is compiled for: data only, never a name to branch
on."""

from __future__ import annotations

import re
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Target:
    """One kind of device.

    Kernels read the fields (`vector_bits`, `has("vnni")`, `shared_bytes`), never `name`.
    Bandwidth and peaks are the vendor's figures where one device is meant, else None: a CPU's are
    measured.
    """

    name: str  # "x86-64-v3", "gfx1100", "sm_90"
    api: str  # cpu | rocm | cuda | vulkan | metal | opencl
    arch: str  # LLVM's or the vendor's name: "haswell", "gfx1100"
    description: str = ""
    features: frozenset[str] = frozenset()  # normalised: avx2 f16c avx512 vnni avxvnni dotprod
    llvm: dict[str, object] = field(default_factory=dict, hash=False)  # keys for tvm.target.Target
    vector_bits: int = 128
    wave: int = 1  # lanes that run in lockstep; 1 on a CPU
    shared_bytes: int = 0  # LDS / shared memory a workgroup may use
    matrix_unit: str | None = None  # mfma | wmma | mma | wgmma
    compute_units: int = 0  # compute units / multiprocessors of the largest such device
    vgprs: int = 0  # 32-bit vector registers a lane may have at most
    simd_vgprs: int = 0  # AMD: of all waves of a SIMD, per lane, given out in multiples of …
    vgpr_granule: int = 0  # … this many
    l2_bytes: int = 0  # last cache before memory
    dtypes: frozenset[str] = frozenset({"float32", "float16", "int8"})  # of the matrix unit, too
    bandwidth: float | None = None  # bytes/s
    peak: dict[str, float] = field(default_factory=dict, hash=False)  # dtype → operations/s

    @property
    def devices(self) -> str:
        """The description, but for whose figures these are: "RDNA3 (Radeon RX 7900 XTX, W7900)"."""
        return re.sub(r"; figures of [^)]*", "", self.description)

    def has(self, feature: str) -> bool:
        return feature in self.features

    @property
    def lanes(self) -> int:
        """float32 lanes of one vector register."""
        return self.vector_bits // 32
