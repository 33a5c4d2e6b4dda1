"""The drivers' tables against vendors' headers and libraries, and a cubin made without a GPU."""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pumice.emulator.hip.abi import SIGNATURES
from pumice.emulator.hip.status import Status
from pumice.runtime.devices.driver import cuda, rocm
from pumice.runtime.devices.driver.library import load
from pumice.runtime.devices.driver.properties import device_count
from pumice.runtime.devices.driver.table import DriverTable, argument_types

_INTEGERS = {
    "int": ctypes.c_int,
    "unsigned int": ctypes.c_uint,
    "unsigned": ctypes.c_uint,
    "size_t": ctypes.c_size_t,
    "unsigned char": ctypes.c_ubyte,
    "unsigned long long": ctypes.c_ulonglong,
    "cuuint64_t": ctypes.c_ulonglong,
}
# Enumerations and device numbers are ints; handles and device addresses are pointers.
_INTS = re.compile(
    r"hipDevice_t|CUdevice|hipError_t|CUresult|(hip|CU)\w*([aA]ttribute)(_t)?|hipStreamCaptureMode"
    r"|CUstreamCaptureMode"
)
_POINTERS = re.compile(
    r"hip(Stream|Event|Module|Function|Graph|GraphExec|Deviceptr|GraphNode)_t|hipDeviceptr_t"
    r"|CU(stream|event|module|function|graph|graphExec|graphNode|deviceptr|context)"
)
# cuda.h gives these names another version by a macro; the table holds the version.
_VERSION = re.compile(r"_v\d+$")


def header(vendor: str, name: str) -> str:
    """A vendor's header as Triton brings it, without comments."""
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        pytest.skip("Triton, which brings the vendors' headers, is not installed")
    path = Path(spec.origin).parent / "backends" / vendor / "include" / name
    text = path.read_text(errors="replace")
    return re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL)


def ctype(parameter: str) -> type:
    """The ctypes type of a parameter's declaration."""
    if "*" in parameter:
        return ctypes.c_void_p
    words = re.sub(r"\bconst\b|\s*=.*|__dparm.*", "", parameter).split()
    for count in (len(words), len(words) - 1):
        name = " ".join(words[:count])
        if name in _INTEGERS:
            return _INTEGERS[name]
        if _INTS.fullmatch(name):
            return ctypes.c_int
        if _POINTERS.fullmatch(name):
            return ctypes.c_void_p
    raise AssertionError(f"parameter {parameter!r} is not understood")


def declared(text: str, symbol: str, results: str) -> list[type]:
    """The parameters of a function's first declaration."""
    match = re.search(rf"({results})\s+(?:CUDAAPI\s+)?{symbol}\s*\(([^;{{]*?)\)\s*;", text)
    assert match, f"{symbol} is not declared"
    parameters = match[2].strip()
    if parameters in ("", "void"):
        return []
    return [ctype(p.strip()) for p in parameters.split(",")]


def test_hip_signatures() -> None:
    text = header("amd", "hip/hip_runtime_api.h")
    for role, symbol in rocm.TABLE.symbols.items():
        name = symbol if symbol != "hipGetDevicePropertiesR0600" else "hipGetDeviceProperties"
        expected = declared(text, name, r"hipError_t|const char\*")
        assert argument_types(role) == expected, (role, symbol)
        assert list(SIGNATURES[symbol]) == expected, symbol


def test_cuda_signatures() -> None:
    text = header("nvidia", "cuda.h")
    for role, symbol in cuda.TABLE.symbols.items():
        base = _VERSION.sub("", symbol).removesuffix("WithFlags")
        expected = declared(text, base, "CUresult")
        assert argument_types(role) == expected, (role, symbol)
        macro = re.search(rf"#define {base}\s+(?:__CUDA_API_PT[DS]Z\()?(\w+)", text)
        if symbol != base:
            assert macro and macro[1] == symbol, f"{symbol}: cuda.h says {macro and macro[1]}"


def enumerator(text: str, name: str) -> int:
    """An enumerator's value, counting from the last one that is given."""
    body = next(
        b for b in re.findall(r"enum[^{;]*\{([^}]*)\}", text) if re.search(rf"\b{name}\b", b)
    )
    value, known = -1, {}
    for line in body.split(","):
        match = re.match(r"\s*(\w+)\s*(?:=\s*(\w+))?\s*$", re.sub(r"#[^\n]*", "", line))
        if match is None:
            continue
        given = match[2]
        value = value + 1 if given is None else known[given] if given in known else int(given, 0)
        known[match[1]] = value
    return known[name]


