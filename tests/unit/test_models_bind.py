"""Parameters from files: names, values, permuted heads, constants, and what does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pumice.errors import ModelFileError, UnsupportedError, WeightMismatchError
from pumice.models import MODELS
from pumice.models.parameters import INV_FREQ
from pumice.quantization import AffineWeight, QuantFormat
from pumice.weights.bind import BoundWeights, bind, identify
from pumice.weights.source import WeightSource, open_source
from reference.files import read_checkpoint, read_gguf
from reference.tiny import make_tiny
from reference.tiny_gguf import make_tiny_gguf


def bound(source: WeightSource) -> BoundWeights:
    return bind(*identify(source), source)


def dense(fmt: QuantFormat, value: AffineWeight | np.ndarray) -> np.ndarray:
    if isinstance(value, np.ndarray):
        return value.astype(np.float32)
    scales = np.repeat(value.scales.astype(np.float32), fmt.group, axis=1)
    if value.mins is None:
        return (value.codes.astype(np.float32) - fmt.zero) * scales
    return value.codes * scales - np.repeat(value.mins.astype(np.float32), fmt.group, axis=1)


@pytest.mark.parametrize("model_type", MODELS)
def test_checkpoint(model_type: str, tmp_path: Path) -> None:
    make_tiny(model_type, tmp_path, seed=2)
    stored = load_file(tmp_path / "model.safetensors")
    with open_source(tmp_path) as source:
        weights = bound(source)
        assert set(weights.shapes) == set(stored) | {INV_FREQ}
        for name, fmt, value in weights:
            assert isinstance(value, np.ndarray) and value.shape == weights.shapes[name]
            assert fmt.name == weights.formats[name].name == "f32"
            if name != INV_FREQ:
                np.testing.assert_array_equal(value, stored[name])


@pytest.mark.parametrize("quantization", ["F32", "F16", "Q4_1", "Q8_0"])
@pytest.mark.parametrize("model_type", MODELS)
def test_gguf_gives_the_checkpoints_rows(
    model_type: str, quantization: str, tmp_path: Path
) -> None:
    """Queries and keys are back in halves: rows equal the checkpoint's up to quantization."""
    more: dict[str, Any] = {"attention_bias": True} if model_type == "llama" else {}
    make_tiny(model_type, tmp_path / "hf", seed=2, **more)
    path = make_tiny_gguf(model_type, tmp_path / "x.gguf", 2, quantization, **more)
    stored = load_file(tmp_path / "hf" / "model.safetensors")
    allowed = {"F32": 0.0, "F16": 5e-4, "Q8_0": 0.01, "Q4_1": 0.12}[quantization]
    with open_source(path) as source:
        weights = bound(source)
        assert set(weights.shapes) == set(stored) | {INV_FREQ}
        for name, fmt, value in weights:
            want = stored.get(name)
            assert fmt.name == weights.formats[name].name
            if want is None:
                continue
            got = dense(fmt, value)
            assert got.shape == want.shape
            limit = allowed if want.ndim == 2 else 0.0
            assert np.linalg.norm(got - want) <= limit * np.linalg.norm(want), name


def test_rope_factors_of_gguf(tmp_path: Path) -> None:
    """A file states Llama 3's scaling as a tensor of divisors: the frequencies are the same."""
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    path = make_tiny_gguf("llama", tmp_path / "x.gguf", rope_scaling=scaling)
    make_tiny("llama", tmp_path / "hf", rope_scaling=scaling)
    with open_source(path) as gguf, open_source(tmp_path / "hf") as checkpoint:
        _, ours = bound(gguf).load(INV_FREQ)
        _, theirs = bound(checkpoint).load(INV_FREQ)
    assert isinstance(ours, np.ndarray) and isinstance(theirs, np.ndarray)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    for model in (read_gguf(path), read_checkpoint(tmp_path / "hf")):
        np.testing.assert_allclose(ours, model.settings.inv_freq, rtol=1e-6)


def change(directory: Path, **changes: np.ndarray | None) -> None:
    """Rewrites a checkpoint with tensors replaced, added, or (None) left out."""
    path = directory / "model.safetensors"
    tensors = load_file(path)
    for name, value in changes.items():
        tensors.pop(name, None)
        if value is not None:
            tensors[name] = value
    save_file(tensors, path)


