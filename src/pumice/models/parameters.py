"""A decoder's parameters by name: shapes, and where each comes from in a checkpoint or a GGUF file.

Plain data, so that memory can be estimated and a file checked without the compiler.
`tests/ir/test_models_trace.py` proves that a traced graph has exactly these parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

from pumice.models.config import ModelConfig

INV_FREQ = "model.rotary_emb.inv_freq"
EMBEDDING = "model.embed_tokens.weight"
LM_HEAD = "lm_head.weight"


@dataclass(frozen=True)
class Parameter:
    """One parameter. gguf: its name there; None for a constant that is computed and not stored.

    heads: for a query or key projection, how many heads its rows are (llama.cpp's converter
        permutes them), else 0.
    """

    name: str
    shape: tuple[int, ...]
    gguf: str | None
    heads: int = 0


def list_parameters(config: ModelConfig) -> list[Parameter]:
    """Every parameter of the graph, in the graph's order of layers."""
    c = config
    found = [Parameter(EMBEDDING, (c.vocab_size, c.hidden_size), "token_embd.weight")]
    for layer in range(c.num_hidden_layers):
        found += _layer(c, f"model.layers.{layer}.", f"blk.{layer}.")
    found.append(Parameter("model.norm.weight", (c.hidden_size,), "output_norm.weight"))
    found.append(Parameter(INV_FREQ, (c.rope.dim // 2,), None))
    if not c.tie_word_embeddings:
        found.append(Parameter(LM_HEAD, (c.vocab_size, c.hidden_size), "output.weight"))
    return found


def _layer(c: ModelConfig, name: str, gguf: str) -> list[Parameter]:
    hidden, inner, dim = c.hidden_size, c.intermediate_size, c.head_dim
    heads, kv = c.num_attention_heads, c.num_key_value_heads

    def linear(hf: str, ggml: str, n: int, k: int, bias: bool, of: int = 0) -> list[Parameter]:
        out = [Parameter(f"{name}{hf}.weight", (n, k), f"{gguf}{ggml}.weight", of)]
        if bias:
            out.append(Parameter(f"{name}{hf}.bias", (n,), f"{gguf}{ggml}.bias", of))
        return out

    def norm(hf: str, ggml: str, width: int) -> Parameter:
        return Parameter(f"{name}{hf}.weight", (width,), f"{gguf}{ggml}.weight")

    found = [norm("input_layernorm", "attn_norm", hidden)]
    found += linear("self_attn.q_proj", "attn_q", heads * dim, hidden, c.qkv_bias, heads)
    found += linear("self_attn.k_proj", "attn_k", kv * dim, hidden, c.qkv_bias, kv)
    found += linear("self_attn.v_proj", "attn_v", kv * dim, hidden, c.qkv_bias)
    found += linear("self_attn.o_proj", "attn_output", hidden, heads * dim, c.output_bias)
    if c.qk_norm:
        found.append(norm("self_attn.q_norm", "attn_q_norm", dim))
        found.append(norm("self_attn.k_norm", "attn_k_norm", dim))
    found.append(norm("post_attention_layernorm", "ffn_norm", hidden))
    found += linear("mlp.gate_proj", "ffn_gate", inner, hidden, c.mlp_bias)
    found += linear("mlp.up_proj", "ffn_up", inner, hidden, c.mlp_bias)
    found += linear("mlp.down_proj", "ffn_down", hidden, inner, c.mlp_bias)
    return found
