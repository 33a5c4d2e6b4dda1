"""Phases 3 to 5: chooses a kernel for every call, turns calls into launches and places
intermediates in the arena."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pumice.artifact import BufferRef, Expr, KernelRecord, Launch, Plan
from pumice.compiler.costs import node_costs
from pumice.compiler.graph import Graph, Node, dimension
from pumice.compiler.memory import Lifetime, place
from pumice.compiler.weights import WeightUse
from pumice.dtypes import itemsize
from pumice.errors import CompileError
from pumice.operators.base import KernelSource, OperatorCall
from pumice.quantization.base import PackedLayout, QuantFormat
from pumice.targets import Target
from pumice.tuning.choose import Choice, choose

STEP_INPUTS = (
    "tokens", "positions", "slots", "query_start", "context_len", "block_table", "sample_rows"
)  # fmt: skip
#: Rows of every intermediate are rounded up to this, so that a kernel's last tile may compute rows
#: that nobody reads.
ROW_PADDING = 8


@dataclass
class Lowering:
    """What lowering several entry points shares: weights and kernels are made once."""

    target: Target
    formats: Mapping[str, QuantFormat]
    shapes: Mapping[str, tuple[int, ...]]  # parameter → logical shape
    block_size: int
    weights: dict[str, WeightUse] = field(default_factory=dict)
    sources: dict[str, KernelSource] = field(default_factory=dict)
    records: dict[str, KernelRecord] = field(default_factory=dict)
    _choices: dict[str, Choice] = field(default_factory=dict)  # a model repeats few distinct calls

    def lower(self, graph: Graph, bounds: Mapping[str, int]) -> Plan:
        """One entry point's plan. bounds: symbol → largest value."""
        chosen = [self._choose(graph, node) for node in graph.nodes]
        offsets, arena = self._place(graph, chosen, bounds)
        launches = []
        for index, (node, (call, choice)) in enumerate(zip(graph.nodes, chosen, strict=True)):
            arguments = tuple(
                self._argument(name, node, call, offsets, index) for name in choice.source.arguments
            )
            nbytes, operations = node_costs(node, call, self.weights)
            launches.append(
                Launch(
                    kernel=choice.source.symbol,
                    arguments=arguments,
                    label=self._label(node),
                    bytes_read=nbytes,
                    operations=operations,
                )
            )
        output = BufferRef("arena", offset=offsets[graph.result.name])
        width = int(graph.result.ty.shape[1])
        return Plan(tuple(launches), arena, dict(bounds), output, width)

    # -- phase 3 -----------------------------------------------------------------------------

    def _choose(self, graph: Graph, node: Node) -> tuple[OperatorCall, Choice]:
        weights: dict[str, tuple[QuantFormat, PackedLayout]] = {}
        if node.operator in ("linear", "embedding"):
            use = self._weight_use(node)
            assert use.layout is not None
            weights["w"] = (use.format, use.layout)
        # Any ragged batch is "extend" for kernels, whatever the plan ends in: they are shared.
        entry = "decode" if graph.name == "decode" else "extend"
        call = OperatorCall(node.operator, self._attrs(node), weights, entry=entry)
        key = repr((call.operator, sorted(call.attrs.items()), call.weights, call.entry))
        choice = self._choices.get(key)
        if choice is None:
            choice = self._choices[key] = choose(call, self.target)
        source = choice.source
        if source.symbol not in self.sources:
            self.sources[source.symbol] = source
            self.records[source.symbol] = KernelRecord(
                symbol=source.symbol,
                operator=node.operator,
                kernel=choice.kernel.name,
                reason=choice.reason,
                config=dict(choice.config),
                rejected=dict(choice.rejected),
                arguments=source.arguments,
            )
        return call, choice

    def _attrs(self, node: Node) -> dict[str, Any]:
        """The call's static attributes: the graph's, with the sizes that the operators' specs
        name."""
        attrs = dict(node.attrs)

        def width(name: str) -> int:
            return int(node.inputs[name].ty.shape[1])

        match node.operator:
            case "linear":
                attrs["N"], attrs["K"] = self._weight_use(node).shape
                attrs["bias"] = "bias" in node.inputs
                attrs["residual"] = "residual" in node.inputs
            case "embedding":
                attrs["V"], attrs["H"] = self._weight_use(node).shape
            case "rms_norm" | "quantize" | "gather_rows":
                attrs["H"] = width("x")
            case "add":
                attrs["H"] = width("a")
            case "silu_mul":
                attrs["I"] = width("gate_up") // 2
            case "rope_table":
                attrs["D"] = 2 * int(node.inputs["inv_freq"].ty.shape[0])
            case "rope_append":
                attrs["qk_norm"] = "q_norm" in node.inputs
                attrs["block_size"] = self.block_size
            case "attention":
                attrs["block_size"] = self.block_size
        return attrs

    def _weight_use(self, node: Node) -> WeightUse:
        """The stacked weight that a linear or embedding reads."""
        from pumice.operators.linear import layout_for

        parts = tuple(
            var.name
            for name, var in node.inputs.items()
            if name == "weight" or name.startswith("weight.")
        )
        key = _stack_key(parts)
        if key not in self.weights:
            fmt = self.formats[parts[0]]
            rows = sum(self.shapes[part][0] for part in parts)
            self.weights[key] = WeightUse(
                key, parts, (rows, self.shapes[parts[0]][1]), fmt, layout_for(self.target, fmt)
            )
        return self.weights[key]

    def _vector_use(self, parts: tuple[str, ...]) -> WeightUse:
        key = _stack_key(parts)
        if key not in self.weights:
            length = sum(self.shapes[part][0] for part in parts)
            self.weights[key] = WeightUse(key, parts, (length,), self.formats[parts[0]], None)
        return self.weights[key]

    # -- phase 4 -----------------------------------------------------------------------------

    def _argument(
        self, name: str, node: Node, call: OperatorCall, offsets: Mapping[str, int], index: int
    ) -> BufferRef | Expr:
        """What a kernel's argument of that name is in this call."""
        if name.startswith("w."):
            return BufferRef("weight", f"{self._weight_use(node).key}.{name[2:]}")
        if name == "workspace":
            return BufferRef("arena", offset=offsets[f"workspace.{index}"])
        if name in node.outputs:
            return BufferRef("arena", offset=offsets[node.outputs[name].name])
        if name in node.inputs:
            if name == "bias":
                parts = tuple(v.name for k, v in node.inputs.items() if k.split(".")[0] == "bias")
                return BufferRef("weight", self._vector_use(parts).key)
            return self._tensor(node.inputs[name], offsets)
        if name in ("S", "M"):
            return name
        if name in ("T", "R"):
            return _rows(node)
        if name in call.attrs and isinstance(call.attrs[name], int):
            return int(call.attrs[name])
        raise CompileError(f"operator {node.operator!r} has no argument {name!r} for its kernel")

    def _tensor(self, var: Any, offsets: Mapping[str, int]) -> BufferRef:
        name = var.name
        if name in offsets:
            return BufferRef("arena", offset=offsets[name])
        if name in STEP_INPUTS:
            return BufferRef("input", name)
        if name.startswith(("k_cache_", "v_cache_")):
            kind, _, layer = name.partition("_cache_")
            return BufferRef("cache", kind, layer=int(layer))
        if name in self.shapes:
            return BufferRef("weight", self._vector_use((name,)).key)
        raise CompileError(f"the graph reads {name!r}, which nothing computes or provides")

    def _label(self, node: Node) -> str:
        weights = [v.name for k, v in node.inputs.items() if k.split(".")[0] == "weight"]
        return f"{node.operator} {_stack_key(tuple(weights))}" if weights else node.operator

    # -- phase 5 -----------------------------------------------------------------------------

    def _place(
        self, graph: Graph, chosen: list[tuple[OperatorCall, Choice]], bounds: Mapping[str, int]
    ) -> tuple[dict[str, int], int]:
        last: dict[str, int] = {}
        for index, node in enumerate(graph.nodes):
            for var in node.inputs.values():
                last[var.name] = index
        last[graph.result.name] = len(graph.nodes)
        tensors = []
        for index, node in enumerate(graph.nodes):
            for var in node.outputs.values():
                name = var.name
                size = _nbytes(var, bounds)
                tensors.append(Lifetime(name, size, index, max(last.get(name, index), index)))
            workspace = chosen[index][1].source.workspace
            if workspace is not None:
                size = workspace(bounds)
                tensors.append(Lifetime(f"workspace.{index}", size, index, index))
        names = [tensor.name for tensor in tensors]
        if len(set(names)) != len(names):
            raise CompileError("two intermediates of the graph have one name")
        return place(tensors)


def _stack_key(parts: tuple[str, ...]) -> str:
    """A name for parameters stacked together: "layers.0.attn.q+k+v" in spirit."""
    if len(parts) == 1:
        return parts[0]
    return parts[0] + "".join(f"+{part.split('.')[-2]}" for part in parts[1:])


def _rows(node: Node) -> Expr:
    """The symbol (or number) of rows that a call works on."""
    return dimension(next(iter(node.outputs.values())).ty.shape[0])


def _nbytes(var: Any, bounds: Mapping[str, int]) -> int:
    dims = [dimension(size) for size in var.ty.shape]
    sizes = [d if isinstance(d, int) else bounds[d] for d in dims]
    sizes[0] = -(-sizes[0] // ROW_PADDING) * ROW_PADDING
    total = itemsize(str(var.ty.dtype))
    for size in sizes:
        total *= size
    return total
