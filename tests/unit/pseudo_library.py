"""The pseudo-code of an instruction set by operation, as the package tinygrad has it."""

from __future__ import annotations

import functools
import importlib
from typing import Any

from pseudo_code import program


@functools.cache
def library(isa: str) -> dict[str, Any]:
    """Programs by an operation's plain name: pseudo-code calls other instructions."""
    pseudo = importlib.import_module(f"tinygrad.runtime.autogen.amd.{isa}.str_pcode").PCODE
    found: dict[str, Any] = {}
    for op, text in pseudo.items():
        found.setdefault(plain_name(op.name), lambda env, text=text: program(text)(env))
    return found if isa == "rdna4" else {**library("rdna4"), **found}  # gfx950 names its minimum


def plain_name(name: str) -> str:
    return name.lower().removesuffix("_e32").removesuffix("_e64")
