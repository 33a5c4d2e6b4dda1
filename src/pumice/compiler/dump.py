"""What `pumice compile --dump DIR` writes: every phase's result, in files that sort in the phases'
order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pumice.artifact import BufferRef, Plan
from pumice.compiler.graph import Graph, listing, to_relax
from pumice.compiler.lower import Lowering
from pumice.files import make_directory


class Dump:
    """Writes below `root`, or nothing when root is None."""

    def __init__(self, root: Path | None) -> None:
        self.root = root
        if root is not None:
            make_directory(root)

    def folder_for(self, name: str) -> Path | None:
        if self.root is None:
            return None
        folder = self.root / name
        make_directory(folder)
        return folder

    def graphs(self, phase: str, graphs: Mapping[str, Graph]) -> None:
        if self.root is None:
            return
        for entry, graph in graphs.items():
            (self.root / f"{phase}.{entry}.txt").write_text(listing(graph))
            (self.root / f"{phase}.{entry}.relax.py").write_text(to_relax(graph).script())

    def plans(self, plans: Mapping[str, Plan], lowering: Lowering) -> None:
        if self.root is None:
            return
        rows = [
            f"{record.symbol}\n    {record.kernel}: {record.reason}"
            f"\n    configuration {record.config}"
            + "".join(f"\n    not {name}: {why}" for name, why in record.rejected.items())
            for record in lowering.records.values()
        ]
        (self.root / "3-select.txt").write_text("\n".join(rows) + "\n")
        folder = self.folder_for("4-kernels")
        assert folder is not None
        for symbol, source in lowering.sources.items():
            (folder / f"{symbol}.tir.py").write_text(source.function.script())
        for entry, plan in plans.items():
            lines = [f"arena {plan.arena_bytes:,} bytes at the bounds {plan.bounds}"]
            for index, launch in enumerate(plan.launches):
                arguments = ", ".join(_argument(a) for a in launch.arguments)
                lines.append(f"{index:4d}  {launch.kernel}({arguments})    # {launch.label}")
            (self.root / f"5-plan.{entry}.txt").write_text("\n".join(lines) + "\n")

    def notes(self, notes: Sequence[str]) -> None:
        if self.root is not None:
            (self.root / "2-fuse-notes.txt").write_text("".join(f"{note}\n" for note in notes))


def _argument(argument: object) -> str:
    if not isinstance(argument, BufferRef):
        return str(argument)
    match argument.space:
        case "arena":
            return f"arena+{argument.offset}"
        case "cache":
            return f"{argument.name}_cache[{argument.layer}]"
    return argument.name
