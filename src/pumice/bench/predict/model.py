"""The time of a launch on a card: the formulas.

    floor   = max(bytes / (copy bandwidth · u), operations / (matrix peak · v))
    time    = start + slope · floor + launches · gap

bytes: weights and cache, and intermediate tensors, which count a quarter while they stay in the
card's last cache (they fit its half: a cache is taken to be four times as fast as its memory).
u: the part of the bandwidth that few blocks can draw: a compute unit alone draws about three times
its share, and less with fewer than four waves.
v: the part of the matrix units' time that is used: the busiest unit computes ceil(blocks / units)
blocks while others wait at the end, and a unit with fewer than four waves has idle schedulers.
Both depend on the blocks that a unit holds at once (`occupancy.py`).
start, slope: of measured rows (`measured.py`). gap: what a captured graph of this api takes from
one kernel to the next more than CUDA's, which the measured rows hold.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pumice.bench.predict.cards import Card

if TYPE_CHECKING:
    from pumice.bench.predict.measured import Line

ALONE = 3.0  # times its share of the bandwidth that one unit draws when others are idle
WAVES = 4  # that keep a unit's schedulers busy
CACHE_FACTOR = 4.0
#: Seconds from one kernel of a captured graph to the next, beyond what CUDA takes. ROCm: 3.9 µs a
#: node in all on a W7900 (github.com/ROCm/rocm-systems/issues/10834), less the 1.3 µs that the
#: shortest measured row takes in all on an H200.
GAP = {"cuda": 0.0, "rocm": 2.6e-6}
#: Seconds of a step on the host that the device waits for: writing the batch, starting the graph,
#: reading the result. Assumed.
STEP = 20e-6

ASSUMPTIONS = (
    "a kernel reaches on every card the part of the floor that it was measured to reach on "
    "an H200 (tuning/data/sm_90), at the same operations per byte",
    "a kernel without measured rows: those of the kernel whose work it does among its own, else "
    "1.5 µs and 70% of the floor",
    f"from kernel to kernel {GAP['rocm'] * 1e6:.1f} µs more on ROCm than on CUDA (3.9 µs a graph "
    "node, published for a W7900); "
    f"{STEP * 1e6:.0f} µs of a step on the host",
    f"intermediate tensors that fit half the last cache cost 1/{CACHE_FACTOR:.0f} of their bytes",
)


@dataclass(frozen=True)
class Shape:
    """What a launch occupies. waves: of a block. resident: blocks that a unit holds at once."""

    blocks: int
    waves: int
    resident: int

    def schedulers(self, units: int) -> float:
        """The part of a busy unit's schedulers that have a wave."""
        here = min(self.resident, math.ceil(self.blocks / units))
        return min(1.0, here * self.waves / WAVES)


@dataclass(frozen=True)
class CallTime:
    """Seconds of one call: in all, at least, and of it what its launches cost by their number."""

    seconds: float
    floor: float
    launching: float
    bound: str  # "memory", "matrix units" or "launch"


def memory_part(shape: Shape, card: Card) -> float:
    """u: of the bandwidth."""
    busy = min(shape.blocks, card.units) / card.units
    return min(1.0, ALONE * busy * shape.schedulers(card.units))


def matrix_part(shape: Shape, card: Card) -> float:
    """v: of the matrix units' time."""
    share = shape.blocks / card.units
    return share / math.ceil(share) * shape.schedulers(card.units)


def floor_seconds(nbytes: float, operations: float, shape: Shape, card: Card) -> float:
    """The least time on a card, given how many blocks there are."""
    memory = nbytes / (card.copy_bandwidth * memory_part(shape, card))
    return max(memory, operations / (card.matrix_peak * matrix_part(shape, card)))


def memory_bytes(nbytes: float, activations: float, card: Card) -> float:
    """Bytes as if all came from memory."""
    kept = 2 * activations <= card.cache_bytes
    return nbytes + (activations / CACHE_FACTOR if kept else activations)


def call_time(
    nbytes: float, operations: float, shape: Shape, line: Line, launches: int, card: Card, api: str
) -> CallTime:
    """nbytes: as of `memory_bytes`."""
    floor = floor_seconds(nbytes, operations, shape, card)
    launching = line.start + launches * GAP[api]
    work = line.slope * floor
    memory = nbytes / card.copy_bandwidth
    kind = "matrix units" if operations / card.matrix_peak > memory else "memory"
    return CallTime(work + launching, floor, launching, kind if work > launching else "launch")
