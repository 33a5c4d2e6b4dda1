"""A tokenizer from a checkpoint directory: tokenizer.json and the files around it.

Read: tokenizer.json; tokenizer_config.json (named tokens, added tokens, `add_bos_token`,
template), special_tokens_map.json, generation_config.json and config.json (end tokens, sampling),
chat_template.jinja or chat_template.json.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers

from pumice.errors import ModelFileError, PumiceError, UnsupportedError
from pumice.text.end_tokens import end_ids
from pumice.text.settings import SAMPLING_KEYS, TextSettings

_NAMED = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
_PLAIN = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)


def read_directory(directory: Path) -> tuple[tokenizers.Tokenizer, TextSettings]:
    """The library's tokenizer and the settings around it."""
    data = _json(directory / "tokenizer.json")
    if not data and not (directory / "tokenizer.json").exists():
        raise UnsupportedError(
            f"{directory} has no tokenizer.json",
            hint="A SentencePiece tokenizer.model alone is not read: save the tokenizer with "
            "Transformers, which writes tokenizer.json.",
        )
    config = _json(directory / "tokenizer_config.json")
    try:
        _merge_added(data, config)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise _damaged(directory, "tokenizer.json or tokenizer_config.json", error) from None
    try:
        inner = tokenizers.Tokenizer.from_str(json.dumps(data))
    except Exception as error:  # the library raises bare Exception
        raise _damaged(directory, "tokenizer.json", error) from None
    inner.no_truncation()  # some files carry them; they would change what the template adds
    inner.no_padding()
    try:
        return inner, _settings(directory, config, inner)
    except PumiceError:
        raise
    except (TypeError, ValueError, KeyError, AttributeError) as error:  # a value of another type
        names = "tokenizer_config.json or generation_config.json"
        raise _damaged(directory, names, error) from None


def _damaged(directory: Path, names: str, error: Exception) -> ModelFileError:
    return ModelFileError(f"{directory}: {names} is damaged: {error}")


def _json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{path} cannot be read: {error}") from None
    if not isinstance(data, dict):
        raise ModelFileError(f"{path} holds a {type(data).__name__}; an object is expected")
    return data


def _merge_added(data: dict[str, Any], config: dict[str, Any]) -> None:
    """Adds the config's `added_tokens_decoder` to tokenizer.json's list; the config's flags win."""
    listed = {int(token["id"]): token for token in data.get("added_tokens") or []}
    for key, value in (config.get("added_tokens_decoder") or {}).items():
        number = int(key)
        listed[number] = {**_PLAIN, **listed.get(number, {}), **_flags(value), "id": number}
    data["added_tokens"] = [listed[number] for number in sorted(listed)]


def _flags(value: dict[str, Any]) -> dict[str, Any]:
    keys = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
    return {key: value[key] for key in keys if key in value}


def _content(value: Any) -> str | None:
    """A named token is a string, or an object with `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _settings(directory: Path, config: dict[str, Any], inner: tokenizers.Tokenizer) -> TextSettings:
    named_map = _json(directory / "special_tokens_map.json")
    generation = _json(directory / "generation_config.json")
    named: dict[str, str] = {}
    for name in _NAMED:
        content = _content(config.get(name)) or _content(named_map.get(name))
        if content is not None:
            named[name] = content
    ids = {name: inner.token_to_id(content) for name, content in named.items()}
    bos = ids.get("bos_token")
    if bos is None and isinstance(generation.get("bos_token_id"), int):
        bos = generation["bos_token_id"]
    prefix, suffix = _template_ids(inner)
    prefix = _explicit(config.get("add_bos_token"), prefix, bos, "bos_token")
    eos = ids.get("eos_token")
    suffix = _explicit(config.get("add_eos_token"), suffix, eos, "eos_token")
    added = inner.get_added_tokens_decoder()
    ends = end_ids({token.content: i for i, token in added.items() if token.special})
    if eos is not None:
        ends.add(eos)
    for source in (generation, _json(directory / "config.json")):
        value = source.get("eos_token_id")
        ends |= {int(i) for i in (value if isinstance(value, list) else [value]) if i is not None}
    return TextSettings(
        bos_id=bos,
        eos_ids=frozenset(ends),
        prefix_ids=prefix,
        suffix_ids=suffix,
        special_tokens=named,
        sampling=_sampling(directory, generation),
        chat_template=_chat_template(directory, config),
    )


def _sampling(directory: Path, generation: dict[str, Any]) -> dict[str, Any]:
    """What the authors recommend; ModelFileError when a value is of the wrong kind."""
    found = {k: generation[k] for k in SAMPLING_KEYS if generation.get(k) is not None}
    for key, value in found.items():
        if not isinstance(value, bool if key == "do_sample" else int | float):
            raise ModelFileError(
                f"{directory / 'generation_config.json'}: {key} is {value!r}; allowed: "
                + ("true, false" if key == "do_sample" else "a number"),
                hint="Correct the file, or take the key out of it.",
            )
    return found


def _template_ids(inner: tokenizers.Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What tokenizer.json's post-processor puts before and after a text."""
    plain = inner.encode("a", add_special_tokens=False).ids
    whole = inner.encode("a", add_special_tokens=True).ids
    for start in range(len(whole) - len(plain) + 1):
        if whole[start : start + len(plain)] == plain:
            return tuple(whole[:start]), tuple(whole[start + len(plain) :])
    raise UnsupportedError("tokenizer.json's post-processor changes the tokens of a text")


def _explicit(wanted: Any, found: tuple[int, ...], token: int | None, name: str) -> tuple[int, ...]:
    """`add_bos_token` and `add_eos_token` of the config win over the post-processor."""
    if wanted is None:
        return found
    if not wanted:
        return tuple(i for i in found if i != token)
    if token is None:
        raise ModelFileError(f"tokenizer_config.json adds {name} to a text but does not name it")
    return found if token in found else (token, *found)


def _chat_template(directory: Path, config: dict[str, Any]) -> str | None:
    path = directory / "chat_template.jinja"
    if path.is_file():
        return path.read_bytes().decode("utf-8")
    value = _json(directory / "chat_template.json").get("chat_template")
    if value is None:
        value = config.get("chat_template")
    if isinstance(value, list):  # several, by name
        named = {item["name"]: item["template"] for item in value}
        value = named.get("default")
    return value if isinstance(value, str) else None
