"""Safetensors files and directories: read, checked against the index, and damaged in every way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save, save_file

from pumice.errors import ModelFileError, UnsupportedError
from pumice.weights.checkpoint import INDEX
from pumice.weights.safetensors import SafetensorsFile
from pumice.weights.source import open_source

RNG = np.random.default_rng(3)
TENSORS = {
    "a.weight": RNG.standard_normal((5, 64)).astype(np.float32),
    "b.weight": RNG.standard_normal((3, 7)).astype(np.float16),
    "c.weight": RNG.standard_normal((2, 32)).astype(ml_dtypes.bfloat16),
    "d.bias": RNG.standard_normal(9).astype(np.float32),
}
GOOD = save({k: v for k, v in TENSORS.items() if k != "c.weight"})


def _blob(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def _entry(dtype: str = "F32", shape: object = (2,), span: object = (0, 8)) -> dict[str, Any]:
    return {"t": {"dtype": dtype, "shape": shape, "data_offsets": span}}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    save_file(TENSORS, tmp_path / "model.safetensors")
    return tmp_path


def _shards(folder: Path, *, index: bool = True) -> list[Path]:
    (folder / "config.json").write_text("{}")
    names = list(TENSORS)
    paths, listed = [], {}
    for i, group in enumerate((names[:2], names[2:3], names[3:])):
        path = folder / f"model-{i + 1:05d}-of-00003.safetensors"
        save_file({n: TENSORS[n] for n in group}, path)
        listed |= {n: path.name for n in group}
        paths.append(path)
    if index:
        (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": listed}))
    return paths


def _check_all(folder: Path) -> None:
    with open_source(folder) as source:
        assert set(source.names()) == set(TENSORS)
        for name, value in TENSORS.items():
            fmt, got = source.affine_or_dense(name)
            assert fmt is source.format(name)
            assert got.dtype == value.dtype
            assert source.shape(name) == value.shape
            assert got.tobytes() == value.tobytes()
            source.release(name)


def test_one_file(directory: Path) -> None:
    _check_all(directory)
    with open_source(directory) as source:
        assert source.kind == "safetensors"
        assert source.config == {"model_type": "llama"}
        with pytest.raises(ModelFileError, match="no tensor 'x'"):
            source.affine_or_dense("x")


@pytest.mark.parametrize("index", [True, False])
def test_shards(tmp_path: Path, index: bool) -> None:
    _shards(tmp_path, index=index)
    _check_all(tmp_path)


@pytest.mark.parametrize("index", [True, False])
def test_missing_shard_is_named(tmp_path: Path, index: bool) -> None:
    paths = _shards(tmp_path, index=index)
    paths[1].unlink()
    with pytest.raises(ModelFileError, match=paths[1].name):
        open_source(tmp_path)


def test_truncated_shard_is_named(tmp_path: Path) -> None:
    paths = _shards(tmp_path)
    paths[2].write_bytes(paths[2].read_bytes()[:-1])
    with pytest.raises(ModelFileError, match=rf"{paths[2].name}: tensor 'd\.bias' needs bytes"):
        open_source(tmp_path)


def test_index_names_a_tensor_that_is_not_there(tmp_path: Path) -> None:
    paths = _shards(tmp_path)
    index = json.loads((tmp_path / INDEX).read_text())
    index["weight_map"]["ghost"] = paths[0].name
    (tmp_path / INDEX).write_text(json.dumps(index))
    with pytest.raises(ModelFileError, match="'ghost' is in model-00001"):
        open_source(tmp_path)


@pytest.mark.parametrize("place", ["../x.safetensors", "/etc/passwd", "..", 3])
def test_index_points_outside(tmp_path: Path, place: object) -> None:
    _shards(tmp_path)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a.weight": place}}))
    with pytest.raises(ModelFileError, match="no file beside it"):
        open_source(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"weight_map": []}', "[" * 100_000])
def test_damaged_index(tmp_path: Path, text: str) -> None:
    _shards(tmp_path)
    (tmp_path / INDEX).write_text(text)
    with pytest.raises(ModelFileError, match=INDEX):
        open_source(tmp_path)


def test_same_tensor_in_two_files(tmp_path: Path) -> None:
    paths = _shards(tmp_path, index=False)
    save_file({"a.weight": TENSORS["a.weight"]}, paths[2])
    with pytest.raises(ModelFileError, match=r"'a\.weight' is in model-00001.* and in model-00003"):
        open_source(tmp_path)


def test_directories_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="holds no model"):
        open_source(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelFileError, match=r"no \.safetensors"):
        open_source(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK")
    with pytest.raises(UnsupportedError, match="PyTorch pickles"):
        open_source(tmp_path)


def test_one_file_of_a_directory(directory: Path) -> None:
    with pytest.raises(ModelFileError, match="its directory") as caught:
        open_source(directory / "model.safetensors")
    assert str(directory) in str(caught.value.hint)


@pytest.mark.parametrize("method", ["gptq", "fp8"])
def test_other_tools_quantization(directory: Path, method: str) -> None:
    (directory / "config.json").write_text(
        json.dumps({"quantization_config": {"quant_method": method}})
    )
    with pytest.raises(UnsupportedError, match=method):
        open_source(directory)


def test_integer_tensors_are_listed_but_no_weights(directory: Path) -> None:
    save_file({"ids": np.arange(4)}, directory / "model.safetensors")
    with open_source(directory) as source:
        assert source.names() == ("ids",)
        with pytest.raises(UnsupportedError, match="has type I64; allowed: F32, F16, BF16"):
            source.affine_or_dense("ids")


CASES: dict[str, tuple[bytes, str]] = {
    "zero bytes": (b"", "no bytes"),
    "seven bytes": (GOOD[:7], "cut off"),
    "lfs pointer": (b"version https://git-lfs.github.com/spec/v1\noid", "Git LFS"),
    "web page": (b"<!doctype html><html>", "web page"),
    "gguf": (b"GGUF\x03\0\0\0{", "GGUF file"),
    "zip": (b"PK\x03\x04        ", "zip"),
    "header longer than the file": (GOOD[:100], "header needs bytes"),
    "header length overflow": (b"\xff" * 8 + GOOD[8:], "no safetensors"),
    "no json": (_blob(b"{not json"), "header is damaged"),
    "deep json": (_blob(b'{"a":' + b"[" * 200_000), "header is damaged"),
    "not utf-8": (_blob(b'{"\xff": 1}'), "header is damaged"),
    "twice": (_blob(b'{"a": {}, "a": {}}'), "'a' appears twice"),
    "entry no object": (_blob({"t": 3}), "no JSON object"),
    "no dtype": (_blob({"t": {"shape": [1]}}), "dtype is None"),
    "negative shape": (_blob(_entry(shape=[-2])), "shape is"),
    "bool shape": (_blob(_entry(shape=[True])), "shape is"),
    "shape text": (_blob(_entry(shape="2")), "shape is"),
    "huge shape": (_blob(_entry(shape=[1 << 61, 1 << 61])), "takes"),
    "one offset": (_blob(_entry(span=[0])), "data_offsets are"),
    "backwards": (_blob(_entry(span=[8, 0])), "run backwards"),
    "wrong size": (_blob(_entry(span=[0, 12])), "takes 8 bytes; data_offsets give 12"),
    "cut data": (GOOD[:-1], "needs bytes .* the file ends at"),
    "overlap": (
        _blob({**_entry(), "u": _entry(span=(4, 12))["t"]}, bytes(12)),
        "'t' and 'u' overlap",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_bad_file(tmp_path: Path, case: str) -> None:
    data, message = CASES[case]
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    with pytest.raises(ModelFileError, match=message) as caught:
        SafetensorsFile(path)
    assert str(path) in str(caught.value)


_FLIP = st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255))


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(_FLIP, max_size=5), st.integers(0, len(GOOD)))
def test_random_damage(
    tmp_path_factory: pytest.TempPathFactory, flips: list[tuple[int, int]], cut: int
) -> None:
    data = bytearray(GOOD)
    for at, value in flips:
        data[at] = value
    path = tmp_path_factory.getbasetemp() / "fuzz.safetensors"
    path.write_bytes(bytes(data if cut % 2 else data[:cut]))
    try:
        file = SafetensorsFile(path)
        for name, tensor in file.tensors.items():
            assert file.array(name).nbytes == tensor.nbytes
        file.close()
    except (ModelFileError, UnsupportedError) as error:
        assert str(path) in str(error)
