"""Which control tokens end a generation.

A model may end its turn with another token than the EOS of its vocabulary (`<|eot_id|>` beside
`<|end_of_text|>`), and GGUF files name only one. The list is of the names that published models
use, as in llama.cpp's `llama-vocab.cpp`.
"""

from __future__ import annotations

from collections.abc import Mapping

END_TOKENS = frozenset(
    {
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|calls|>",
        "<|flush|>",
        "<end_of_turn>",
        "<end_of_utterance>",
        "<turn|>",
        "<EOT>",
        "[EOT]",
        "[EOS]",
        "<｜end▁of▁sentence｜>",
        "[e~[",
    }
)


def end_ids(controls: Mapping[str, int]) -> set[int]:
    """The ids of `controls` (text → id) that end a generation by their name."""
    names = END_TOKENS & controls.keys()
    # Channel formats (gpt-oss, Solar) close every message with <|end|>; only these end the turn.
    if {"<|return|>", "<|call|>"} <= names or {"<|calls|>", "<|flush|>"} <= names:
        names = names - {"<|end|>"}
    return {controls[name] for name in names}
