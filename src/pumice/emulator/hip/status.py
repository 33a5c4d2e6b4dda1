"""HIP's status codes (hipError_t of hip_runtime_api.h), those that the stand-in returns."""

from __future__ import annotations

from enum import IntEnum


class Status(IntEnum):
    """Codes; `hip_name` is the enumerator in the header, `text` what hipGetErrorString says."""

    SUCCESS = 0
    INVALID_VALUE = 1
    OUT_OF_MEMORY = 2
    NOT_INITIALIZED = 3
    INVALID_CONFIGURATION = 9
    INVALID_DEVICE_POINTER = 17
    INVALID_DEVICE = 101
    INVALID_IMAGE = 200
    NO_BINARY_FOR_GPU = 209
    INVALID_HANDLE = 400
    NOT_FOUND = 500
    NOT_READY = 600
    ILLEGAL_ADDRESS = 700
    LAUNCH_FAILURE = 719
    COOPERATIVE_LAUNCH_TOO_LARGE = 720
    NOT_SUPPORTED = 801
    STREAM_CAPTURE_UNSUPPORTED = 900
    STREAM_CAPTURE_INVALIDATED = 901
    STREAM_CAPTURE_UNJOINED = 904
    CAPTURED_EVENT = 907
    UNKNOWN = 999

    @property
    def hip_name(self) -> str:
        return _NAMES[self][0]

    @property
    def text(self) -> str:
        return _NAMES[self][1]


_NAMES = {
    Status.SUCCESS: ("hipSuccess", "no error"),
    Status.INVALID_VALUE: ("hipErrorInvalidValue", "invalid argument"),
    Status.OUT_OF_MEMORY: ("hipErrorOutOfMemory", "out of memory"),
    Status.NOT_INITIALIZED: ("hipErrorNotInitialized", "initialization error"),
    Status.INVALID_CONFIGURATION: (
        "hipErrorInvalidConfiguration",
        "invalid configuration argument",
    ),
    Status.INVALID_DEVICE_POINTER: ("hipErrorInvalidDevicePointer", "invalid device pointer"),
    Status.INVALID_DEVICE: ("hipErrorInvalidDevice", "invalid device ordinal"),
    Status.INVALID_IMAGE: ("hipErrorInvalidImage", "device kernel image is invalid"),
    Status.NO_BINARY_FOR_GPU: (
        "hipErrorNoBinaryForGpu",
        "no kernel image is available for execution on the device",
    ),
    Status.INVALID_HANDLE: ("hipErrorInvalidHandle", "invalid resource handle"),
    Status.NOT_FOUND: ("hipErrorNotFound", "named symbol not found"),
    Status.NOT_READY: ("hipErrorNotReady", "device not ready"),
    Status.ILLEGAL_ADDRESS: (
        "hipErrorIllegalAddress",
        "an illegal memory access was encountered",
    ),
    Status.LAUNCH_FAILURE: ("hipErrorLaunchFailure", "unspecified launch failure"),
    Status.COOPERATIVE_LAUNCH_TOO_LARGE: (
        "hipErrorCooperativeLaunchTooLarge",
        "too many blocks in cooperative launch",
    ),
    Status.NOT_SUPPORTED: ("hipErrorNotSupported", "operation not supported"),
    Status.STREAM_CAPTURE_UNSUPPORTED: (
        "hipErrorStreamCaptureUnsupported",
        "operation not permitted when stream is capturing",
    ),
    Status.STREAM_CAPTURE_INVALIDATED: (
        "hipErrorStreamCaptureInvalidated",
        "operation failed due to a previous error during capture",
    ),
    Status.STREAM_CAPTURE_UNJOINED: (
        "hipErrorStreamCaptureUnjoined",
        "capturing stream has unjoined work",
    ),
    Status.CAPTURED_EVENT: (
        "hipErrorCapturedEvent",
        "operation not permitted on an event last recorded in a capturing stream",
    ),
    Status.UNKNOWN: ("hipErrorUnknown", "unknown error"),
}


class HipError(Exception):
    """A call's failure: a status, and what the driver's caller cannot read from it."""

    def __init__(self, status: Status, detail: str = "") -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail
