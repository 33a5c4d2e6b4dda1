"""Traced graphs: signature, operators, and parameters that are exactly those of `parameters`."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from pumice.compiler.graph import Graph, dimension, from_relax
from pumice.models import MODELS, get_model
from pumice.models.trace import ENTRIES, STEP_INPUTS

BLOCK = 16


def graphs(model_type: str, config: Any = None) -> dict[str, Graph]:
    record = get_model(model_type)
    module = record.trace(config or record.tiny, block_size=BLOCK)
    return {name: from_relax(name, module[name]) for name in ENTRIES}


def shape(var: Any) -> tuple[int | str, ...]:
    return tuple(dimension(n) for n in var.ty.shape)


@pytest.mark.parametrize("model_type", MODELS)
def test_signature_and_parameters(model_type: str) -> None:
    record = get_model(model_type)
    c = record.tiny
    for name, graph in graphs(model_type).items():
        params = list(graph.params)
        inputs, params = params[:7], params[7:]
        assert {p.name: list(shape(p)) for p in inputs} == STEP_INPUTS
        assert all(str(p.ty.dtype) == "int32" for p in inputs)
        caches, weights = params[: 2 * c.num_hidden_layers], params[2 * c.num_hidden_layers :]
        for layer in range(c.num_hidden_layers):
            k, v = caches[2 * layer : 2 * layer + 2]
            assert (k.name, v.name) == (f"k_cache_{layer}", f"v_cache_{layer}")
            assert shape(k) == ("num_blocks", c.num_key_value_heads, c.head_dim, BLOCK)
            assert shape(v) == ("num_blocks", c.num_key_value_heads, BLOCK, c.head_dim)
            assert str(k.ty.dtype) == str(v.ty.dtype) == "float16"
        assert {p.name: shape(p) for p in weights} == record.parameters(c)
        assert all(str(p.ty.dtype) == "float32" for p in weights)
        embeds = name == "embed"
        assert shape(graph.result) == ("R", c.hidden_size if embeds else c.vocab_size)
        used = {v.name for node in graph.nodes for v in node.inputs.values()}
        head = {"lm_head.weight"} if embeds else set()
        assert {p.name for p in graph.params} - head <= used


@pytest.mark.parametrize("model_type", MODELS)
def test_operators(model_type: str) -> None:
    c = get_model(model_type).tiny
    layers = c.num_hidden_layers
    graph = graphs(model_type)["extend"]
    assert Counter(node.operator for node in graph.nodes) == {
        "embedding": 1, "rope_table": 1, "gather_rows": 1, "rms_norm": 2 * layers + 1,
        "linear": 7 * layers + 1, "rope_append": layers, "attention": layers,
        "silu_mul": layers, "add": 2 * layers,
    }  # fmt: skip
    attentions = [node for node in graph.nodes if node.operator == "attention"]
    assert [node.attrs.get("window") for node in attentions] == list(c.windows)
    appends = [node for node in graph.nodes if node.operator == "rope_append"]
    producers = graph.producers()
    for layer, (append, attention) in enumerate(zip(appends, attentions, strict=True)):
        assert producers[attention.inputs["q"]] is append  # the order of write and read
        for node in (append, attention):
            assert node.inputs["k_cache"].name == f"k_cache_{layer}"
            assert node.inputs["v_cache"].name == f"v_cache_{layer}"
            assert node.attrs["heads"] == c.num_attention_heads
            assert node.attrs["kv_heads"] == c.num_key_value_heads
            assert node.attrs["head_dim"] == c.head_dim
        assert ("q_norm" in append.inputs) == ("k_norm" in append.inputs) == c.qk_norm
        assert append.attrs.get("eps") == (c.rms_norm_eps if c.qk_norm else None)
        assert attention.attrs["scale"] == c.head_dim**-0.5
    biases = [n.inputs["bias"].name for n in graph.nodes if "bias" in n.inputs]
    assert len(biases) == (3 * layers if c.qkv_bias else 0)


def test_tied_table_serves_both_ends() -> None:
    graph = graphs("qwen3")["decode"]
    table = next(p for p in graph.params if p.name == "model.embed_tokens.weight")
    assert [node.operator for node in graph.users(table)] == ["embedding", "linear"]


def test_entries_are_the_same_graph() -> None:
    found = graphs("llama")
    calls = {
        name: [(node.operator, list(node.inputs), node.attrs) for node in graph.nodes]
        for name, graph in found.items()
    }
    assert calls["decode"] == calls["extend"]
    assert calls["embed"] == calls["extend"][:-1]  # without the head


def test_biases_and_yarn() -> None:
    from reference.tiny import tiny_settings

    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    settings = tiny_settings("llama", attention_bias=True, mlp_bias=True, rope_scaling=yarn)
    record = get_model("llama")
    config = record.config_from_hf(settings)
    graph = graphs("llama", config)["decode"]
    linears = [node for node in graph.nodes if node.operator == "linear"]
    assert all("bias" in node.inputs for node in linears[:-1])
    assert "bias" not in linears[-1].inputs
    (table,) = (node for node in graph.nodes if node.operator == "rope_table")
    assert table.attrs["mscale"] == pytest.approx(1.1386294361119891)
    names = {p.name for p in graph.params}
    assert set(record.parameters(config)) <= names
