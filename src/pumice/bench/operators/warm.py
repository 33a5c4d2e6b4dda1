"""Peers that compile when they are first called (AITER's Triton kernels) are called once in other
processes, in parallel, so that the run itself finds them in Triton's cache."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from pumice.bench.operators.measure import Row, rows_of
from pumice.processes import worker_pool

MOST_PROCESSES = 12  # each holds a row's tensors and a context of its own on the GPU


def _call(job: tuple[str, str]) -> str:
    """In a worker: one call of AITER's kernel for the row of that operator and label."""
    import torch

    from pumice.bench.operators import aiter
    from pumice.bench.operators.inputs import make_tensors

    operator, label = job
    spec, _, problem, inputs = next(row for row in rows_of(operator, label) if row[1] == label)
    try:
        if aiter.available() and (peer := aiter.peer_of(problem)) is not None:
            peer(make_tensors(spec.name, problem, inputs, "cuda", 0))
            torch.cuda.synchronize()
    except Exception as error:
        return f"aiter {operator} {label}: {type(error).__name__}: {error}"
    finally:
        torch.cuda.empty_cache()
    return ""


def warm_peers(rows: Sequence[Row], say: Callable[[str], None]) -> list[str]:
    """Returns what failed. The workers are forks, as what was loaded to make AITER importable must
    be there; a process that uses the GPU already cannot have such, and says so."""
    import torch

    from pumice.bench.operators import aiter

    own = {(name, row[1]) for name in aiter.OPERATORS for row in rows_of(name)}
    jobs = [job for spec, label, _, _ in rows if (job := (spec.name, label)) in own]
    if not jobs or not aiter.installed():
        return []
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        say("AITER's kernels compile as they are called: this process uses the GPU already")
        return []
    start = time.perf_counter()
    processes = min(MOST_PROCESSES, os.cpu_count() or 1)
    with worker_pool(processes, "fork") as pool:
        failures = [text for text in pool.map(_call, jobs, chunksize=1) if text]
    say(f"AITER called for {len(jobs)} rows in {time.perf_counter() - start:.0f} s")
    return failures
