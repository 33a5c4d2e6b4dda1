"""A tokenizer from a GGUF file's `tokenizer.ggml.*` keys.

Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. `model` "gpt2" is byte-level BPE
(tokens, merges, and a pre-tokenizer's name); "llama" is SentencePiece BPE (tokens and scores: of
the neighbours that make a piece, the best scored piece is made first, leftmost first).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers

from pumice.errors import ModelFileError, UnsupportedError
from pumice.text import pretokenizers
from pumice.text.end_tokens import end_ids
from pumice.text.pieces import SPACE
from pumice.text.settings import TextSettings

# gguf's TokenType
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

_SAMPLING = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}


@dataclass(frozen=True)
class _Vocabulary:
    tokens: list[str]
    types: list[int]

    def of(self, *types: int) -> list[int]:
        return [i for i, kind in enumerate(self.types) if kind in types]


def read_metadata(metadata: Mapping[str, Any]) -> tuple[tokenizers.Tokenizer, TextSettings]:
    """The library's tokenizer and the settings around it."""
    model = metadata.get("tokenizer.ggml.model")
    if model is None:
        raise ModelFileError(
            "the file has no tokenizer: tokenizer.ggml.model is missing",
            hint="Take the tokenizer from the model's original repository.",
        )
    if model not in ("gpt2", "llama"):
        raise UnsupportedError(f"tokenizer.ggml.model is {model!r}; known: gpt2, llama")
    vocabulary = _vocabulary(metadata)
    if model == "gpt2":
        name = str(metadata.get("tokenizer.ggml.pre", "default"))
        scheme = pretokenizers.find(name)
        inner = _byte_level(metadata, vocabulary, scheme)
        adds_bos = scheme.add_bos
    else:
        inner = _sentencepiece(metadata, vocabulary)
        adds_bos = True
    controls = vocabulary.of(CONTROL, UNKNOWN)
    _add(inner, vocabulary, vocabulary.of(USER_DEFINED), special=False)
    _add(inner, vocabulary, controls, special=True)
    return inner, _settings(metadata, vocabulary, controls, adds_bos)


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _list(metadata: Mapping[str, Any], key: str, length: int | None = None) -> list[Any]:
    value = metadata.get(key)
    if value is None:
        raise ModelFileError(f"the file's tokenizer is incomplete: {key} is missing")
    values = value.tolist() if hasattr(value, "tolist") else list(value)
    if length is not None and len(values) != length:
        raise ModelFileError(f"{key} has {len(values)} entries; tokenizer.ggml.tokens has {length}")
    return values


def _vocabulary(metadata: Mapping[str, Any]) -> _Vocabulary:
    # An empty entry is named by its id: no text can produce it, and names must differ.
    tokens = [
        _text(token) or f"[EMPTY_{i}]"
        for i, token in enumerate(_list(metadata, "tokenizer.ggml.tokens"))
    ]
    if not tokens:
        raise ModelFileError("tokenizer.ggml.tokens is empty")
    types = [NORMAL] * len(tokens)
    if "tokenizer.ggml.token_type" in metadata:
        types = [int(t) for t in _list(metadata, "tokenizer.ggml.token_type", len(tokens))]
    seen: dict[str, int] = {}
    for i, token in enumerate(tokens):
        first = seen.setdefault(token, i)
        if first != i:
            raise ModelFileError(f"tokenizer.ggml.tokens has {token!r} twice, as {first} and {i}")
    return _Vocabulary(tokens, types)


def _byte_level(
    metadata: Mapping[str, Any], vocabulary: _Vocabulary, scheme: pretokenizers.PreTokenizer
) -> tokenizers.Tokenizer:
    merges: list[tuple[str, str]] = []
    known = set(vocabulary.tokens)
    for rank, entry in enumerate(_list(metadata, "tokenizer.ggml.merges")):
        left, _, right = _text(entry).partition(" ")
        if not left or not right or not {left, right, left + right} <= known:
            raise ModelFileError(
                f"tokenizer.ggml.merges[{rank}] is {_text(entry)!r}, which is not two tokens "
                "that make a third"
            )
        merges.append((left, right))
    ids = {token: i for i, token in enumerate(vocabulary.tokens)}
    inner = tokenizers.Tokenizer(
        models.BPE(vocab=ids, merges=merges, ignore_merges=scheme.ignore_merges)
    )
    normalizer = scheme.normalizer()
    if normalizer is not None:
        inner.normalizer = normalizer
    inner.pre_tokenizer = scheme.pre_tokenizer()
    inner.decoder = decoders.ByteLevel()
    return inner


