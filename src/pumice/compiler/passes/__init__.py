"""Phase 2: rewrites of the graph, one file a pass, applied in the order of `PASSES`.

A pass is a function (Graph, PassContext) → Graph. It may change the nodes in place; a pattern that
does not apply is left alone.
"""

from __future__ import annotations

from pumice.compiler.passes.context import Pass, PassContext
from pumice.compiler.passes.fuse_residual import fuse_residual
from pumice.compiler.passes.gather_early import gather_early
from pumice.compiler.passes.merge_linears import merge_linears
from pumice.compiler.passes.quantize_activations import quantize_activations

__all__ = ["PASSES", "Pass", "PassContext"]

PASSES: tuple[tuple[str, Pass], ...] = (
    ("gather_early", gather_early),
    ("merge_linears", merge_linears),
    ("fuse_residual", fuse_residual),
    ("quantize_activations", quantize_activations),
)
