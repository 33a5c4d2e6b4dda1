"""A disk that takes no compiled kernels is no fault of the kernel's."""

from __future__ import annotations

import errno
import os
import pickle
from typing import Any

import pytest
import triton

from pumice.errors import CompileError, PumiceError, StorageError
from pumice.operators.registry import get_spec, triton_kernels_of
from pumice.operators.triton.build import build_plan
from pumice.operators.triton.plan import TensorSpec, make_problem
from pumice.targets import get_target


@pytest.mark.parametrize(
    ("number", "kind", "said"),
    [
        (errno.ENOSPC, StorageError, "cannot write its cache .*No space left"),
        (errno.EROFS, StorageError, "cannot write its cache .*Read-only"),
        (errno.ENOEXEC, CompileError, "does not compile for gfx1100"),
    ],
)
def test_a_compiler_that_cannot_write(
    number: int, kind: type[PumiceError], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: Any, **_options: Any) -> None:
        raise OSError(number, os.strerror(number), "/cache/kernel")

    target = get_target("gfx1100")
    inputs = {name: TensorSpec((size, 512), "float16") for name, size in (("x", 16), ("w", 512))}
    problem = make_problem(get_spec("gemm"), {}, inputs)
    kernel = next(k for k in triton_kernels_of("gemm") if k.name == "gemm.triton.tiled")
    plan = kernel.plan(problem, target, kernel.configs(problem, target)[0])
    monkeypatch.setattr(triton, "compile", refuse)
    with pytest.raises(kind, match=said) as error:
        build_plan(problem, plan, target)
    again = pickle.loads(pickle.dumps(error.value))  # it comes out of another process
    assert (type(again), again.message, again.hint) == (kind, error.value.message, error.value.hint)
    assert (kind is StorageError) == ("TRITON_CACHE_DIR" in str(again.hint))
