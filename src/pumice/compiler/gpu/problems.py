"""The operators' problems that a model's plans consist of, for `pumice tune`."""

from __future__ import annotations

from pathlib import Path

from pumice.compiler.compile import CompileOptions
from pumice.compiler.dump import Dump
from pumice.compiler.gpu.package import graphs_of, lowering_of, shapes_of
from pumice.compiler.source import open_model
from pumice.operators.triton.plan import Problem
from pumice.targets import Target


def problems_of_model(
    source: str | Path, target: Target, options: CompileOptions | None = None
) -> list[tuple[str, Problem]]:
    """(sizes, problem) of every distinct call, those of fusions that were considered among them.
    Nothing is compiled. source as of `compile_model`, whose errors these are."""
    options = options or CompileOptions()
    with open_model(source, options.quantization) as model:
        graphs = graphs_of(model, options, Dump(None), lambda phase, done, total: None)
        lowering = lowering_of(model, target, options)
        for shape in shapes_of(model, options):
            lowering.lower(graphs[shape.entry], shape)
    return [(_sizes(problem), problem) for problem in lowering.selection.problems]


def _sizes(problem: Problem) -> str:
    """ "x 16×4096, w 4096×512": for people."""
    return ", ".join(f"{n} {'×'.join(map(str, t.shape))}" for n, t in problem.inputs.items())