def test_every_mismatch_is_named(tmp_path: Path) -> None:
    make_tiny("llama", tmp_path)
    change(
        tmp_path,
        **{
            "model.layers.1.mlp.up_proj.weight": None,
            "model.layers.9.mlp.up_proj.weight": np.zeros((160, 96), np.float32),
            "model.layers.0.self_attn.q_proj.bias": np.zeros(96, np.float32),
            "model.norm.weight": np.ones(95, np.float32),
            "model.rotary_emb.inv_freq": np.ones(16, np.float32),  # old checkpoints have it
        },
    )
    with open_source(tmp_path) as source, pytest.raises(WeightMismatchError) as caught:
        bound(source)
    said = str(caught.value)
    assert "1 missing: model.layers.1.mlp.up_proj.weight" in said
    assert "2 extra: model.layers.0.self_attn.q_proj.bias, model.layers.9.mlp.up_proj" in said
    assert "1 misshapen: model.norm.weight is 95, expected 96" in said
    assert "inv_freq" not in said


def test_tied_embeddings_may_be_stored_twice_if_equal(tmp_path: Path) -> None:
    make_tiny("qwen3", tmp_path)
    table = load_file(tmp_path / "model.safetensors")["model.embed_tokens.weight"]
    change(tmp_path, **{"lm_head.weight": table})
    with open_source(tmp_path) as source:
        assert "lm_head.weight" not in bound(source).shapes
    change(tmp_path, **{"lm_head.weight": table + 1})
    with (
        open_source(tmp_path) as source,
        pytest.raises(WeightMismatchError, match=r"1 extra: lm_head.weight"),
    ):
        bound(source)


def test_a_tensor_left_out_of_gguf(tmp_path: Path) -> None:
    path = make_tiny_gguf("qwen2", tmp_path / "x.gguf")
    with open_source(path) as source:
        names = source.names()
        record, config = identify(source)
        lost = "blk.2.ffn_down.weight"
        source.names = lambda: tuple(n for n in names if n != lost)  # type: ignore[method-assign]
        with pytest.raises(WeightMismatchError, match=f"1 missing: {lost}"):
            bind(record, config, source)


def test_unknown_architectures(tmp_path: Path) -> None:
    make_tiny("llama", tmp_path)
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace('"llama"', '"gpt_bigcode"'))
    with open_source(tmp_path) as source, pytest.raises(UnsupportedError, match="gpt_bigcode"):
        identify(source)
    config.write_text(config.read_text().replace('"model_type"', '"model_kind"'))
    with open_source(tmp_path) as source, pytest.raises(ModelFileError, match="no model_type"):
        identify(source)


@pytest.mark.parametrize(
    ("name", "value"),
    [("model.layers.1.mlp.down_proj.weight", np.nan), ("model.norm.weight", -np.inf)],
)
def test_a_value_that_is_no_number(name: str, value: float, tmp_path: Path) -> None:
    """The tensor is named, with how many and where; so are a GGUF file's scales."""
    make_tiny("llama", tmp_path / "hf", seed=2)
    file = tmp_path / "hf" / "model.safetensors"
    tensors = load_file(file)
    tensors[name].reshape(-1)[[5, 9]] = value
    save_file(tensors, file)
    with open_source(tmp_path / "hf") as source:
        weights = bound(source)
        with pytest.raises(ModelFileError, match=rf"{name}' holds 2 values .* first at 5 of"):
            weights.load(name)


def test_a_scale_that_is_no_number(tmp_path: Path) -> None:
    path = make_tiny_gguf("llama", tmp_path / "x.gguf", 2, "Q8_0")
    with open_source(path) as source:
        name = next(n for n in source.names() if n.endswith("ffn_down.weight"))
        fmt, value = source.affine_or_dense(name)
        assert isinstance(value, AffineWeight)
    data = bytearray(path.read_bytes())
    scale = value.scales.reshape(-1)[0].tobytes()
    codes = (value.codes.reshape(-1)[:32].astype(np.int16) - fmt.zero).astype(np.int8).tobytes()
    at = data.find(scale + codes)
    assert at > 0
    data[at : at + 2] = np.float16(np.inf).tobytes()
    path.write_bytes(data)
    with open_source(path) as source:
        weights = bound(source)
        ours = next(n for n, rule in weights.rules.items() if rule.name == name)
        with pytest.raises(ModelFileError, match=r"holds 1 values .* among its scales"):
            weights.load(ours)
