"""sample_tokens, softmax and token_embedding in Triton's interpreter, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from triton_cases import check, runs
from triton_harness import run_case

from pumice.operators.registry import get_spec, triton_kernels_of
from pumice.operators.sample_tokens.philox import philox, uniform
from pumice.operators.triton.plan import Problem, TensorSpec, make_problem
from pumice.targets import get_target

HOPPER = get_target("sm_90")
SPECS = [get_spec(name) for name in ("sample_tokens", "softmax", "token_embedding")]
RUNS = [(label, spec, *rest) for spec in SPECS for label, *rest in runs(spec, (HOPPER,))]
SAMPLE = get_spec("sample_tokens")
(SAMPLER,) = triton_kernels_of("sample_tokens")


@pytest.mark.parametrize("run", RUNS, ids=[run[0] for run in RUNS])
def test_case(run: Any) -> None:
    check(*run[1:])


def test_several_blocks() -> None:
    for spec, config in ((SPECS[0], {"block": 256, "warps": 4}),):
        for attrs, inputs in spec.cases(np.random.default_rng(5))[5:8]:
            check(spec, triton_kernels_of(spec.name)[0], attrs, inputs, HOPPER, config)
    for attrs, inputs in SPECS[1].cases(np.random.default_rng(5)):
        config = {"rows": 2, "block": 128, "warps": 4}
        check(SPECS[1], triton_kernels_of("softmax")[0], attrs, inputs, HOPPER, config)
    long = [c for c in SPECS[1].cases(np.random.default_rng(6)) if c[1]["x"].shape[1] >= 1024]
    assert len(long) >= 2
    for attrs, inputs in long:
        for share in (128, 640):  # one block of a share, several; a last share with one column
            config = {"block": 128, "share": share, "warps": 4, "early": share // 640}
            check(SPECS[1], triton_kernels_of("softmax")[1], attrs, inputs, HOPPER, config)


@pytest.mark.parametrize(
    ("rows", "width", "text"),
    [(2, 900, "rows of 900 columns; 1024"), (600, 4096, "600 rows fill 132 compute units")],
)
def test_softmax_shares_are_for_few_long_rows(rows: int, width: int, text: str) -> None:
    problem = make_problem(SPECS[1], {}, {"x": TensorSpec((rows, width), "float16")})
    reason = triton_kernels_of("softmax")[1].supports(problem, HOPPER)
    assert reason is not None and text in reason


def test_philox_known_answer() -> None:
    """The first word of Random123's known answers for a counter and key of zeros."""
    assert int(philox(np.array([0]), np.array([0]))[0]) == 0x6627E8D5
    u = uniform(philox(np.arange(4000), np.arange(4000) * 7))
    assert 0 <= u.min() and u.max() < 1 and abs(float(u.mean()) - 0.5) < 0.02


def test_a_row_does_not_depend_on_its_batch() -> None:
    rng = np.random.default_rng(9)
    rows, vocabulary = 4, 200
    inputs = {
        "logits": rng.standard_normal((rows, vocabulary)).astype(np.float32),
        "temperature": np.full(rows, 0.9, np.float32),
        "seeds": np.arange(rows, dtype=np.int64),
        "positions": np.arange(rows, dtype=np.int32),
        "top_p": np.full(rows, 0.8, np.float32),
    }
    together = run_case(SAMPLE, SAMPLER, {}, inputs, HOPPER)["tokens"]
    for row in range(rows):
        alone = {name: array[row : row + 1].copy() for name, array in inputs.items()}
        assert run_case(SAMPLE, SAMPLER, {}, alone, HOPPER)["tokens"][0] == together[row]


def test_draws_follow_the_probabilities() -> None:
    """The reference itself: 3000 seeds over five tokens, one of them cut off by top-k."""
    probabilities = np.array([0.4, 0.3, 0.15, 0.1, 0.05])
    n = 3000
    inputs = {
        "logits": np.tile(np.log(probabilities), (n, 1)).astype(np.float32),
        "temperature": np.ones(n, np.float32),
        "seeds": np.arange(n, dtype=np.int64),
        "positions": np.zeros(n, np.int32),
        "top_k": np.full(n, 4, np.int32),
    }
    tokens = SAMPLE.reference({}, inputs)["tokens"]
    shares = np.bincount(tokens, minlength=5) / n
    expected = np.append(probabilities[:4] / probabilities[:4].sum(), 0)
    assert np.abs(shares - expected).max() < 0.03


def test_refusals_say_what_is_allowed() -> None:
    logits = {"logits": TensorSpec((2, 50), "float32")}

    def reason(**tensors: TensorSpec) -> str:
        return str(SAMPLER.supports(Problem("sample_tokens", {**logits, **tensors}), HOPPER))

    assert "go together" in reason(temperature=TensorSpec((2,), "float32"))
    assert "need a temperature" in reason(top_k=TensorSpec((2,), "int32"))
    assert "not int32(2,)" in reason(top_k=TensorSpec((2,), "int64"))


def test_which_tables_an_embedding_refuses() -> None:
    (kernel,) = triton_kernels_of("token_embedding")
    packed = {"weight": TensorSpec((9, 32), "int32"), "scales": TensorSpec((9, 8), "float16")}

    def reason(tensors: dict[str, TensorSpec], **attrs: Any) -> str:
        attrs = {"group": 32, "out_dtype": "float16", **attrs}
        given = {"tokens": TensorSpec((3,), "int32"), **packed, **tensors}
        return str(kernel.supports(Problem("token_embedding", given, attrs), HOPPER))

    assert reason({}) == "None"
    assert "out_dtype 'int8'" in reason({}, out_dtype="int8")
    assert "must divide the width 256" in reason({}, group=48)
    assert "'columns'" in reason({}, packing="columns")
    assert "float16 or float32 (9, 8)" in reason({"scales": TensorSpec((9, 4), "float16")})
    both = {"mins": packed["scales"], "zeros": TensorSpec((9, 8), "uint8")}
    assert "exclude each other" in reason(both)
    bare = {"tokens": TensorSpec((3,), "int32"), "weight": packed["weight"]}
    problem = Problem("token_embedding", bare, {"group": 32, "out_dtype": "float16"})
    assert "needs scales" in str(kernel.supports(problem, HOPPER))
