"""Compiles launches ahead of time, for a GPU that need not be there.

Triton needs neither PyTorch nor a device for this: its AMD and NVIDIA backends carry their own
LLVM, lld and ptxas.
"""

from __future__ import annotations

import errno
import functools
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pumice.dtypes import TRITON_NAMES
from pumice.errors import CompileError, StorageError, UnsupportedError
from pumice.operators.triton.plan import Launch, Plan, Problem, TensorSpec
from pumice.operators.triton.resources import Resources, read_resources
from pumice.targets import Target

_INT32_MAX = 2**31 - 1
# Of a disk that takes no more: full, over a quota or a limit, read-only, somebody else's.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM)


@dataclass(frozen=True)
class Binary:
    """A compiled kernel.

    symbol: its entry's name. code: hsaco or cubin. assembly: amdgcn text or PTX. shared_bytes:
    dynamic shared memory of a launch. parameters: the run-time parameters in launch order, with
    their types as in a Triton signature. threads: of a workgroup.
    """

    symbol: str
    code: bytes
    assembly: str
    shared_bytes: int
    parameters: tuple[tuple[str, str], ...]
    threads: int
    metadata: Any
    compiled: Any  # Triton's own object, which launches where its driver is

    @functools.cached_property
    def resources(self) -> Resources:
        """Registers, spills and memory, from the code object."""
        return read_resources(self.code, self.symbol, self.shared_bytes)


def signature(launch: Launch, tensors: Mapping[str, TensorSpec]) -> dict[str, str]:
    """Parameter → Triton type ("*bf16", "i32", "constexpr"), in the kernel's order.

    UnsupportedError names a parameter that the launch does not give, or a name that is no tensor.
    """
    found: dict[str, str] = {}
    for name in launch.kernel.arg_names:
        if name in launch.constants:
            found[name] = "constexpr"
            continue
        if name not in launch.arguments:
            raise UnsupportedError(f"a launch of {_name(launch)} does not give parameter {name!r}")
        value = launch.arguments[name]
        if isinstance(value, str):
            if value not in tensors:
                raise UnsupportedError(
                    f"a launch of {_name(launch)} gives {name!r} tensor {value!r}, "
                    f"which is none of {', '.join(tensors)}"
                )
            found[name] = "*" + TRITON_NAMES[tensors[value].dtype]
        elif isinstance(value, bool):
            found[name] = "i1"
        elif isinstance(value, int):
            found[name] = "i32" if -_INT32_MAX <= value <= _INT32_MAX else "i64"
        else:
            found[name] = "fp32"
    return found


def _name(launch: Launch) -> str:
    return str(launch.kernel.fn.__name__)


def _divisible(launch: Launch, tensors: Mapping[str, TensorSpec]) -> dict[tuple[int, ...], Any]:
    """Parameters known to be multiples of 16: aligned pointers, and such integers."""
    found: dict[tuple[int, ...], Any] = {}
    for index, name in enumerate(launch.kernel.arg_names):
        value = launch.arguments.get(name)
        multiple = (isinstance(value, str) and tensors[value].aligned) or (
            isinstance(value, int) and not isinstance(value, bool) and value % 16 == 0
        )
        if name not in launch.constants and multiple:
            found[(index,)] = [["tt.divisibility", 16]]
    return found


def _damaged(what: str) -> StorageError:
    from triton import knobs

    return StorageError(
        f"Triton's cache of kernels in {knobs.cache.dir} is damaged: {what}",
        hint="Delete that folder; kernels are compiled again.",
    )


def _of_the_cache(error: OSError) -> bool:
    """Whether it is about Triton's cache of kernels, or a folder that should hold it."""
    from triton import knobs

    if not isinstance(error.filename, str):
        return False
    cache, at = os.path.abspath(knobs.cache.dir), os.path.abspath(error.filename)
    return os.path.commonpath([cache, at]) in (cache, at)


def _failure(launch: Launch, target: Target, error: Exception) -> CompileError:
    return CompileError(
        f"kernel {_name(launch)} does not compile for {target.name} with "
        f"{dict(launch.constants)}: {type(error).__name__}: {error}"
    )


