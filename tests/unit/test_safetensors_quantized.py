"""Quantizing on load, and directories that `write_quantized` makes."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from gguf_bytes import gguf
from safetensors.numpy import load_file, save_file

from pumice.errors import ModelFileError, StorageError, UnsupportedError, UsageError
from pumice.quantization import AffineWeight, get_format
from pumice.quantization.pack import dequantize
from pumice.weights import quantize as quantize_module
from pumice.weights import write as write_module
from pumice.weights.quantize import Quantized, is_float, quantize_matrix
from pumice.weights.source import open_source
from pumice.weights.write import write_quantized

RNG = np.random.default_rng(7)
TENSORS = {
    "model.embed_tokens.weight": RNG.standard_normal((31, 64)).astype(ml_dtypes.bfloat16),
    "model.layers.0.mlp.up_proj.weight": RNG.standard_normal((17, 64)).astype(np.float16),
    "model.odd.weight": RNG.standard_normal((3, 40)).astype(np.float32),
    "model.layers.0.mlp.up_proj.bias": RNG.standard_normal(17).astype(np.float16),
    "model.norm.weight": RNG.standard_normal(64).astype(np.float32),
}
MATRICES = ("model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight")
FORMATS = ("q4f16_1", "q4f16_1_min", "q8f16")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    folder = tmp_path / "float"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama", "torch_dtype": "bfloat16"}')
    for name in ("tokenizer.json", "generation_config.json", "chat_template.jinja", "LICENSE"):
        (folder / name).write_text(f"{name} é")
    (folder / "README.md").write_text("no")
    save_file(TENSORS, folder / "model.safetensors")
    return folder


def _equal(a: AffineWeight, b: AffineWeight) -> bool:
    mins = (a.mins is None) == (b.mins is None)
    if a.mins is not None and b.mins is not None:
        mins = np.array_equal(a.mins, b.mins)
    return mins and np.array_equal(a.codes, b.codes) and np.array_equal(a.scales, b.scales)


@pytest.mark.parametrize("name", FORMATS)
def test_written_directory_loads_back(directory: Path, tmp_path: Path, name: str) -> None:
    seen: list[tuple[str, int, int]] = []
    out = write_quantized(directory, name, tmp_path / "out", lambda *step: seen.append(step))
    assert seen == [("quantize", i, 5) for i in range(1, 6)]
    assert sorted(p.name for p in out.iterdir()) == [
        "LICENSE", "chat_template.jinja", "config.json", "generation_config.json",
        "model.safetensors", "tokenizer.json",
    ]  # fmt: skip
    assert (out / "tokenizer.json").read_text() == "tokenizer.json é"
    assert json.loads((out / "config.json").read_text())["quantization"]["format"] == name
    assert sorted(p.name for p in tmp_path.iterdir()) == ["float", "out"]
    fmt = get_format(name)
    with open_source(out) as source, Quantized(open_source(directory), fmt) as direct:
        assert set(source.names()) == set(TENSORS)
        assert not is_float(source)
        for tensor, value in TENSORS.items():
            found, loaded = source.affine_or_dense(tensor)
            assert (source.format(tensor), source.shape(tensor)) == (found, value.shape)
            if tensor in MATRICES:
                expected = direct.affine_or_dense(tensor)[1]
                assert found is fmt
                assert isinstance(loaded, AffineWeight) and isinstance(expected, AffineWeight)
                assert _equal(loaded, expected)
                step = np.repeat(loaded.scales.astype(np.float32), 32, axis=1)
                error = np.abs(dequantize(loaded, fmt) - value.astype(np.float32))
                assert (error <= step * 0.51 + 1e-3).all()
            else:  # vectors, and a matrix whose rows are no whole groups, stay as they were
                assert isinstance(loaded, np.ndarray)
                assert (loaded.dtype, loaded.tobytes()) == (value.dtype, value.tobytes())


def test_mlcs_names_and_words(directory: Path, tmp_path: Path) -> None:
    """Read with the format's own library."""
    stored = load_file(
        write_quantized(directory, "q4f16_1", tmp_path / "out") / "model.safetensors"
    )
    words = stored["model.embed_tokens.q_weight"]
    scales = stored["model.embed_tokens.q_scale"]
    assert (words.dtype, words.shape) == (np.uint32, (31, 8))
    assert (scales.dtype, scales.shape) == (np.float16, (31, 2))
    k = np.arange(64)
    codes = (words[:, k // 8] >> (4 * (k % 8)).astype(np.uint32)) & 15
    values = (codes.astype(np.float32) - 7) * scales[:, k // 32].astype(np.float32)
    error = np.abs(values - TENSORS["model.embed_tokens.weight"].astype(np.float32))
    assert (error <= scales[:, k // 32] * 0.51 + 1e-3).all()


@pytest.mark.parametrize("name", ["f16", "bf16", "f32"])
def test_dense_formats_can_be_written(directory: Path, tmp_path: Path, name: str) -> None:
    out = write_quantized(directory, name, tmp_path / "out")
    with open_source(out) as source:
        assert is_float(source)
        assert all(source.format(tensor).name == name for tensor in MATRICES)


def test_runs_of_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    value, fmt = RNG.standard_normal((37, 64)).astype(np.float32), get_format("q4f16_1_min")
    whole = quantize_matrix(value, fmt)
    monkeypatch.setattr(quantize_module, "_RUN_WEIGHTS", 64 * 5)
    assert _equal(quantize_matrix(value, fmt), whole)


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [("q4_k", UsageError, "GGUF's own"), ("q7", UsageError, "unknown; known")],
)
def test_formats_that_cannot_be_made(
    directory: Path, tmp_path: Path, name: str, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        write_quantized(directory, name, tmp_path / "out")


def test_sources_that_are_refused(directory: Path, tmp_path: Path) -> None:
    out = write_quantized(directory, "q8f16", tmp_path / "out")
    with pytest.raises(UnsupportedError, match="quantized already"):
        write_quantized(out, "q4f16_1", tmp_path / "again")
    with pytest.raises(UnsupportedError, match=r"is q8f16, and q4f16_1 was asked for"):
        Quantized(open_source(out), get_format("q4f16_1"))
    (tmp_path / "m.gguf").write_bytes(gguf())
    with pytest.raises(UnsupportedError, match="GGUF file"):
        write_quantized(tmp_path / "m.gguf", "q4f16_1", tmp_path / "again")
    with pytest.raises(UsageError, match="exists already"):
        write_quantized(directory, "q4f16_1", out)
    assert not (tmp_path / "again").exists()


def test_quantized_weights_as_floats(directory: Path, tmp_path: Path) -> None:
    """A dense format over a quantized source dequantizes: the exact reference."""
    out = write_quantized(directory, "q4f16_1", tmp_path / "out")
    with open_source(out) as source, Quantized(open_source(out), get_format("f32")) as dense:
        for tensor in MATRICES:
            fmt, weight = source.affine_or_dense(tensor)
            np.testing.assert_array_equal(dense.affine_or_dense(tensor)[1], dequantize(weight, fmt))


@pytest.mark.parametrize("name", [*FORMATS, "f16"])
def test_values_that_do_not_fit_are_named(directory: Path, tmp_path: Path, name: str) -> None:
    bad = RNG.standard_normal((4, 64)).astype(np.float32)
    bad[3, 5] = np.inf
    save_file(TENSORS | {"bad.weight": bad}, directory / "model.safetensors")
    with pytest.raises(ModelFileError, match=r"tensor 'bad\.weight'"):
        write_quantized(directory, name, tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["float"]


@pytest.mark.parametrize("failure", [KeyboardInterrupt, OSError(errno.ENOSPC, "full")])
def test_interruption_leaves_nothing(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Any
) -> None:
    def interrupted(source: Any, plan: Any) -> Any:
        for index, (name, _) in enumerate(plan):
            if index == 2:
                raise failure
            yield from write_contents(source, [(name, None)])

    write_contents = write_module._contents
    monkeypatch.setattr(write_module, "_contents", interrupted)
    expected = StorageError if isinstance(failure, OSError) else KeyboardInterrupt
    with pytest.raises(expected):
        write_quantized(directory, "q4f16_1", tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["float"]


def test_nothing_to_quantize(directory: Path, tmp_path: Path) -> None:
    narrow = {"a.weight": np.ones((4, 20), np.float32), "norm.weight": np.ones(20, np.float32)}
    save_file(narrow, directory / "model.safetensors")
    with pytest.raises(UnsupportedError, match="a multiple of 32"):
        write_quantized(directory, "q4f16_1", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    write_quantized(directory, "f16", tmp_path / "out")


def test_no_space(directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(StorageError, match="are needed"):
        write_quantized(directory, "q4f16_1", tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["float"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x.q_scale": None}, r"'x\.q_scale' is missing; q4f16_1 needs F16 \[2, 2\]"),
        ({"x.q_scale": np.zeros((2, 3), np.float16)}, r"'x\.q_scale' is F16 \[2, 3\]"),
        ({"x.q_scale": np.zeros((2, 2), np.float32)}, r"'x\.q_scale' is F32"),
        ({"x.q_weight": np.zeros((2, 7), np.uint32)}, r"shape \[2, 7\], which no q4f16_1"),
        ({"x.q_weight": None}, r"'x\.q_scale' has no 'x\.q_weight'"),
    ],
)
def test_damaged_quantized_directory(
    tmp_path: Path, change: dict[str, np.ndarray | None], message: str
) -> None:
    tensors: dict[str, np.ndarray | None] = {
        "x.q_weight": np.zeros((2, 8), np.uint32),
        "x.q_scale": np.zeros((2, 2), np.float16),
    }
    kept = {k: v for k, v in (tensors | change).items() if v is not None}
    save_file(kept, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"quantization": {"format": "q4f16_1"}}')
    with pytest.raises(ModelFileError, match=message):
        open_source(tmp_path)


@pytest.mark.parametrize(
    "said",
    ['"q4f16_1"', '{"bits": 4}', '{"format": "q4_k"}', '{"format": "q8f16", "group_size": 64}'],
)
def test_unknown_quantization(tmp_path: Path, said: str) -> None:
    save_file({"a.weight": np.zeros((2, 2), np.float32)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(f'{{"quantization": {said}}}')
    with pytest.raises(UnsupportedError, match="known: q4f16_1, q4f16_1_min, q8f16"):
        open_source(tmp_path)
