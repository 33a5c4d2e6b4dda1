"""A picture of the roofline with the measured tests in it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pumice.bench.model import TestResult
from pumice.bench.roofline import Roofline
from pumice.errors import UnsupportedError, UsageError
from pumice.files import storage_error

FORMATS = (".svg", ".png", ".pdf")


def check_plot(path: Path) -> None:
    """Raises before anything is measured when the picture could not be drawn."""
    import importlib.util

    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"--plot is {str(path)!r}; its name must end in {', '.join(FORMATS)}")
    if not path.parent.is_dir():
        raise UsageError(f"--plot is {str(path)!r}; there is no directory {str(path.parent)!r}")
    if importlib.util.find_spec("matplotlib") is None:
        raise UnsupportedError(
            "--plot needs matplotlib, which is not installed", hint="pip install 'pumice[plot]'"
        )


def draw(path: Path, results: Sequence[TestResult], roofline: Roofline, *, title: str) -> None:
    """Draws operations per byte (across) and operations per second (up), both logarithmic."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    points = [
        (r.test.name, r.cost.operations / r.cost.nbytes, r.operations_per_s / 1e9)
        for r in results
        if r.cost.nbytes and r.cost.operations
    ]
    bandwidth = roofline.read_bytes_per_s / 1e9
    peaks = {
        f"int8 peak, {roofline.int8_instruction}": roofline.int8_ops_per_s / 1e9,
        "float32 peak, fused multiply-add": roofline.fp32_ops_per_s / 1e9,
    }
    ridge = max(peaks.values()) / bandwidth
    intensities = [x for _, x, _ in points]
    low = min([0.5, *intensities]) / 2
    high = max([4 * ridge, *intensities]) * 2
    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set(
        xscale="log", yscale="log", title=title,
        xlabel="operations per byte read", ylabel="billion operations per second",
    )  # fmt: skip
    for (label, peak), color in zip(peaks.items(), ("tab:red", "tab:orange"), strict=True):
        knee = peak / bandwidth
        line = f"{label}: {peak:,.0f}"
        axes.plot([low, knee, high], [low * bandwidth, peak, peak], color=color, label=line)
    axes.plot(
        [low, ridge], [low * bandwidth, ridge * bandwidth], color="tab:blue",
        label=f"memory read: {bandwidth:.1f} GB/s",
    )  # fmt: skip
    for name, x, y in points:
        axes.plot([x], [y], "o", color="black")
        axes.annotate(name, (x, y), textcoords="offset points", xytext=(6, -10))
    axes.grid(True, which="both", alpha=0.25)
    axes.legend(loc="lower right", fontsize="small")
    try:
        figure.savefig(path)
    except OSError as error:
        raise storage_error(error, path) from error
