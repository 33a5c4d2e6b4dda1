"""What a file that is not what it should be looks like, in words a person can act on."""

from __future__ import annotations

_STARTS: tuple[tuple[bytes, str], ...] = (
    (b"GGUF", "it is a GGUF file"),
    (b"lmgg", "it is an old GGML file, from before GGUF"),
    (b"fmgg", "it is an old GGMF file, from before GGUF"),
    (b"tjgg", "it is an old GGJT file, from before GGUF"),
    (b"PK\x03\x04", "it is a zip archive (a PyTorch checkpoint or a wheel)"),
    (b"\x80\x02", "it is a Python pickle (an old PyTorch checkpoint), which is never read"),
    (b"\x1f\x8b", "it is a gzip archive"),
    (b"(\xb5/\xfd", "it is a Zstandard archive"),
)


def describe_content(start: bytes) -> str:
    """A clause on what the first bytes of a file (512 are enough) show."""
    if not start:
        return "it has no bytes (an interrupted download?)"
    if not any(start):
        return "it starts with zeros (an interrupted download?)"
    for magic, text in _STARTS:
        if start.startswith(magic):
            return text
    if start.startswith(b"version https://git-lfs"):
        return "it is a Git LFS pointer, not the file that it stands for (run `git lfs pull`)"
    lowered = start.lstrip().lower()
    if lowered.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "it is a web page, probably an error page saved by a download"
    if len(start) > 9 and start[8:9] == b"{" and int.from_bytes(start[:8], "little") < 1 << 32:
        return "it is a safetensors file"
    return f"it starts with {start[:8]!r}"
