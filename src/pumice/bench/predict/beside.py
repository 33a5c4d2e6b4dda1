"""Measured figures of tests that were predicted, from the results that are kept in the repository.

A results file is an object whose "rows" are rows of `bench.report`, measured (the prediction's own
are marked), of any models and devices.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pumice.errors import ModelFileError

RESULTS = Path(__file__).resolve().parents[4] / "bench" / "results"


@dataclass(frozen=True)
class Measured:
    """device: as its driver calls it. when: the commit that was measured."""

    device: str
    model: str
    quantization: str
    test: str
    tokens_per_s: float
    when: str


def read_results(folder: Path = RESULTS) -> list[Measured]:
    """Every measured row of Pumice's own in a folder's files; none where there is no folder (an
    installed package has none). ModelFileError names a damaged file."""
    found: list[Measured] = []
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        try:
            data = json.loads(path.read_text())
            rows = data.get("rows", []) if isinstance(data, dict) else []
            found += _rows(rows)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ModelFileError(f"{path} is no file of results: {error!r}") from None
    return found


def _rows(rows: Iterable[Any]) -> list[Measured]:
    return [
        Measured(
            str(row["device"]), _plain(str(row["model"])), str(row["quantization"]),
            str(row["test"]), float(row["tokens_per_s"]), str(row.get("commit") or ""),
        )
        for row in rows
        if row.get("engine") == "pumice" and not row.get("predicted") and "test" in row
    ]  # fmt: skip


def _plain(model: str) -> str:
    """ "llama-2-7b (random weights)" → "llama-2-7b"."""
    return model.partition(" (")[0]


def measured_for(
    results: Iterable[Measured], card: str, model: str, quantization: str, test: str
) -> Measured | None:
    """The last measurement of a test on a card. card: whose name is within the device's."""
    wanted = (_plain(model), quantization, test)
    last = None
    for row in results:
        if card in row.device and (row.model, row.quantization, row.test) == wanted:
            last = row
    return last
