"""Plans that draw tokens from logits where they are: `artifact` describes them."""

from __future__ import annotations

from collections.abc import Iterable

from pumice.artifact import BufferRef, Plan
from pumice.compiler.gpu.lower import GpuLowering
from pumice.compiler.gpu.translate import Call
from pumice.compiler.gpu.values import Value
from pumice.errors import CompileError
from pumice.operators.triton.plan import TensorSpec

# The operator's arguments: the inputs' names and types.
_INPUTS = {
    "temperature": ("temperature", "float32"), "seeds": ("seeds", "int64"),
    "positions": ("draws", "int32"), "top_k": ("top_k", "int32"), "top_p": ("top_p", "float32"),
    "min_p": ("min_p", "float32"),
}  # fmt: skip


def sampling_plans(lowering: GpuLowering, rows: Iterable[int], vocabulary: int) -> dict[str, Plan]:
    """A plan for each number of rows."""
    return {f"sample@{count}": _plan(lowering, count, vocabulary) for count in sorted(set(rows))}


def _plan(lowering: GpuLowering, rows: int, vocabulary: int) -> Plan:
    tensors = {
        name: Value("input", source, TensorSpec((rows,), dtype))
        for name, (source, dtype) in _INPUTS.items()
    }
    tensors["logits"] = Value("output", "logits", TensorSpec((rows, vocabulary), "float32"))
    tensors["tokens"] = Value("output", "tokens", TensorSpec((rows,), "int32"))
    tensors["logprobs"] = Value("output", "logprobs", TensorSpec((rows,), "float32"))
    call = Call(
        "sample_tokens", {}, tensors, frozenset({"tokens", "logprobs"}), "sample_tokens", 0, 0
    )
    choice = lowering.selection.of(call)
    if choice.plan.workspaces:
        raise CompileError(f"kernel {choice.kernel} needs scratch memory; a sampling plan has none")
    launches = lowering.launches(0, call, choice, {})
    return Plan(tuple(launches), 0, {"R": rows}, BufferRef("output", "tokens"), 1)
