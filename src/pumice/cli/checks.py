"""The questions that `pumice doctor` asks of a machine. A check says what it found; it never
guesses.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pumice._version import __version__
from pumice.errors import PumiceError

OK, WARNING, FAILED = "ok", "warning", "failed"
_SELFTEST_SECONDS = 300


@dataclass(frozen=True)
class Finding:
    """status: ok, warning (Pumice works, less well) or failed (something will not work)."""

    name: str
    status: str
    detail: str
    hint: str = ""


def versions() -> Finding:
    """Of what matters for a report."""
    import importlib.metadata as metadata

    names = ("apache-tvm", "numpy", "tokenizers", "safetensors", "huggingface-hub")
    found, missing = [], []
    for name in names:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    text = f"pumice {__version__}, Python {platform.python_version()}, {', '.join(found)}"
    if missing:
        return Finding(
            "versions", FAILED, f"{text}; missing: {', '.join(missing)}", "pip install pumice"
        )
    return Finding("versions", OK, text)


def processor() -> Finding:
    """The CPU, and the target that kernels are compiled for."""
    from pumice.targets.detect import cpu_features, cpu_name, detect_cpu

    features = ", ".join(sorted(cpu_features())) or "none that Pumice uses"
    target = detect_cpu()
    return Finding(
        "cpu", OK, f"{cpu_name()}: {features}; target {target.name}: {target.description}"
    )


def devices() -> Iterator[Finding]:
    """The devices of each driver, or what is missing to use them."""
    from pumice.runtime.found_devices import device_line, reports
    from pumice.runtime.gpu_load import target_of

    yield Finding("devices", OK, "cpu:0")
    for report in reports():
        if report.obstacle:  # a GPU, and no way to it
            yield Finding(report.api, WARNING, report.obstacle, report.hint)
        elif report.missing:
            text = report.missing if report.installed else "no driver, no device"
            yield Finding(report.api, OK, text)
        for properties in report.devices:
            line = f"{device_line(properties)}, driver {report.version}"
            try:
                target = target_of(properties.arch)
            except PumiceError as error:
                yield Finding(report.api, WARNING, f"{line}: {error.message}")
                continue
            yield Finding(report.api, OK, f"{line}; target {target.name}")
        if report.devices:
            yield vendor_blas(report.api)


def vendor_blas(api: str) -> Finding:
    """The vendor's library for products of many tokens; without it Pumice's own kernels do them."""
    from pumice.runtime.devices.blas.library import TABLES, find
    from pumice.runtime.devices.driver.choose import open_device
    from pumice.settings import Settings

    table = TABLES[api]
    try:
        device = open_device(api)  # the library starts on the thread's device
        blas = find(table, Settings.from_environment().library_homes)
    except PumiceError as error:
        text = f"products by Pumice's own kernels: {error.message}"
        return Finding(table.name, OK, text, error.hint or "")
    return Finding(table.name, OK, f"{blas}, on {device}")


def default_device() -> Finding:
    """What `--device auto` means here, for a model of whatever size."""
    from pumice.device_choice import settle

    found = settle()
    return Finding("auto", WARNING if found.passed_over else OK, found.line)


def threads() -> Finding:
    """What the runtime will use by default, and that its pool really has that many."""
    from pumice.runtime.devices.cpu import CpuDevice, physical_cpus
    from pumice.runtime.devices.tvm_ffi import call, global_function

    device = CpuDevice()
    device.ready()
    pool = call(global_function("runtime.NumThreads"))
    text = f"{device.threads} (physical cores this process may use: {len(physical_cpus())})"
    if pool != device.threads:
        return Finding("threads", FAILED, f"{text}; the runtime's pool has {pool}")
    return Finding("threads", OK, text)


def linker() -> Finding:
    """Compiled kernels are linked into a library."""
    from pumice.compiler.link import linkers

    found = linkers()
    if not found:
        return Finding(
            "linker", FAILED, "none of cc, gcc, clang, ld.lld, ld, ziglang",
            "apt-get install gcc, or pip install ziglang",
        )  # fmt: skip
    return Finding("linker", OK, f"{found[0][0]} ({found[0][1][0]})")


def cache(directory: Path) -> Finding:
    """Whether the cache can be written, and how much fits."""
    from pumice.files import make_directory

    make_directory(directory)
    try:
        with tempfile.NamedTemporaryFile(dir=directory) as handle:
            handle.write(b"pumice")
            handle.flush()
    except OSError as error:
        return Finding(
            "cache", FAILED, f"{directory} cannot be written: {error.strerror}",
            "Choose another place with --cache-dir or PUMICE_CACHE.",
        )  # fmt: skip
    free = shutil.disk_usage(directory).free
    text = f"{directory}, {free / 1e9:.1f} GB free"
    if free < 1e9:
        return Finding("cache", WARNING, text, "A small model takes some 0.3 GB.")
    return Finding("cache", OK, text)


def memory() -> Finding:
    """What may still be taken without swapping."""
    from pumice.runtime.memory import available_bytes

    free = available_bytes()
    if free is None:
        return Finding("memory", WARNING, "this system does not say how much is free")
    if free < 1e9:
        return Finding(
            "memory", WARNING, f"{free / 1e9:.2f} GB free", "Compiling takes up to 1 GB."
        )
    return Finding("memory", OK, f"{free / 1e9:.1f} GB free")


def speed(cache_dir: Path, thread_count: int | None) -> Finding:
    """Read bandwidth and peaks; compiles three small kernels, so it proves the compiler too."""
    from pumice.bench.roofline import measure
    from pumice.targets.detect import detect_cpu

    roofline = measure(detect_cpu(), cache_dir=cache_dir, threads=thread_count)
    return Finding(
        "speed",
        OK,
        f"reads {roofline.read_bytes_per_s / 1e9:.1f} GB/s; "
        f"int8 {roofline.int8_ops_per_s / 1e9:,.0f} Gop/s ({roofline.int8_instruction}); "
        f"float32 {roofline.fp32_ops_per_s / 1e9:,.0f} Gflop/s; {roofline.threads} threads",
    )


def selftest() -> Iterator[Finding]:
    """Every operator's kernels against their references, in a process of their own."""
    from pumice.targets.detect import detect_cpu

    command = [sys.executable, "-m", "pumice.bench.selftest", detect_cpu().name]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_SELFTEST_SECONDS
        )
    except subprocess.TimeoutExpired:
        yield Finding("kernels", FAILED, f"the self-test did not end in {_SELFTEST_SECONDS} s")
        return
    for line in done.stdout.splitlines():
        result = json.loads(line)
        name = f"kernel {result['kernel']}"
        if result["fault"]:
            yield Finding(name, FAILED, result["fault"], "Please report this with the table above.")
        else:
            worst = f"{result['worst']:.0%} of the tolerated error"
            yield Finding(name, OK, f"{result['cases']} cases, at most {worst}")
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        what = f"signal {-done.returncode}" if done.returncode < 0 else f"status {done.returncode}"
        yield Finding("kernels", FAILED, f"the self-test ended with {what}: {last[0]}")


def guarded(name: str, check: Callable[[], Finding]) -> Finding:
    """The check's finding; an error of ours becomes one that failed."""
    try:
        return check()
    except PumiceError as error:
        return Finding(name, FAILED, error.message, error.hint or "")
