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


def _interrupt(_signal: int, _frame: Any) -> None:
    raise KeyboardInterrupt


def main() -> int:
    signal.signal(signal.SIGTERM, _interrupt)
    job = json.load(sys.stdin)
    from pumice.errors import PumiceError

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
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
