"""Measured rows: which kernel was fastest for a problem on an architecture.

`data/<arch>/<operator>.json` ships with Pumice; `pumice tune` writes rows of the same form into a
user's folder, which come first. A problem finds the nearest row of the same types and attributes:
sizes are compared as logarithms, so 300 rows of x are near 304 and far from 3.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pumice.errors import ModelFileError
from pumice.operators.triton.plan import Problem

DATA = Path(__file__).parent / "data"
FARTHEST = 2.0  # doublings of one size beyond which a measured row says nothing


@dataclass(frozen=True)
class MeasuredRow:
    """dims: input name → shape. kernel: a Triton kernel's name or a vendor's ("vendor.blas").
    floor: least time over measured time; us: microseconds; error: against the reference. own_us: of
    a vendor's row, what Pumice's kernel took in turns with it; 0 where rows of its own say that."""

    operator: str
    dims: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, str]
    attrs: Mapping[str, Any]
    kernel: str
    config: Mapping[str, int] = field(default_factory=dict)
    us: float = 0.0
    floor: float = 0.0
    error: float | None = None
    device: str = ""
    measured: str = ""
    own_us: float = 0.0

    def distance(self, problem: Problem) -> float:
        """Doublings by which the sizes differ, all added; infinite for another kind of problem or
        one size beyond FARTHEST."""
        if self.kind != kind_of(problem):
            return math.inf
        total = 0.0
        for name, dims in self.dims.items():
            for mine, its in zip(dims, problem[name].shape, strict=True):
                step = abs(math.log2((mine + 0.5) / (its + 0.5)))
                if step > FARTHEST:
                    return math.inf
                total += step
        return total

    @functools.cached_property
    def kind(self) -> Any:
        ranks = tuple(sorted((n, self.dtypes[n], len(d)) for n, d in self.dims.items()))
        return ranks, _switches(self.attrs)

    @property
    def sizes(self) -> str:
        """For people: "x 16×4096, w 4096×4096"."""
        return ", ".join(f"{n} {'×'.join(map(str, d))}" for n, d in self.dims.items())


def kind_of(problem: Problem) -> Any:
    """What must be the same for a measured row to be comparable: types, ranks, attributes."""
    ranks = tuple(sorted((n, t.dtype, len(t.shape)) for n, t in problem.inputs.items()))
    return ranks, _switches(problem.attrs)


def _switches(attrs: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Attributes but real numbers: a scale or an epsilon does not change which kernel is fast."""
    return tuple(sorted((k, str(v)) for k, v in attrs.items() if not isinstance(v, float)))


def row_of(problem: Problem, **values: Any) -> MeasuredRow:
    """A row for a problem; values: kernel, config, us, floor, error, device, measured, own_us."""
    return MeasuredRow(
        problem.operator,
        {name: tensor.shape for name, tensor in problem.inputs.items()},
        {name: tensor.dtype for name, tensor in problem.inputs.items()},
        dict(problem.attrs),
        **values,
    )


class Database:
    """Rows of one architecture. folders: where `<arch>/<operator>.json` is looked for, first
    first."""

    def __init__(self, arch: str, folders: Iterable[Path] = (DATA,)) -> None:
        self.arch, self.folders = arch, tuple(folders)
        self._rows: dict[str, list[MeasuredRow]] = {}
        self._others: dict[str, Database] = {}

    def rows(self, operator: str) -> list[MeasuredRow]:
        """All rows of an operator, each folder's from the fastest to the slowest; ModelFileError
        names a damaged file."""
        if operator not in self._rows:
            found = []
            for folder in self.folders:
                path = folder / self.arch / f"{operator}.json"
                if path.is_file():
                    found += sorted(read_rows(path), key=lambda row: row.us)
            self._rows[operator] = found
        return self._rows[operator]

    def near(self, problem: Problem) -> list[tuple[MeasuredRow, float]]:
        """Rows that say something about a problem with their distances in doublings, nearest
        first; of one distance those of the earlier folder first, then the faster."""
        measured = [(row, row.distance(problem)) for row in self.rows(problem.operator)]
        return sorted((found for found in measured if found[1] < math.inf), key=lambda f: f[1])

    def nearest(self, problem: Problem) -> tuple[MeasuredRow, float] | None:
        """The nearest row and its distance in doublings, or None."""
        return next(iter(self.near(problem)), None)

    def of(self, arch: str) -> Database:
        """The rows of another architecture in the same folders."""
        if arch == self.arch:
            return self
        if arch not in self._others:
            self._others[arch] = Database(arch, self.folders)
        return self._others[arch]


def read_rows(path: Path) -> list[MeasuredRow]:
    """The rows of one file."""
    try:
        values = json.loads(path.read_text())
        return [
            MeasuredRow(**{**row, "dims": {n: tuple(d) for n, d in row["dims"].items()}})
            for row in values["rows"]
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelFileError(
            f"{path} is no file of measured rows: {error}", hint="Delete it, or tune again."
        ) from None


def write_rows(path: Path, rows: Iterable[MeasuredRow]) -> None:
    """Writes a file, one row a line, whole or not at all."""
    from pumice.files import atomic_write_text

    lines = ",\n".join(json.dumps(asdict(row)) for row in rows)
    atomic_write_text(path, '{"rows": [\n' + lines + "\n]}\n")
