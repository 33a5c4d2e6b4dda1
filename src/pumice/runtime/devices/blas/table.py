"""What the runtime needs of a vendor's library of matrix products: roles, each a C function of one.

cuBLASLt and hipBLASLt take the same arguments for all roles but `version`, which NVIDIA returns and
AMD writes; their enumerations' numbers and the algorithm's size differ.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# P: pointer, I: int (and enumerations), S: size_t, W: uint64_t, L: int64_t.
_KINDS: Mapping[str, Any] = {
    "P": ctypes.c_void_p, "I": ctypes.c_int, "S": ctypes.c_size_t,
    "W": ctypes.c_uint64, "L": ctypes.c_int64,
}  # fmt: skip

ROLES: Mapping[str, str] = {
    "version": "",  # NVIDIA: returns size_t
    "version_into": "PP",  # AMD: handle, → int
    "create": "P",
    "destroy": "P",
    "layout_create": "PIWWL",  # → layout, type, rows, columns, elements between columns
    "layout_destroy": "P",
    "matmul_create": "PII",  # → descriptor, compute type, type of alpha and beta
    "matmul_set": "PIPS",  # descriptor, attribute, value, its bytes
    "matmul_destroy": "P",
    "preference_create": "P",
    "preference_set": "PIPS",
    "preference_destroy": "P",
    # handle, matmul, layouts A B C D, preference, how many are wanted, → results, → how many
    "heuristic": "PPPPPPPIPP",
    # handle, matmul, alpha, A, its layout, B, …, beta, C, …, D, …, algorithm, workspace, its bytes,
    # stream
    "matmul": "PPPPPPPPPPPPPPSP",
}


def argument_types(role: str) -> list[Any]:
    """ctypes of a role's arguments."""
    return [_KINDS[kind] for kind in ROLES[role]]


@dataclass(frozen=True)
class BlasTable:
    """One library. libraries: file names, the newest first. parts: folders below one that a person
    or the system names (CUDA_HOME, ROCM_PATH); homes: those that are looked into anyway; packages:
    folders below Python's for packages that bring the library.

    types: element types → its numbers. compute: float32 sums; plain, transposed: operations on A
    and B; transpose: attributes of both; workspace: the preference for its bytes; alignments: those
    for A, B, C and D in bytes, or none. algo_bytes: of an algorithm at the head of a result. names:
    of statuses. versions: what major and minor of its version number count in.
    """

    name: str
    api: str
    libraries: tuple[str, ...]
    parts: tuple[str, ...]
    homes: tuple[str, ...]
    packages: tuple[str, ...]
    symbols: Mapping[str, str]
    types: Mapping[str, int]
    compute: int
    plain: int
    transposed: int
    transpose: tuple[int, int]
    workspace: int
    alignments: tuple[int, ...]
    algo_bytes: int
    names: Mapping[int, str]
    versions: tuple[int, int]
    install: str

    def __post_init__(self) -> None:
        assert set(self.symbols) <= set(ROLES), set(self.symbols) - set(ROLES)

    @property
    def result_bytes(self) -> int:
        """Of what the heuristic returns for one algorithm: it, size_t workspace, int status, float
        waves, int[4] reserved."""
        return self.algo_bytes + 32

    def error_name(self, status: int) -> str:
        """The library's own name of a status."""
        return self.names.get(status, "a status without a name")