@pytest.mark.parametrize(
    ("table", "vendor", "file", "names"),
    [
        (
            rocm.TABLE, "amd", "hip/hip_runtime_api.h",
            {
                "threads_per_block": "hipDeviceAttributeMaxThreadsPerBlock",
                "shared_bytes": "hipDeviceAttributeMaxSharedMemoryPerBlock",
                "wave": "hipDeviceAttributeWarpSize",
                "clock_khz": "hipDeviceAttributeClockRate",
                "units": "hipDeviceAttributeMultiprocessorCount",
                "integrated": "hipDeviceAttributeIntegrated",
                "memory_clock_khz": "hipDeviceAttributeMemoryClockRate",
                "memory_bus_bits": "hipDeviceAttributeMemoryBusWidth",
                "l2_bytes": "hipDeviceAttributeL2CacheSize",
                "major": "hipDeviceAttributeComputeCapabilityMajor",
                "minor": "hipDeviceAttributeComputeCapabilityMinor",
                "out_of_memory": "hipErrorOutOfMemory",
                "no_device": "hipErrorNoDevice",
                "not_ready": "hipErrorNotReady",
                "other_architecture": "hipErrorNoBinaryForGpu",
                "invalid_image": "hipErrorInvalidImage",
                "not_found": "hipErrorNotFound",
            },
        ),
        (
            cuda.TABLE, "nvidia", "cuda.h",
            {
                "threads_per_block": "CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK",
                "shared_bytes": "CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
                "wave": "CU_DEVICE_ATTRIBUTE_WARP_SIZE",
                "clock_khz": "CU_DEVICE_ATTRIBUTE_CLOCK_RATE",
                "units": "CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT",
                "integrated": "CU_DEVICE_ATTRIBUTE_INTEGRATED",
                "memory_clock_khz": "CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE",
                "memory_bus_bits": "CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH",
                "l2_bytes": "CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE",
                "major": "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR",
                "minor": "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR",
                "out_of_memory": "CUDA_ERROR_OUT_OF_MEMORY",
                "no_device": "CUDA_ERROR_NO_DEVICE",
                "not_ready": "CUDA_ERROR_NOT_READY",
                "other_architecture": "CUDA_ERROR_NO_BINARY_FOR_GPU",
                "invalid_image": "CUDA_ERROR_INVALID_IMAGE",
                "not_found": "CUDA_ERROR_NOT_FOUND",
            },
        ),
    ],
    ids=["rocm", "cuda"],
)  # fmt: skip
def test_numbers(table: DriverTable, vendor: str, file: str, names: dict[str, str]) -> None:
    text = header(vendor, file)
    assert set(table.attributes) <= set(names)
    for key, name in names.items():
        ours = table.attributes[key] if key in table.attributes else table.errors[key]
        assert ours == enumerator(text, name), name


def test_the_emulated_drivers_statuses() -> None:
    text = header("amd", "hip/hip_runtime_api.h")
    for status in Status:
        assert enumerator(text, status.hip_name) == status


@pytest.mark.parametrize("table", [rocm.TABLE, cuda.TABLE], ids=["rocm", "cuda"])
def test_the_installed_library_has_every_symbol(table: DriverTable) -> None:
    """Debian's libamdhip64-5 is enough; it needs no GPU."""
    found = [name for name in table.libraries if _loads(name)]
    if not found:
        pytest.skip(f"no {table.api} driver library is installed")
    driver = load(table)
    assert set(driver.functions) >= set(table.symbols) - table.optional
    assert device_count(driver) >= 0
    assert "OUT" in driver.error_name(table.errors["out_of_memory"]).upper()


def _loads(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def test_a_cubin_is_made_without_a_gpu(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="needs Triton to compile a cubin")
    target = tmp_path / "add.cubin"
    script = Path(__file__).with_name("cuda_cubin.py")
    environment = {"TRITON_CACHE_DIR": str(tmp_path / "cache"), "PATH": "/usr/bin:/bin"}
    subprocess.run([sys.executable, script, "sm_90", target], check=True, env=environment)
    data = target.read_bytes()
    assert data[:4] == b"\x7fELF" and b"vector_add" in data
