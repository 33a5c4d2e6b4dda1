"""A pool's processes end with the one that made them, even when that one is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

_POOL = """
import multiprocessing, os
from concurrent.futures import ProcessPoolExecutor
from pumice.processes import start_worker

if __name__ == "__main__":
    pool = ProcessPoolExecutor(
        2, multiprocessing.get_context("spawn"), initializer=start_worker, initargs=(os.getpid(),)
    )
    for job in [pool.submit(os.getpid) for _ in range(2)]:
        job.result()
    print(*pool._processes, flush=True)
    input()
"""


def _runs(pid: str) -> bool:
    """Whether a process is there, and no zombie that nobody has waited for."""
    try:
        return Path("/proc", pid, "stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_a_killed_parent(number: signal.Signals, tmp_path: Path) -> None:
    script = tmp_path / "pool.py"
    script.write_text(_POOL)
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", str(script)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as parent:  # fmt: skip
        assert parent.stdout is not None
        workers = parent.stdout.readline().split()
        assert len(workers) == 2 and all(map(_runs, workers))
        parent.send_signal(number)
    until = time.monotonic() + 30
    while any(map(_runs, workers)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(_runs, workers))


def test_a_worker_whose_parent_is_gone_already_ends() -> None:
    code = "from pumice.processes import start_worker; start_worker(1 << 30); print('still here')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1 and not done.stdout
