"""A graph of the models' operators as calls of the tensor engine's, at one batch shape.

The residual stream is float32 and changes in place: an addition is not a call of its own but part
of the norm that reads the sum. Everything else is in the activations' type. Nothing is copied to be
put beside something else: outputs that a `concat` joins are written as columns of one matrix. The
rows of a decode plan's result are its tokens', in order, so it gathers nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pumice.artifact import Expr
from pumice.compiler.gpu.shapes import PlanShape
from pumice.compiler.gpu.values import Value
from pumice.compiler.gpu.weights import GpuWeight
from pumice.compiler.graph import Graph, Node, dimension
from pumice.dtypes import itemsize
from pumice.errors import CompileError
from pumice.operators.triton.plan import TensorSpec

INPUT_RANKS = {
    "tokens": ("T",), "positions": ("T",), "slots": ("T",), "query_start": ("S1",),
    "context_len": ("S",), "block_table": ("S", "M"), "sample_rows": ("R",),
}  # fmt: skip


@dataclass(frozen=True)
class Call:
    """One operator call. tensors: inputs and outputs by the operator's names; outputs: which of
    them it only writes. label, bytes, operations: for profiles and predictions, as in
    `artifact.Launch`; bytes may hold the symbol K, the keys of all sequences together. reason,
    rejected: why it stands here instead of other calls, and why those do not (`fuse.py`)."""

    operator: str
    attrs: Mapping[str, Any]
    tensors: Mapping[str, Value]
    outputs: frozenset[str]
    label: str
    nbytes: Expr
    operations: Expr
    reason: str = ""
    rejected: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Sum:
    """residual + delta, which no call has formed yet."""

    residual: Value
    delta: Value


WeightOf = Callable[[tuple[str, ...]], GpuWeight]


class Translator:
    """Translates one graph at one shape. weight: a stack of parameters' names → the weight."""

    def __init__(
        self, graph: Graph, shape: PlanShape, weight: WeightOf, dtype: str, block_size: int
    ) -> None:
        self.graph, self.shape, self.weight, self.dtype = graph, shape, weight, dtype
        self.block_size = block_size
        self.calls: list[Call] = []
        self.arena: dict[str, int] = {}  # tensor → bytes
        self._values: dict[str, Value | Sum] = {}
        self._tables: dict[str, tuple[Value, float]] = {}
        self._joined = _joined(graph)
        self._sizes = {**shape.bounds, "S1": shape.sequences + 1}

    def run(self) -> Value:
        """Fills `calls` and `arena`; returns where the result is."""
        for node in self.graph.nodes:
            translate = getattr(self, f"_{node.operator}", None)
            if translate is None:
                raise CompileError(f"operator {node.operator!r} has no translation for GPUs")
            translate(node)
        return self._plain(self.graph.result)

    # -- values -----------------------------------------------------------------------------------

    def _rows(self, var: Any) -> int:
        size = dimension(var.ty.shape[0])
        if isinstance(size, int):
            return size
        if size == "R" and self.shape.entry == "decode":
            return self.shape.tokens
        return self._sizes[size]

    def _new(self, var: Any, dtype: str | None = None) -> Value:
        """An arena tensor for a variable, or its columns of a joined one."""
        if var.name in self._joined:
            whole, start, width = self._joined[var.name]
            joined = self._values.get(whole.name) or self._new(whole, dtype)
            assert isinstance(joined, Value)
            value = joined.columns(start, width)
        else:
            spec = TensorSpec((self._rows(var), int(var.ty.shape[1])), dtype or self.dtype)
            self.arena[var.name] = spec.elements * itemsize(spec.dtype)
            value = Value("arena", var.name, spec)
        self._values[var.name] = value
        return value

    def _output(self, var: Any) -> Value:
        """As `_new`; the graph's result is float32."""
        return self._new(var, "float32" if var.same_as(self.graph.result) else None)

    def _of(self, var: Any) -> Value | Sum:
        name = var.name
        if name in self._values:
            return self._values[name]
        if name in INPUT_RANKS:
            dims = tuple(self._sizes[symbol] for symbol in INPUT_RANKS[name])
            return Value("input", name, TensorSpec(dims, "int32"))
        if name.startswith(("k_cache_", "v_cache_")):
            kind, _, layer = name.partition("_cache_")
            _, kv_heads, a, b = (dimension(n) for n in var.ty.shape)
            dim = a if kind == "k" else b
            assert isinstance(kv_heads, int) and isinstance(dim, int)
            # Plans hold the cache's strides and not its size; measured rows are found by the blocks
            # that the sequences need.
            blocks = self.shape.sequences * self.shape.blocks
            spec = TensorSpec((blocks, self.block_size, kv_heads, dim), self.dtype)
            return Value("cache", kind, spec, layer=int(layer))
        return self.weight((name,)).values()[""]

    def _plain(self, var: Any) -> Value:
        value = self._of(var)
        if isinstance(value, Sum):
            raise CompileError(
                f"{var.name!r} is a sum that no norm reads; GPUs have no call for it"
            )
        return value

    def _call(
        self,
        node: Node,
        operator: str,
        attrs: Mapping[str, Any],
        tensors: Mapping[str, Value],
        outputs: tuple[str, ...],
        nbytes: Expr = 0,
        operations: Expr = 0,
    ) -> None:
        weights = [v.name for k, v in node.inputs.items() if k.split(".")[0] == "weight"]
        label = f"{node.operator} {_short(weights)}" if weights else node.operator
        self.calls.append(
            Call(operator, attrs, tensors, frozenset(outputs), label, nbytes, operations)
        )

    # -- one method an operator -------------------------------------------------------------------

    def _embedding(self, node: Node) -> None:
        use = self.weight(_parts(node))
        out = self._new(node.out, "float32")
        tensors = {"tokens": self._plain(node.inputs["tokens"]), **_table(use), "out": out}
        attrs = {**use.attrs, "out_dtype": "float32"}
        row = use.nbytes // use.shape[0] * self.shape.tokens
        self._call(node, "token_embedding", attrs, tensors, ("out",), row)

    def _rms_norm(self, node: Node) -> None:
        x = self._of(node.inputs["x"])
        attrs = {"kind": "rms", "eps": float(node.attrs["eps"])}
        tensors = {"weight": self._plain(node.inputs["weight"]), "out": self._output(node.out)}
        if isinstance(x, Sum):
            tensors |= {"x": x.delta, "residual": x.residual}
            self._values[node.inputs["x"].name] = x.residual
        else:
            tensors["x"] = x
        if tensors["out"].spec.dtype != tensors["x"].spec.dtype:
            attrs["out_dtype"] = tensors["out"].spec.dtype
        self._call(node, "norm", attrs, tensors, ("out",))

    def _linear(self, node: Node) -> None:
        use = self.weight(_parts(node))
        x, out = self._plain(node.inputs["x"]), self._output(node.out)
        tensors = {"x": x, **use.values(), "out": out}
        if "bias" in node.inputs:
            names = tuple(v.name for k, v in node.inputs.items() if k.split(".")[0] == "bias")
            tensors["bias"] = self.weight(names).values()[""]
        attrs = dict(use.attrs)
        if out.spec.dtype != x.spec.dtype:
            attrs["out_dtype"] = out.spec.dtype
        n, k = use.shape
        operations = 2 * x.spec.shape[0] * n * k
        self._call(node, use.operator, attrs, tensors, ("out",), use.nbytes, operations)

    def _concat(self, node: Node) -> None:
        """Nothing to do: its inputs were written in place."""

    def _rope_table(self, node: Node) -> None:
        frequencies = self._plain(node.inputs["inv_freq"])
        self._tables[node.out.name] = (frequencies, float(node.attrs.get("mscale", 1.0)))

    def _rope_append(self, node: Node) -> None:
        attrs = node.attrs
        heads, kv_heads, dim = (int(attrs[n]) for n in ("heads", "kv_heads", "head_dim"))
        qkv = self._plain(node.inputs["qkv"])
        starts = (0, heads * dim, (heads + kv_heads) * dim)
        counts = (heads, kv_heads, kv_heads)
        tensors = {
            name: qkv.columns(start, count * dim).heads(count)
            for name, start, count in zip("qkv", starts, counts, strict=True)
        }
        frequencies, factor = self._tables[node.inputs["table"].name]
        tensors |= {
            "positions": self._plain(self._param("positions")), "inv_freq": frequencies,
            "slots": self._plain(node.inputs["slots"]),
            "k_cache": self._plain(node.inputs["k_cache"]),
            "v_cache": self._plain(node.inputs["v_cache"]),
            "q_out": self._new(node.out).heads(heads),
        }  # fmt: skip
        given: dict[str, Any] = {"factor": factor}
        if attrs.get("interleaved"):
            given["interleaved"] = True
        if "q_norm" in node.inputs:
            given["eps"] = float(attrs["eps"])
            tensors["q_weight"] = self._plain(node.inputs["q_norm"])
            tensors["k_weight"] = self._plain(node.inputs["k_norm"])
        self._call(node, "rope_cache", given, tensors, ("q_out",))

    def _attention(self, node: Node) -> None:
        attrs = node.attrs
        heads, kv_heads, dim = (int(attrs[n]) for n in ("heads", "kv_heads", "head_dim"))
        names = ("k_cache", "v_cache", "block_table", "context_len")
        tensors = {name: self._plain(node.inputs[name]) for name in names}
        tensors["q"] = self._plain(node.inputs["q"]).heads(heads)
        tensors["out"] = self._new(node.out).heads(heads)
        given: dict[str, Any] = {"scale": float(attrs["scale"])}
        if attrs.get("window") is not None:
            given["window_left"] = int(attrs["window"]) - 1
        if attrs.get("softcap"):
            given["softcap"] = float(attrs["softcap"])
        decode = self.shape.entry == "decode"
        if not decode:
            tensors["query_start"] = self._plain(node.inputs["query_start"])
        key = 2 * kv_heads * dim * itemsize(self.dtype)
        operator = "paged_attention" if decode else "paged_prefill"
        # Two products of each query head with every key; K keys in all for one query a sequence.
        operations = ["*", "K", 4 * heads * dim]
        if not decode:
            operations = ["*", operations, self.shape.tokens]
        self._call(node, operator, given, tensors, ("out",), ["*", "K", key], operations)

    def _silu_mul(self, node: Node) -> None:
        tensors = {"x": self._plain(node.inputs["gate_up"]), "out": self._new(node.out)}
        self._call(node, "activation_mul", {"activation": "silu"}, tensors, ("out",))

    def _add(self, node: Node) -> None:
        a, b = (self._plain(node.inputs[name]) for name in "ab")
        residual, delta = (a, b) if a.spec.dtype == "float32" else (b, a)
        name = node.inputs["a" if residual is a else "b"].name
        later = self.graph.nodes[self.graph.nodes.index(node) + 1 :]
        if residual.spec.dtype != "float32" or any(
            v.name == name for other in later for v in other.inputs.values()
        ):
            raise CompileError(f"the addition to {name!r} cannot change it in place")
        self._values[node.out.name] = Sum(residual, delta)

    def _gather_rows(self, node: Node) -> None:
        value = self._of(node.inputs["x"])
        if self.shape.entry == "decode":
            self._values[node.out.name] = value
            return
        parts = (value.residual, value.delta) if isinstance(value, Sum) else (value,)
        gathered = []
        for part, suffix in zip(parts, ("", ".delta"), strict=False):
            spec = TensorSpec((self.shape.rows, part.spec.shape[1]), part.spec.dtype)
            name = node.out.name + suffix
            self.arena[name] = spec.nbytes
            out = Value("arena", name, spec)
            tensors = {"tokens": self._plain(node.inputs["rows"]), "weight": part, "out": out}
            self._call(node, "token_embedding", {}, tensors, ("out",))
            gathered.append(out)
        self._values[node.out.name] = Sum(*gathered) if len(gathered) == 2 else gathered[0]

    def _param(self, name: str) -> Any:
        return next(param for param in self.graph.params if param.name == name)


def _table(use: GpuWeight) -> dict[str, Value]:
    """An embedding's arguments: the product's, with its "w" called "weight"."""
    return {"weight" if n == "w" else n: v for n, v in use.values().items()}


def _joined(graph: Graph) -> dict[str, tuple[Any, int, int]]:
    """Variable → (the matrix that a concat makes of it, its first column there, columns)."""
    found: dict[str, tuple[Any, int, int]] = {}
    for node in graph.nodes:
        if node.operator == "concat":
            start = 0
            for var in node.inputs.values():
                width = int(var.ty.shape[1])
                found[var.name] = (node.out, start, width)
                start += width
    return found


def _parts(node: Node) -> tuple[str, ...]:
    return tuple(v.name for k, v in node.inputs.items() if k.split(".")[0] == "weight")


def _short(names: list[str]) -> str:
    """Stacked parameters by one name: "layers.0.self_attn.q_proj.weight+k_proj+v_proj"."""
    return names[0] + "".join(f"+{name.split('.')[-2]}" for name in names[1:])
