"""The libraries' tables against vendors' headers and libraries, where those are installed (CUDA's
toolkit or its wheels, ROCm); no GPU is needed."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from pathlib import Path

import pytest

from pumice.runtime.devices.blas import cublaslt, hipblaslt
from pumice.runtime.devices.blas.library import candidates
from pumice.runtime.devices.blas.table import BlasTable, argument_types

HEADERS = {
    "cuda": ("include/cublasLt.h", ("CUDA_HOME", "CUDA_PATH"), "/usr/local/cuda", "nvidia/cu13"),
    "rocm": ("include/hipblaslt/hipblaslt.h", ("ROCM_PATH",), "/opt/rocm", "_rocm_sdk_core"),
}
TABLES = pytest.mark.parametrize("table", [cublaslt.TABLE, hipblaslt.TABLE], ids=lambda t: t.name)
INTEGERS = {"int": ctypes.c_int, "size_t": ctypes.c_size_t, "uint64_t": ctypes.c_uint64,
            "int64_t": ctypes.c_int64}  # fmt: skip
ENUMERATIONS = re.compile(r"\w*(ComputeType|[dD]ataType(_t)?|Attributes)(_t)?$")
HANDLES = re.compile(r"\w*(Handle|MatmulDesc|MatrixLayout|MatmulPreference|Stream)_t$")


def header(table: BlasTable) -> str:
    """The vendor's header without comments."""
    name, variables, usual, package = HEADERS[table.api]
    homes = [os.environ[v] for v in variables if os.environ.get(v)]
    homes += [usual, *(str(Path(entry) / package) for entry in sys.path)]
    for home in homes:
        path = Path(home) / name
        if path.is_file():
            text = path.read_text(errors="replace")
            return re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL)
    pytest.skip(f"{name} is not installed")


def ctype(parameter: str) -> type:
    words = [w for w in re.sub(r"[*\[\]]", " ", parameter).split() if w != "const"]
    if "*" in parameter or "[" in parameter or HANDLES.fullmatch(words[0]):
        return ctypes.c_void_p
    if words[0] in INTEGERS:
        return INTEGERS[words[0]]
    assert ENUMERATIONS.fullmatch(words[0]), parameter
    return ctypes.c_int


@TABLES
def test_signatures(table: BlasTable) -> None:
    text = header(table)
    for role, symbol in table.symbols.items():
        match = re.search(rf"\b{symbol}\s*\(([^;{{]*?)\)\s*;", text)
        assert match, symbol
        parameters = [p.strip() for p in match[1].split(",") if p.strip() not in ("", "void")]
        assert argument_types(role) == [ctype(p) for p in parameters], symbol


@TABLES
def test_numbers(table: BlasTable) -> None:
    """Those that the header itself has."""
    text, prefix = header(table), table.name.upper()
    wanted = {f"{prefix}_MATMUL_PREF_MAX_WORKSPACE_BYTES": table.workspace}
    for letter, number in zip("AB", table.transpose, strict=True):
        wanted[f"{prefix}_MATMUL_DESC_TRANS{letter}"] = number
    for letter, number in zip("ABCD", table.alignments, strict=False):
        wanted[f"{prefix}_MATMUL_PREF_MIN_ALIGNMENT_{letter}_BYTES"] = number
    for name, value in wanted.items():
        match = re.search(rf"\b{name}\s*(=\s*(\d+))?\s*,", text)
        assert match, name
        if match[2]:
            assert int(match[2]) == value, name
    counts = re.search(
        r"(uint64_t|uint8_t) data\[(\d+)\];\s*(size_t [^;]*;)?[^}]*}\s*\w*Algo_t", text
    )
    assert counts
    size = int(counts[2]) * int(re.sub(r"\D", "", counts[1])) // 8 + (8 if counts[3] else 0)
    assert size == table.algo_bytes


@TABLES
def test_the_installed_library_has_every_symbol(table: BlasTable) -> None:
    for name in candidates(table):
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        assert [symbol for symbol in table.symbols.values() if not hasattr(library, symbol)] == []
        return
    pytest.skip(f"{table.name} is not installed")
