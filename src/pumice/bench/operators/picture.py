"""What a session found, as a picture: the roofline, how near the floor each operator is, and how
fast against its peers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pumice.bench.operators.measure import OTHER_RESULT
from pumice.errors import UsageError

MARKERS = "osD^vP*X"
ROOM = 2.0  # lines below the last for the legend
EIGHT_BITS = 2  # times the bfloat16 peak, of matrix units that take 8-bit operands
Rows = Sequence[dict[str, Any]]


def plot(best: Rows, facts: dict[str, Any], path: Path) -> None:
    """Writes a .svg, .png or .pdf. best: a session's rows, facts: what it says of the machine.
    UsageError without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        raise UsageError("pictures need matplotlib", hint="pip install 'pumice[plot]'") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    operators = sorted({row["operator"] for row in best})
    height = max(5.0, 2.0 + 0.28 * len(operators))
    with matplotlib.rc_context({"svg.hashsalt": "pumice", "font.size": 9}):
        figure, (roof, floor, peers) = pyplot.subplots(
            1, 3, figsize=(16, height), width_ratios=(1.5, 1, 1)
        )
        styles = _styles(operators)
        _roofline(roof, best, facts, operators, styles)
        for index, name in enumerate(operators):
            values = [r["floor"] for r in best if r["operator"] == name]
            floor.scatter(values, [index] * len(values), s=14, alpha=0.7, **styles[name])
        _lines(floor, operators)
        floor.set_xlim(0, max(1.05, *(r["floor"] * 1.02 for r in best)))
        floor.set_xlabel("of the floor (least time by bytes and operations, over measured)")
        _peers(peers, best, operators)
        for axes in (floor, peers):
            axes.axvline(1.0, color="black", linewidth=1)
        figure.suptitle(
            f"{facts['device']}: {len(best)} problems of {len(operators)} GPU operators"
        )
        figure.tight_layout()
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
        pyplot.close(figure)


def _styles(operators: Sequence[str]) -> dict[str, dict[str, Any]]:
    """A colour and a marker of its own for each operator."""
    from matplotlib import colormaps

    colours = colormaps["tab10"].colors  # type: ignore[attr-defined]
    return {
        name: {"color": colours[i % len(colours)], "marker": MARKERS[i // len(colours)]}
        for i, name in enumerate(operators)
    }


def _roofline(
    axes: Any, best: Rows, facts: dict[str, Any], operators: Sequence[str], styles: Any
) -> None:
    """Operations a second over operations a byte, with the ceilings that were measured beside."""
    bandwidth, peak = facts["copy_gb_per_s"] * 1e9, facts["bf16_tflop_per_s"] * 1e12
    points = {
        name: [r for r in best if r["operator"] == name and r["tflop_per_s"] > 0]
        for name in operators
    }
    intensities = [_intensity(r) for rows in points.values() for r in rows] or [1.0]
    low, high = min(intensities) / 2, max(*intensities, EIGHT_BITS * peak / bandwidth) * 2
    for times, text, line in ((1, "bfloat16 peak", "-"), (EIGHT_BITS, "twice that (8 bits)", "--")):
        corner = times * peak / bandwidth
        ends = [low, corner, high]
        axes.plot(
            ends,
            [min(times * peak, x * bandwidth) / 1e12 for x in ends],
            color="black", linestyle=line, linewidth=1, label=f"copy bandwidth, {text}",
        )  # fmt: skip
    for name, rows in points.items():
        if rows:
            axes.scatter(
                [_intensity(r) for r in rows],
                [r["tflop_per_s"] for r in rows],
                s=14, label=name, **styles[name],
            )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("operations a byte")
    axes.set_ylabel("TFLOP/s")
    axes.legend(fontsize=7, loc="lower right")
    axes.grid(True, alpha=0.3)


def _intensity(row: dict[str, Any]) -> float:
    return float(row["tflop_per_s"]) * 1e3 / float(row["gb_per_s"])


def _peers(axes: Any, best: Rows, operators: Sequence[str]) -> None:
    """Ours against each kind of peer, a line of points for each."""
    for shift, (text, color, belongs) in enumerate(
        (
            ("PyTorch: cuBLAS or hipBLASLt, SDPA, eager", "tab:blue", _same),
            (
                "libraries on the same shapes: 16 bits, no scales",
                "tab:grey",
                lambda name: name in OTHER_RESULT,
            ),
            ("AITER's Triton kernels", "tab:red", lambda name: name == "aiter"),
        )
    ):
        points = [
            (us / row["us"], operators.index(row["operator"]) + 0.25 * (shift - 1))
            for row in best
            for name, us in row["peers"].items()
            if belongs(name)
        ]
        if points:
            axes.scatter(*zip(*points, strict=True), s=10, alpha=0.6, color=color, label=text)
            axes.legend(fontsize=7, loc="lower right")
    axes.set_xscale("log", base=2)
    axes.set_xlabel("times as fast as its peers")
    _lines(axes, operators)
    axes.set_yticklabels([])


def _same(name: str) -> bool:
    return name != "aiter" and name not in OTHER_RESULT


def _lines(axes: Any, operators: Sequence[str]) -> None:
    """A line for each operator, the first on top."""
    axes.set_yticks(range(len(operators)), operators)
    axes.set_ylim(len(operators) + ROOM, -0.5)
    axes.grid(True, alpha=0.3)
