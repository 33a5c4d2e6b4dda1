"""Pictures of a serving benchmark: what clients feel, and what the server does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pumice.bench.serving import Measurement, Objective
from pumice.files import storage_error


def draw(
    path: Path, measurements: Sequence[Measurement], objective: Objective, *, title: str
) -> None:
    """Above: the share of requests (TTFT) and of gaps (ITL) below a time, a line a load. Below:
    tokens per second and TPOT over the load.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 7), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    (ttft, itl), (rate, tpot) = figure.subplots(2, 2)
    for axes, name, bound in (
        (ttft, "ttft", objective.ttft),
        (itl, "itl", None),
    ):
        for measurement in measurements:
            values = sorted(1000 * v for v in measurement.values(name))
            share = [(i + 1) / len(values) for i in range(len(values))]
            axes.step(values, share, where="post", label=measurement.point.name)
        if bound is not None:
            axes.axvline(1000 * bound, color="grey", linestyle=":", label="objective")
        axes.set(xlabel=f"{name.upper()}, ms", ylabel="share below", ylim=(0, 1.02))
        if any(measurement.values(name) for measurement in measurements):
            axes.set_xscale("log")
            axes.legend(fontsize="small")
    loads = [m.point.concurrency or m.point.rate for m in measurements]
    closed = measurements[0].point.concurrency is not None
    rows = [m.row(objective) for m in measurements]
    rate.plot(loads, [row["output_tokens_per_s"] for row in rows], "o-", color="tab:blue")
    rate.set(ylabel="output tokens per second", ylim=(0, None))
    for name in ("p50", "p90", "p99"):
        tpot.plot(loads, [_value(row["tpot_ms"], name) for row in rows], "o-", label=name)
    if objective.tpot is not None:
        tpot.axhline(1000 * objective.tpot, color="grey", linestyle=":", label="objective")
    tpot.set(ylabel="TPOT, ms", ylim=(0, None))
    tpot.legend(fontsize="small")
    for axes in (rate, tpot):
        axes.set(xlabel="requests at a time" if closed else "requests per second")
    for axes in (ttft, itl, rate, tpot):
        axes.grid(True, alpha=0.25)
    try:
        figure.savefig(path)
    except OSError as error:
        raise storage_error(error, path) from error


def _value(spread: dict[str, Any] | None, name: str) -> float:
    return float("nan") if spread is None else float(spread[name])
