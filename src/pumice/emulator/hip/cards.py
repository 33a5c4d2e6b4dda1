"""Cards that can be emulated: what their drivers report.

Memory, compute units, clocks and bus widths are AMD's published specifications (MI250X: one of its
two dies, which is what a driver shows).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pumice.errors import UsageError
from pumice.targets import get_target

GIB = 1 << 30
_INTEGRATED = ("gfx1103", "gfx1150", "gfx1151")


@dataclass(frozen=True)
class Card:
    """What a driver reports. units: compute units; wave: lanes; shared_bytes: LDS of a block."""

    name: str
    arch: str
    memory_bytes: int
    units: int
    wave: int
    shared_bytes: int
    clock_mhz: int
    memory_clock_mhz: int
    memory_bus_bits: int
    l2_bytes: int
    integrated: bool = False

    def blocks_per_unit(self, threads: int, registers: int, shared_bytes: int) -> int:
        """Blocks that a compute unit holds at once, by waves, VGPRs and LDS.

        A SIMD of RDNA3 and RDNA4 has at most 16 waves, a unit 2 of them; CDNA 8 waves, 4 SIMDs.
        The register files are the target's.
        """
        most, simds = (16, 2) if self.wave == 32 else (8, 4)
        target = get_target(self.arch)
        file, granule = target.simd_vgprs, target.vgpr_granule
        waves = -(-threads // self.wave)
        rounded = -(-max(1, registers) // granule) * granule
        by_waves = simds * min(most, file // rounded) // waves
        return min(by_waves, self.shared_bytes // shared_bytes if shared_bytes else by_waves)


def _rdna(
    name: str, arch: str, gib: int, units: int, mhz: int, memory_mhz: int, bits: int, l2_mib: int
) -> Card:
    return Card(
        name, arch, gib * GIB, units, 32, 65536, mhz, memory_mhz, bits, l2_mib << 20,
        integrated=arch in _INTEGRATED,
    )  # fmt: skip


def _cdna(
    name: str, arch: str, gib: int, units: int, mhz: int, memory_mhz: int, bits: int, lds_kib: int
) -> Card:
    return Card(name, arch, gib * GIB, units, 64, lds_kib << 10, mhz, memory_mhz, bits, 4 << 20)


_ALL = (
    _rdna("AMD Radeon RX 7900 XTX", "gfx1100", 24, 96, 2500, 1250, 384, 6),
    _rdna("AMD Radeon RX 7800 XT", "gfx1101", 16, 60, 2430, 1219, 256, 4),
    _rdna("AMD Radeon RX 7600", "gfx1102", 8, 32, 2655, 1125, 128, 2),
    _rdna("AMD Radeon 780M", "gfx1103", 16, 12, 2700, 938, 128, 2),
    _rdna("AMD Radeon 890M", "gfx1150", 16, 16, 2900, 938, 128, 2),
    _rdna("AMD Radeon 8060S", "gfx1151", 96, 40, 2900, 1000, 256, 2),
    _rdna("AMD Radeon RX 9060 XT", "gfx1200", 16, 32, 3130, 1259, 128, 4),
    _rdna("AMD Radeon RX 9070 XT", "gfx1201", 16, 64, 2970, 1259, 256, 8),
    _cdna("AMD Instinct MI250X", "gfx90a", 64, 110, 1700, 1600, 4096, 64),
    _cdna("AMD Instinct MI300X", "gfx942", 192, 304, 2100, 1300, 8192, 64),
    _cdna("AMD Instinct MI355X", "gfx950", 288, 256, 2400, 2000, 8192, 160),
)
CARDS: Mapping[str, Card] = MappingProxyType({card.arch: card for card in _ALL})


def card(arch: str) -> Card:
    """The card that stands for an architecture."""
    try:
        return CARDS[arch]
    except KeyError:
        raise UsageError(
            f"there is no emulated card of architecture {arch!r}; allowed: {', '.join(CARDS)}"
        ) from None
