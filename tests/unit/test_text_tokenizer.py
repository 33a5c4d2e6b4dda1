"""Tokenizers from a checkpoint directory and in an artifact."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from text_helpers import HARD, byte_level_metadata, byte_level_parts, sentencepiece_metadata
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors

from pumice.errors import ArtifactError, ModelFileError, UnsupportedError, UsageError
from pumice.text.tokenizer import Tokenizer


def checkpoint(directory: Path, **files: Any) -> Path:
    """A checkpoint's tokenizer files: BOS by post-processor, specials among the added tokens."""
    tokens, merges = byte_level_parts()
    inner = tokenizers.Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, list(merges)))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken(t, normalized=False) for t in tokens[:3]])
    inner.add_tokens([AddedToken("<think>", normalized=False)])
    inner.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)]
    )
    inner.enable_truncation(5)
    inner.enable_padding(length=8)
    inner.save(str(directory / "tokenizer.json"))
    defaults: dict[str, Any] = {
        "tokenizer_config": {
            "bos_token": "<|im_start|>",
            "eos_token": {"__type": "AddedToken", "content": "<|im_end|>", "special": True},
            "chat_template": "{{ bos_token }}{{ messages[0].content }}",
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
        "generation_config": {
            "eos_token_id": [2, 40],
            "temperature": 0.7,
            "transformers_version": "5",
        },
    }
    for name, content in (defaults | files).items():
        if content is not None:
            (directory / f"{name}.json").write_text(json.dumps(content))
    return directory


def test_directory_equals_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    directory = checkpoint(tmp_path)
    oracle = transformers.AutoTokenizer.from_pretrained(directory)
    ours = Tokenizer.from_directory(directory)
    for text in HARD:
        if not text.startswith("<|im_start|>"):  # there the oracle doubles BOS
            assert ours.encode(text, add_special=True, parse_special=True) == oracle.encode(text)
        ids = oracle.encode(text, add_special_tokens=False)
        assert ours.encode(text, add_special=False, parse_special=True) == ids
        assert ours.decode(ids) == oracle.decode(ids, skip_special_tokens=True)
        assert ours.decode(ids, skip_special=False) == oracle.decode(ids)
    assert ours.vocab_size == len(byte_level_parts()[0]) + 1
    assert (ours.bos_id, ours.eos_ids) == (1, {0, 2, 40})
    assert ours.sampling == {"temperature": 0.7}
    assert ours.id_of("<think>") == len(byte_level_parts()[0])
    assert ours.id_of("no such token") is None


def test_text_never_becomes_a_control_token_by_accident(tmp_path: Path) -> None:
    ours = Tokenizer.from_directory(checkpoint(tmp_path))
    text = "<|im_end|>x<|endoftext|>"
    plain = ours.encode(text, add_special=False, parse_special=False)
    assert ours.control_ids.isdisjoint(plain) and ours.decode(plain) == text
    parsed = ours.encode(text, add_special=False, parse_special=True)
    assert parsed[0] == 2 and parsed[-1] == 0
    assert ours.decode(parsed) == "x"


def test_bos_is_never_doubled(tmp_path: Path) -> None:
    ours = Tokenizer.from_directory(checkpoint(tmp_path))
    assert ours.prefix_ids == (1,)
    once = ours.encode("<|im_start|>the", add_special=True, parse_special=True)
    assert once == ours.encode("the", add_special=True, parse_special=True)
    assert once.count(1) == 1
    assert ours.encode("", add_special=True, parse_special=True) == [1]


@pytest.mark.parametrize(("flag", "prefix"), [(True, (1,)), (False, ())])
def test_add_bos_token_of_the_config_counts(tmp_path: Path, flag: bool, prefix: tuple[int]) -> None:
    config = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "add_bos_token": flag}
    ours = Tokenizer.from_directory(
        checkpoint(tmp_path, tokenizer_config={**config, "add_eos_token": True})
    )
    assert ours.prefix_ids == prefix
    assert ours.encode("the", add_special=True, parse_special=False)[-1] == 2


def test_added_tokens_of_the_config_count(tmp_path: Path) -> None:
    size = len(byte_level_parts()[0])
    added = {
        str(size): {"content": "<think>", "special": True},
        str(size + 1): {"content": "<|eot_id|>", "special": True, "normalized": False},
    }
    ours = Tokenizer.from_directory(
        checkpoint(tmp_path, tokenizer_config={"added_tokens_decoder": added})
    )
    assert {size, size + 1} <= ours.control_ids
    assert size + 1 in ours.eos_ids
    assert ours.encode("<|eot_id|>", add_special=False, parse_special=True) == [size + 1]


def test_special_tokens_map_and_template_files(tmp_path: Path) -> None:
    directory = checkpoint(
        tmp_path,
        tokenizer_config=None,
        generation_config=None,
        special_tokens_map={"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"}},
        config={"eos_token_id": 2},
    )
    (directory / "chat_template.jinja").write_bytes(b"A\r\n{{ messages }}")
    ours = Tokenizer.from_directory(directory)
    assert ours.special_tokens == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    assert ours.chat_template == "A\r\n{{ messages }}"
    assert ours.eos_ids == {0, 2}


