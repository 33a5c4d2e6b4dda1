"""The console script. Commands are imported inside, so that Ctrl-C is one line from the start."""

from __future__ import annotations

import os
import sys

INTERRUPTED = 130  # 128 + SIGINT, as shells count


def main() -> None:
    """Runs `pumice`; ends the process with the command's exit status."""
    try:
        from pumice.cli.app import app

        app(prog_name="pumice")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        _leave()
    except SystemExit as status:
        if status.code == INTERRUPTED:
            _leave()
        raise


def _leave() -> None:
    """Ends with status 130. An interrupt that fell into an `eval` (a dataclass being made, say)
    would have Python end itself by the signal instead, although it was handled.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # a pipe whose reader is gone
            pass
    os._exit(INTERRUPTED)
