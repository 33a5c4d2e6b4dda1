"""Phase 1: a model's graph as Relax functions with the step's signature."""

from __future__ import annotations

from typing import Any

from tvm.relax.frontend.nn import spec
from tvm.relax.frontend.nn.exporter import Exporter

from pumice.models.blocks import CausalLM
from pumice.models.config import ModelConfig

#: Entry point → the method of `CausalLM` that it is.
ENTRIES = {"decode": "forward", "extend": "forward", "embed": "hidden"}
#: The step's inputs in order. Sizes are symbols: T tokens, S sequences (S1 = S + 1), M blocks that
#: a sequence may hold, R rows of the result.
STEP_INPUTS: dict[str, list[str]] = {
    "tokens": ["T"],
    "positions": ["T"],
    "slots": ["T"],
    "query_start": ["S1"],
    "context_len": ["S"],
    "block_table": ["S", "M"],
    "sample_rows": ["R"],
}


def trace(config: ModelConfig, *, block_size: int) -> Any:
    """An IRModule with the functions "decode" and "extend", the same graph in both, and "embed".

    The first two return logits [R, V]; "embed" ends before the head, in hidden states [R, H].
    Parameters of each: the step's inputs (int32), then of every layer the float16
    k_cache_<i> [num_blocks, kv_heads, head_dim, block_size] and
    v_cache_<i> [num_blocks, kv_heads, block_size, head_dim], then the weights by name (float32).
    """
    specs: dict[str, Any] = {n: spec.Tensor(shape, "int32") for n, shape in STEP_INPUTS.items()}
    kv, dim = config.num_key_value_heads, config.head_dim
    for layer in range(config.num_hidden_layers):
        k_shape = ["num_blocks", kv, dim, block_size]
        v_shape = ["num_blocks", kv, block_size, dim]
        specs[f"k_cache_{layer}"] = spec.Tensor(k_shape, "float16")
        specs[f"v_cache_{layer}"] = spec.Tensor(v_shape, "float16")
    model = CausalLM(config)
    methods = [
        spec.MethodSpec(
            getattr(model, method),
            list(specs),
            list(specs.values()),
            param_mode="plain",
            effect_mode="none",
        )
        for method in ENTRIES.values()
    ]
    module, _, _ = Exporter(debug=False).build(spec.ModuleSpec(model, list(ENTRIES), methods))
    return module
