"""A Relax function as a list of operator calls, which is what passes rewrite.

Our graphs are straight lines: one dataflow block of operator calls. A pass takes and returns a
`Graph`; `to_relax` gives back the
function, so dumps and tests see Relax.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pumice.errors import CompileError
from pumice.operators.calls import make_call, read_call


@dataclass(eq=False)
class Node:
    """One operator call. `outputs` are Relax variables with their types, by the kernel's argument
    name."""

    operator: str
    inputs: dict[str, Any]
    attrs: dict[str, Any]
    outputs: dict[str, Any]

    @property
    def out(self) -> Any:
        """The single output."""
        (var,) = self.outputs.values()
        return var


@dataclass
class Graph:
    """An entry point. `params` are the step's inputs, caches and weights in the order of the Relax
    function."""

    name: str
    params: list[Any]
    nodes: list[Node]
    result: Any
    _serial: int = field(default=0, repr=False)

    def producers(self) -> dict[Any, Node]:
        """Variable → the node that computes it."""
        return {var: node for node in self.nodes for var in node.outputs.values()}

    def uses(self) -> Counter[Any]:
        """Variable → how many arguments (and the result) read it."""
        counts: Counter[Any] = Counter()
        for node in self.nodes:
            counts.update(node.inputs.values())
        counts[self.result] += 1
        return counts

    def users(self, var: Any) -> list[Node]:
        return [node for node in self.nodes if any(v.same_as(var) for v in node.inputs.values())]

    def new_var(self, like: str, shape: Iterable[Any], dtype: str) -> Any:
        """A fresh variable of a tensor type."""
        from tvm import relax

        self._serial += 1
        return relax.Var(f"{like}_{self._serial}", relax.TensorType(list(shape), dtype))


#: Output names of the operators that have more than one form; all others have the single output
#: "out".
QUANTIZED = ("x_codes", "x_scales", "x_sums")


def _output_names(operator: str, attrs: dict[str, Any], count: int) -> tuple[str, ...]:
    if count == len(QUANTIZED):
        return QUANTIZED
    if operator == "rope_append":
        return ("q_out",)
    return ("table",) if operator == "rope_table" else ("out",)


def from_relax(name: str, function: Any) -> Graph:
    """Reads a traced function; CompileError when it holds anything but operator calls."""
    from tvm import relax

    alias: dict[Any, Any] = {}

    def root(var: Any) -> Any:
        while var in alias:
            var = alias[var]
        return var

    nodes: list[Node] = []
    body = function.body
    blocks = body.blocks if isinstance(body, relax.SeqExpr) else []
    for block in blocks:
        for binding in block.bindings:
            value = binding.value
            if isinstance(value, relax.Var):
                alias[binding.var] = value
                continue
            call = read_call(value)
            if call is not None:
                inputs = {k: root(v) for k, v in call.inputs.items()}
                ty = binding.var.ty
                if isinstance(ty, relax.TupleType):
                    raise CompileError(f"{name}: {call.operator} returns a tuple before fusion")
                (out_name,) = _output_names(call.operator, call.attrs, 1)
                nodes.append(Node(call.operator, inputs, call.attrs, {out_name: binding.var}))
                continue
            raise CompileError(f"{name}: the graph holds {value}, which is no operator of Pumice's")
    result = root(body.body if isinstance(body, relax.SeqExpr) else body)
    if isinstance(result, relax.Tuple) and len(result.fields) == 1:
        result = root(result.fields[0])
    return Graph(name, list(function.params), nodes, result)


def to_relax(graph: Graph) -> Any:
    """The graph as a Relax function."""
    from tvm import relax

    mapping: dict[Any, Any] = {}
    builder = relax.BlockBuilder()
    with builder.function(graph.name, graph.params):
        with builder.dataflow():
            for node in graph.nodes:
                inputs = {k: mapping.get(v, v) for k, v in node.inputs.items()}
                types = [var.ty for var in node.outputs.values()]
                value = builder.emit(make_call(node.operator, inputs, node.attrs, types))
                if len(node.outputs) == 1:
                    mapping[node.out] = value
                else:
                    for index, var in enumerate(node.outputs.values()):
                        mapping[var] = builder.emit(relax.TupleGetItem(value, index))
            result = builder.emit_output(mapping[graph.result])
        builder.emit_func_output(result)
    return builder.finalize()[graph.name]


def listing(graph: Graph) -> str:
    """The graph for people: a line a call, with shapes and attributes (Relax's printer leaves the
    attributes out)."""
    lines = [f"{graph.name}({', '.join(p.name for p in graph.params[:7])}, …)"]
    for node in graph.nodes:
        outs = ", ".join(f"{v.name}{shape_text(v)}" for v in node.outputs.values())
        ins = ", ".join(f"{k}={v.name}" for k, v in node.inputs.items())
        attrs = ", ".join(f"{k}={v}" for k, v in node.attrs.items())
        lines.append(f"  {outs} = {node.operator}({ins})  {{{attrs}}}")
    lines.append(f"  return {graph.result.name}")
    return "\n".join(lines) + "\n"


def shape_text(var: Any) -> str:
    """A tensor variable's shape and dtype, for people."""
    return f"[{','.join(str(dimension(n)) for n in var.ty.shape)}]:{var.ty.dtype}"


def dimension(size: Any) -> int | str:
    """A size as a number, or the name of its symbol."""
    value = getattr(size, "value", None)
    return int(value) if value is not None else str(size.name)
