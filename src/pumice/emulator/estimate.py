"""How long a launch would take at best on a card, from its counts: a model, not a measurement.

What it assumes, and says with every estimate:

- the slowest of four resources decides: vector instructions, matrix operations, LDS, memory;
  everything else (scalar instructions, waits, barriers, launch) hides behind it;
- every 64-byte line that a workgroup touches comes from memory once: its own repetitions hit a
  cache, and workgroups share nothing, so an upper bound where they do;
- clock, bandwidth and rates are the vendor's peaks; workgroups spread evenly over compute units.

Rates: the "Instinct" and "Radeon" data sheets, and the CDNA and RDNA white papers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType

from pumice.emulator.report import LaunchReport
from pumice.errors import UnsupportedError, UsageError


@dataclass(frozen=True)
class Card:
    """One card of an architecture. Rates are those of a compute unit in a cycle."""

    name: str
    units: int
    clock: float  # Hz
    bandwidth: float  # bytes/s
    vector: float  # wave instructions
    matrix: int  # float16 operations (a multiply and an add are two)
    faster: dict[str, float] = field(default_factory=dict, hash=False)  # of types, against float16
    lds: int = 128  # bytes
    vgprs: int = 512  # of a lane, in one SIMD
    granule: int = 8  # VGPRs are given out in multiples
    simds: int = 4
    most_waves: int = 8  # of a SIMD
    lds_bytes: int = 65536  # of a compute unit


_CDNA3 = {"fp8": 2.0, "bf8": 2.0, "i8": 2.0, "xf32": 0.5, "f32": 0.125, "f64": 0.125}
_RDNA3 = {"iu8": 1.0, "iu4": 2.0}
_RDNA4 = {"fp8": 2.0, "bf8": 2.0, "iu8": 2.0, "iu4": 4.0}
_SIMD32: dict[str, int] = {"vgprs": 1536, "granule": 24, "simds": 2, "most_waves": 16}
_SMALL32 = _SIMD32 | {"vgprs": 1024, "granule": 16}

CARDS = MappingProxyType(
    {
        "gfx90a": Card(
            "Instinct MI250X, one of two dies", 110, 1.7e9, 1.638e12, 1.0, 1024,
            {"i8": 1.0, "f32": 0.25, "f64": 0.25},
        ),
        "gfx942": Card("Instinct MI300X", 304, 2.1e9, 5.3e12, 1.0, 2048, _CDNA3),
        "gfx950": Card(
            "Instinct MI355X", 256, 2.4e9, 8.0e12, 1.0, 4096,
            {**_CDNA3, "f8f6f4": 2.0}, lds_bytes=163840,
        ),
        "gfx1100": Card("Radeon RX 7900 XTX", 96, 2.5e9, 960e9, 2.0, 512, _RDNA3, **_SIMD32),
        "gfx1101": Card("Radeon RX 7800 XT", 60, 2.43e9, 624e9, 2.0, 512, _RDNA3, **_SIMD32),
        "gfx1102": Card("Radeon RX 7600", 32, 2.655e9, 288e9, 2.0, 512, _RDNA3, **_SMALL32),
        "gfx1103": Card("Radeon 780M", 12, 2.7e9, 120e9, 2.0, 512, _RDNA3, **_SMALL32),
        "gfx1150": Card("Radeon 890M", 16, 2.9e9, 120e9, 2.0, 512, _RDNA3, **_SMALL32),
        "gfx1151": Card("Radeon 8060S", 40, 2.9e9, 256e9, 2.0, 512, _RDNA3, **_SIMD32),
        "gfx1200": Card("Radeon RX 9060 XT", 32, 3.13e9, 320e9, 2.0, 1024, _RDNA4, **_SIMD32),
        "gfx1201": Card("Radeon RX 9070 XT", 64, 2.97e9, 640e9, 2.0, 1024, _RDNA4, **_SIMD32),
    }
)  # fmt: skip


@dataclass(frozen=True)
class Estimate:
    """Seconds that each resource would need, and which one decides."""

    card: str
    vector: float
    matrix: float
    lds: float
    memory: float
    utilization: float  # of compute units: 1 when the workgroups fill them evenly

    @property
    def seconds(self) -> float:
        return max(self.vector, self.matrix, self.lds, self.memory)

    @property
    def bound(self) -> str:
        """ "vector" | "matrix" | "lds" | "memory"."""
        found = {n: getattr(self, n) for n in ("memory", "matrix", "lds", "vector")}
        return max(found, key=lambda name: float(found[name]))

    def assumptions(self) -> list[str]:
        """What the figure takes for granted, in sentences."""
        return [
            "the slowest resource decides and hides the rest",
            "a workgroup's own repetitions hit a cache; no cache serves two workgroups",
            "the vendor's peak clock, bandwidth and rates",
            f"compute units in use: {self.utilization:.0%}",
        ]

    def lines(self) -> list[str]:
        """For a person, with the assumptions."""
        rows = [
            f"{name:<7}{getattr(self, name) * 1e6:10.2f} µs"
            + ("  ← decides" if name == self.bound else "")
            for name in ("memory", "matrix", "lds", "vector")
        ]
        return [
            f"at best {self.seconds * 1e6:.2f} µs on {self.card}, by a model that assumes:",
            *(f"  {sentence}" for sentence in self.assumptions()),
            *rows,
        ]


def card_of(arch: str) -> Card:
    """The card that stands for an architecture."""
    try:
        return CARDS[arch]
    except KeyError:
        raise UnsupportedError(
            f"no card is described for {arch}; described are {', '.join(CARDS)}"
        ) from None


def estimate(report: LaunchReport) -> Estimate:
    """From a launch that measured its traffic (`measure=True`)."""
    card = card_of(report.arch)
    rounds = -(-report.workgroups // card.units) or 1
    utilization = report.workgroups / (rounds * card.units)
    rate = card.clock * card.units * max(utilization, 1 / card.units)
    traffic = report.traffic
    moved = traffic.bytes_read.get("LDS", 0) + traffic.bytes_written.get("LDS", 0)
    matrix = sum(
        count / (card.matrix * card.faster.get(kind, 1.0)) for kind, count in report.flops.items()
    )
    if not traffic.measure:
        raise UsageError("an estimate needs a launch that measured its traffic (measure=True)")
    global_bytes = 64 * traffic.lines_64
    return Estimate(
        card.name,
        report.instructions["vector"] / (card.vector * rate),
        matrix / rate,
        (moved / card.lds + traffic.lds_conflicts) / rate,
        global_bytes / card.bandwidth,
        utilization,
    )


def occupancy(arch: str, *, vgprs: int, lds_bytes: int, waves: int) -> tuple[int, str]:
    """(waves of a SIMD at once, what limits them) of workgroups of `waves` waves.

    vgprs: as the metadata counts them (on CDNA with accumulation registers). RDNA's workgroups are
    taken to run in the mode of two compute units that share their LDS.
    """
    card = card_of(arch)
    by_registers = card.vgprs // (-(-max(vgprs, 1) // card.granule) * card.granule)
    limits = {"waves of a SIMD": card.most_waves, "VGPRs": by_registers}
    if lds_bytes:
        pair = 2 if card.simds == 2 else 1
        groups = pair * card.lds_bytes // lds_bytes
        limits["LDS"] = groups * waves // (card.simds * pair)
    limit = min(limits, key=lambda name: limits[name])
    return limits[limit], limit
