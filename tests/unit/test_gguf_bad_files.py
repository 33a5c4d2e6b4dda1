"""Every damaged file is one clear error, whatever is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from gguf_bytes import (
    ARRAY,
    BOOL,
    F32,
    INT32,
    KEYS,
    MATRIX,
    Q4_0,
    STRING,
    UINT8,
    UINT32,
    VECTOR,
    Tensor,
    array,
    gguf,
    key,
    text,
    u32,
    u64,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pumice.errors import ModelFileError, UnsupportedError
from pumice.weights.gguf import GGUFFile
from pumice.weights.source import open_source

GOOD = gguf()
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 98362432\n"


def _tensor(
    dims: tuple[int, ...] = (64, 3), kind: int = 8, offset: int = 0, name: str = "w"
) -> bytes:
    return gguf(tensors=[Tensor(name, dims, kind, offset, bytes(204))])


def _key(kind: int, value: bytes, name: str = "k") -> bytes:
    return gguf([*KEYS, key(name, kind, value)])


_ALIGNMENT = "general.alignment"
CASES: dict[str, tuple[bytes, type[Exception], str]] = {
    "zero bytes": (b"", ModelFileError, "no bytes"),
    "zeros": (bytes(64), ModelFileError, "starts with zeros"),
    "lfs pointer": (LFS, ModelFileError, "Git LFS pointer"),
    "web page": (b"<!DOCTYPE html><html></html>", ModelFileError, "web page"),
    "zip": (b"PK\x03\x04 and so on", ModelFileError, "zip archive"),
    "ggjt": (b"tjgg\x01\x00\x00\x00", ModelFileError, "from before GGUF"),
    "safetensors": (u64(10) + b'{"a": {}}  ', ModelFileError, "safetensors"),
    "wrong magic": (b"ABCD" + GOOD[4:], ModelFileError, "starts with b'ABCD"),
    "magic only": (b"GGUF", ModelFileError, "cut off inside its header: the version"),
    "version 1": (gguf(version=u32(1)), UnsupportedError, "version 1 is not read"),
    "version 4": (gguf(version=u32(4)), UnsupportedError, "version 4 is not read; allowed: 2 and"),
    "big-endian": (gguf(version=b"\0\0\0\x03"), UnsupportedError, "big-endian"),
    "cut header": (GOOD[:200], ModelFileError, "cut off inside its header"),
    "cut data": (GOOD[:-1], ModelFileError, r"'n\.weight' needs bytes [\d,]+ to [\d,]+; the file"),
    "key count": (gguf(key_count=1 << 40), ModelFileError, "announces 1,099,511,627,776 keys"),
    "key count max": (gguf(key_count=(1 << 64) - 1), ModelFileError, "announces"),
    "tensor count": (gguf(tensor_count=1 << 63), ModelFileError, "tensors, which take"),
    "one tensor more": (gguf(tensor_count=3), ModelFileError, "."),
    "empty key": (_key(UINT8, b"\0", ""), ModelFileError, "empty name"),
    "duplicate key": (gguf([KEYS[0], KEYS[0]]), ModelFileError, "'general.architecture' appears"),
    "unknown key type": (_key(13, b"\0" * 8), ModelFileError, "'k' has type 13"),
    "unknown array type": (_key(ARRAY, array(77, 1, b"\0" * 8)), ModelFileError, "of type 77"),
    "nested array": (
        _key(ARRAY, array(ARRAY, 1, array(UINT8, 1, b"\0"))), ModelFileError, "array of arrays",
    ),
    "array count": (_key(ARRAY, array(INT32, 1 << 62, b"")), ModelFileError, "array 'k' of"),
    "string count": (_key(ARRAY, array(STRING, 1 << 60, b"")), ModelFileError, "array 'k' of"),
    "string past end": (_key(STRING, u64(1 << 40)), ModelFileError, "value of key 'k' needs"),
    "string length max": (_key(STRING, u64((1 << 64) - 1)), ModelFileError, "value of key 'k'"),
    "string in array past end": (
        _key(ARRAY, array(STRING, 2, text("a") + u64(1 << 50))), ModelFileError,
        "string 1 of array 'k' goes past",
    ),
    "bool 2": (_key(BOOL, b"\x02"), ModelFileError, "bool of value 2"),
    "bool 2 in array": (_key(ARRAY, array(BOOL, 2, b"\0\x02")), ModelFileError, "neither 0 nor 1"),
    "key not utf-8": (gguf([text(b"\xff") + u32(UINT8) + b"\0"]), ModelFileError, "no UTF-8"),
    "value not utf-8": (_key(STRING, text(b"\xff")), ModelFileError, "no UTF-8"),
    "alignment 0": (_key(UINT32, u32(0), _ALIGNMENT), ModelFileError, "general.alignment is 0"),
    "alignment 24": (_key(UINT32, u32(24), _ALIGNMENT), ModelFileError, "power of two"),
    "alignment text": (_key(STRING, text("32"), _ALIGNMENT), ModelFileError, "must be an integer"),
    "alignment huge": (_key(UINT32, u32(1 << 31), _ALIGNMENT), ModelFileError, "."),
    "split.count text": (
        _key(STRING, text("3"), "split.count"), ModelFileError, "split.count is '3'",
    ),
    "no dimensions": (_tensor(()), ModelFileError, "has 0 dimensions"),
    "5 dimensions": (_tensor((32, 1, 1, 1, 1)), ModelFileError, "has 5 dimensions"),
    "dimension 0": (_tensor((64, 0)), ModelFileError, "empty or overflows"),
    "overflow": (_tensor((1 << 32, 1 << 32)), ModelFileError, "empty or overflows"),
    "wraps to small": (_tensor((1 << 33, 1 << 33, 1 << 62)), ModelFileError, "empty or overflows"),
    "no whole blocks": (_tensor((48, 3)), ModelFileError, "rows of 48 weights"),
    "unknown type": (_tensor(kind=99), UnsupportedError, r"tensor 'w'.*99 .*known: F32, F16.*Q6_K"),
    "known elsewhere": (_tensor(kind=19), UnsupportedError, "IQ1_S"),
    "unaligned": (_tensor(offset=8), ModelFileError, "no multiple of the alignment 32"),
    "past the end": (_tensor(offset=1 << 40), ModelFileError, "the file ends at"),
    "offset max": (_tensor(offset=(1 << 64) - 32), ModelFileError, "the file ends at"),
    "empty tensor name": (_tensor(name=""), ModelFileError, "empty name"),
    "duplicate tensor": (
        gguf(tensors=[MATRIX, Tensor("w.weight", (5,), F32, 224, bytes(20))]), ModelFileError,
        "'w.weight' appears twice",
    ),
    "overlap": (
        gguf(tensors=[MATRIX, Tensor("o", (32, 1), Q4_0, 192, bytes(18))]), ModelFileError,
        "'w.weight' and 'o' overlap",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_bad_file(tmp_path: Path, case: str) -> None:
    data, kind, message = CASES[case]
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    with pytest.raises(kind, match=message) as caught:
        GGUFFile.open(path)
    assert str(path) in str(caught.value)
    with pytest.raises(kind):
        open_source(path)


def test_missing_and_directory(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="no such file"):
        GGUFFile.open(tmp_path / "x.gguf")
    with pytest.raises(ModelFileError, match="is a directory"):
        GGUFFile.open(tmp_path)


def test_every_truncation(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    for length in range(len(GOOD)):
        path.write_bytes(GOOD[:length])
        with pytest.raises(ModelFileError):
            GGUFFile.open(path)


_FLIP = st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255))


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(_FLIP, min_size=1, max_size=6), st.integers(0, len(GOOD)))
def test_random_damage(
    tmp_path_factory: pytest.TempPathFactory, flips: list[tuple[int, int]], cut: int
) -> None:
    """Whatever the bytes are, the file opens or one of our two errors says why not."""
    data = bytearray(GOOD)
    for at, value in flips:
        data[at] = value
    path = tmp_path_factory.getbasetemp() / "fuzz.gguf"
    path.write_bytes(bytes(data if cut % 2 else data[:cut]))
    try:
        with GGUFFile.open(path) as file:
            for name, info in file.tensors.items():
                assert file.raw(name).nbytes == info.nbytes
    except (ModelFileError, UnsupportedError) as error:
        assert str(path) in str(error)


def test_the_good_file_is_good(tmp_path: Path) -> None:
    """Else the fuzz above would only see files that were bad from the start."""
    path = tmp_path / "model.gguf"
    path.write_bytes(GOOD)
    with GGUFFile.open(path) as file:
        assert file.raw("n.weight").tobytes() == VECTOR.data
