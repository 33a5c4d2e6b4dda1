"""CUlaunchConfig of cuda.h: a launch with attributes."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

COOPERATIVE, PROGRAMMATIC = 2, 6  # CU_LAUNCH_ATTRIBUTE_*


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute: a number and a union of 64 bytes."""

    _fields_ = (
        ("id", ctypes.c_uint),
        ("padding", ctypes.c_uint),
        ("value", ctypes.c_uint * 16),
    )


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig. grid, block and shared bytes are `sizes`."""

    _fields_ = (
        ("sizes", ctypes.c_uint * 7),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("count", ctypes.c_uint),
    )
    stream: int | None


def launch_config(sizes: Sequence[int | None], attributes: Sequence[int]) -> LaunchConfig:
    """A configuration of grid (3), block (3) and shared bytes, with attributes set to 1."""
    table = (LaunchAttribute * len(attributes))()
    for slot, attribute in zip(table, attributes, strict=True):
        slot.id, slot.value[0] = attribute, 1
    config = LaunchConfig(
        sizes=(ctypes.c_uint * 7)(*(size or 0 for size in sizes)),
        attributes=ctypes.cast(table, ctypes.POINTER(LaunchAttribute)),
        count=len(attributes),
    )
    config.kept = table  # ctypes keeps no reference through a cast
    return config