def _check_scratch(launch: Launch, tensors: Mapping[str, TensorSpec], metadata: Any) -> None:
    """CompileError when a kernel keeps more in memory than its launch has room for."""
    needed = int(getattr(metadata, "global_scratch_size", 0) or 0)
    given = tensors[launch.scratch].nbytes // math.prod(launch.grid) if launch.scratch else 0
    if needed > given:
        raise CompileError(
            f"kernel {_name(launch)} keeps {needed} bytes a program in memory; its launch has room "
            f"for {given} ({launch.scratch or 'no scratch'})"
        )


def build(launch: Launch, tensors: Mapping[str, TensorSpec], target: Target) -> Binary:
    """Compiles one launch for a GPU target. CompileError says for which kernel and why."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    form = ASTSource
    if launch.kernel.is_gluon():
        from triton.experimental.gluon._runtime import GluonASTSource

        form = GluonASTSource
    types = signature(launch, tensors)
    names = launch.kernel.arg_names
    source = form(
        fn=launch.kernel,
        signature=types,
        constexprs={(names.index(name),): value for name, value in launch.constants.items()},
        attrs=_divisible(launch, tensors),
    )
    if target.api == "rocm":
        gpu = GPUTarget("hip", target.arch, target.wave)
    elif target.api == "cuda":
        gpu = GPUTarget("cuda", int(target.arch.removeprefix("sm_")), target.wave)
    else:
        raise UnsupportedError(f"Triton has no backend for {target.name} (api {target.api})")
    options = {
        "num_warps": launch.num_warps,
        "num_stages": launch.num_stages,
        # Contracts a·b + c; said aloud as the default differs between Triton's versions.
        "enable_fp_fusion": True,
        **launch.options.get(target.api, {}),
    }
    try:
        compiled = triton.compile(source, target=gpu, options=options)
    except OSError as error:
        if error.errno not in _NO_ROOM and not _of_the_cache(error):
            raise _failure(launch, target, error) from error
        raise StorageError(
            f"Triton cannot write its cache of kernels: {error}",
            hint="Free some space, or choose another place: --cache-dir, PUMICE_CACHE or "
            "TRITON_CACHE_DIR.",
        ) from error
    except json.JSONDecodeError as error:  # of a file that describes a kernel compiled before
        raise _damaged(f"{error}") from error
    except Exception as error:  # Triton raises many kinds, from Python and from LLVM
        raise _failure(launch, target, error) from error
    kind, text = ("hsaco", "amdgcn") if target.api == "rocm" else ("cubin", "ptx")
    if not compiled.asm[kind].startswith(b"\x7fELF"):
        raise _damaged(f"the {kind} of {_name(launch)} is no ELF file")
    _check_scratch(launch, tensors, compiled.metadata)
    return Binary(
        symbol=str(compiled.metadata.name),
        code=compiled.asm[kind],
        assembly=compiled.asm[text],
        shared_bytes=int(compiled.metadata.shared),
        parameters=tuple((name, kind) for name, kind in types.items() if kind != "constexpr"),
        # Warps of a specialized kernel are more than the launch names.
        threads=int(compiled.metadata.num_warps) * target.wave,
        metadata=compiled.metadata,
        compiled=compiled,
    )


def binary_key(launch: Launch, tensors: Mapping[str, TensorSpec], target: Target) -> Any:
    """What a binary depends on: launches of one key share one, whatever their sizes."""
    return (
        launch.kernel,
        tuple(signature(launch, tensors).values()),
        tuple(sorted(index for (index,) in _divisible(launch, tensors))),
        tuple(sorted(launch.constants.items())),
        launch.num_warps,
        launch.num_stages,
        tuple(sorted(launch.options.get(target.api, {}).items())),
        target.name,
    )


def build_plan(problem: Problem, plan: Plan, target: Target) -> list[Binary]:
    """Every launch of a plan, in order."""
    tensors = {**problem.tensors, **plan.workspaces}
    return [build(launch, tensors, target) for launch in plan.launches]
