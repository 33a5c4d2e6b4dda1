"""What a model's graph depends on: one frozen dataclass for the architectures of our blocks."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from pumice.errors import ModelFileError, UnsupportedError
from pumice.models.rope import RopeConfig


@dataclass(frozen=True)
class ModelConfig:
    """A decoder of gated-MLP blocks with rotary positions and root-mean-square norms.

    windows: a layer's sliding window in tokens, the query's own included (a query at position p
        sees keys p − window + 1 … p), or None for all of the context; one entry a layer.
    qkv_bias, output_bias, mlp_bias: which linears add a bias.
    qk_norm: an RMS norm of each query and key head.
    context_length: positions that the model was made for.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    context_length: int
    rms_norm_eps: float
    rope: RopeConfig
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    windows: tuple[int | None, ...] = ()

    def __post_init__(self) -> None:
        if not self.windows:
            object.__setattr__(self, "windows", (None,) * self.num_hidden_layers)
        for name in (
            "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
            "num_attention_heads", "num_key_value_heads", "head_dim", "context_length",
        ):  # fmt: skip
            if getattr(self, name) < 1:
                raise ModelFileError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.head_dim % 2:
            raise UnsupportedError(f"head_dim is {self.head_dim}; it must be even")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ModelFileError(
                f"{self.num_attention_heads} query heads cannot share {self.num_key_value_heads} "
                "key/value heads: the first must be a multiple of the second"
            )
        if self.rope.dim % 2 or not 0 < self.rope.dim <= self.head_dim:
            raise UnsupportedError(
                f"the rotary width is {self.rope.dim}; it must be even and at most the head's "
                f"{self.head_dim}"
            )
        if not self.rms_norm_eps > 0:
            raise ModelFileError(f"rms_norm_eps is {self.rms_norm_eps}; it must be positive")
        if len(self.windows) != self.num_hidden_layers:
            raise ModelFileError(
                f"{len(self.windows)} layers have an attention window stated; the model has "
                f"{self.num_hidden_layers}"
            )
        for window in self.windows:
            if window is not None and window < 1:
                raise ModelFileError(f"a sliding window is {window}; it must be at least 1")

    @property
    def window(self) -> int | None:
        """The largest window when every layer has one: what the cache must keep; else None."""
        limited = [window for window in self.windows if window is not None]
        return max(limited) if len(limited) == len(self.windows) else None

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for a manifest and for people. Windows that are all alike become one."""
        data = dataclasses.asdict(self)
        windows = data.pop("windows")
        if any(windows):
            data["windows"] = windows[0] if len(set(windows)) == 1 else list(windows)
        plain = dataclasses.asdict(RopeConfig(self.rope.theta, self.rope.dim))
        shown = ("theta", "dim", "kind")
        data["rope"] = {k: v for k, v in data["rope"].items() if k in shown or v != plain[k]}
        return data
