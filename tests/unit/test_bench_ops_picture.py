"""The picture of `pumice bench ops`: every operator has a line, those that multiply a point
under the roof, every peer a point; the same rows give the same file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")

from pumice.bench.operators.picture import plot

FACTS = {"device": "Card", "copy_gb_per_s": 4000, "bf16_tflop_per_s": 800}


def row(operator: str, tflop: float, **peers: float) -> dict[str, object]:
    return {
        "operator": operator, "floor": 0.8, "us": 10.0, "gb_per_s": 3000.0, "tflop_per_s": tflop,
        "peers": {name.replace("_", "."): us for name, us in peers.items()},
    }  # fmt: skip


def test_points_of_each_panel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib import pyplot

    figures: list[Any] = []
    monkeypatch.setattr(pyplot, "close", figures.append)
    rows = [
        row("gemm", 200.0, cublas=9.0, aiter=20.0),
        row("gemm_w4", 20.0, cublas_dense=30.0),
        row("norm", 0.0),
    ]
    for name in ("a.svg", "b.svg"):
        plot(rows, FACTS, tmp_path / name)
    assert (tmp_path / "a.svg").read_text() == (tmp_path / "b.svg").read_text()
    roof, floor, peers = figures[0].axes
    found = [
        [tuple(xy) for c in axes.collections for xy in c.get_offsets()]
        for axes in (roof, floor, peers)
    ]
    assert [y for _, y in found[0]] == [200.0, 20.0]
    assert found[1] == [(0.8, 0.0), (0.8, 1.0), (0.8, 2.0)]
    assert found[2] == [(0.9, -0.25), (3.0, 1.0), (2.0, 0.25)]
    assert [label.get_text() for label in floor.get_yticklabels()] == ["gemm", "gemm_w4", "norm"]


def test_rows_without_products_or_peers(tmp_path: Path) -> None:
    plot([row("norm", 0.0)], FACTS, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
