"""Times of candidates where nobody measured: an analytic model of matrix products.

A product's time is the greater of what its programs take, in waves over the compute units, and of
what memory takes, with the bytes that are in flight; a second launch adds its own. What bounds a
program is its matrix unit or its path to the last cache. It reads a target's data sheet only.

The factors were fitted to half of the rows of one run on an H200, all candidates of each, and
judged on the other half: `docs/operators.md` has the figures, `scripts/judge_model.py` makes them.
"""

from __future__ import annotations

from dataclasses import dataclass

from pumice.operators.gemm.product import Product, of_problem
from pumice.operators.gemm.tiles import Tile, resident, shared_bytes
from pumice.operators.triton.plan import Config, Problem, TritonKernel, cdiv
from pumice.targets import Target

# Not gemm_fp8_block: there its operator's own order was right more often.
OPERATORS = frozenset({"gemm", "batched_gemm", "gemm_fp8", "gemm_int8"})


@dataclass(frozen=True)
class Factors:
    """How far hardware gets of its data sheet, the same for every architecture.

    matrix, growth: of the matrix unit's peak that a tile of 128 × 256 reaches, and the power of its
    area by which smaller ones fall behind. cache: the last cache's bandwidth over memory's. memory,
    stream: of its bandwidth, in tiles and in whole rows. flight_s: what must be in flight to get
    it, as seconds of bandwidth. vector: of the vector unit's float32 peak; decode: operations of a
    weight besides its products. start_s, launch_s: of a wave of programs and of a second launch.
    """

    matrix: float = 0.52
    growth: float = 0.13
    cache: float = 2.07
    memory: float = 0.71
    stream: float = 0.97
    flight_s: float = 2.1e-6
    vector: float = 0.6
    decode: float = 1.8
    start_s: float = 0.7e-6
    launch_s: float = 1.0e-6


FACTORS = Factors()


def estimate_s(
    problem: Problem, target: Target, config: Config, factors: Factors = FACTORS
) -> float | None:
    """Seconds of a product's kernel under a configuration; None for operators that are not
    modelled, and targets whose bandwidth or peak is unknown."""
    if problem.operator not in OPERATORS or not target.bandwidth or not target.compute_units:
        return None
    product = of_problem(problem)
    if product.empty:
        return 0.0
    if "vector" in config:
        return _vector(product, target, config, factors)
    if "x_stages" in config:
        return _ring(product, target, config, factors)
    if not target.peak:
        return None
    return _tiles(product, target, config, factors)


def favourite(
    problem: Problem, target: Target, offered: list[tuple[TritonKernel, Config]]
) -> tuple[TritonKernel, Config, float] | None:
    """The candidate that the model finds fastest and its seconds, the earlier of equals; None
    where it does not judge all of them."""
    best: tuple[TritonKernel, Config, float] | None = None
    for kernel, config in offered:
        seconds = estimate_s(problem, target, config)
        if seconds is None:
            return None
        if best is None or seconds < best[2]:
            best = (kernel, config, seconds)
    return best


def _reach(flying: float, target: Target, factors: Factors) -> float:
    """Of memory's bandwidth, for bytes in flight."""
    assert target.bandwidth
    return min(1.0, max(flying, 1.0) / (target.bandwidth * factors.flight_s))


def _vector(product: Product, target: Target, config: Config, factors: Factors) -> float:
    """Lanes multiply: rows of w stream through; a unit keeps about 1024 lanes that wait."""
    assert target.bandwidth
    programs = cdiv(product.N, config["BN"]) * product.B
    slots = max(1, 1024 // (config["warps"] * target.wave)) * target.compute_units
    waves = programs / slots
    tail = cdiv(programs, slots) / waves if 1 < waves <= 4 else 1.0
    flying = min(programs, slots) * config["BN"] * config["BK"] * product.itemsize
    read = product.N * product.K * product.B * product.itemsize
    rate = target.bandwidth * factors.stream * _reach(flying, target, factors)
    peak = target.peak.get("float32", 0.0) * factors.vector
    elements = product.B * product.N * cdiv(product.K, config["BK"]) * config["BK"]
    compute = elements * (2 * product.M + factors.decode) / peak if peak else 0.0
    return float(max(read / rate * tail, compute) + factors.start_s)


def _ring(product: Product, target: Target, config: Config, factors: Factors) -> float:
    """Rows of w stream through rings of buffers, all programs alike; x comes from the cache."""
    assert target.bandwidth
    tiles = cdiv(product.N, config["rows"])
    programs = tiles * config["split"] if config["split"] else target.compute_units
    ring = config["stages"] * config["BK"] * product.itemsize
    rate = target.bandwidth * factors.stream
    read = product.N * product.K * product.itemsize
    again = tiles * product.M * product.K * product.itemsize
    seconds = read / (rate * _reach(programs * config["rows"] * ring, target, factors))
    return float(max(seconds, (read + again) / (rate * factors.cache)) + factors.start_s)


def _tiles(product: Product, target: Target, config: Config, factors: Factors) -> float:
    assert target.bandwidth
    names = ("BM", "BN", "BK", "warps", "stages", "split", "halves", "registers")
    tile = Tile(**{name: config[name] for name in names})
    size, units = product.itemsize, target.compute_units
    held = resident(tile, target, size)
    peak = target.peak.get(product.dtype) or target.peak.get("float16") or max(target.peak.values())
    area = tile.BM * tile.BN / (128 * 256)
    matrix = peak / units * factors.matrix * min(1.0, area**factors.growth)
    cache = target.bandwidth * factors.cache / units

    def busy(tiles: int, split: int) -> float:
        """Seconds of `tiles` tiles in `split` slices of K each."""
        programs = tiles * split
        depth = cdiv(cdiv(product.K, split), tile.BK) * tile.BK
        compute = 2.0 * tile.BM * tile.BN * depth / matrix
        moved = (tile.BM + tile.BN) * depth * size / cache
        # Programs of one unit share its matrix unit and its path to the cache.
        together = min(held, max(1, cdiv(programs, units)))
        waves = cdiv(programs, units * together)
        return float(waves * (together * max(compute, moved) + factors.start_s))

    count = cdiv(product.M, tile.BM) * cdiv(product.N, tile.BN) * product.B
    whole = count // config["slots"] * config["slots"] if "slots" in config else 0
    whole = count if tile.split == 1 else whole
    rest = count - whole
    total = (busy(whole, 1) if whole else 0.0) + (busy(rest, tile.split) if rest else 0.0)
    programs = whole or rest * tile.split
    flying = min(programs, units * held) * shared_bytes(tile, size, target)
    moved = (product.N + product.M) * product.K * size + 2.0 * product.M * product.N
    rate = target.bandwidth * factors.memory * _reach(flying, target, factors)
    total = max(total, product.B * moved / rate)
    if rest:
        sums = 8.0 * rest * tile.BM * tile.BN * tile.split  # written and read, float32
        total += factors.launch_s + sums / (target.bandwidth * factors.cache)
    return float(total)
