"""tgemm under everything that PyTorch does to a function: derivatives of both modes, compilation,
export, vmap, autocast; and weights that change where autograd does not look."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear

from pumice.errors import DeviceError, UsageError
from pumice.torch import tgemm

pytestmark = [  # of PyTorch about itself
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning"),
]


def relative(got: Tensor, expected: Tensor) -> float:
    got, expected = got.detach().double(), expected.detach().double()
    return float((got - expected).norm() / (expected.norm() + 1e-30))


def error(x: Tensor, w: Tensor, bias: Tensor | None = None) -> float:
    expected = linear(x.double(), w.double(), None if bias is None else bias.double())
    return relative(tgemm.mm(x, w, bias), expected)


@pytest.fixture
def operands() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(4, 6, 8), torch.randn(5, 8), torch.randn(5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bias_dtype", [None, torch.float32], ids=str)
@pytest.mark.parametrize("out", [None, torch.float32], ids=str)
@pytest.mark.parametrize("asked", [(1, 1, 1), (1, 0, 0), (0, 1, 0), (0, 0, 1)])
def test_gradients(
    dtype: torch.dtype, bias_dtype: torch.dtype | None, out: torch.dtype | None,
    asked: tuple[int, ...], operands: tuple[Tensor, ...],
) -> None:  # fmt: skip
    types = (dtype, dtype, bias_dtype or dtype)
    leaves = [
        t.to(d).requires_grad_(bool(a)) for t, d, a in zip(operands, types, asked, strict=True)
    ]
    exact = [t.detach().double().requires_grad_(t.requires_grad) for t in leaves]
    y = tgemm.mm(*leaves, None, None, out)  # type: ignore[call-arg]
    weight = torch.randn(y.shape).to(y.dtype)
    wanted = [t for t in leaves if t.requires_grad]
    got = torch.autograd.grad(y, wanted, weight)
    z = linear(*exact)
    expected = torch.autograd.grad(z, [t for t in exact if t.requires_grad], weight.double())
    tolerance = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 6e-3}[dtype]
    for leaf, a, b in zip(wanted, got, expected, strict=True):
        assert a.dtype == leaf.dtype and relative(a, b) <= tolerance


def derivatives(
    product: Callable[[Tensor, Tensor, Tensor], Tensor], operands: tuple[Tensor, ...]
) -> dict[str, Tensor]:
    """Of every kind, in float32."""
    x, w, b = (t.clone().requires_grad_() for t in operands)
    value = product(x, w, b).sin().sum()
    (dx,) = torch.autograd.grad(value, x, create_graph=True)
    (second,) = torch.autograd.grad(dx.pow(2).sum(), w)
    plain = tuple(t.detach() for t in (x, w, b))
    tangents = tuple(torch.linspace(-1, 1, t.numel()).view(t.shape) for t in plain)
    along = torch.func.jvp(product, plain, tangents)[1]
    along_w = torch.func.jvp(lambda w: product(plain[0], w, plain[2]), plain[1:2], tangents[1:2])[1]
    batched = torch.vmap(torch.func.grad(lambda x: product(x, *plain[1:]).cos().sum()))(plain[0])
    weights = torch.stack([plain[1], plain[1] * 2], 1)
    every = torch.vmap(lambda w, b: product(plain[0], w, b), (1, None))(weights, plain[2])
    row, _, bias = (t[0] if t is plain[0] else t for t in plain)
    hessian = torch.func.hessian(lambda x: product(x, plain[1], bias).pow(3).sum())(row[:2])
    rows = torch.func.jacrev(lambda x: product(x, plain[1], bias))(row[:2])
    return {"second": second, "jvp": along, "jvp w": along_w, "vmap": batched, "vmap w": every,
            "hessian": hessian, "jacobian": rows}  # fmt: skip


def test_derivatives_of_derivatives(operands: tuple[Tensor, ...]) -> None:
    got, expected = derivatives(tgemm.mm, operands), derivatives(linear, operands)
    for name, value in expected.items():
        assert relative(got[name], value) <= 2e-6, name


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_whole(dynamic: bool, operands: tuple[Tensor, Tensor, Tensor]) -> None:
    def f(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return tgemm.mm(x, w, b).relu() * 2

    torch._dynamo.reset()
    compiled = torch.compile(f, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    x, w, b = operands
    with torch.no_grad():
        for rows in (4, 3, 1):
            assert torch.equal(compiled(x[:rows], w, b), f(x[:rows], w, b))
    leaf = w.clone().requires_grad_()
    (got,) = torch.autograd.grad(compiled(x, leaf, b).sum(), leaf)
    (expected,) = torch.autograd.grad(f(x, leaf, b).sum(), leaf)
    assert relative(got, expected) <= 1e-6


def test_exported_with_any_batch(operands: tuple[Tensor, Tensor, Tensor]) -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = map(torch.nn.Parameter, operands[1:])

        def forward(self, x: Tensor) -> Tensor:
            return tgemm.mm(x, self.weight, self.bias)

    net, batch = Net().eval(), torch.export.Dim("batch")
    program = torch.export.export(net, operands[:1], dynamic_shapes=({0: batch},))
    x = torch.randn(7, 6, 8)
    assert torch.equal(program.module()(x), net(x))
    assert "pumice.gemm" in str(program.graph)


def test_autocast_as_pytorch_does(operands: tuple[Tensor, Tensor, Tensor]) -> None:
    x, w, b = operands
    with torch.autocast("cpu", torch.bfloat16):
        for given in (x, x.bfloat16()):
            got, expected = tgemm.mm(given, w, b), linear(given, w, b)
            assert got.dtype == expected.dtype == torch.bfloat16
            assert relative(got, expected) <= 6e-3


def test_weights_that_autograd_does_not_watch() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 300)
    weight = torch.nn.Parameter(torch.randn(257, 300))  # more than is compared in full
    small = torch.nn.Parameter(torch.randn(5, 300))
    shared = torch.randn(257, 300)
    for w in (weight, small):
        assert error(x, w) <= 1e-6
        w.data.mul_(2)
        assert error(x, w) <= 1e-6
        w.data = torch.randn(w.shape)
        assert error(x, w) <= 1e-6
        w.data[3] += 1  # one row, one column
        assert error(x, w) <= 1e-6
        w.data[:, 299] -= 1
        assert error(x, w) <= 1e-6
    small.data[1, 2] = 7
    assert error(x, small) <= 1e-6
    assert error(x, shared) <= 1e-6
    shared.numpy()[:] *= 3
    assert error(x, shared) <= 1e-6
    shared.fill_(float("nan"))
    assert tgemm.mm(x, shared).isnan().all() and tgemm.mm(x, shared).isnan().all()


def test_tensors_of_inference_mode() -> None:
    with torch.inference_mode():
        x, w = torch.randn(3, 8), torch.randn(5, 8)
        assert error(x, w) <= 1e-6
        w.mul_(2)
        assert error(x, w) <= 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_views_of_every_kind(dtype: torch.dtype) -> None:
    torch.manual_seed(0)

    def odd(*shape: int) -> Tensor:
        """Elements at addresses that are multiples of nothing."""
        count = torch.Size(shape).numel()
        at = torch.frombuffer(bytearray(count * 4 + 8), dtype=dtype, count=count, offset=1)
        return at.view(shape).copy_(torch.randn(shape))

    def make(*shape: int) -> Tensor:
        return torch.randn(shape).to(dtype)

    tolerance = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 6e-3}[dtype]
    for x, w, b in (
        (odd(3, 8), odd(5, 8), odd(5)),
        (make(1, 8).expand(4, 8), make(1, 8).expand(5, 8), make(1).expand(5)),
        (make(4, 1).expand(4, 8), make(5, 1).expand(5, 8), make(9)[4:]),
        (make(8, 4).t(), make(16, 5).t()[:, ::2], make(10)[1::2]),
        (torch._neg_view(make(4, 8)), torch._neg_view(make(5, 8)), torch._neg_view(make(5))),
        (make(8), make(5, 8), make(5)),
        (make(2, 1, 3, 8), make(5, 8), make(5)),
    ):
        assert error(x, w, b) <= tolerance


def test_threads_at_once() -> None:
    torch.manual_seed(0)
    weights = [torch.randn(64, 32) for _ in range(4)]
    wrong: list[object] = []

    def work(number: int) -> None:
        generator = torch.Generator().manual_seed(number)
        for turn in range(40):
            x = torch.randn(1 + turn % 17, 32, generator=generator)
            if (found := error(x, weights[(number + turn) % 4])) > 1e-6:
                wrong.append((number, turn, found))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_child_of_a_fork_computes() -> None:
    """As a DataLoader's workers are; the pool's threads stay behind in the parent, PyTorch's too
    (so NumPy compares)."""
    code = (
        "import os, torch\n"
        "from pumice.torch import tgemm\n"
        "product = lambda: (tgemm.mm(torch.ones(99, 64), torch.ones(99, 64)).numpy() == 64).all()\n"
        "assert product()\n"
        "child = os.fork()\n"
        "if child == 0: os._exit(not product())\n"
        "raise SystemExit(os.waitpid(child, 0)[1])"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_more_threads_asked_for_than_there_are() -> None:
    """OMP_NUM_THREADS and torch.set_num_threads may be anything."""
    code = (
        "import torch; torch.set_num_threads(1024)\n"
        "from pumice.torch import tgemm\n"
        "assert torch.allclose(tgemm.mm(torch.ones(3, 8), torch.ones(5, 8)), torch.tensor(8.))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


X, W = torch.randn(2, 4), torch.randn(3, 4)
I8 = torch.ones(2, 4, dtype=torch.int8)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (([[1.0]], W), "x is a list; allowed: a tensor"),
        ((X, None), "weight is a NoneType; allowed: a tensor"),
        ((X, W, [1, 2, 3]), "bias is a list; allowed: a tensor or None"),
        (
            (X, W, torch.ones(3, dtype=torch.int32)),
            "bias's dtype is torch.int32; allowed: torch.fl",
        ),
        ((X, W, torch.ones(3, dtype=torch.complex64)), "bias's dtype is torch.complex64"),
        ((X, W, None, None, None, torch.int8), "out_dtype is torch.int8; allowed: torch.float16"),
        ((X, W, None, None, None, "float16"), "out_dtype is 'float16'; allowed: torch.float16"),
        ((X.to_sparse(), W), "x has the layout torch.sparse_coo; allowed: torch.strided"),
        ((X, W.to_mkldnn()), "weight has the layout torch._mkldnn"),
        ((I8, I8, None, torch.ones(())), "scale_b is missing; 8-bit operands need"),
        ((I8, I8, None, torch.ones(7), torch.ones(2)), "scale_a is torch.float32 [7]; allowed"),
        ((I8, I8, None, torch.ones(2), torch.ones(2).half()), "scale_b is torch.float16 [2]"),
        ((X, W, torch.randn(3, device="meta")), "x on cpu, weight on cpu, bias on meta"),
    ],
)
def test_more_errors_name_the_argument(arguments: tuple[object, ...], text: str) -> None:
    with pytest.raises(UsageError) as found:
        tgemm.mm(*arguments)  # type: ignore[arg-type]
    assert text in str(found.value) and str(found.value).startswith("tgemm.mm")


def test_eight_bits_need_a_gpu() -> None:
    with pytest.raises(DeviceError, match=r"x is torch\.int8 on the CPU"):
        tgemm.mm(I8, I8, None, torch.ones(()), torch.ones(2))


def test_results_of_nothing_have_the_type_asked_for() -> None:
    got = tgemm.mm(torch.empty(2, 0).half(), torch.empty(3, 0).half(), torch.ones(3))
    assert got.dtype == torch.float16 and torch.equal(got, torch.ones(2, 3).half())
