"""Tokenizers from GGUF metadata: ids against Transformers, a plain SentencePiece reference,
SmolLM2's settings."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import regex
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from text_helpers import (
    BYTE,
    CONTROL,
    HARD,
    NORMAL,
    USER_DEFINED,
    byte_level_metadata,
    byte_level_parts,
    sentencepiece_metadata,
    sentencepiece_parts,
)
from tokenizers import decoders, models, pre_tokenizers

from pumice.errors import ModelFileError, UnsupportedError
from pumice.text import pretokenizers
from pumice.text.tokenizer import Tokenizer


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special=False, parse_special=False)


@pytest.fixture(scope="module")
def sentencepiece() -> Tokenizer:
    return Tokenizer.from_gguf_metadata(sentencepiece_metadata())


# ---- byte-level --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pre", "name"),
    [
        ("gpt-2", "GPT2Tokenizer"),
        ("qwen2", "Qwen2Tokenizer"),
        ("olmo", "GPTNeoXTokenizer"),
        ("command-r", "CohereTokenizer"),
    ],
)
def test_ids_equal_transformers(pre: str, name: str) -> None:
    transformers = pytest.importorskip("transformers")
    tokens, merges = byte_level_parts()
    vocabulary = {token: i for i, token in enumerate(tokens)}
    oracle = getattr(transformers, name)(vocab=vocabulary, merges=list(merges))
    ours = Tokenizer.from_gguf_metadata(byte_level_metadata(pre))
    for text in HARD:
        if "<|" not in text and "<s>" not in text:  # the oracle parses special tokens
            expected = oracle.encode(text, add_special_tokens=False)
            assert ids(ours, text) == expected, repr(text[:60])


PUBLISHED = {  # written down from the models' own tokenizer.json
    "llama-bpe": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "tekken": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "gpt-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
}


@pytest.mark.parametrize("pre", sorted(PUBLISHED))
def test_words_equal_another_regex_engine(pre: str) -> None:
    cut = pretokenizers.find(pre).pre_tokenizer()
    for text in HARD:
        words = [text[start:end] for _, (start, end) in cut.pre_tokenize_str(text)]
        assert words == regex.findall(PUBLISHED[pre], text), repr(text[:60])


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("smollm", "ab 12 x34", ["ab", " ", "1", "2", " x", "3", "4"]),
        ("deepseek-v3", "abc 1234 中文ab.x", ["abc", " ", "123", "4", " ", "中文", "ab", ".x"]),
        (
            "deepseek-llm",
            "ab  cd 12\r\n x.",
            ["ab", " ", " cd", " ", "1", "2", "\r", "\n", " x", "."],
        ),
        ("deepseek-coder", "a 12!? b\n", ["a", " ", "1", "2", "!?", " b", "\n"]),
        ("falcon", "12345 a-b", ["123", "45", " a", "-", "b"]),
        ("default", "x 12345 a-b", ["x", " ", "123", "45", " a", "-", "b"]),
        ("gpt-4o", "fooBar I'm", ["foo", "Bar", " I'm"]),
        ("bloom", "a, b 12", ["a", ",", " b", " 12"]),
        ("viking", "a 12", ["a", " ", "1", "2"]),
        ("seed-coder", "a!\n\nb", ["a", "!", "\n\n", "b"]),
        ("bailingmoe", "it's 12", ["it", "'s", " ", "1", "2"]),
    ],
)
def test_words_of_the_other_schemes(pre: str, text: str, words: list[str]) -> None:
    cut = pretokenizers.find(pre).pre_tokenizer()
    assert [text[a:b] for _, (a, b) in cut.pre_tokenize_str(text)] == words


@pytest.mark.timeout(60)  # a quadratic scheme takes minutes for the long runs
@pytest.mark.parametrize("pre", pretokenizers.known_names())
def test_every_scheme_keeps_the_text_and_is_quick(pre: str) -> None:
    ours = Tokenizer.from_gguf_metadata(byte_level_metadata(pre))
    normalize = pretokenizers.find(pre).normalizer()
    for text in HARD:
        expected = normalize.normalize_str(text) if normalize else text
        assert ours.decode(ids(ours, text), skip_special=False) == expected
    for unit in ("a", " ", "A", "1", "\n", "!", "é", "中"):
        text = unit * 30_000 + "x"
        assert ours.decode(ids(ours, text)) == text


def test_unknown_pre_tokenizer_is_named_with_the_known_ones() -> None:
    with pytest.raises(UnsupportedError, match=r"'no-such'.*known: .*llama-bpe.*smollm"):
        Tokenizer.from_gguf_metadata(byte_level_metadata("no-such"))


def test_names_are_unique() -> None:
    names = [name for scheme in pretokenizers.SCHEMES for name in scheme.names]
    assert len(names) == len(set(names))


@given(st.text(max_size=60))
@settings(max_examples=150, deadline=None)
def test_byte_level_roundtrip(text: str) -> None:
    ours = _shared("llama-bpe")
    found = ids(ours, text)
    assert ours.decode(found) == text
    assert b"".join(map(ours.token_bytes, found)) == text.encode()
    assert ours.control_ids.isdisjoint(found)


_CACHE: dict[str, Tokenizer] = {}


def _shared(pre: str) -> Tokenizer:
    if pre not in _CACHE:
        _CACHE[pre] = Tokenizer.from_gguf_metadata(byte_level_metadata(pre))
    return _CACHE[pre]


def test_a_word_that_is_a_control_token_stays_text() -> None:
    """A scheme that takes whole words finds "STOP" in the vocabulary, where it is a control
    token.
    """
    tokens, _ = byte_level_parts()
    metadata = byte_level_metadata(
        "llama-bpe",
        tokens=[*tokens, "STOP"],
        token_type=[CONTROL] * 3 + [NORMAL] * (len(tokens) - 3) + [CONTROL],
    )
    ours = Tokenizer.from_gguf_metadata(metadata)
    found = ids(ours, "STOP")
    assert len(tokens) not in found
    assert ours.decode(found) == "STOP"
    special = ours.encode("a STOP", add_special=False, parse_special=True)
    assert special[-1] == len(tokens)


# ---- SentencePiece -----------------------------------------------------------------------------


def reference(metadata: dict[str, Any], text: str) -> list[int]:
    """The definition: join the neighbours whose piece scores best, leftmost first, until none is
    left.
    """
    tokens = metadata["tokenizer.ggml.tokens"]
    scores, types = metadata["tokenizer.ggml.scores"], metadata["tokenizer.ggml.token_type"]
    normal = {token: i for i, token in enumerate(tokens) if types[i] == NORMAL}
    every = {token: i for i, token in enumerate(tokens)}
    symbols = list("▁" + text.replace(" ", "▁")) if text else []
    while True:
        best = None
        for i in range(len(symbols) - 1):
            found = normal.get(symbols[i] + symbols[i + 1])
            if found is not None and (best is None or scores[found] > best[0]):
                best = (scores[found], i)
        if best is None:
            break
        symbols[best[1] : best[1] + 2] = ["".join(symbols[best[1] : best[1] + 2])]
    result: list[int] = []
    for symbol in symbols:
        if symbol in normal:
            result.append(normal[symbol])
        else:
            result += [every[f"<0x{byte:02X}>"] for byte in symbol.encode()]
    return result


def test_sentencepiece_ids_equal_the_definition(sentencepiece: Tokenizer) -> None:
    metadata = sentencepiece_metadata()
    rng = random.Random(7)
    alphabet = ["ab ", "the quick 12", "▁ aéệ😀\n", "abcdefghi <s>/"]
    texts = [text[:300] for text in HARD]
    for trial in range(300):
        characters = alphabet[trial % len(alphabet)]
        texts.append(
            "".join(
                rng.choice(characters) * rng.choice((1, 1, 2, 5)) for _ in range(rng.randint(0, 40))
            )
        )
    for text in texts:
        assert ids(sentencepiece, text) == reference(metadata, text), repr(text)


def test_sentencepiece_ids_equal_transformers(sentencepiece: Tokenizer) -> None:
    transformers = pytest.importorskip("transformers")
    tokens, merges = sentencepiece_parts()
    oracle = transformers.LlamaTokenizer(
        vocab={token: i for i, token in enumerate(tokens)}, merges=list(merges)
    )
    for text in HARD:
        # Transformers' Metaspace adds no space before one; SentencePiece always does.
        if "<s>" not in text and not text.startswith((" ", "▁")):
            expected = oracle.encode(text, add_special_tokens=False)
            assert ids(sentencepiece, text) == expected, repr(text[:60])


@given(st.text(max_size=60))
@settings(max_examples=150, deadline=None)
def test_sentencepiece_roundtrip(text: str) -> None:
    if "spm" not in _CACHE:
        _CACHE["spm"] = Tokenizer.from_gguf_metadata(sentencepiece_metadata())
    ours = _CACHE["spm"]
    found = ids(ours, text)
    assert ours.decode(found) == text.replace("▁", " ")
    assert ours.control_ids.isdisjoint(found)


def test_sentencepiece_prefix_bos_and_byte_text(sentencepiece: Tokenizer) -> None:
    assert sentencepiece.encode("", add_special=True, parse_special=True) == [1]
    assert sentencepiece.encode("", add_special=False, parse_special=True) == []
    whole = sentencepiece.encode("<s>the</s>the", add_special=True, parse_special=True)
    word = ids(sentencepiece, "the")
    assert whole == [1, *word, 2, *word]  # every piece of text gets its space
    assert sentencepiece.id_of("<0x0A>") not in ids(sentencepiece, "<0x0A>")
    assert ids(sentencepiece, "\a")[-1] == sentencepiece.id_of("<0x07>")
    assert sentencepiece.token_bytes(ids(sentencepiece, "the")[0])[:1] == b" "
    bare = Tokenizer.from_gguf_metadata(sentencepiece_metadata(add_space_prefix=False))
    assert not bare.strips_leading_space
    assert bare.decode(ids(bare, " the")) == " the"


def test_sentencepiece_without_scores_follows_the_ids() -> None:
    tokens, _ = sentencepiece_parts()
    flat = Tokenizer.from_gguf_metadata(sentencepiece_metadata(scores=[-1000.0] * len(tokens)))
    scored = Tokenizer.from_gguf_metadata(sentencepiece_metadata())
    for text in HARD:
        assert ids(flat, text) == ids(scored, text)


# ---- metadata ----------------------------------------------------------------------------------


def test_numpy_arrays_and_bytes_are_taken() -> None:
    metadata = byte_level_metadata()
    types = np.array(metadata["tokenizer.ggml.token_type"], dtype=np.int32)
    tokens = [token.encode() for token in metadata["tokenizer.ggml.tokens"]]
    ours = Tokenizer.from_gguf_metadata(byte_level_metadata(token_type=types, tokens=tokens))
    assert ids(ours, "the quick") == ids(_shared("smollm"), "the quick")


def test_user_defined_tokens_are_always_parsed_and_shown() -> None:
    tokens, _ = byte_level_parts()
    types = [CONTROL] * 3 + [NORMAL] * (len(tokens) - 3) + [USER_DEFINED]
    ours = Tokenizer.from_gguf_metadata(
        byte_level_metadata(tokens=[*tokens, "<think>"], token_type=types)
    )
    assert ids(ours, "<think>a")[0] == len(tokens)
    assert ours.decode([len(tokens)]) == "<think>"


def test_end_ids_are_all_of_them() -> None:
    tokens, _ = byte_level_parts()
    extra = ["<|eot_id|>", "<|eom_id|>", "</turn>", "<end_of_turn>"]
    types = [CONTROL] * 3 + [NORMAL] * (len(tokens) - 3) + [CONTROL] * 3 + [NORMAL]
    ours = Tokenizer.from_gguf_metadata(
        byte_level_metadata(
            tokens=[*tokens, *extra], token_type=types, eot_token_id=len(tokens) + 2
        )
    )
    # <|endoftext|>, <|im_end|>, two by name, one by its key; not the ordinary token with such a
    # name
    assert ours.eos_ids == {0, 2, len(tokens), len(tokens) + 1, len(tokens) + 2}


def test_channel_formats_do_not_end_with_a_message() -> None:
    tokens, _ = byte_level_parts()
    extra = ["<|end|>", "<|return|>", "<|call|>"]
    types = [CONTROL] * 3 + [NORMAL] * (len(tokens) - 3) + [CONTROL] * 3
    ours = Tokenizer.from_gguf_metadata(
        byte_level_metadata(tokens=[*tokens, *extra], token_type=types)
    )
    assert ours.eos_ids == {0, 2, len(tokens) + 1, len(tokens) + 2}


def test_bos_by_scheme_and_by_key() -> None:
    assert _shared("smollm").prefix_ids == ()
    assert Tokenizer.from_gguf_metadata(
        byte_level_metadata("llama-bpe", add_bos_token=None)
    ).prefix_ids == (1,)
    both = Tokenizer.from_gguf_metadata(byte_level_metadata(add_bos_token=True, add_eos_token=True))
    assert both.encode("a", add_special=True, parse_special=False)[:1] == [1]
    assert both.encode("a", add_special=True, parse_special=False)[-1:] == [2]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": None}, "tokenizer.ggml.model is missing"),
        ({"tokens": None}, "tokenizer.ggml.tokens is missing"),
        ({"tokens": []}, "tokenizer.ggml.tokens is empty"),
        ({"merges": None}, "tokenizer.ggml.merges is missing"),
        ({"token_type": [1, 2]}, "token_type has 2 entries"),
        ({"eos_token_id": 10**6}, "eos_token_id is 1000000"),
        ({"bos_token_id": None, "add_bos_token": True}, "adds BOS.*bos_token_id is missing"),
        ({"merges": ["x"]}, r"merges\[0\] is 'x'"),
        ({"merges": ["Ġ nosuchtoken"]}, r"merges\[0\]"),
    ],
)
def test_broken_metadata_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        Tokenizer.from_gguf_metadata(byte_level_metadata(**changes))


def test_duplicate_tokens_and_missing_scores_are_named() -> None:
    tokens, _ = byte_level_parts()
    twice = [*tokens[:-1], tokens[5]]
    with pytest.raises(ModelFileError, match="twice, as 5 and"):
        Tokenizer.from_gguf_metadata(byte_level_metadata(tokens=twice))
    with pytest.raises(ModelFileError, match=r"tokenizer\.ggml\.scores is missing"):
        Tokenizer.from_gguf_metadata(sentencepiece_metadata(scores=None))


@pytest.mark.parametrize("model", ["bert", "t5", "rwkv"])
def test_other_vocabularies_are_unsupported(model: str) -> None:
    with pytest.raises(UnsupportedError, match=f"{model}.*known: gpt2, llama"):
        Tokenizer.from_gguf_metadata(byte_level_metadata(model=model))


# ---- the default model -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def smollm2_metadata(smollm2_gguf: Path) -> dict[str, Any]:
    fields = gguf.GGUFReader(smollm2_gguf).fields
    return {name: field.contents() for name, field in fields.items()}


def test_smollm2_equals_its_published_settings(smollm2_metadata: dict[str, Any]) -> None:
    """Digits one by one, then GPT-2's byte-level words: SmolLM2's tokenizer.json, built by hand."""
    ours = Tokenizer.from_gguf_metadata(smollm2_metadata)
    tokens = smollm2_metadata["tokenizer.ggml.tokens"]
    merges = [tuple(entry.split(" ")) for entry in smollm2_metadata["tokenizer.ggml.merges"]]
    oracle = tokenizers.Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    oracle.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True),
        ]
    )
    oracle.decoder = decoders.ByteLevel()
    rng = random.Random(3)
    texts = HARD + [
        "".join(
            chr(rng.choice((rng.randrange(32, 127), rng.randrange(32, 0xD7FF)))) for _ in range(50)
        )
        for _ in range(100)
    ]
    for text in texts:
        expected = oracle.encode(text).ids
        assert ids(ours, text) == expected, repr(text[:60])
        assert ours.decode(expected) == oracle.decode(expected)
    assert ours.eos_ids == {0, 2} and ours.bos_id == 1 and ours.vocab_size == 49152
    assert ours.prefix_ids == () and len(ours.control_ids) == 17
    assert ours.chat_template is not None and "im_start" in ours.chat_template
    special = ours.encode("<|im_start|>user\nHi<|im_end|>", add_special=True, parse_special=True)
    assert special[0] == 1 and special[-1] == 2 and len(special) == 5


def test_types_of_the_helper_match_gguf() -> None:
    assert (NORMAL, CONTROL, USER_DEFINED, BYTE) == (
        gguf.TokenType.NORMAL,
        gguf.TokenType.CONTROL,
        gguf.TokenType.USER_DEFINED,
        gguf.TokenType.BYTE,
    )
