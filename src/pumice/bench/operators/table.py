"""What a session found, for people: a table, and a roofline picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pumice.errors import UsageError


def lines(best: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Rows of a table: operator, problem, µs, GB/s, TFLOP/s, of the floor, error, kernel, peers."""
    found: list[tuple[str, ...]] = []
    for row in best:
        error = row["error"]
        peers = ", ".join(
            f"{name} {us / row['us']:.2f}x" for name, us in row["peers"].items() if row["us"]
        )
        found.append(
            (
                row["operator"], row["label"], f"{row['us']:.1f}", f"{row['gb_per_s']:.0f}",
                f"{row['tflop_per_s']:.1f}", f"{row['floor']:.0%}",
                "–" if error is None else f"{error:.1e}",
                row["kernel"].split(".", 2)[-1], peers or "–",
            )
        )  # fmt: skip
    return found


HEADER = (
    "operator", "problem", "µs", "GB/s", "TFLOP/s", "of floor", "error", "kernel",
    "speed against peers",
)  # fmt: skip


def plot(best: list[dict[str, Any]], facts: dict[str, Any], path: Path) -> None:
    """Operations a second over operations a byte, with the machine's two ceilings."""
    try:
        import matplotlib
    except ImportError:
        raise UsageError("pictures need matplotlib", hint="pip install 'pumice[plot]'") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 6))
    bandwidth, peak = facts["copy_gb_per_s"] * 1e9, facts["bf16_tflop_per_s"] * 1e12
    intensities = [2.0**e for e in range(-4, 14)]
    roof = [min(peak, i * bandwidth) / 1e12 for i in intensities]
    axes.plot(intensities, roof, color="black", label="copy bandwidth and bfloat16 peak")
    for operator in sorted({row["operator"] for row in best}):
        rows = [r for r in best if r["operator"] == operator and r["tflop_per_s"] > 0]
        if rows:
            x = [r["tflop_per_s"] * 1e3 / r["gb_per_s"] for r in rows]
            axes.scatter(x, [r["tflop_per_s"] for r in rows], s=16, label=operator)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("operations a byte")
    axes.set_ylabel("TFLOP/s")
    axes.set_title(f"{facts['device']}: GPU operators")
    axes.legend(fontsize=8)
    axes.grid(True, which="both", alpha=0.3)
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)
