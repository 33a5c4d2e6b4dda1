"""From the text of a vocabulary's entry to the bytes that it stands for.

Byte-level vocabularies (GPT-2) write each byte as one printable character; SentencePiece
vocabularies write a space as U+2581 and a byte that no piece covers as `<0xNN>`.
"""

from __future__ import annotations

import functools
import re

SPACE = "▁"
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@functools.cache
def byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet, character → byte: printable Latin-1 is itself, the rest U+0100 and on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    table.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return table


def byte_level_bytes(piece: str) -> bytes:
    """The bytes of a byte-level entry; one with a character outside the alphabet is itself."""
    table = byte_alphabet()
    try:
        return bytes([table[character] for character in piece])
    except KeyError:
        return piece.encode("utf-8", "surrogatepass")


def sentencepiece_bytes(piece: str) -> bytes:
    """The bytes of a SentencePiece entry: `▁` is a space, `<0xNN>` a byte."""
    match = _BYTE.fullmatch(piece)
    if match is not None:
        return bytes([int(match.group(1), 16)])
    return piece.replace(SPACE, " ").encode("utf-8", "surrogatepass")
