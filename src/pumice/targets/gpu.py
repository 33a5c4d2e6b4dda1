"""GPU targets: one row an architecture. Bandwidth, peaks and compute units are those of the device
that the description names, from its vendor's data sheet: leads for the analytic model.

Register files are in LLVM's AMDGPUUsage and its processors' features: a SIMD of RDNA3 and later has
1536 VGPRs a lane in granules of 24, one of the smaller chips (_SMALL) 1024 in granules of 16; one
of CDNA2 and later 512 in granules of 8.
"""

from __future__ import annotations

from pumice.targets.target import Target

KIB, MIB = 1 << 10, 1 << 20
_BASE = frozenset({"float32", "float16", "bfloat16", "int8"})
_FP8 = frozenset({"float8_e4m3fn", "float8_e5m2"})
_SMALL = {"simd_vgprs": 1024, "vgpr_granule": 16}
_FNUZ = frozenset({"float8_e4m3fnuz", "float8_e5m2fnuz"})


def _cdna(name: str, description: str, **values: object) -> Target:
    row: dict[str, object] = {
        "name": name, "api": "rocm", "arch": name, "description": description, "wave": 64,
        "shared_bytes": 64 * KIB, "matrix_unit": "mfma", "vgprs": 512, "simd_vgprs": 512,
        "vgpr_granule": 8, "dtypes": _BASE,
    }  # fmt: skip
    return Target(**(row | values))  # type: ignore[arg-type]


def _rdna(name: str, description: str, **values: object) -> Target:
    row: dict[str, object] = {
        "name": name, "api": "rocm", "arch": name, "description": description, "wave": 32,
        "shared_bytes": 64 * KIB, "matrix_unit": "wmma", "vgprs": 256, "simd_vgprs": 1536,
        "vgpr_granule": 24, "dtypes": _BASE,
    }  # fmt: skip
    return Target(**(row | values))  # type: ignore[arg-type]


def _cuda(capability: int, description: str, **values: object) -> Target:
    row: dict[str, object] = {
        "name": f"sm_{capability}", "api": "cuda", "arch": f"sm_{capability}",
        "description": description, "wave": 32, "matrix_unit": "mma", "vgprs": 255, "dtypes": _BASE,
    }  # fmt: skip
    return Target(**(row | values))  # type: ignore[arg-type]


ROCM_TARGETS: tuple[Target, ...] = (
    _cdna("gfx90a", "CDNA2 (Instinct MI210, MI250X; figures of one MI250X die)", compute_units=110,
          l2_bytes=8 * MIB, bandwidth=1.6e12,
          peak={"float16": 191.5e12, "bfloat16": 191.5e12, "int8": 191.5e12, "float32": 23.9e12}),
    _cdna("gfx942", "CDNA3 (Instinct MI300X, MI300A, MI325X; figures of MI300X)", compute_units=304,
          l2_bytes=4 * MIB, bandwidth=5.3e12, dtypes=_BASE | _FNUZ,
          peak={"float16": 1307e12, "bfloat16": 1307e12, "int8": 2615e12, "float32": 163e12,
                "float8_e4m3fnuz": 2615e12}),
    _cdna("gfx950", "CDNA4 (Instinct MI350X, MI355X; figures of MI355X)", compute_units=256,
          l2_bytes=4 * MIB, bandwidth=8.0e12, shared_bytes=160 * KIB, dtypes=_BASE | _FP8,
          peak={"float16": 2500e12, "bfloat16": 2500e12, "int8": 5000e12, "float32": 157e12,
                "float8_e4m3fn": 5000e12}),
    _rdna("gfx1100", "RDNA3 (Radeon RX 7900 XTX, W7900; figures of RX 7900 XTX)", compute_units=96,
          l2_bytes=6 * MIB, bandwidth=960e9,
          peak={"float16": 122.8e12, "bfloat16": 122.8e12, "int8": 122.8e12, "float32": 61.4e12}),
    _rdna("gfx1101", "RDNA3 (Radeon RX 7800 XT, RX 7700 XT, W7700; figures of RX 7800 XT)",
          compute_units=60, l2_bytes=4 * MIB, bandwidth=624e9,
          peak={"float16": 74.6e12, "bfloat16": 74.6e12, "int8": 74.6e12, "float32": 37.3e12}),
    _rdna("gfx1102", "RDNA3 (Radeon RX 7600, RX 7600 XT; figures of RX 7600)", compute_units=32,
          l2_bytes=2 * MIB, bandwidth=288e9, **_SMALL,
          peak={"float16": 43.5e12, "bfloat16": 43.5e12, "int8": 43.5e12, "float32": 21.7e12}),
    _rdna("gfx1103", "RDNA3 (Radeon 780M, 760M of Ryzen 7040 and 8040; figures of 780M)",
          compute_units=12, l2_bytes=2 * MIB, bandwidth=120e9, **_SMALL,
          peak={"float16": 16.6e12, "bfloat16": 16.6e12, "int8": 16.6e12, "float32": 8.3e12}),
    _rdna("gfx1150", "RDNA3.5 (Radeon 890M, 880M of Ryzen AI 300; figures of 890M)",
          compute_units=16, l2_bytes=2 * MIB, bandwidth=120e9, **_SMALL,
          peak={"float16": 23.8e12, "bfloat16": 23.8e12, "int8": 23.8e12, "float32": 11.9e12}),
    _rdna("gfx1151", "RDNA3.5 (Ryzen AI Max, Strix Halo)", compute_units=40,
          l2_bytes=2 * MIB, bandwidth=256e9,
          peak={"float16": 59.4e12, "bfloat16": 59.4e12, "int8": 59.4e12, "float32": 29.7e12}),
    _rdna("gfx1200", "RDNA4 (Radeon RX 9060 XT)", compute_units=32,
          l2_bytes=4 * MIB, bandwidth=320e9, dtypes=_BASE | _FP8,
          peak={"float16": 102e12, "bfloat16": 102e12, "int8": 205e12, "float32": 25.6e12,
                "float8_e4m3fn": 205e12}),
    _rdna("gfx1201", "RDNA4 (Radeon RX 9070 XT, AI PRO R9700; figures of RX 9070 XT)",
          compute_units=64, l2_bytes=8 * MIB, bandwidth=640e9, dtypes=_BASE | _FP8,
          peak={"float16": 195e12, "bfloat16": 195e12, "int8": 389e12, "float32": 48.7e12,
                "float8_e4m3fn": 389e12}),
)  # fmt: skip

