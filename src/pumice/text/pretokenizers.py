"""How byte-level BPE cuts text into words, by the name in GGUF's `tokenizer.ggml.pre`.

A name stands for the `normalizer` and `pre_tokenizer` of the tokenizer.json that the vocabulary
was published with; llama.cpp's `llama-vocab.cpp` lists which names share a scheme. Two facts come
with some names: `ignore_merges` (a word that is a token is taken whole, as tiktoken does) and
whether a BOS is added when the file does not say.
"""

from __future__ import annotations

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
BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|" + _SPACES
)
DEEPSEEK_LETTERS = (
    r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅ"
    r"ὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎ"
    r"ꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+"
)

_CJK_DEEPSEEK = "[一-龥ࠀ-一가-퟿]+"
_CJK_DEEPSEEK3 = "[一-龥぀-ゟ゠-ヿ]+"

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
        DEEPSEEK_LETTERS,
        r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
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