def _sentencepiece(metadata: Mapping[str, Any], vocabulary: _Vocabulary) -> tokenizers.Tokenizer:
    tokens = vocabulary.tokens
    scores = [float(s) for s in _list(metadata, "tokenizer.ggml.scores", len(tokens))]
    # Control, byte and user-defined pieces result from no merge, or text could spell them.
    normal = {tokens[i]: i for i in vocabulary.of(NORMAL)}
    ranked: list[tuple[float, int, int, str, str]] = []
    for piece, i in normal.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in normal and right in normal:
                # Equal scores (some converters write placeholders) fall back to the ids' order.
                ranked.append((-scores[i], i, normal[left], left, right))
    ranked.sort()
    unknown = vocabulary.of(UNKNOWN)
    inner = tokenizers.Tokenizer(
        models.BPE(
            vocab={token: i for i, token in enumerate(tokens)},
            merges=[(left, right) for *_, left, right in ranked],
            unk_token=tokens[unknown[0]] if unknown else None,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    replace = normalizers.Replace(" ", SPACE)
    decode = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefix:
        inner.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), replace])
        decode.append(decoders.Strip(" ", 1, 0))
    else:
        inner.normalizer = replace
    inner.decoder = decoders.Sequence(decode)
    return inner


def _add(
    inner: tokenizers.Tokenizer, vocabulary: _Vocabulary, ids: list[int], *, special: bool
) -> None:
    added = [AddedToken(vocabulary.tokens[i], special=special, normalized=False) for i in ids]
    if special:
        inner.add_special_tokens(added)
    else:
        inner.add_tokens(added)


def _settings(
    metadata: Mapping[str, Any], vocabulary: _Vocabulary, controls: list[int], adds_bos: bool
) -> TextSettings:
    named: dict[str, int] = {}
    for name in ("bos", "eos", "eot", "eom", "unknown", "padding"):
        key = f"tokenizer.ggml.{name}_token_id"
        value = metadata.get(key)
        if value is None:
            continue
        if not 0 <= int(value) < len(vocabulary.tokens):
            raise ModelFileError(
                f"{key} is {int(value)}; tokenizer.ggml.tokens has {len(vocabulary.tokens)} entries"
            )
        named[name] = int(value)
    adds_bos = bool(metadata.get("tokenizer.ggml.add_bos_token", adds_bos))
    adds_eos = bool(metadata.get("tokenizer.ggml.add_eos_token", False))
    for adds, name in ((adds_bos, "bos"), (adds_eos, "eos")):
        if adds and name not in named:
            raise ModelFileError(
                f"the tokenizer adds {name.upper()} to a text, but "
                f"tokenizer.ggml.{name}_token_id is missing"
            )
    ends = end_ids({vocabulary.tokens[i]: i for i in controls})
    ends |= {named[name] for name in ("eos", "eot", "eom") if name in named}
    template_names = {"bos": "bos_token", "eos": "eos_token"}
    template_names |= {"unknown": "unk_token", "padding": "pad_token"}
    template = metadata.get("tokenizer.chat_template")
    return TextSettings(
        bos_id=named.get("bos"),
        eos_ids=frozenset(ends),
        prefix_ids=(named["bos"],) if adds_bos else (),
        suffix_ids=(named["eos"],) if adds_eos else (),
        special_tokens={
            template_names[name]: vocabulary.tokens[i]
            for name, i in named.items()
            if name in template_names
        },
        sampling={
            ours: metadata[key] for key, ours in _SAMPLING.items() if metadata.get(key) is not None
        },
        chat_template=None if template is None else _text(template),
    )
