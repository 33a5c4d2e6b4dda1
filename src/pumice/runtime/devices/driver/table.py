"""What the runtime needs of a GPU driver: roles, each a C function of one driver.

NVIDIA's and AMD's functions take the same arguments for all roles but two: `activate` (a context at
NVIDIA, a device's number at AMD) and `error_name`/`error_text` (NVIDIA returns through a pointer).
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

POINTER = ctypes.c_void_p  # pointers, handles and device addresses: all are 8 bytes
INT, UINT, SIZE = ctypes.c_int, ctypes.c_uint, ctypes.c_size_t
BYTE, WIDE = ctypes.c_ubyte, ctypes.c_ulonglong

# The arguments of every role. P: pointer, I: int, U: unsigned int, S: size_t, B: unsigned char,
# W: unsigned long long.
_KINDS: Mapping[str, Any] = {"P": POINTER, "I": INT, "U": UINT, "S": SIZE, "B": BYTE, "W": WIDE}

ROLES: Mapping[str, str] = {
    "initialize": "U",
    "driver_version": "P",
    "device_count": "P",
    "device_get": "PI",  # → device, ordinal
    "device_name": "PII",  # text, its bytes, device
    "device_memory": "PI",
    "device_pci": "PII",
    "device_attribute": "PII",  # → value, attribute, device
    "activate": "P",  # NVIDIA: context
    "activate_ordinal": "I",  # AMD
    "context_retain": "PI",  # NVIDIA: → primary context, device
    "context_release": "I",
    "properties": "PI",  # AMD: → hipDeviceProp_t, ordinal
    "properties_old": "PI",
    "synchronize": "",
    "memory_info": "PP",
    "allocate": "PS",
    "free": "P",
    "host_allocate": "PSU",
    "host_free": "P",
    "host_register": "PSU",
    "host_unregister": "P",
    "copy_to_device": "PPSP",  # to, from, bytes, stream
    "copy_to_host": "PPSP",
    "copy_on_device": "PPSP",
    "fill": "PBSP",  # address, byte, bytes, stream
    "stream_create": "PU",
    "stream_destroy": "P",
    "stream_synchronize": "P",
    "stream_wait": "PPU",  # stream, event, flags
    "event_create": "PU",
    "event_destroy": "P",
    "event_record": "PP",
    "event_synchronize": "P",
    "event_query": "P",
    "event_elapsed": "PPP",  # → float milliseconds, start, end
    "module_load": "PP",  # → module, image
    "module_unload": "P",
    "module_function": "PPP",  # → function, module, name
    "module_global": "PPPP",  # → address, → bytes, module, name
    "function_attribute": "PIP",  # → value, attribute, function
    "function_shared": "PII",  # NVIDIA: function, attribute, value
    "launch": "PUUUUUUUPPP",  # function, grid 3, block 3, shared bytes, stream, args, extra
    "launch_extended": "PPPP",  # NVIDIA: CUlaunchConfig, function, args, extra
    "launch_cooperative": "PUUUUUUUPP",  # AMD: as launch, without extra
    "occupancy": "PPIS",  # → blocks, function, threads, dynamic shared bytes
    "capture_begin": "PI",
    "capture_end": "PP",
    "graph_instantiate": "PPW",  # → executable, graph, flags
    "graph_launch": "PP",
    "graph_nodes": "PPP",  # graph, → nodes or null, → count
    "graph_destroy": "P",
    "graph_executable_destroy": "P",
    "error_name": "I",  # AMD: returns the text
    "error_text": "I",
    "error_name_into": "IP",  # NVIDIA: → text
    "error_text_into": "IP",
}


def argument_types(role: str) -> list[Any]:
    """ctypes of a role's arguments."""
    return [_KINDS[kind] for kind in ROLES[role]]


@dataclass(frozen=True)
class DriverTable:
    """One driver. symbols: role → C function; optional: roles that old drivers may lack.

    attributes: the properties' names of `properties.py` → the driver's numbers. launch_end: what
    ends the `extra` list of a launch. errors: names of conditions that the runtime knows → codes.
    install: what to do when the library is missing.
    """

    api: str
    libraries: tuple[str, ...]
    symbols: Mapping[str, str]
    optional: frozenset[str]
    attributes: Mapping[str, int]
    launch_end: int
    errors: Mapping[str, int]
    install: str

    def __post_init__(self) -> None:
        assert set(self.symbols) <= set(ROLES), set(self.symbols) - set(ROLES)
        assert self.optional <= set(self.symbols)
