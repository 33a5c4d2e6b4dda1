"""An independent forward pass in NumPy: the oracle for compiled models.

It shares no code with Pumice, and keeps a plain contiguous cache. Everything is computed in the
dtype given (float32, or float64 as a judge). `reference/files.py` reads models for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

CHUNK = 256  # tokens that are computed together; bounds the memory for scores and logits


@dataclass(frozen=True)
class Settings:
    """What the pass needs besides weights."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    inv_freq: np.ndarray  # [head_dim/2]
    mscale: float = 1.0
    pairs: bool = False  # rotate (0, 1), (2, 3) … instead of halves
    windows: tuple[int | None, ...] = ()


@dataclass
class Cache:
    """Keys and values of one sequence: a layer each [tokens, kv_heads, head_dim]."""

    keys: list[np.ndarray] = field(default_factory=list)
    values: list[np.ndarray] = field(default_factory=list)
    length: int = 0


class ReferenceModel:
    """weights: Hugging Face's names → arrays, dequantized."""

    def __init__(
        self, settings: Settings, weights: Mapping[str, np.ndarray], dtype: Any = np.float32
    ) -> None:
        self.settings = settings
        self.dtype = dtype
        self.weights = {name: np.asarray(w, dtype=dtype) for name, w in weights.items()}

    # -- forward ------------------------------------------------------------------------------

    def hidden(self, tokens: Sequence[int] | np.ndarray, cache: Cache) -> np.ndarray:
        """Appends tokens to a cache; returns their normalised last hidden states [T, H]."""
        parts = [
            self._chunk([np.asarray(tokens[i : i + CHUNK])], [cache])
            for i in range(0, len(tokens), CHUNK)
        ]
        return np.concatenate(parts)

    def logits(self, tokens: Sequence[int] | np.ndarray, cache: Cache | None = None) -> np.ndarray:
        """Logits of every token [T, V]; continues a cache when one is given."""
        return self._head(self.hidden(tokens, cache if cache is not None else Cache()))

    def greedy(
        self, prompt: Sequence[int], count: int, stop: Iterable[int] = ()
    ) -> tuple[list[int], list[float]]:
        """`greedy_many` of one prompt."""
        return self.greedy_many([prompt], count, stop)[0]

    def greedy_many(
        self, prompts: Sequence[Sequence[int]], count: int, stop: Iterable[int] = ()
    ) -> list[tuple[list[int], list[float]]]:
        """For each prompt up to `count` tokens, each the likeliest, and each one's lead over the
        runner-up in logits (near zero: a tie). A stop token ends a text and is no part of it."""
        stops = set(stop)
        caches = [Cache() for _ in prompts]
        rows = [self.hidden(p, c)[-1] for p, c in zip(prompts, caches, strict=True)]
        results: list[tuple[list[int], list[float]]] = [([], []) for _ in prompts]
        active = list(range(len(prompts)))
        while active:
            logits = self._head(np.stack(rows))
            going = []
            for index, row in zip(active, logits, strict=True):
                tokens, leads = results[index]
                token = int(row.argmax())
                if token in stops:
                    continue
                two = np.partition(row, -2)[-2:]
                tokens.append(token)
                leads.append(float(two[1] - two[0]))
                if len(tokens) < count:
                    going.append(index)
            active = going
            if active:
                last = [np.array(results[i][0][-1:]) for i in active]
                rows = list(self._chunk(last, [caches[i] for i in active]))
        return results

    def perplexity(self, tokens: Sequence[int]) -> float:
        """exp of the mean negative log likelihood of tokens 1 … given all before them."""
        x = self.hidden(tokens[:-1], Cache())
        total = 0.0
        for i in range(0, len(x), CHUNK):
            rows = self._head(x[i : i + CHUNK])
            rows -= rows.max(axis=1, keepdims=True)
            wanted = np.asarray(tokens[i + 1 : i + 1 + len(rows)])
            chosen = rows[np.arange(len(rows)), wanted].astype(np.float64)
            np.exp(rows, out=rows)
            total += float((np.log(rows.sum(axis=1, dtype=np.float64)) - chosen).sum())
        return math.exp(total / len(x))

    def _head(self, x: np.ndarray) -> np.ndarray:
        w = self.weights
        head = w["lm_head.weight"] if "lm_head.weight" in w else w["model.embed_tokens.weight"]
        return x @ head.T

    def _linear(self, x: np.ndarray, name: str) -> np.ndarray:
        out = x @ self.weights[name + ".weight"].T
        bias = self.weights.get(name + ".bias")
        return out if bias is None else out + bias

    def _norm(self, x: np.ndarray, name: str) -> np.ndarray:
        scale = 1 / np.sqrt((x * x).mean(axis=-1, keepdims=True) + self.dtype(self.settings.eps))
        return x * scale * self.weights[name + ".weight"]

    def _chunk(self, tokens: Sequence[np.ndarray], caches: Sequence[Cache]) -> np.ndarray:
        """The next tokens of each sequence; their last hidden states, sequences concatenated."""
        s = self.settings
        positions = np.concatenate(
            [np.arange(c.length, c.length + len(t)) for t, c in zip(tokens, caches, strict=True)]
        )
        angle = (positions[:, None].astype(np.float32) * s.inv_freq).astype(np.float64)
        turn = ((np.cos(angle) * s.mscale).astype(self.dtype),
                (np.sin(angle) * s.mscale).astype(self.dtype))  # fmt: skip
        splits = np.cumsum([len(t) for t in tokens])[:-1]
        x = self.weights["model.embed_tokens.weight"][np.concatenate(tokens)]
        for layer in range(s.layers):
            name = f"model.layers.{layer}."
            h = self._norm(x, name + "input_layernorm")
            q, k, v = self._queries_keys_values(h, name + "self_attn.", turn)
            parts = zip(*(np.split(part, splits) for part in (q, k, v)), caches, strict=True)
            out = [self._attention(*part, layer) for part in parts]
            x = x + self._linear(np.concatenate(out), name + "self_attn.o_proj")
            h = self._norm(x, name + "post_attention_layernorm")
            gate = self._linear(h, name + "mlp.gate_proj")
            up = self._linear(h, name + "mlp.up_proj")
            x = x + self._linear(gate / (1 + np.exp(-gate)) * up, name + "mlp.down_proj")
        for part, cache in zip(tokens, caches, strict=True):
            cache.length += len(part)
        return self._norm(x, "model.norm")

    def _queries_keys_values(
        self, x: np.ndarray, name: str, turn: tuple[np.ndarray, np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        s = self.settings
        q = self._linear(x, name + "q_proj").reshape(len(x), s.heads, s.head_dim)
        k = self._linear(x, name + "k_proj").reshape(len(x), s.kv_heads, s.head_dim)
        v = self._linear(x, name + "v_proj").reshape(len(x), s.kv_heads, s.head_dim)
        if name + "q_norm.weight" in self.weights:
            q, k = self._norm(q, name + "q_norm"), self._norm(k, name + "k_norm")
        return _rotate(q, *turn, s.pairs), _rotate(k, *turn, s.pairs), v

    def _attention(
        self, q: np.ndarray, k: np.ndarray, v: np.ndarray, cache: Cache, layer: int
    ) -> np.ndarray:
        """Appends k and v of one sequence's tokens; returns [tokens, heads·head_dim]."""
        s, group = self.settings, self.settings.heads // self.settings.kv_heads
        if layer < len(cache.keys):
            k = np.concatenate([cache.keys[layer], k])
            v = np.concatenate([cache.values[layer], v])
            cache.keys[layer], cache.values[layer] = k, v
        else:
            cache.keys.append(k)
            cache.values.append(v)
        position = np.arange(len(k) - len(q), len(k))[:, None]
        key = np.arange(len(k))[None, :]
        seen = key <= position
        window = s.windows[layer] if s.windows else None
        if window is not None:
            seen &= key > position - window
        mask = np.where(seen, 0, -np.inf).astype(self.dtype)
        out = np.empty_like(q)
        for head in range(s.heads):
            scores = (q[:, head] * self.dtype(s.head_dim**-0.5)) @ k[:, head // group].T
            scores += mask
            scores -= scores.max(axis=1, keepdims=True)
            np.exp(scores, out=scores)
            out[:, head] = scores @ v[:, head // group] / scores.sum(axis=1, keepdims=True)
        return out.reshape(len(q), -1)


def _rotate(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, pairs: bool) -> np.ndarray:
    half = x.shape[-1] // 2
    a, b = (x[..., 0::2], x[..., 1::2]) if pairs else (x[..., :half], x[..., half:])
    c, d = cos[:, None], sin[:, None]
    out = np.empty_like(x)
    first, second = a * c - b * d, b * c + a * d
    if pairs:
        out[..., 0::2], out[..., 1::2] = first, second
    else:
        out[..., :half], out[..., half:] = first, second
    return out
