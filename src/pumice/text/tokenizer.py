"""Text to token ids and back, for every vocabulary that Pumice runs.

The work is done by the `tokenizers` library; this class adds what surrounds it: which tokens
begin and end a text, which are control tokens, the bytes of a token, and the files that carry it
all in an artifact.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from pumice.errors import ArtifactError, UnsupportedError, UsageError
from pumice.files import storage_error
from pumice.text import pieces
from pumice.text.settings import TextSettings

TOKENIZER_FILE = "tokenizer.json"
TEMPLATE_FILE = "chat_template.jinja"
SETTINGS_FILE = "generation.json"


class Tokenizer:
    """A vocabulary with its rules.

    bos_id: the token that begins a text, or None. eos_ids: every token that ends a generation.
    control_tokens: text → id of the tokens that no user's text may become. control_ids: their ids.
    special_tokens: `bos_token`, `eos_token`, … → text, as chat templates name them.
    strips_leading_space: True when the vocabulary puts a space before a text's first word, which
    decoding takes away.
    chat_template: Jinja source, or None. sampling: the authors' recommendation, may be empty.
    """

    def __init__(self, inner: tokenizers.Tokenizer, settings: TextSettings) -> None:
        """Wraps a `tokenizers.Tokenizer`. UnsupportedError when its tokens have no bytes each."""
        self._inner = inner
        self._lock = threading.Lock()  # encode_special_tokens is state of the library's object
        self._settings = settings
        self._byte_level, self.strips_leading_space = _decoding(inner)
        added = inner.get_added_tokens_decoder()
        self._added = {i: token.content for i, token in added.items()}
        self.control_tokens = {token.content: i for i, token in added.items() if token.special}
        self.control_ids = frozenset(self.control_tokens.values())
        self._bytes: dict[int, bytes] = {}
        self.bos_id = settings.bos_id
        self.eos_ids = settings.eos_ids
        self.prefix_ids = settings.prefix_ids
        self.suffix_ids = settings.suffix_ids
        self.special_tokens = dict(settings.special_tokens)
        self.sampling = dict(settings.sampling)
        self.chat_template = settings.chat_template

    @staticmethod
    def from_directory(directory: Path) -> Tokenizer:
        """From a checkpoint's tokenizer.json and the *_config.json files that are beside it."""
        from pumice.text.checkpoint import read_directory

        return Tokenizer(*read_directory(Path(directory)))

    @staticmethod
    def from_gguf_metadata(metadata: Mapping[str, Any]) -> Tokenizer:
        """From a GGUF file's keys (`tokenizer.ggml.*`); arrays may be lists or NumPy arrays.

        ModelFileError when keys are missing or contradict each other, UnsupportedError for a
        vocabulary or a pre-tokenizer that is not known.
        """
        from pumice.text.gguf_vocabulary import read_metadata

        return Tokenizer(*read_metadata(metadata))

    @staticmethod
    def load(directory: Path) -> Tokenizer:
        """From an artifact, as `save` wrote it. ArtifactError when a file is missing or damaged."""
        directory = Path(directory)
        try:
            inner = tokenizers.Tokenizer.from_file(str(directory / TOKENIZER_FILE))
            data = json.loads((directory / SETTINGS_FILE).read_text(encoding="utf-8"))
            template = directory / TEMPLATE_FILE
            source = _read_exactly(template) if template.is_file() else None
            settings = TextSettings.from_json(data, source)
        except Exception as error:  # the library raises a bare Exception for a damaged file
            raise ArtifactError(
                f"the tokenizer of {directory} cannot be read: {error}",
                hint="Compile the model again: pumice compile MODEL --rebuild",
            ) from None
        return Tokenizer(inner, settings)

    def save(self, directory: Path) -> None:
        """Writes tokenizer.json, generation.json and, when there is one, chat_template.jinja."""
        directory = Path(directory)
        settings = json.dumps(self._settings.to_json(), indent=1, ensure_ascii=False)
        template = directory / TEMPLATE_FILE
        try:
            (directory / TOKENIZER_FILE).write_text(self._inner.to_str(), encoding="utf-8")
            (directory / SETTINGS_FILE).write_text(settings, encoding="utf-8")
            if self.chat_template is None:
                template.unlink(missing_ok=True)
            else:
                template.write_bytes(self.chat_template.encode("utf-8"))
        except OSError as error:
            raise storage_error(error, directory) from error

    @cached_property
    def vocab_size(self) -> int:
        """The largest id plus one. The model's embedding may have more rows."""
        return 1 + max(self._inner.get_vocab(with_added_tokens=True).values(), default=-1)

    def id_of(self, token: str) -> int | None:
        """The id of a token by its text in the vocabulary, or None."""
        found: int | None = self._inner.token_to_id(token)
        return found

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids of a text.

        add_special: put the vocabulary's BOS (and EOS, if it has the habit) around the text,
        unless it is there already: a template that writes BOS never leads to two. parse_special:
        the text of a control token becomes that token; without it, it is text like any other and
        no control token comes out.
        """
        try:
            with self._lock:
                self._inner.encode_special_tokens = not parse_special
                ids: list[int] = self._inner.encode(text, add_special_tokens=False).ids
        except TypeError:  # what the library says of a string that has no UTF-8
            raise _no_text(text) from None
        if not parse_special and not self.control_ids.isdisjoint(ids):
            ids = self._without_control(ids)
        if add_special:
            ids = self.with_prefix(ids)
            suffix = list(self.suffix_ids)
            if suffix and ids[-len(suffix) :] != suffix:
                ids = ids + suffix
        return ids

    def with_prefix(self, ids: list[int]) -> list[int]:
        """`ids` after the tokens that begin a text, unless they begin with them already."""
        prefix = list(self.prefix_ids)
        return ids if ids[: len(prefix)] == prefix else prefix + ids

    def _without_control(self, ids: list[int]) -> list[int]:
        """Spells out control tokens that a whole word of the text happened to be."""
        plain: list[int] = []
        for i in ids:
            if i not in self.control_ids:
                plain.append(i)
                continue
            for character in self._inner.id_to_token(i) or "":
                plain += [token.id for token in self._inner.model.tokenize(character)]
        return plain

    def token_bytes(self, token: int) -> bytes:
        """The bytes a token adds to a text. Ids without a token (padded embeddings) add none."""
        known = self._bytes.get(token)
        if known is None:
            known = self._bytes[token] = self._token_bytes(token)
        return known

    def _token_bytes(self, token: int) -> bytes:
        if token < 0:
            raise UsageError(f"{token} is no token id; ids begin at 0")
        content = self._added.get(token)
        if content is not None:
            if not self._byte_level and token not in self.control_ids:
                content = content.replace(pieces.SPACE, " ")
            return content.encode("utf-8")
        piece = self._inner.id_to_token(token)
        if piece is None:
            return b""
        if self._byte_level:
            return pieces.byte_level_bytes(piece)
        return pieces.sentencepiece_bytes(piece)

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """The text of token ids; bytes that are no UTF-8 become U+FFFD.

        skip_special: leave control tokens out.
        """
        controls = self.control_ids if skip_special else frozenset()
        data = b"".join(self.token_bytes(i) for i in ids if i not in controls)
        if self.strips_leading_space and data.startswith(b" "):
            data = data[1:]
        return data.decode("utf-8", "replace")


def _no_text(text: Any) -> UsageError:
    """Says why the library does not take `text`."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        byte = ord(text[error.start]) - 0xDC00
        if 0x80 <= byte <= 0xFF:  # PEP 383: a byte from outside that is no UTF-8
            before = text[max(0, error.start - 20) : error.start]
            return UsageError(
                f"the text is not UTF-8: it holds the byte 0x{byte:02x} after {before!r}"
            )
        return UsageError(
            f"the text holds half a surrogate pair at character {error.start}: "
            f"{text[error.start]!r} is no character"
        )
    except AttributeError:
        pass
    return UsageError(f"a text is a string; got {type(text).__name__}")