CUDA_TARGETS: tuple[Target, ...] = (
    _cuda(80, "Ampere (A100)", compute_units=108, shared_bytes=163 * KIB, l2_bytes=40 * MIB,
          bandwidth=2.04e12,
          peak={"float16": 312e12, "bfloat16": 312e12, "int8": 624e12, "float32": 19.5e12}),
    _cuda(86, "Ampere (GeForce RTX 30; figures of RTX 3090)", compute_units=82,
          shared_bytes=99 * KIB, l2_bytes=6 * MIB, bandwidth=936e9,
          peak={"float16": 71e12, "bfloat16": 71e12, "int8": 284e12, "float32": 35.6e12}),
    _cuda(89, "Ada (GeForce RTX 40, L40S; figures of RTX 4090)", compute_units=128,
          shared_bytes=99 * KIB, l2_bytes=72 * MIB, bandwidth=1008e9, dtypes=_BASE | _FP8,
          peak={"float16": 165e12, "bfloat16": 165e12, "int8": 660e12, "float32": 82.6e12,
                "float8_e4m3fn": 330e12}),
    _cuda(90, "Hopper (H100, H200; figures of H200)", compute_units=132, matrix_unit="wgmma",
          shared_bytes=227 * KIB, l2_bytes=50 * MIB, bandwidth=4.8e12, dtypes=_BASE | _FP8,
          peak={"float16": 989e12, "bfloat16": 989e12, "int8": 1979e12, "float32": 67e12,
                "float8_e4m3fn": 1979e12}),
    _cuda(100, "Blackwell (B200)", compute_units=148, matrix_unit="tcgen05",
          shared_bytes=227 * KIB, l2_bytes=126 * MIB, bandwidth=8.0e12, dtypes=_BASE | _FP8,
          peak={"float16": 2250e12, "bfloat16": 2250e12, "int8": 4500e12, "float32": 80e12,
                "float8_e4m3fn": 4500e12}),
    _cuda(120, "Blackwell (GeForce RTX 50; figures of RTX 5090)", compute_units=170,
          shared_bytes=99 * KIB, l2_bytes=96 * MIB, bandwidth=1792e9, dtypes=_BASE | _FP8,
          peak={"float16": 210e12, "bfloat16": 210e12, "int8": 838e12, "float32": 105e12,
                "float8_e4m3fn": 419e12}),
)  # fmt: skip

GPU_TARGETS: tuple[Target, ...] = (*ROCM_TARGETS, *CUDA_TARGETS)
