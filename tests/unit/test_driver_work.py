"""Streams, events and captured graphs over the emulated driver."""

from __future__ import annotations

import numpy as np
import pytest
from driver_fakes import emulated

from pumice.errors import DeviceError


def bytes_of(device, buffer) -> list[int]:
    return device.read(buffer.address, (buffer.nbytes,), np.uint8).tolist()


def test_a_stream_waits_for_anothers_event() -> None:
    device, _ = emulated()
    first, second = device.stream(), device.stream()
    buffer = device.allocate(2)
    event = device.event()
    device.fill(buffer.address, 1, 2, first)
    first.record(event)
    device.fill(buffer.address, 9, 2, first)  # after the event: not waited for
    second.wait(event)
    out = np.zeros(2, np.uint8)
    device.download(out, buffer.address, second)
    assert out.tolist() == [1, 1]
    assert bytes_of(device, buffer) == [9, 9]


def test_an_event_happens_in_time() -> None:
    device, _ = emulated()
    stream = device.stream()
    start, end = device.event(), device.event()
    assert start.done()  # never recorded
    buffer = device.allocate(4)
    stream.record(start)
    device.fill(buffer.address, 5, 4, stream)
    stream.record(end)
    assert not end.done()  # asking is also what lets time pass here
    with pytest.raises(DeviceError, match="hipErrorNotReady"):
        end.milliseconds_since(start)
    end.synchronize()
    assert end.done() and end.milliseconds_since(start) >= 0
    while not end.done():
        pass
    end.close()


def test_an_event_is_polled_to_its_end() -> None:
    device, _ = emulated()
    stream, event, buffer = device.stream(), device.event(), device.allocate(4)
    for byte in range(5):
        device.fill(buffer.address, byte, 4, stream)
    stream.record(event)
    asked = 0
    while not event.done():
        asked += 1
        assert asked < 10
    assert asked == 5


def test_untimed_events_have_no_time() -> None:
    device, _ = emulated()
    stream = device.stream()
    first, second = device.event(timed=False), device.event()
    stream.record(first)
    stream.record(second)
    stream.synchronize()
    with pytest.raises(DeviceError, match="hipErrorInvalidHandle"):
        second.milliseconds_since(first)


def test_a_graph_is_recorded_without_running() -> None:
    device, _ = emulated()
    stream, buffer = device.stream(), device.allocate(3)
    device.fill(buffer.address, 0, 3, stream)
    with device.allocate_host(3) as host:

        def record() -> None:
            device.upload(buffer.address, host.array, stream)
            device.fill(buffer.address, 8, 1, stream)

        graph = device.capture(stream, record)
        assert graph.nodes == 2
        assert bytes_of(device, buffer) == [0, 0, 0]
        for value in (1, 2):  # a graph reads pinned memory when it runs
            host.array[:] = value
            graph.launch(stream)
            stream.synchronize()
            assert bytes_of(device, buffer) == [8, value, value]
        graph.close()
        with pytest.raises(DeviceError, match="hipErrorInvalidHandle"):
            graph.launch(stream)


def test_an_empty_graph() -> None:
    device, _ = emulated()
    stream = device.stream()
    graph = device.capture(stream, lambda: None)
    assert graph.nodes == 0
    graph.launch(stream)
    stream.synchronize()


def test_a_capture_spans_streams_that_join_and_return() -> None:
    device, _ = emulated()
    main, side = device.stream(), device.stream()
    buffer = device.allocate(2)
    fork, join = device.event(timed=False), device.event(timed=False)

    def record() -> None:
        main.record(fork)
        side.wait(fork)
        device.fill(buffer.address, 1, 1, side)
        device.fill(buffer.address + 1, 2, 1, main)
        side.record(join)
        main.wait(join)

    graph = device.capture(main, record)
    assert graph.nodes == 2
    graph.launch(main)
    assert bytes_of(device, buffer) == [1, 2]
    device.fill(buffer.address, 7, 2, side)  # the side stream is a stream again
    assert bytes_of(device, buffer) == [7, 7]


def test_a_captured_event_happens_nowhere_else() -> None:
    device, _ = emulated()
    stream, other, event = device.stream(), device.stream(), device.event()
    device.capture(stream, lambda: stream.record(event))
    for call in (event.synchronize, event.done, lambda: other.wait(event)):
        with pytest.raises(DeviceError, match="hipErrorCapturedEvent"):
            call()
    stream.record(event)  # an ordinary event again
    stream.synchronize()
    assert event.done()


def test_a_stream_that_does_not_return_is_an_error() -> None:
    device, _ = emulated()
    main, side = device.stream(), device.stream()
    fork = device.event()

    def record() -> None:
        main.record(fork)
        side.wait(fork)

    with pytest.raises(DeviceError, match="hipErrorStreamCaptureUnjoined"):
        device.capture(main, record)


def test_waiting_while_capturing_is_an_error() -> None:
    device, _ = emulated()
    stream, buffer = device.stream(), device.allocate(1)
    with pytest.raises(DeviceError, match="hipErrorStreamCaptureUnsupported"):
        device.capture(stream, stream.synchronize)

    def record() -> None:
        with pytest.raises(DeviceError, match="hipErrorStreamCaptureUnsupported"):
            stream.synchronize()
        device.fill(buffer.address, 1, 1, stream)

    with pytest.raises(DeviceError, match="hipErrorStreamCaptureInvalidated"):
        device.capture(stream, record)


def test_an_exception_ends_the_capture_and_goes_on() -> None:
    device, _ = emulated()
    stream, buffer = device.stream(), device.allocate(1)

    def record() -> None:
        device.fill(buffer.address, 1, 1, stream)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        device.capture(stream, record)
    device.fill(buffer.address, 3, 1, stream)
    assert bytes_of(device, buffer) == [3]


def test_a_buffer_that_dies_while_capturing_is_freed_afterwards() -> None:
    device, library = emulated()
    stream, buffer = device.stream(), device.allocate(1)

    def record() -> None:
        device.allocate(100).free()
        device.fill(buffer.address, 3, 1, stream)
        assert library.used == 101

    graph = device.capture(stream, record)
    assert library.used == 1
    graph.launch(stream)
    assert bytes_of(device, buffer) == [3]


def test_capturing_twice_is_an_error() -> None:
    device, _ = emulated()
    stream = device.stream()
    with pytest.raises(DeviceError, match=r"hipErrorInvalidValue.*already"):
        device.capture(stream, lambda: device.capture(stream, lambda: None))


def test_a_closed_stream_is_no_stream() -> None:
    device, _ = emulated()
    stream = device.stream()
    stream.close()
    stream.close()
    with pytest.raises(DeviceError, match=r"hipErrorInvalidHandle.*no stream"):
        stream.synchronize()
