"""gated_gemm: the two products of a gated feed-forward block and its activation in one kernel."""
