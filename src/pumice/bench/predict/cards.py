"""Cards of the architectures that Pumice compiles for.

Bandwidth, compute units, memory, caches and dense float16 peaks are those of the vendors' data
sheets. What a program can attain of them is measured where a source is named, and else assumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pumice.errors import UsageError

GB, MIB = 10**9, 1 << 20


@dataclass(frozen=True)
class Attainable:
    """Fractions of the data sheet that large copies and large 16-bit matrix products reach."""

    copy: float
    matrix: float
    source: str


_H200 = Attainable(0.89, 0.80, "copy 4.275 TB/s and bfloat16 product 793 TFLOP/s measured on H200")
_MI300 = Attainable(
    0.81, 0.54,
    "MI300X: published copies of 4.3 TB/s; AMD's max-achievable bfloat16 of 708 TFLOP/s "
    "(rocm.blogs.amd.com, Measuring Max-Achievable FLOPs, part 2)",
)  # fmt: skip
_STRIX = Attainable(
    0.83, 0.62,
    "Strix Halo: published rocm_bandwidth_test 212 GB/s, hipBLASLt 36.9 TFLOP/s "
    "(llm-tracker.info, Strix-Halo)",
)  # fmt: skip
_RDNA = Attainable(0.89, 0.62, "assumed: copies as on H200, matrix units as on Strix Halo")
_CUDA = Attainable(0.89, 0.80, "assumed as on H200")


@dataclass(frozen=True)
class Card:
    """units: compute units or multiprocessors. bandwidth: bytes/s. float16: dense operations/s of
    the matrix units, a multiply-add counted as two. cache_bytes: the last cache before memory,
    where small intermediate tensors stay."""

    name: str
    arch: str
    units: int
    bandwidth: float
    memory_bytes: int
    cache_bytes: int
    float16: float
    attainable: Attainable

    @property
    def copy_bandwidth(self) -> float:
        """Bytes/s that a program reaches."""
        return self.bandwidth * self.attainable.copy

    @property
    def matrix_peak(self) -> float:
        """Operations/s of 16-bit products that a program reaches."""
        return self.float16 * self.attainable.matrix


def _card(
    name: str, arch: str, units: int, gb_per_s: float, gb: float, cache_mib: int, tflops: float,
    attainable: Attainable,
) -> Card:  # fmt: skip
    return Card(
        name, arch, units, gb_per_s * GB, int(gb * GB), cache_mib * MIB, tflops * 1e12, attainable
    )


CARDS: tuple[Card, ...] = (
    _card("Instinct MI210", "gfx90a", 104, 1638, 64, 8, 181, _MI300),
    _card("Instinct MI250X (one die)", "gfx90a", 110, 1638, 64, 8, 191.5, _MI300),
    _card("Instinct MI300X", "gfx942", 304, 5300, 192, 256, 1307, _MI300),
    _card("Instinct MI325X", "gfx942", 304, 6000, 256, 256, 1307, _MI300),
    _card("Instinct MI300A", "gfx942", 228, 5300, 128, 256, 981, _MI300),
    _card("Instinct MI350X", "gfx950", 256, 8000, 288, 256, 2300, _MI300),
    _card("Instinct MI355X", "gfx950", 256, 8000, 288, 256, 2500, _MI300),
    _card("Radeon RX 7900 XTX", "gfx1100", 96, 960, 24, 96, 122.8, _RDNA),
    _card("Radeon RX 7900 XT", "gfx1100", 84, 800, 20, 80, 103, _RDNA),
    _card("Radeon PRO W7900", "gfx1100", 96, 864, 48, 96, 122.6, _RDNA),
    _card("Radeon RX 7800 XT", "gfx1101", 60, 624, 16, 64, 74.6, _RDNA),
    _card("Radeon RX 7700 XT", "gfx1101", 54, 432, 12, 48, 70.3, _RDNA),
    _card("Radeon RX 7600", "gfx1102", 32, 288, 8, 32, 43.5, _RDNA),
    _card("Radeon RX 7600 XT", "gfx1102", 32, 288, 16, 32, 45.1, _RDNA),
    _card("Radeon 780M (LPDDR5x-7500)", "gfx1103", 12, 120, 16, 2, 16.6, _RDNA),
    _card("Radeon 890M (LPDDR5x-7500)", "gfx1150", 16, 120, 16, 2, 23.8, _RDNA),
    _card("Ryzen AI Max+ 395 (Strix Halo)", "gfx1151", 40, 256, 96, 32, 59.4, _STRIX),
    _card("Ryzen AI Max 385 (Strix Halo)", "gfx1151", 32, 256, 96, 32, 45.9, _STRIX),
    _card("Radeon RX 9060 XT", "gfx1200", 32, 322, 16, 32, 102, _RDNA),
    _card("Radeon RX 9070 XT", "gfx1201", 64, 644, 16, 64, 195, _RDNA),
    _card("Radeon RX 9070", "gfx1201", 56, 644, 16, 64, 145, _RDNA),
    _card("Radeon AI PRO R9700", "gfx1201", 64, 640, 32, 64, 191, _RDNA),
    _card("A100 80 GB", "sm_80", 108, 2039, 80, 40, 312, _CUDA),
    _card("GeForce RTX 3090", "sm_86", 82, 936, 24, 6, 71, _CUDA),
    _card("GeForce RTX 4090", "sm_89", 128, 1008, 24, 72, 165, _CUDA),
    _card("L40S", "sm_89", 142, 864, 48, 96, 362, _CUDA),
    _card("H200", "sm_90", 132, 4800, 141, 50, 989, _H200),
    _card("H100 SXM", "sm_90", 132, 3350, 80, 50, 989, _H200),
    _card("B200", "sm_100", 148, 8000, 180, 126, 2250, _CUDA),
    _card("GeForce RTX 5090", "sm_120", 170, 1792, 32, 96, 210, _CUDA),
)
_BY_NAME: Mapping[str, Card] = {card.name: card for card in CARDS}


def cards_of(arch: str) -> tuple[Card, ...]:
    """The cards of an architecture; UsageError lists those that there are cards of."""
    found = tuple(card for card in CARDS if card.arch == arch)
    if not found:
        known = ", ".join(dict.fromkeys(card.arch for card in CARDS))
        raise UsageError(f"no card of {arch!r} is known; speeds are predicted for: {known}")
    return found


def card_named(name: str) -> Card:
    """A card by its whole name; KeyError."""
    return _BY_NAME[name]
