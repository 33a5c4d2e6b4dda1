"""The blocks that models are made of, on `tvm.relax.frontend.nn`.

Parameter names are those of Hugging Face checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm.relax.frontend import nn

from pumice.models import graph
from pumice.models.config import ModelConfig
from pumice.models.graph import Tensor


@dataclass(frozen=True)
class StepInputs:
    """A step's inputs (see `runtime/step.py`), and the rotary table that all layers share."""

    tokens: Tensor
    slots: Tensor
    query_start: Tensor
    context_len: Tensor
    block_table: Tensor
    rope_table: Tensor


class Linear(nn.Module):  # type: ignore[misc]
    """x · weightᵀ (+ bias)."""

    def __init__(self, inputs: int, outputs: int, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter((outputs, inputs), "float32")
        self.bias = nn.Parameter((outputs,), "float32") if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return graph.linear(x, self.weight, self.bias)


class RMSNorm(nn.Module):  # type: ignore[misc]
    """Root mean square normalization (arXiv:1910.07467)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter((width,), "float32")
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return graph.rms_norm(x, self.weight, eps=self.eps)


class Embedding(nn.Module):  # type: ignore[misc]
    """A row of the table for each token; with tied embeddings the table also makes the logits."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter((count, width), "float32")

    def forward(self, tokens: Tensor) -> Tensor:
        return graph.embedding(tokens, self.weight)

    def logits(self, x: Tensor) -> Tensor:
        return graph.linear(x, self.weight)


class RotaryEmbedding(nn.Module):  # type: ignore[misc]
    """The step's table of cosines and sines, from the constant `inv_freq`."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.inv_freq = nn.Parameter((config.rope.dim // 2,), "float32")
        self.mscale = config.rope.mscale

    def forward(self, positions: Tensor) -> Tensor:
        return graph.rope_table(positions, self.inv_freq, mscale=self.mscale)


class Attention(nn.Module):  # type: ignore[misc]
    """Grouped-query attention (arXiv:2305.13245) over the paged cache.

    Biases, norms of query and key heads, and a window are optional.
    """

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        hidden, dim = config.hidden_size, config.head_dim
        queries, keys = config.num_attention_heads * dim, config.num_key_value_heads * dim
        self.q_proj = Linear(hidden, queries, config.qkv_bias)
        self.k_proj = Linear(hidden, keys, config.qkv_bias)
        self.v_proj = Linear(hidden, keys, config.qkv_bias)
        self.o_proj = Linear(queries, hidden, config.output_bias)
        self.q_norm = RMSNorm(dim, config.rms_norm_eps) if config.qk_norm else None
        self.k_norm = RMSNorm(dim, config.rms_norm_eps) if config.qk_norm else None
        self.config = config
        self.window = config.windows[layer]

    def forward(self, x: Tensor, step: StepInputs, k_cache: Tensor, v_cache: Tensor) -> Tensor:
        c = self.config
        sizes: dict[str, Any] = {
            "heads": c.num_attention_heads,
            "kv_heads": c.num_key_value_heads,
            "head_dim": c.head_dim,
        }
        q = graph.rope_append(
            self.q_proj(x), self.k_proj(x), self.v_proj(x), step.rope_table, step.slots,
            k_cache, v_cache,
            **sizes,
            rotary_dim=c.rope.dim,
            q_norm=self.q_norm.weight if self.q_norm else None,
            k_norm=self.k_norm.weight if self.k_norm else None,
            eps=c.rms_norm_eps,
        )  # fmt: skip
        out = graph.attention(
            q, k_cache, v_cache, step.query_start, step.context_len, step.block_table,
            **sizes, scale=c.head_dim**-0.5, window=self.window,
        )  # fmt: skip
        return self.o_proj(out)


class GatedMLP(nn.Module):  # type: ignore[misc]
    """down(silu(gate(x)) · up(x)) (SwiGLU, arXiv:2002.05202)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_proj = Linear(hidden, inner, bias)
        self.up_proj = Linear(hidden, inner, bias)
        self.down_proj = Linear(inner, hidden, bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(graph.silu_mul(self.gate_proj(x), self.up_proj(x)))


class DecoderLayer(nn.Module):  # type: ignore[misc]
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = GatedMLP(config)

    def forward(self, x: Tensor, step: StepInputs, k_cache: Tensor, v_cache: Tensor) -> Tensor:
        x = graph.add(x, self.self_attn(self.input_layernorm(x), step, k_cache, v_cache))
        return graph.add(x, self.mlp(self.post_attention_layernorm(x)))


class Decoder(nn.Module):  # type: ignore[misc]
    """Embedding, layers and the last norm: tokens → hidden states [T, H]."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(
            [DecoderLayer(config, layer) for layer in range(config.num_hidden_layers)]
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary_emb = RotaryEmbedding(config)

    def forward(self, step: StepInputs, caches: list[tuple[Tensor, Tensor]]) -> Tensor:
        x = self.embed_tokens(step.tokens)
        for layer, (k_cache, v_cache) in zip(self.layers, caches, strict=True):
            x = layer(x, step, k_cache, v_cache)
        return self.norm(x)


class CausalLM(nn.Module):  # type: ignore[misc]
    """A decoder, and its logits or hidden states for the rows that are asked for."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Decoder(config)
        tied = config.tie_word_embeddings
        self.lm_head = None if tied else Linear(config.hidden_size, config.vocab_size)

    def forward(self, *inputs: Any) -> Tensor:
        """The step's seven inputs, then each layer's k_cache and v_cache → logits [R, V]."""
        x = self.hidden(*inputs)
        return self.model.embed_tokens.logits(x) if self.lm_head is None else self.lm_head(x)

    def hidden(self, *inputs: Any) -> Tensor:
        """The same inputs → what the head would read, after the last norm: [R, H]."""
        tokens, positions, slots, query_start, context_len, block_table, rows, *caches = inputs
        step = StepInputs(
            tokens, slots, query_start, context_len, block_table,
            rope_table=self.model.rotary_emb(positions),
        )  # fmt: skip
        x = self.model(step, list(zip(caches[::2], caches[1::2], strict=True)))
        return graph.gather_rows(x, rows)