def _read_exactly(path: Path) -> str:
    return path.read_bytes().decode("utf-8")  # read_text would turn \r\n into \n


def _steps(state: Any, key: str) -> list[dict[str, Any]]:
    """A decoder or pre-tokenizer as a flat list of its steps."""
    if state is None:
        return []
    data = json.loads(state.__getstate__())
    return _flatten(data, key)


def _flatten(data: dict[str, Any], key: str) -> list[dict[str, Any]]:
    if data.get("type") != "Sequence":
        return [data]
    return [step for part in data.get(key, []) for step in _flatten(part, key)]


def _decoding(inner: tokenizers.Tokenizer) -> tuple[bool, bool]:
    """(byte level, takes one leading space away), from the decoder."""
    steps = _steps(inner.decoder, "decoders")
    kinds = {step["type"] for step in steps}
    before = {step["type"] for step in _steps(inner.pre_tokenizer, "pretokenizers")}
    if "ByteLevel" in kinds or (not kinds and "ByteLevel" in before):
        return True, False
    if "Metaspace" in kinds or "ByteFallback" in kinds or "Replace" in kinds:
        strips = any(
            (step["type"] == "Strip" and step.get("content") == " " and step.get("start", 0) > 0)
            or (step["type"] == "Metaspace" and step.get("prepend_scheme", "always") != "never")
            for step in steps
        )
        return False, strips
    raise UnsupportedError(
        "the tokenizer's decoder is neither byte-level nor SentencePiece-style: "
        f"{', '.join(sorted(kinds)) or 'none'}",
    )
