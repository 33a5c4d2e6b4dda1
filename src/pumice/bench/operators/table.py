"""What a session found, for people: a table."""

from __future__ import annotations

from typing import Any


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
