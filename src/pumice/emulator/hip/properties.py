"""A card's properties as hipDeviceGetAttribute and hipDeviceProp_t give them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from pumice.emulator.hip.cards import Card

PCI = "0000:03:00.0"

# hipDeviceAttribute_t → value.
ATTRIBUTES: Mapping[int, Callable[[Card], int]] = MappingProxyType(
    {
        5: lambda card: card.clock_mhz * 1000,
        16: lambda card: int(card.integrated),
        19: lambda card: card.l2_bytes,
        23: lambda card: _version(card.arch)[0],
        56: lambda card: 1024,
        59: lambda card: card.memory_bus_bits,
        60: lambda card: card.memory_clock_mhz * 1000,
        61: lambda card: _version(card.arch)[1],
        63: lambda card: card.units,
        74: lambda card: card.shared_bytes,
        87: lambda card: card.wave,
    }
)


def _version(arch: str) -> tuple[int, int]:
    """("gfx1100") → (11, 0), as hipDeviceProp_t.major and minor."""
    digits = arch.removeprefix("gfx")
    return int(digits[:-2]), int(digits[-2], 16)


def property_bytes(card: Card, *, new: bool) -> bytes:
    """hipDeviceProp_t of ROCm 6 and later (new) or before: name and gcnArchName are filled in."""
    size, arch_at = (1472, 1160) if new else (792, 396)
    raw = bytearray(size)
    name = card.name.encode()
    raw[: len(name)] = name
    features = ":sramecc+:xnack-" if card.arch.startswith("gfx9") else ""
    arch = (card.arch + features).encode()
    raw[arch_at : arch_at + len(arch)] = arch
    return bytes(raw)
