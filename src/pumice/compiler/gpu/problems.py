"""The operators' problems that a model's plans consist of, for `pumice tune`."""

from __future__ import annotations

import re
from pathlib import Path

from pumice.compiler.compile import CompileOptions
from pumice.compiler.dump import Dump
from pumice.compiler.gpu.package import graphs_of, lowering_of, shapes_of
from pumice.compiler.gpu.select import problem_of
from pumice.compiler.gpu.translate import Call
from pumice.compiler.source import open_model
from pumice.operators.triton.plan import Problem
from pumice.targets import Target

#: A problem, and where each of its tensors is: (space, name, offset in bytes), as in `Value`.
LayerCall = tuple[Problem, dict[str, tuple[str, str, int]]]


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


def layer_of_model(
    source: str | Path, target: Target, tokens: int = 1, options: CompileOptions | None = None
) -> list[LayerCall]:
    """The calls of one decoder layer (not the first) in the decode plan of so many tokens, for
    `pumice.bench.operators.chain`. Nothing is compiled."""
    options = options or CompileOptions()
    with open_model(source, options.quantization) as model:
        graphs = graphs_of(model, options, Dump(None), lambda phase, done, total: None)
        lowering = lowering_of(model, target, options)
        shape = next(
            s for s in shapes_of(model, options) if s.entry == "decode" and s.tokens == tokens
        )
        _, calls, _ = lowering.calls(graphs["decode"], shape)
    places = [_layer(call) for call in calls]
    first = places.index(1)
    return [
        (problem_of(call), {n: (v.space, v.name, v.offset) for n, v in call.tensors.items()})
        for call in calls[first : places.index(2)]
    ]


def _layer(call: Call) -> int | None:
    """The decoder layer whose weights a call reads."""
    for value in call.tensors.values():
        if value.space == "weight" and (found := re.search(r"\.layers\.(\d+)\.", value.name)):
            return int(found[1])
    return None


def _sizes(problem: Problem) -> str:
    """ "x 16×4096, w 4096×512": for people."""
    return ", ".join(f"{n} {'×'.join(map(str, t.shape))}" for n, t in problem.inputs.items())
