"""The GGUF reader on valid files: against gguf-py, split models, alignment."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf as oracle
import numpy as np
import pytest
from gguf_bytes import (
    ARRAY,
    F32,
    INT32,
    KEYS,
    MATRIX,
    STRING,
    UINT16,
    UINT32,
    VECTOR,
    Tensor,
    array,
    gguf,
    key,
    text,
    u32,
)

from pumice.errors import ModelFileError
from pumice.weights.gguf import GGUFFile
from pumice.weights.source import open_source


def _write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_reads_what_was_written(tmp_path: Path) -> None:
    with GGUFFile.open(_write(tmp_path / "a.gguf", gguf())) as file:
        assert file.metadata == {
            "general.architecture": "llama",
            "general.flag": True,
            "general.eps": 0.5,
            "tokens": ["a", "é", b"\xff"],
            "types": [-1, 2, 3],
            "flags": [False, True],
        }
        assert list(file.tensors) == ["w.weight", "n.weight"]
        matrix = file.info("w.weight")
        assert (matrix.shape, matrix.type, matrix.nbytes) == ((3, 64), "Q8_0", 204)
        assert file.raw("w.weight").shape == (3, 68)
        assert file.raw("w.weight").tobytes() == MATRIX.data
        assert file.raw("n.weight").view(np.float32).tolist() == [[1, 2, 3, 4, 5]]
        file.release("w.weight")
        assert file.raw("w.weight").tobytes() == MATRIX.data
        with pytest.raises(ModelFileError, match="no tensor 'x'"):
            file.raw("x")


def test_views_outlive_close(tmp_path: Path) -> None:
    file = GGUFFile.open(_write(tmp_path / "a.gguf", gguf()))
    view = file.raw("w.weight")
    file.close()
    assert view.tobytes() == MATRIX.data


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [8, 16, 64, 256])
def test_alignment_and_version(tmp_path: Path, version: int, alignment: int) -> None:
    vector = Tensor("n.weight", (5,), F32, 256, VECTOR.data)
    keys = (*KEYS, key("general.alignment", UINT32, u32(alignment)))
    data = gguf(keys, (MATRIX, vector), version=u32(version), alignment=alignment)
    with GGUFFile.open(_write(tmp_path / "a.gguf", data)) as file:
        assert file.raw("n.weight").tobytes() == VECTOR.data


def test_no_tensors(tmp_path: Path) -> None:
    with GGUFFile.open(_write(tmp_path / "v.gguf", gguf(tensors=()))) as file:
        assert not file.tensors


def test_agrees_with_gguf_py(tmp_path: Path) -> None:
    """A file made by the format's own library, read by both."""
    rng = np.random.default_rng(1)
    path = tmp_path / "o.gguf"
    writer = oracle.GGUFWriter(path, "llama")
    writer.add_uint32("llama.block_count", 7)
    writer.add_float32("llama.eps", 1e-5)
    writer.add_token_list([f"t{i}" for i in range(1000)])
    writer.add_token_scores([i / 3 for i in range(1000)])
    made = {}
    for index, kind in enumerate(("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")):
        value = rng.standard_normal((7 + index, 96)).astype(np.float32)
        quant = oracle.GGMLQuantizationType[kind]
        made[f"t{index}.weight"] = oracle.quants.quantize(value, quant)
        writer.add_tensor(f"t{index}.weight", made[f"t{index}.weight"], raw_dtype=quant)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    reference: Any = oracle.GGUFReader(path)
    with GGUFFile.open(path) as file:
        assert list(file.tensors) == [t.name for t in reference.tensors]
        for tensor in reference.tensors:
            info = file.info(tensor.name)
            assert info.shape == tuple(int(n) for n in reversed(tensor.shape))
            assert (info.offset, info.nbytes) == (tensor.data_offset, tensor.n_bytes)
            assert file.raw(tensor.name).tobytes() == np.asarray(made[tensor.name]).tobytes()
        assert file.metadata["llama.block_count"] == 7
        assert file.metadata["tokenizer.ggml.tokens"][999] == "t999"
        assert file.metadata["tokenizer.ggml.scores"] == pytest.approx([i / 3 for i in range(1000)])


