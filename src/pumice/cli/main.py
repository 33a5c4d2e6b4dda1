"""The console script. Commands are imported inside, so that Ctrl-C is one line from the start."""

from __future__ import annotations

import errno
import os
import signal
import sys
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130  # 128 + SIGINT, as shells count
ENDING = (signal.SIGTERM, signal.SIGHUP)


def main() -> None:
    """Runs `pumice`; ends the process with the command's exit status."""
    try:
        _mend_streams()
        _clean_up_when_told_to_end()
        from pumice.cli.app import app

        app(prog_name="pumice")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        _leave()
    except Told as told:
        _end_by(told.number)
    except SystemExit as status:
        if status.code == INTERRUPTED:
            _leave()
        try:
            sys.stdout.flush()
        except OSError as error:
            _end_without_output(error)
        raise
    except OSError as error:
        if "--debug" in sys.argv:
            raise
        _end_without_output(error)


class Told(BaseException):
    """A signal said to end. No error and no interrupt: nothing but what cleans up may catch it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def _clean_up_when_told_to_end() -> None:
    """SIGTERM and SIGHUP unwind the program, so that half-written directories are removed and
    children told, before it ends by them. A second one ends it at once.
    """

    def told(number: int, _frame: FrameType | None) -> None:
        for each in ENDING:
            signal.signal(each, signal.SIG_DFL)
        raise Told(number)

    for number in ENDING:
        if signal.getsignal(number) is signal.SIG_DFL:  # `nohup` has it ignored
            signal.signal(number, told)


def _end_by(number: int) -> NoReturn:
    """Ends by a signal, as whoever sent it expects."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)  # it was blocked


def _mend_streams() -> None:
    """Streams that were closed (`>&-`) are read as empty and written to nowhere. Bytes that are no
    UTF-8, in file names for instance, go through as they came; what another encoding lacks is `?`.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):  # takes 0, 1, 2
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))
        elif name == "stdin" or (name == "stdout" and stream.encoding.lower() == "utf-8"):
            stream.reconfigure(errors="surrogateescape")
        elif name == "stdout":
            stream.reconfigure(errors="replace")


def _end_without_output(error: OSError) -> NoReturn:
    """Ends after output that could not be written (a full disk, a pipe without a reader), or
    another failure of a file that no command expects.
    """
    try:
        sys.stdout.flush()
    except OSError:  # Python would try once more when it ends, and complain
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if error.errno == errno.EPIPE:  # as `| head` does: no failure of ours
        sys.exit(1)
    from pumice.cli.console import print_error
    from pumice.errors import StorageError

    reason = error.strerror or str(error)
    if error.filename is None:  # of a stream that was open before
        failure = StorageError(f"the output cannot be written: {reason}")
    else:
        failure = StorageError(f"{error.filename}: {reason}")
    print_error(failure)
    sys.exit(failure.exit_code)


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