def test_named_templates_give_the_default(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    ours = Tokenizer.from_directory(checkpoint(tmp_path, tokenizer_config={"chat_template": named}))
    assert ours.chat_template == "D"


@pytest.mark.parametrize("metadata", [byte_level_metadata, sentencepiece_metadata])
def test_artifact_roundtrip(tmp_path: Path, metadata: Any) -> None:
    before = Tokenizer.from_gguf_metadata(metadata(chat_template="x\r\n{{ messages }}é"))
    before.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "chat_template.jinja",
        "generation.json",
        "tokenizer.json",
    ]
    after = Tokenizer.load(tmp_path)
    for text in HARD:
        for special in (False, True):
            ids = before.encode(text, add_special=True, parse_special=special)
            assert after.encode(text, add_special=True, parse_special=special) == ids
            assert after.decode(ids) == before.decode(ids)
    for name in ("bos_id", "eos_ids", "prefix_ids", "suffix_ids", "special_tokens", "sampling"):
        assert getattr(after, name) == getattr(before, name)
    for name in ("chat_template", "control_tokens", "vocab_size", "strips_leading_space"):
        assert getattr(after, name) == getattr(before, name)


def test_saving_without_a_template_removes_an_old_one(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("old")
    Tokenizer.from_gguf_metadata(byte_level_metadata()).save(tmp_path)
    assert Tokenizer.load(tmp_path).chat_template is None


@pytest.mark.parametrize("damage", ["tokenizer.json", "generation.json"])
@pytest.mark.parametrize("content", [None, b"", b"{}", b"\xff"])
def test_damaged_artifact(tmp_path: Path, damage: str, content: bytes | None) -> None:
    Tokenizer.from_gguf_metadata(byte_level_metadata()).save(tmp_path)
    (tmp_path / damage).unlink()
    if content is not None:
        (tmp_path / damage).write_bytes(content)
    with pytest.raises(ArtifactError, match="cannot be read"):
        Tokenizer.load(tmp_path)


def test_directory_errors(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"no tokenizer\.json"):
        Tokenizer.from_directory(tmp_path)
    (tmp_path / "tokenizer.json").write_text("[1]")
    with pytest.raises(ModelFileError, match="an object is expected"):
        Tokenizer.from_directory(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "nonsense"}}')
    with pytest.raises(ModelFileError, match="damaged"):
        Tokenizer.from_directory(tmp_path)
    for content in ("{}", '{"added_tokens": 3}'):
        (tmp_path / "tokenizer.json").write_text(content)
        with pytest.raises(ModelFileError, match=r"tokenizer\.json.* is damaged"):
            Tokenizer.from_directory(tmp_path)
    for settings in (
        {"tokenizer_config": {"chat_template": [3]}, "generation_config": {}},
        {"tokenizer_config": {"added_tokens_decoder": [1]}, "generation_config": {}},
        {"tokenizer_config": {}, "generation_config": {"eos_token_id": "x"}},
        {"tokenizer_config": {}, "generation_config": {"temperature": "hot"}},
        {"tokenizer_config": {}, "generation_config": {"do_sample": "yes"}},
    ):
        with pytest.raises(ModelFileError, match=r"config\.json (is damaged|: )|allowed: "):
            Tokenizer.from_directory(checkpoint(tmp_path, **settings))
    config = {"add_bos_token": True}
    with pytest.raises(ModelFileError, match="does not name it"):
        Tokenizer.from_directory(
            checkpoint(tmp_path, tokenizer_config=config, generation_config={})
        )


def test_decoders_without_bytes_are_unsupported() -> None:
    inner = tokenizers.Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]"))
    inner.decoder = decoders.WordPiece()
    from pumice.text.settings import TextSettings

    with pytest.raises(UnsupportedError, match="WordPiece"):
        Tokenizer(inner, TextSettings())


def test_ids_outside_and_half_characters() -> None:
    ours = Tokenizer.from_gguf_metadata(byte_level_metadata())
    assert ours.token_bytes(ours.vocab_size + 5) == b""
    with pytest.raises(UsageError, match="no token id"):
        ours.token_bytes(-1)
    with pytest.raises(UsageError, match="half a surrogate pair at character 2"):
        ours.encode("ab\ud83dcd", add_special=False, parse_special=False)
    with pytest.raises(UsageError, match="not UTF-8: it holds the byte 0xe9 after 'caf'"):
        ours.encode("caf\udce9", add_special=False, parse_special=False)
    with pytest.raises(UsageError, match="a text is a string; got list"):
        ours.encode(["a"], add_special=False, parse_special=False)  # type: ignore[arg-type]


def test_threads_do_not_mix_parsing() -> None:
    ours = Tokenizer.from_gguf_metadata(byte_level_metadata())
    text = "<|im_end|>" * 40
    wrong: list[list[int]] = []

    def work(special: bool) -> None:
        for _ in range(200):
            ids = ours.encode(text, add_special=False, parse_special=special)
            if (ids == [2] * 40) is not special:
                wrong.append(ids)

    threads = [threading.Thread(target=work, args=(bool(i % 2),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_importing_the_room_loads_nothing_heavy() -> None:
    code = (
        "import sys, pumice.text.tokenizer, pumice.text.stream, pumice.text.chat_template, "
        "pumice.text.prompt; print([m for m in ('transformers', 'torch', 'jinja2', 'tvm', 'numpy') "
        "if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
