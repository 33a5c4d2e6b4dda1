"""The model of time and occupancy on launches whose counts can be told by hand."""

from __future__ import annotations

from collections import Counter

import emulator_kernels as kernels
import numpy as np
import pytest
import triton.language as tl

from pumice.emulator.estimate import CARDS, estimate, occupancy
from pumice.emulator.report import LaunchReport
from pumice.emulator.traffic import Traffic
from pumice.errors import UnsupportedError


def test_a_vector_addition_is_bound_by_memory() -> None:
    n = 4096
    x, y, out = (np.ones(n, np.float32) for _ in range(3))
    report = kernels.launch(
        kernels.vector_add, "gfx1100", (n // 256,), [x, y, out, n], {"BLOCK": 256}
    )
    assert report.bytes_read == 8 * n and report.bytes_written == 4 * n
    assert report.traffic.segments_64 == 3 * n * 4 // 64
    found = estimate(report)
    assert found.bound == "memory"
    assert found.seconds == pytest.approx(12 * n / 960e9)
    assert found.matrix == 0 and found.utilization == 16 / 96
    text = "\n".join(found.lines())
    assert "Radeon RX 7900 XTX" in text and "no cache serves" in text and "µs  ← decides" in text


def test_a_sample_of_the_workgroups() -> None:
    """Counts are scaled to all; only the sampled workgroups' results are there."""
    n, block = 4096, 256
    x, y, out = (np.ones(n, np.float32) for _ in range(3))
    whole, some = (
        kernels.launch(
            kernels.vector_add, "gfx1100", (n // block,), [x, y, out.copy(), n], {"BLOCK": block},
            sample=sample,
        )
        for sample in (None, 3)
    )  # fmt: skip
    assert (whole.executed, some.executed, some.workgroups) == (16, 3, 16)
    assert 16 * some.bytes_read == 3 * whole.bytes_read
    scaled = some.scaled()
    assert scaled.instructions == whole.instructions
    assert scaled.traffic.segments_64 == whole.traffic.segments_64
    assert estimate(scaled) == estimate(whole)


def test_lines_are_counted_once_a_workgroup() -> None:
    """Every workgroup of the product reads a whole row of tiles; its waves share them."""
    size = 64
    a, b = (np.ones((size, size), np.float16) for _ in range(2))
    c = np.zeros((size, size), np.float32)
    report = kernels.launch(
        kernels.matmul, "gfx1100", (2, 2), [a, b, c, size, size, size],
        {"BM": 32, "BN": 32, "BK": 32, "ACC": tl.float32},
    )  # fmt: skip
    read = 2 * 32 * size * 2 // 64  # half of a (whole rows); of b half of every row
    assert report.traffic.lines_64 == 4 * (read + 32 * 32 * 4 // 64)
    assert report.traffic.segments_64 >= report.traffic.lines_64


@pytest.mark.parametrize(("arch", "rate"), [("gfx1100", 512), ("gfx942", 2048)])
def test_matrix_operations_are_counted(arch: str, rate: int) -> None:
    size = 64
    a, b = (np.ones((size, size), np.float16) for _ in range(2))
    c = np.zeros((size, size), np.float32)
    report = kernels.launch(
        kernels.matmul, arch, (1, 1), [a, b, c, size, size, size],
        {"BM": 64, "BN": 64, "BK": 32, "ACC": tl.float32},
    )  # fmt: skip
    assert report.flops == {"f16": 2 * size**3}
    card = CARDS[arch]
    found = estimate(report)
    assert found.matrix == pytest.approx(2 * size**3 / rate / card.clock)
    assert found.lds > 0 and found.vector > 0
    text = "\n".join(report.lines())
    assert f"matrix operations: {{'f16': {2 * size**3}}}" in text
    assert "bank conflicts" in text and f"matmul on {arch}: 1 workgroups, 4 waves" in text
    assert report.as_dict()["matrix_flops"] == {"f16": 2 * size**3}


def test_every_type_has_its_rate() -> None:
    report = LaunchReport("k", "gfx942", 304, 304)
    report.flops = Counter({"f16": 2048 * 1000, "fp8": 4096 * 1000})
    report.traffic = Traffic()
    assert estimate(report).matrix == pytest.approx(2000 / 2.1e9 / 304)
    with pytest.raises(UnsupportedError, match="gfx1030"):
        estimate(LaunchReport("k", "gfx1030", 1, 1))


@pytest.mark.parametrize(
    ("arch", "vgprs", "lds", "waves", "expected"),
    [
        ("gfx1100", 96, 0, 4, (16, "waves of a SIMD")),
        ("gfx1100", 97, 0, 4, (12, "VGPRs")),
        ("gfx1100", 256, 65536, 4, (2, "LDS")),
        ("gfx942", 128, 0, 4, (4, "VGPRs")),
        ("gfx942", 64, 32768, 4, (2, "LDS")),
        ("gfx950", 64, 32768, 4, (5, "LDS")),
    ],
)
def test_occupancy(arch: str, vgprs: int, lds: int, waves: int, expected: tuple[int, str]) -> None:
    assert occupancy(arch, vgprs=vgprs, lds_bytes=lds, waves=waves) == expected
