"""How byte-level BPE cuts text into words, by the name in GGUF's `tokenizer.ggml.pre`.

A name stands for the `normalizer` and `pre_tokenizer` of the tokenizer.json that the vocabulary
was published with; llama.cpp's `llama-vocab.cpp` lists which names share a scheme. Two facts come
with some names: `ignore_merges` (a word that is a token is taken whole, as tiktoken does) and
whether a BOS is added when the file does not say.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tokenizers import Regex, normalizers, pre_tokenizers

from pumice.errors import UnsupportedError

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_CASED = (  # words that end where the case changes, as GPT-4o's and Tekken's
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%(tail)s"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%(tail)s"
    r"|%(digits)s| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES
)
QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES
QWEN35 = (
    _CONTRACTIONS
    + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|"
    + _SPACES
)
SEED_CODER = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|" + _SPACES
BAILING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
TEKKEN = _CASED % {"tail": "", "digits": r"\p{N}"}
GPT4O = _CASED % {"tail": _CONTRACTIONS + "?", "digits": r"\p{N}{1,3}"}
BLOOM = r" ?[^(\s|.,!?\x{2026}\x{3002}\x{FF0C}\x{3001}\x{0964}\x{06D4}\x{060C})]+"
DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|" + _SPACES
)
_LETTERS = (
    # Cased letters by code point: written out, some change under Unicode normalization.
    "0041-005A 0061-007A 00B5 00C0-00D6 00D8-00F6 00F8-01BA 01BC-01BF 01C4-0293 0295-02AF "
    "0370-0373 0376 0377 037B-037D 037F 0386 0388-038A 038C 038E-03A1 03A3-03F5 03F7-0481 "
    "048A-052F 0531-0556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B 1D6B-1D77 "
    "1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D "
    "1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 "
    "1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 212A-212D 212F-2134 2139 "
    "213C-213F 2145-2149 214E 2183 2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D "
    "A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A "
    "10400-1044F 104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943"
)


def _class(ranges: str) -> str:
    """A character class from hexadecimal code points and ranges of them."""
    return "[" + re.sub(r"([0-9A-F]+) ?", r"\\x{\1}", ranges) + "]"


_CJK_DEEPSEEK = _class("4E00-9FA5 0800-4E00 AC00-D7FF") + "+"
_CJK_DEEPSEEK3 = _class("4E00-9FA5 3040-309F 30A0-30FF") + "+"
_PUNCTUATION = _class("0021-002F 003A-007E FF01-FF0F FF1A-FF5E 2018-201F 3000-3002") + "+"

Step = Any  # a tokenizers.pre_tokenizers.PreTokenizer; the library's stubs differ between releases


def _split(*patterns: str) -> list[Step]:
    return [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]


def _bytes(use_regex: bool = False) -> Step:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


def _regex(*patterns: str) -> Callable[[], list[Step]]:
    return lambda: [*_split(*patterns), _bytes()]


def _gpt2() -> list[Step]:
    return [_bytes(use_regex=True)]


def _digits_gpt2() -> list[Step]:
    return [pre_tokenizers.Digits(individual_digits=True), _bytes(use_regex=True)]


def _falcon() -> list[Step]:
    return [
        pre_tokenizers.Punctuation("contiguous"),
        _bytes(use_regex=True),
        pre_tokenizers.Digits(individual_digits=False),
        *_split("[0-9][0-9][0-9]"),
    ]


def _viking() -> list[Step]:
    return [*_split(BLOOM), pre_tokenizers.Digits(individual_digits=True), _bytes()]


def _deepseek_llm() -> list[Step]:
    # `\s+$` as published is quadratic on a long run of spaces that does not end the text. A match
    # always begins a run, so the look-behind changes no result.
    patterns = (
        r"[\r\n]",
        r"\s?" + _class(_LETTERS) + "+",
        r"\s?" + _PUNCTUATION,
        r"(?<!\s)\s+$",
        _CJK_DEEPSEEK,
    )
    return [*_split(*patterns), pre_tokenizers.Digits(individual_digits=True), _bytes()]


def _deepseek_coder() -> list[Step]:
    patterns = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK_DEEPSEEK)
    return [*_split(*patterns), pre_tokenizers.Digits(individual_digits=True), _bytes()]


@dataclass(frozen=True)
class PreTokenizer:
    """A scheme. `names` are the values of `tokenizer.ggml.pre` that mean it."""

    names: tuple[str, ...]
    steps: Callable[[], list[Step]]
    ignore_merges: bool = False
    add_bos: bool = False
    nfc: bool = False

    def pre_tokenizer(self) -> Any:
        """A fresh pre-tokenizer of the `tokenizers` library."""
        return pre_tokenizers.Sequence(self.steps())

    def normalizer(self) -> Any | None:
        """A fresh normalizer, or None when the text is taken as it is."""
        return normalizers.NFC() if self.nfc else None


SCHEMES = (
    PreTokenizer(
        ("default",),
        _regex(r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
    ),
    PreTokenizer(
        (
            *("gpt-2", "phi-2", "gigachat", "a.x-4.0", "mellum", "exaone4", "jais"),
            *("trillion", "granite-docling"),
        ),
        _gpt2,
    ),
    PreTokenizer(("olmo", "mpt"), _gpt2, nfc=True),  # GPT-NeoX's vocabulary
    PreTokenizer(
        ("smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b", "mellum2"),
        _digits_gpt2,
    ),
    PreTokenizer(("command-r",), _digits_gpt2, nfc=True),
    PreTokenizer(
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
        _regex(LLAMA3),
        ignore_merges=True,
        add_bos=True,
    ),
    PreTokenizer(("dbrx", "smaug-bpe", "chatglm-bpe"), _regex(LLAMA3)),
    PreTokenizer(("glm4", "glm5"), _regex(LLAMA3), ignore_merges=True),
    PreTokenizer(
        ("qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez"), _regex(QWEN2), nfc=True
    ),
    PreTokenizer(("stablelm2", "hunyuan", "solar-open", "grok-2"), _regex(QWEN2)),
    PreTokenizer(("qwen35",), _regex(QWEN35), nfc=True),
    PreTokenizer(("seed-coder",), _regex(SEED_CODER)),
    PreTokenizer(("bailingmoe", "bailingmoe2", "llada-moe"), _regex(BAILING)),
    PreTokenizer(("tekken",), _regex(TEKKEN), ignore_merges=True, add_bos=True),
    PreTokenizer(("gpt-4o", "llama4", "kanana2"), _regex(GPT4O)),
    PreTokenizer(("deepseek-llm",), _deepseek_llm),
    PreTokenizer(("deepseek-coder",), _deepseek_coder),
    PreTokenizer(
        ("deepseek-v3", "hunyuan-dense", "joyai-llm"),
        _regex(r"\p{N}{1,3}", _CJK_DEEPSEEK3, DEEPSEEK3),
    ),
    PreTokenizer(("falcon",), _falcon),
    PreTokenizer(("bloom", "poro-chat", "gpt3-finnish"), _regex(BLOOM)),
    PreTokenizer(("viking",), _viking),
)


def known_names() -> list[str]:
    """Every value of `tokenizer.ggml.pre` that is known, sorted."""
    return sorted(name for scheme in SCHEMES for name in scheme.names)


def find(name: str) -> PreTokenizer:
    """The scheme of a name; UnsupportedError names those that are known."""
    for scheme in SCHEMES:
        if name in scheme.names:
            return scheme
    raise UnsupportedError(
        f"the pre-tokenizer {name!r} (tokenizer.ggml.pre) is not known; known: "
        + ", ".join(known_names()),
        hint="Use the model's safetensors with their tokenizer.json instead of this GGUF.",
    )
