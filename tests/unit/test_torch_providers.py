"""Providers that may be installed: when they count, what they are asked, with stand-ins for their
packages."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pumice.operators.registry import get_spec  # noqa: E402
from pumice.operators.triton.plan import Problem, TensorSpec, make_problem  # noqa: E402
from pumice.torch import installed  # noqa: E402
from pumice.torch.provider import import_fault  # noqa: E402
from pumice.torch.vendor import explain_vendors, vendors_of  # noqa: E402

F = torch.nn.functional
H = "bfloat16"


def norm(x: Any, weight: Any, eps: float) -> Any:
    return F.rms_norm(x.float(), x.shape[-1:], weight.float(), eps).to(x.dtype)


def add_norm(
    out: Any, x: Any, residual_in: Any, residual_out: Any, weight: Any, eps: float
) -> None:
    residual_out.copy_(x + residual_in)
    out.copy_(norm(residual_out, weight, eps))


def add_norm_in_place(x: Any, residual: Any, weight: Any, eps: float) -> None:
    residual.add_(x)
    x.copy_(norm(residual, weight, eps))


def silu_mul(x: Any) -> Any:
    gate, up = x.float().chunk(2, -1)
    return (F.silu(gate) * up).to(x.dtype)


def attention(q: Any, k: Any, v: Any, causal: bool, scale: float) -> Any:
    q, k, v = (t.float().transpose(0, 1) for t in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale, enable_gqa=True)
    return out.transpose(0, 1).to(torch.bfloat16)


def package(name: str, **members: Any) -> ModuleType:
    module = ModuleType(name)
    module.__spec__ = __import__("importlib.machinery", fromlist=["x"]).ModuleSpec(name, None)
    vars(module).update(members)
    return module


AITER = {
    "rms_norm": norm,
    "rmsnorm2d_fwd_with_add": add_norm,
    "silu_and_mul": lambda out, x: out.copy_(silu_mul(x)),
    "flash_attn_varlen_func": lambda q, k, v, cq, ck, mq, mk, softmax_scale, causal: attention(
        q, k, v, causal, softmax_scale
    ),
}
FLASHINFER = {
    "rmsnorm": lambda x, w, eps, out: out.copy_(norm(x, w, eps)),
    "fused_add_rmsnorm": add_norm_in_place,
    "silu_and_mul": lambda x, out: out.copy_(silu_mul(x)),
    "single_prefill_with_kv_cache": lambda q, k, v, causal, sm_scale: attention(
        q, k, v, causal, sm_scale
    ),
}


class _Tuned:
    @staticmethod
    def mm(x: Any, w: Any, bias: Any = None) -> Any:
        return F.linear(x, w, bias)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    import_fault.cache_clear()
    yield
    import_fault.cache_clear()


@pytest.fixture(params=["vendor.aiter", "vendor.flashinfer"])
def provider(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "vendor.aiter":
        monkeypatch.setattr(installed, "hip_arch", lambda: "gfx942")
        monkeypatch.setitem(sys.modules, "aiter", package("aiter", **AITER))
        tuned = package("aiter.tuned_gemm", tgemm=_Tuned)
        monkeypatch.setitem(sys.modules, "aiter.tuned_gemm", tuned)
    else:
        monkeypatch.setattr(installed, "cuda_capability", lambda: (9, 0))
        monkeypatch.setitem(sys.modules, "flashinfer", package("flashinfer", **FLASHINFER))
    return str(request.param)


def rows(operator: str, attrs: dict[str, Any], **shapes: tuple[int, ...]) -> Problem:
    inputs = {n: TensorSpec(s, "int32" if n.startswith("cu_") else H) for n, s in shapes.items()}
    return make_problem(get_spec(operator), attrs, inputs)


NORM = {"kind": "rms", "eps": 1e-5}
PROBLEMS = {
    "norm": rows("norm", NORM, x=(3, 64), weight=(64,)),
    "norm with residual": rows("norm", NORM, x=(3, 64), residual=(3, 64), weight=(64,)),
    "activation": rows("activation_mul", {"activation": "silu"}, x=(5, 64)),
    "attention": rows(
        "flash_attention", {"causal": True}, q=(9, 4, 64), k=(9, 2, 64), v=(9, 2, 64),
        cu_seqlens_q=(2,), cu_seqlens_k=(2,),
    ),
    "gemm": rows("gemm", {}, x=(4, 64), w=(8, 64), bias=(8,)),
}  # fmt: skip


@pytest.mark.parametrize("name", PROBLEMS)
def test_results_are_those_of_the_reference(provider: str, name: str) -> None:
    made = PROBLEMS[name]
    calls = vendors_of(made)
    if name == "gemm" and provider == "vendor.flashinfer":
        assert explain_vendors(made)[provider] == "vendor.flashinfer has no gemm"
        return
    torch.manual_seed(0)
    tensors = {}
    for key, spec in made.tensors.items():
        if key.startswith("cu_"):
            tensors[key] = torch.tensor([0, 9], dtype=torch.int32)
        elif key in made.outputs:
            tensors[key] = torch.full(spec.shape, float("nan"), dtype=torch.bfloat16)
        else:
            tensors[key] = torch.randn(spec.shape).to(torch.bfloat16)
    given = {key: tensors[key].clone() for key in made.inputs}
    calls[provider](tensors)
    arrays = {key: (t if t.dtype == torch.int32 else t.float()).numpy() for key, t in given.items()}
    for key, want in get_spec(made.operator).reference(made.attrs, arrays).items():
        error = (tensors[key].double() - torch.as_tensor(want).double()).norm()
        assert error < 0.01 * torch.as_tensor(want).double().norm(), key
    untouched = set(given) - {"residual"}
    assert all(torch.equal(tensors[key], given[key]) for key in untouched)


def test_what_they_do_not_compute(provider: str) -> None:
    for made in (
        rows("norm", {**NORM, "weight_offset": 1.0}, x=(3, 64), weight=(64,)),
        rows("flash_attention", {"window_left": 8}, q=(9, 4, 64), k=(9, 2, 64), v=(9, 2, 64),
             cu_seqlens_q=(2,), cu_seqlens_k=(2,)),
        rows("flash_attention", {}, q=(9, 4, 64), k=(9, 2, 64), v=(9, 2, 64),
             cu_seqlens_q=(3,), cu_seqlens_k=(3,)),
        rows("softmax", {}, x=(4, 8)),
    ):  # fmt: skip
        assert provider not in vendors_of(made)
        assert explain_vendors(made)[provider].startswith(provider)


def test_a_version_without_a_function(provider: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = provider.removeprefix("vendor.")
    monkeypatch.setitem(sys.modules, name, package(name))
    assert f"this version of {name} has no" in explain_vendors(PROBLEMS["norm"])[provider]


@pytest.mark.parametrize("provider_name", ["vendor.aiter", "vendor.flashinfer"])
def test_reasons_without_device_or_package(
    provider_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installed, "hip_arch", lambda: "gfx1100")
    monkeypatch.setattr(installed, "cuda_capability", lambda: None)
    assert "it is made for" in explain_vendors(PROBLEMS["norm"])[provider_name]
    monkeypatch.setattr(installed, "hip_arch", lambda: "gfx950")
    monkeypatch.setattr(installed, "cuda_capability", lambda: (8, 0))
    name = provider_name.removeprefix("vendor.")
    monkeypatch.setitem(sys.modules, name, None)  # an import then fails
    assert f"the package {name} is" in explain_vendors(PROBLEMS["norm"])[provider_name]


def test_batched_products_of_the_blas() -> None:
    """Views whose batch axis lies inside the row, as MLA's absorbed projections pass them."""
    torch.manual_seed(1)
    x, w = torch.randn(5, 3, 24).to(torch.bfloat16), torch.randn(3, 7, 24).to(torch.bfloat16)
    out = torch.full((5, 3, 7), float("nan"), dtype=torch.bfloat16)
    given = {"x": x.transpose(0, 1), "w": w, "out": out.transpose(0, 1)}
    inputs = {
        name: TensorSpec(tuple(given[name].shape), H, tuple(given[name].stride()))
        for name in ("x", "w")
    }
    made = make_problem(get_spec("batched_gemm"), {}, inputs)
    vendors_of(made)["vendor.blas"](given)
    want = get_spec("batched_gemm").reference(
        {}, {name: given[name].float().numpy() for name in ("x", "w")}
    )["out"]
    got = given["out"].float().numpy()
    assert abs(got - want).max() <= 0.01 * abs(want).max()
    biased = make_problem(get_spec("batched_gemm"), {}, {**inputs, "bias": TensorSpec((7,), H)})
    assert "no bias for all batches" in explain_vendors(biased)["vendor.blas"]
