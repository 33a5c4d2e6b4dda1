"""SmolLM2's tokenizer and chat prompt, built from its GGUF file with `tokenizers` and Jinja."""

from __future__ import annotations

from pathlib import Path
from typing import Any

#: Short prompts of several kinds, for comparing greedy continuations.
PROMPTS = (
    "What is the capital of France?",
    "Write a haiku about autumn.",
    "Explain photosynthesis to a child.",
    "List three prime numbers.",
    "What is 7 times 8?",
    "Who wrote Hamlet?",
    "Translate 'good morning' into Spanish.",
    "def fibonacci(n):",
    "Name the largest planet of the solar system.",
    "Why is the sky blue?",
    "Give me a recipe for pancakes.",
    "What does HTTP stand for?",
    "Tell me a short story about a fox.",
    "How many days has a leap year?",
    "Summarize: The cat sat on the mat. The dog barked at it. It ran away.",
    "What is the boiling point of water at sea level?",
    "Write a SQL query that counts the rows of a table.",
    "Is a tomato a fruit or a vegetable?",
    "¿Cuál es la capital de España?",
    "🙂 What does this emoji mean?",
)


def read_metadata(path: Path) -> dict[str, Any]:
    """The file's `tokenizer.*` keys, read by the gguf library."""
    from gguf import GGUFReader

    fields = GGUFReader(path).fields
    return {key: f.contents() for key, f in fields.items() if key.startswith("tokenizer.")}


def build_tokenizer(meta: dict[str, Any]) -> Any:
    """Byte-level BPE that splits every digit off, as SmolLM's tokenizer.json says."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens = meta["tokenizer.ggml.tokens"]
    merges = [tuple(m.split(" ")) for m in meta["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [
        AddedToken(t, special=True, normalized=False)
        for t, kind in zip(tokens, meta["tokenizer.ggml.token_type"], strict=True)
        if kind == 3
    ]
    tokenizer.add_special_tokens(special)
    return tokenizer


def chat_ids(meta: dict[str, Any], tokenizer: Any, text: str) -> list[int]:
    """Token ids of the file's own template around one user message."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(meta["tokenizer.chat_template"])
    prompt = template.render(
        messages=[{"role": "user", "content": text}], add_generation_prompt=True
    )
    return list(tokenizer.encode(prompt, add_special_tokens=False).ids)
