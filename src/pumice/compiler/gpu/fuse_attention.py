"""Rotation, append and attention of new tokens become one call where each sequence has one.

The rotated queries then never leave the chip, and a layer has two launches fewer.
"""

from __future__ import annotations

from collections.abc import Sequence

from pumice.compiler.gpu.translate import Call
from pumice.operators.registry import triton_kernels_of
from pumice.operators.triton.plan import Problem
from pumice.targets import Target

FUSED = "decode_attention"
_OF_ROPE = ("k", "v", "positions", "inv_freq", "slots", "q_weight", "k_weight")
_OF_BOTH = ("k_cache", "v_cache")
_OF_ATTENTION = ("block_table", "context_len", "k_cache", "v_cache", "out")


def fuse_attention(calls: Sequence[Call], target: Target) -> tuple[list[Call], str]:
    """rope_cache and the paged_attention behind it → decode_attention. Returns the calls, and what
    was done or why not, for a person; "" where there is nothing of the kind."""
    found: list[Call] = []
    said = ""
    skip = False
    for index, call in enumerate(calls):
        if skip:
            skip = False
            continue
        if call.operator == "rope_cache":
            following = calls[index + 1] if index + 1 < len(calls) else None
            if following is not None and following.operator == "paged_attention":
                fused = _join(call, following)
                against = _against(calls, index) or _refusal(fused, target)
                said = f"not fused: {against}" if against else "one launch for each layer"
                if not against:
                    found.append(fused)
                    skip = True
                    continue
        found.append(call)
    return found, said


def _join(rope: Call, attention: Call) -> Call:
    """The fused call."""
    tensors = {"q": rope.tensors["q"]}
    tensors |= {name: rope.tensors[name] for name in _OF_ROPE if name in rope.tensors}
    tensors |= {name: attention.tensors[name] for name in _OF_ATTENTION}
    return Call(
        FUSED,
        {**attention.attrs, **rope.attrs},
        tensors,
        attention.outputs,
        f"{rope.label} + {attention.label}",
        attention.nbytes,
        attention.operations,
    )


def _against(calls: Sequence[Call], index: int) -> str:
    """Why the call and the next are not one: they must meet in the queries and the cache alone."""
    rope, attention = calls[index], calls[index + 1]
    rotated = rope.tensors["q_out"]
    if attention.tensors["q"] != rotated:
        return "attention reads other queries than those rotated before it"
    if any(attention.tensors[name] != rope.tensors[name] for name in _OF_BOTH):
        return "attention reads another cache than the one appended to before it"
    for later in (*calls[:index], *calls[index + 2 :]):
        if any(v.space == rotated.space and v.name == rotated.name for v in later.tensors.values()):
            return "another call reads the rotated queries"
    return ""


def _refusal(call: Call, target: Target) -> str:
    """Why no kernel runs the fused call."""
    tensors = {name: value.spec for name, value in call.tensors.items()}
    problem = Problem(call.operator, tensors, call.attrs, call.outputs)
    reasons = [kernel.supports(problem, target) for kernel in triton_kernels_of(call.operator)]
    return "" if None in reasons else "; ".join(reason for reason in reasons if reason)