def _u16(value: int) -> bytes:
    return struct.pack("<H", value)


def _split(folder: Path, count: int = 3, total: int | None = None) -> list[Path]:
    paths = []
    for index in range(count):
        keys = [
            key("split.no", UINT16, _u16(index)),
            key("split.count", UINT16, _u16(count)),
            key("split.tensors.count", INT32, struct.pack("<i", total or count)),
        ]
        if index == 0:
            keys += KEYS
        tensor = Tensor(f"w{index}.weight", (64, 3), MATRIX.kind, 0, bytes([index] * 204))
        name = f"m-{index + 1:05d}-of-{count:05d}.gguf"
        paths.append(_write(folder / name, gguf(keys, [tensor])))
    return paths


def test_split_model(tmp_path: Path) -> None:
    paths = _split(tmp_path)
    with GGUFFile.open(paths[0]) as file:
        assert list(file.tensors) == ["w0.weight", "w1.weight", "w2.weight"]
        for index in range(3):
            assert set(file.raw(f"w{index}.weight").tobytes()) == {index}
    with open_source(tmp_path) as source:  # a directory with one split model
        assert len(source.names()) == 3


def test_later_part_names_the_first(tmp_path: Path) -> None:
    paths = _split(tmp_path)
    with pytest.raises(ModelFileError, match="part 2 of 3") as caught:
        GGUFFile.open(paths[1])
    assert str(paths[0]) in str(caught.value)


def test_missing_part_is_named(tmp_path: Path) -> None:
    paths = _split(tmp_path)
    paths[1].unlink()
    with pytest.raises(ModelFileError, match=paths[1].name):
        GGUFFile.open(paths[0])


def test_renamed_first_part(tmp_path: Path) -> None:
    paths = _split(tmp_path)
    renamed = paths[0].rename(tmp_path / "model.gguf")
    with pytest.raises(ModelFileError, match="-00001-of-00003"):
        GGUFFile.open(renamed)


def test_swapped_parts(tmp_path: Path) -> None:
    paths = _split(tmp_path)
    data = paths[1].read_bytes()
    paths[1].write_bytes(paths[2].read_bytes())
    paths[2].write_bytes(data)
    with pytest.raises(ModelFileError, match=r"split\.no is 2; as part 2 it must be 1"):
        GGUFFile.open(paths[0])


def test_wrong_total(tmp_path: Path) -> None:
    paths = _split(tmp_path, total=9)
    with pytest.raises(ModelFileError, match=r"split\.tensors\.count is 9"):
        GGUFFile.open(paths[0])


def test_truncated_part_is_named(tmp_path: Path) -> None:
    paths = _split(tmp_path)
    paths[2].write_bytes(paths[2].read_bytes()[:-8])
    with pytest.raises(ModelFileError, match=paths[2].name):
        GGUFFile.open(paths[0])


def test_name_of_a_part_without_split_keys(tmp_path: Path) -> None:
    path = _write(tmp_path / "m-00002-of-00003.gguf", gguf())
    with pytest.raises(ModelFileError, match="part 2 of 3"):
        GGUFFile.open(path)


def test_large_vocabulary_is_whole(tmp_path: Path) -> None:
    words = [f"token {i}" for i in range(60_000)]
    tokens = key("tokens", ARRAY, array(STRING, len(words), b"".join(map(text, words))))
    with GGUFFile.open(_write(tmp_path / "a.gguf", gguf([tokens]))) as file:
        assert file.metadata["tokens"] == words


def test_default_model(smollm2_gguf: Path) -> None:
    with GGUFFile.open(smollm2_gguf) as file:
        assert len(file.metadata["tokenizer.ggml.tokens"]) == 49152
        assert len(file.tensors) == 2 + 30 * 9  # embedding, last norm; nine tensors a layer
        assert file.info("token_embd.weight").shape == (49152, 576)
        last = max(file.tensors.values(), key=lambda t: t.offset)
        assert 0 <= smollm2_gguf.stat().st_size - (last.offset + last.nbytes) < 32
