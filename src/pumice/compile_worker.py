"""The child process that compiles: reads a job (JSON) on standard input, shows progress on standard
error.

On failure it prints {"kind", "message", "hint"} as the last line of standard output; the parent
raises that exception again.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

from pumice.processes import end_with

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _nothing(_signal: int, _frame: Any) -> None:
    pass


def _interrupt(_signal: int, _frame: Any) -> None:
    """The first one counts: a second (the terminal's and the parent's) must not break into what
    removes the rests."""
    for number in SIGNALS:
        signal.signal(number, _nothing)  # not SIG_IGN, of which Python warns when one is pending
    raise KeyboardInterrupt


def _end_with(parent: int) -> None:
    """Ends when the parent is gone, killed for instance: nobody would take the result."""
    if not end_with(parent):
        raise KeyboardInterrupt


def main() -> int:
    try:
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as `nohup` and shells ask for
                signal.signal(number, _interrupt)
        return _work()
    except KeyboardInterrupt:
        return 130


def _work() -> int:
    job = json.load(sys.stdin)
    _end_with(job["parent"])
    from pumice.errors import PumiceError
    from pumice.settings import keep_triton_cache

    keep_triton_cache(Path(job["cache_dir"]))
    try:
        from pumice.compiler.compile import CompileOptions, compile_model
        from pumice.compiler.progress import make_progress
        from pumice.targets import get_target

        with make_progress(quiet=job["quiet"]) as report:
            compile_model(
                job["source"],
                target=get_target(job["target"]),
                output=Path(job["output"]),
                options=CompileOptions(**job["options"]),
                digest=job["digest"],
                report=report,
            )
    except PumiceError as error:
        failure = {"kind": type(error).__name__, "message": error.message, "hint": error.hint}
        print(json.dumps(failure), flush=True)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
