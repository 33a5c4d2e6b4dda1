"""What a launch must read and compute, as expressions of the batch: for profiles, rooflines and
predictions."""

from __future__ import annotations

from collections.abc import Mapping

from pumice.artifact import Expr
from pumice.compiler.graph import Node, dimension
from pumice.compiler.weights import WeightUse
from pumice.operators.base import OperatorCall


def node_costs(
    node: Node, call: OperatorCall, weights: Mapping[str, WeightUse]
) -> tuple[Expr, Expr]:
    """(weight bytes read, operations) of a call; a multiply-add is two operations.

    Activations are left out of the bytes: at the sizes of a step they stay in cache.
    """
    parts = tuple(
        v.name for k, v in node.inputs.items() if k == "weight" or k.startswith("weight.")
    )
    use = next((u for u in weights.values() if u.parts == parts), None) if parts else None
    rows = dimension(next(iter(node.outputs.values())).ty.shape[0])
    if use is None or use.layout is None:
        return 0, 0
    n, k = use.shape
    if call.operator == "embedding":
        return ["*", rows, use.nbytes // n], 0
    planes = int(node.attrs.get("planes", 1))  # an activation of two planes is multiplied twice
    return use.nbytes, ["*", rows, 2 * n * k * planes]
