"""Small vocabularies and hard strings for the tests of the text room."""

from __future__ import annotations

import functools
import json
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

HARD = [
    "",
    " ",
    "a",
    "Hello, world!",
    "  leading and   inner    runs of spaces  ",
    "\n\n\r\n\ttabs\t\tand\nlines \n \n  x",
    " Việt Nam, tiếng Việt",
    "Vie\u0323\u0302t cafe\u0301",  # not normalized
    "😀 👩‍👩‍👧‍👦🏳️‍🌈 ok🇫🇷🇩🇪",
    "שלום עולם، مرحبا بالعالم",
    "你好，世界。日本語テキスト 한국어",
    "3.14159 1234567890 1 22 333 ²³½ ٣٤٥ Ⅷ",
    "def f(x_1, *args):\n    return {'a': [x**2, 0xFF]}  # don't\n",
    "I'm you're WE'LL they'd 'tis o'clock",
    "\x00\x01\x02\x1b[31m\x7f\x80\x9f\u200b\u2028\ufeff",
    "<|im_start|>user\n<|im_end|></s><s><unk><0x0A>",
    "▁ already ▁▁ underscored",
    "camelCaseHTTPServerID McDonald",
    "https://example.org/a?b=c&d=%20#é",
    "…—–“quotes”‘’ €$¥ ∑∫√ 𝔘𝔫𝔦 \U0010ffff",
    "a" * 1500,
    " " * 1500 + "x",
    "=-" * 700,
    "9" * 1003,
]

CORPUS = [
    "the quick brown fox jumps over the lazy dog and then the other thing happened to them",
    "def main(argument, value):\n    return argument + value  # don't\n        pass\n",
    "I'm sure you're there; we'll see they've gone. 2024 1999 100 1000 123456",
    "tiếng Việt Việt Nam  xin chào    café naïve über  Straße",
    "привет мир, это текст. שלום עולם 你好 世界 日本語",
    "😀😀 😁 🚀🚀 -- == ==> ... !!! ??? ((())) [[ ]] {{ }}",
    "aaaa aaaaaaaa bbbb abababab    \n\n\n\t\t  zzz",
]


@functools.cache
def byte_level_parts(size: int = 700) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Tokens by id and merges of a byte-level BPE trained on CORPUS; all 256 bytes are there."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    return _parts(tokenizer)


def _parts(tokenizer: Tokenizer) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    merges = [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in model["merges"]]
    return tuple(tokens), tuple(merges)


def byte_level_metadata(pre: str = "smollm", **changes: Any) -> dict[str, Any]:
    """GGUF keys of the trained byte-level vocabulary."""
    tokens, merges = byte_level_parts()
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": list(tokens),
        "tokenizer.ggml.merges": [f"{left} {right}" for left, right in merges],
        "tokenizer.ggml.token_type": [CONTROL] * 3 + [NORMAL] * (len(tokens) - 3),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
    }
    return _changed(metadata, changes)


@functools.cache
def sentencepiece_parts() -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Tokens by id (as Llama's: <unk> <s> </s>, bytes, merged pieces, characters) and merges."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=420, show_progress=False)
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    tokens, merges = _parts(tokenizer)
    merged = [left + right for left, right in merges]
    characters = [token for token in tokens if len(token) == 1]
    head = ["<unk>", "<s>", "</s>", *[f"<0x{byte:02X}>" for byte in range(256)]]
    return tuple(head + list(dict.fromkeys(merged)) + characters), merges


def sentencepiece_metadata(**changes: Any) -> dict[str, Any]:
    """GGUF keys of the SentencePiece-style vocabulary; a score is minus the rank, as trained ones
    have.
    """
    tokens, _ = sentencepiece_parts()
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * (len(tokens) - 259)
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": list(tokens),
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(i) for i in range(len(tokens) - 259)],
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    return _changed(metadata, changes)


def _changed(metadata: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`changes` by the key's last part; None removes a key."""
    for name, value in changes.items():
        key = f"tokenizer.{name}" if name == "chat_template" else f"tokenizer.ggml.{name}"
        if value is None:
            metadata.pop(key, None)
        else:
            metadata[key] = value
    return metadata
