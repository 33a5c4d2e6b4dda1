"""The ground of the stand-in: C functions as attributes, handles, statuses, injected failures."""

from __future__ import annotations

import itertools
import threading
from typing import Any, TypeVar

from pumice.emulator.hip import abi
from pumice.emulator.hip.cards import Card
from pumice.emulator.hip.executor import Executor
from pumice.emulator.hip.status import HipError, Status
from pumice.emulator.hip.work import Stream, interrupts_between
from pumice.errors import UsageError

T = TypeVar("T")


class HipBase:
    """C functions as attributes, like ctypes.CDLL's.

    fail(function, status, after): the call after `after` more of a function returns a status, once.
    """

    def __init__(self, chosen: Card, executor: Executor) -> None:
        self.card, self.executor = chosen, executor
        self.used = 0
        self._sizes: dict[int, int] = {}  # device allocations
        self._variables: dict[int, int] = {}  # of loaded modules: address → bytes
        self._host: dict[int, Any] = {}  # pinned host memory: its owner
        self._pinned: dict[int, int] = {}
        self._objects: dict[int, Any] = {}
        self._handles = itertools.count(0x1000, 0x10)
        self._null_stream = Stream()
        self._lock = threading.RLock()
        self._failures: list[tuple[str, Status, int]] = []
        self._lost: HipError | None = None
        self._detail: str | None = None
        self._interrupt: KeyboardInterrupt | None = None
        self._texts: dict[str, Any] = {}
        self._functions: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if name not in abi.SIGNATURES:
            raise AttributeError(f"the emulated libamdhip64 has no {name}")
        if name not in self._functions:
            self._functions[name] = abi.c_function(name, self._guard(name))
        return self._functions[name]

    def explain(self) -> str | None:
        """What the last failure was about, once. Ctrl-C that fell into a call is raised here, where
        nothing of C stands in between.
        """
        interrupt, self._interrupt = self._interrupt, None
        if interrupt is not None:
            raise interrupt
        detail, self._detail = self._detail, None
        return detail

    def fail(self, function: str, status: Status, after: int = 0) -> None:
        """Injects a failure."""
        if function not in abi.SIGNATURES:
            raise UsageError(f"{function!r} is not a function of the emulated libamdhip64")
        self._failures.append((function, status, after))

    def _guard(self, name: str) -> Any:
        """A method whose exceptions become statuses."""
        method = getattr(self, f"_{name}")
        if name in abi.RETURNS_TEXT:
            return method

        def call(*arguments: int) -> int:
            with self._lock:
                try:
                    self._injected(name)
                    return int(method(*arguments) or Status.SUCCESS)
                except HipError as error:
                    self._detail = error.detail or None
                    return int(error.status)
                except KeyboardInterrupt as error:
                    self._interrupt = error
                    return int(Status.UNKNOWN)
                except BaseException as error:  # nothing may leave through C
                    self._detail = f"{type(error).__name__}: {error}"
                    return int(Status.UNKNOWN)

        return call

    def _injected(self, name: str) -> None:
        for index, (function, status, after) in enumerate(self._failures):
            if function != name:
                continue
            if after == 0:
                del self._failures[index]
                raise HipError(status, "injected")
            self._failures[index] = (function, status, after - 1)
            return

    def _new(self, value: Any, out: int) -> None:
        handle = next(self._handles)
        self._objects[handle] = value
        abi.write_pointer(out, handle)

    def _get(self, handle: int, kind: type[T]) -> T:
        value = self._objects.get(handle)
        if not isinstance(value, kind):
            raise HipError(Status.INVALID_HANDLE, f"0x{handle:x} is no {kind.__name__.lower()}")
        return value

    def _delete(self, handle: int, kind: type[Any]) -> None:
        self._get(handle, kind)
        del self._objects[handle]

    def _stream(self, handle: int) -> Stream:
        return self._get(handle, Stream) if handle else self._null_stream

    def _run(self, stream: Stream, until: int | None = None) -> None:
        """Work of a stream; a fault in it loses the device, and so does a second Ctrl-C."""
        if self._lost is not None:
            raise self._lost
        whole = True

        def end_of_work() -> None:
            nonlocal whole
            whole = True
            between()
            whole = False

        try:
            with interrupts_between() as between:
                whole = False
                stream.run(until, end_of_work)
                whole = True
        except HipError as error:
            self._lost = error
            raise
        except KeyboardInterrupt:
            if not whole:  # half of a kernel's results: nobody may go on from there
                self._lost = HipError(Status.LAUNCH_FAILURE, "Ctrl-C ended a kernel before its end")
            raise

    def _ordinal(self, ordinal: int) -> None:
        if ordinal != 0:
            raise HipError(Status.INVALID_DEVICE, f"there is device 0 only, not {ordinal}")
