"""A disk that takes no compiled kernels is no fault of the kernel's."""

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path
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
        (errno.ENOTDIR, StorageError, "cannot write its cache .*Not a directory"),
        (errno.ENOENT, StorageError, "cannot write its cache .*No such file"),
        (errno.ENOEXEC, CompileError, "does not compile for gfx1100"),
    ],
)
def test_a_compiler_that_cannot_write(
    number: int, kind: type[PumiceError], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: Any, **_options: Any) -> None:
        file = "/bin/ld" if kind is CompileError else "/cache/kernel"
        raise OSError(number, os.strerror(number), file)

    target = get_target("gfx1100")
    inputs = {name: TensorSpec((size, 512), "float16") for name, size in (("x", 16), ("w", 512))}
    problem = make_problem(get_spec("gemm"), {}, inputs)
    kernel = next(k for k in triton_kernels_of("gemm") if k.name == "gemm.triton.tiled")
    plan = kernel.plan(problem, target, kernel.configs(problem, target)[0])
    monkeypatch.setattr(triton, "compile", refuse)
    monkeypatch.setattr(triton.knobs.cache, "dir", "/cache/kernel/triton")
    with pytest.raises(kind, match=said) as error:
        build_plan(problem, plan, target)
    again = pickle.loads(pickle.dumps(error.value))  # it comes out of another process
    assert (type(again), again.message, again.hint) == (kind, error.value.message, error.value.hint)
    assert (kind is StorageError) == ("TRITON_CACHE_DIR" in str(again.hint))


@pytest.mark.parametrize("pattern", ["*.json", "*.hsaco"])
def test_a_cache_that_lost_a_file(
    pattern: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a power cut: the name is there, its bytes are not."""
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path))
    target = get_target("gfx1100")
    problem = make_problem(get_spec("softmax"), {}, {"x": TensorSpec((3, 77), "float16")})
    kernel = triton_kernels_of("softmax")[0]
    plan = kernel.plan(problem, target, kernel.configs(problem, target)[0])
    build_plan(problem, plan, target)
    files = list(tmp_path.glob(f"*/{pattern}"))
    assert files
    for file in files:
        file.write_bytes(b"")
    with pytest.raises(StorageError, match="is damaged") as error:
        build_plan(problem, plan, target)
    assert str(tmp_path) in str(error.value) and "Delete that folder" in str(error.value.hint)
