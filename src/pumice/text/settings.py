"""What a tokenizer.json does not say: what begins and ends a text, and the model's sampling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

SAMPLING_KEYS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "do_sample")


@dataclass(frozen=True)
class TextSettings:
    """Kept in an artifact's generation.json, the chat template in a file of its own.

    prefix_ids, suffix_ids: what the tokenizer puts around a text (usually BOS and nothing).
    eos_ids: every token that ends a generation. special_tokens: `bos_token`, `eos_token`, … →
    text, for the template.
    sampling: what the model's authors recommend (generation_config.json, general.sampling.*); may
    be empty.
    """

    bos_id: int | None = None
    eos_ids: frozenset[int] = frozenset()
    prefix_ids: tuple[int, ...] = ()
    suffix_ids: tuple[int, ...] = ()
    special_tokens: dict[str, str] = field(default_factory=dict)
    sampling: dict[str, Any] = field(default_factory=dict)
    chat_template: str | None = None

    def to_json(self) -> dict[str, Any]:
        """generation.json's content."""
        data = asdict(self)
        del data["chat_template"]
        data["eos_ids"] = sorted(self.eos_ids)
        return data

    @staticmethod
    def from_json(data: Mapping[str, Any], chat_template: str | None) -> TextSettings:
        """The inverse of `to_json`; KeyError, TypeError or ValueError for anything else."""
        bos = data["bos_id"]
        return TextSettings(
            bos_id=None if bos is None else int(bos),
            eos_ids=frozenset(int(i) for i in data["eos_ids"]),
            prefix_ids=tuple(int(i) for i in data["prefix_ids"]),
            suffix_ids=tuple(int(i) for i in data["suffix_ids"]),
            special_tokens={str(k): str(v) for k, v in data["special_tokens"].items()},
            sampling=dict(data["sampling"]),
            chat_template=chat_template,
        )
