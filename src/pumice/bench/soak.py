"""`python -m pumice.bench.soak` (scripts/soak): many clients for some minutes, and what is left.

Questions are answered alone first; then clients come at random times, and every greedy answer that
is read to its end must be the one that was given alone, ties aside. Afterwards the server must hold
what it held before: no block of the cache, no further thread, descriptor or task, no more memory.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from pumice.bench.soak_clients import (
    CHAT,
    NONSENSE,
    Clients,
    Question,
    Report,
    Solo,
    questions,
    solo,
)
from pumice.bench.soak_http import exchange
from pumice.bench.soak_server import SoakServer, State, running
from pumice.errors import DeviceError, PumiceError

DEFAULT_MODEL = "smollm2-135m"
TIE = 0.02  # ten times what the batch was seen to change a token's log probability by
_QUESTIONS = 24
_CONTEXT = 1024
_CACHE_TOKENS = 4096  # small: requests compete for it, and all of it is touched before the load
_BURST = 64  # clients at once before the load, or twice as many as there are in all
_ARRIVALS = 0.8  # part of the time in which clients come; the rest is for their ends
_SETTLING = 60.0  # seconds for the last requests to end
_MEMORY = 16 << 20  # bytes that may come and go


@dataclass(frozen=True)
class Check:
    """A line of the verdict."""

    name: str
    passed: bool
    detail: str


@dataclass(frozen=True)
class Evidence:
    """What was seen. cut: clients that had not ended when time was up. memory: RSS while the load
    ran, in bytes, at even times. status: the server's exit status after it was told to end.
    """

    clients: int
    cut: int
    before: State
    after: State
    memory: Sequence[int]
    report: Report
    log: Sequence[str]
    status: int | None


def judge(seen: Evidence) -> list[Check]:
    """The verdict, a check a line."""
    before, after, report = seen.before, seen.after, seen.report

    def held(name: str, value: float, allowed: float) -> Check:
        return Check(name, value <= allowed, f"{value:g}, before {allowed:g}")

    early = seen.memory[len(seen.memory) // 5 : 2 * len(seen.memory) // 5 + 1]
    late = seen.memory[-max(1, len(seen.memory) // 5) :]
    growth = _middle(late) - _middle(early)
    left = after.rss_bytes - max(before.rss_bytes, _middle(early))
    faults = [line.strip() for line in seen.log if "Traceback" in line or "Error" in line]
    first = report.differing[:1]
    equal = report.compared - report.ties - len(report.differing)
    return [
        Check("clients that came to their end", seen.cut * 20 <= seen.clients,
              f"{seen.clients - seen.cut} of {seen.clients}"),
        Check("answers equal to those given alone", equal > 0 and not report.differing,
              f"{equal} of {report.compared}, {report.ties} parted at a tie {' '.join(first)}"),
        Check("nothing wrong for a client", not report.wrong,
              f"{len(report.wrong)} {' '.join(report.wrong[:1])}"),
        Check("requests that run or wait", after.idle,
              f"{after.engine['running']:g} and {after.engine['waiting']:g}"),
        Check("cache blocks in use", after.engine["blocks_in_use"] == 0,
              f"{after.engine['blocks_in_use']:g} of {after.engine['blocks']:g}"),
        held("threads", after.threads, before.threads),
        held("descriptors", after.descriptors, before.descriptors),
        held("tasks", after.tasks, before.tasks),
        Check("memory flat under load", growth <= _MEMORY,
              f"{growth / 1e6:+.1f} MB of {_middle(late) / 1e6:.0f} MB"),
        Check("memory given back", left <= _MEMORY, f"{left / 1e6:+.1f} MB"),
        Check("no fault in the log", not faults, f"{len(faults)} {' '.join(faults[:1])}"),
        Check("ends when told", seen.status == 0, f"exit status {seen.status}"),
    ]  # fmt: skip


def _middle(values: Sequence[int]) -> int:
    return sorted(values)[len(values) // 2] if values else 0


async def load(
    server: SoakServer, clients: int, seconds: float, seed: int, tie: float
) -> tuple[State, State, list[int], Report, int]:
    """State before and after, memory in between, the clients' report, and how many were cut off."""
    answers = await _answers_alone(server, min(_QUESTIONS, clients), seed)
    await _touch_cache(server)
    crowd = Clients(server.port, answers, seed, tie=tie)
    await _warm_up(server, crowd, min(_BURST, 2 * clients))
    crowd.report = Report()
    before = await _settled(server)
    _say(f"{clients} clients in {seconds:g} s")
    draw = random.Random(seed)
    start = time.monotonic()
    arrivals = sorted(draw.uniform(0, _ARRIVALS * seconds) for _ in range(clients))
    tasks: list[asyncio.Task[None]] = []
    memory: list[int] = []

    async def watch() -> None:
        while True:
            state = await server.state()
            memory.append(state.rss_bytes)
            done = sum(task.done() for task in tasks)
            _say(
                f"{time.monotonic() - start:4.0f} s  {done:5d} done  "
                f"{state.engine['running']:3.0f} running  {state.engine['waiting']:3.0f} waiting  "
                f"{state.rss_bytes / 1e6:6.0f} MB  {state.descriptors:4d} descriptors  "
                f"{state.tasks:4d} tasks"
            )
            await asyncio.sleep(seconds / 30)

    watcher = asyncio.create_task(watch())
    for arrival in arrivals:
        await asyncio.sleep(max(0.0, start + arrival - time.monotonic()))
        tasks.append(asyncio.create_task(crowd.one()))
    left = max(_SETTLING, start + seconds - time.monotonic())
    _, unfinished = await asyncio.wait(tasks, timeout=left)
    watcher.cancel()
    for task in unfinished:
        task.cancel()
    await asyncio.gather(*tasks, watcher, return_exceptions=True)
    after = await _settled(server, before)
    return before, after, memory, crowd.report, len(unfinished)


async def _answers_alone(server: SoakServer, count: int, seed: int) -> dict[Question, Solo]:
    asked = questions(count, seed)
    _say(f"{len(asked)} questions, each alone")
    return {question: await solo(server.port, question) for question in asked}


async def _touch_cache(server: SoakServer) -> None:
    """Fills the cache with different prompts, so that its memory is there before memory is
    watched.
    """
    for i in range(10 * _CACHE_TOKENS // _CONTEXT):
        words = f"{i} " * (_CONTEXT // 3)  # a digit and a space are two tokens, or one
        body = Question(words, 8).body(stream=False)
        await exchange(server.port, "POST", CHAT, body)
        engine = (await server.state()).engine
        if engine["blocks_cached"] > 0.95 * engine["blocks"]:
            return
    raise DeviceError(f"the cache keeps {engine['blocks_cached']:g} of {engine['blocks']:g} blocks")


async def _warm_up(server: SoakServer, crowd: Clients, burst: int) -> None:
    """What is made once is made now: the largest batch's buffers; helper threads, whose shares of
    the heap stay as large as the largest body that each has seen.
    """
    await asyncio.gather(*(crowd.one() for _ in range(burst)))
    longest = max(NONSENSE, key=lambda item: len(item[2]))
    await asyncio.gather(*(exchange(server.port, *longest) for _ in range(burst)))


async def _settled(server: SoakServer, wanted: State | None = None) -> State:
    """The state when nothing is under way; at the latest after `_SETTLING` seconds. Closed
    connections and idle helper threads take a moment to go.
    """
    deadline = time.monotonic() + _SETTLING
    while True:
        state = await server.state()
        small = wanted is None or (
            state.threads <= wanted.threads
            and state.descriptors <= wanted.descriptors
            and state.tasks <= wanted.tasks
        )
        if (state.idle and small) or time.monotonic() > deadline:
            return state
        await asyncio.sleep(0.5)


def run(
    model: str, clients: int, seconds: float, seed: int, tie: float, more: Sequence[str]
) -> list[Check]:
    """Starts a server, loads it and judges what is left."""
    arguments = [model, "--context", str(_CONTEXT), "--cache-tokens", str(_CACHE_TOKENS), *more]
    with running(arguments) as server:
        before, after, memory, report, cut = asyncio.run(load(server, clients, seconds, seed, tie))
        server.end()
    for kind, count in sorted(report.done.items()):
        _say(f"{count:5d} {kind}")
    _say(f"{report.busy:5d} times told to come again (429)")
    return judge(Evidence(clients, cut, before, after, memory, report, server.log, server.status))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when every check passed, 1 when one did not; a `PumiceError`'s own status otherwise."""
    parser = argparse.ArgumentParser(prog="soak", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=300.0, help="of the load [300]")
    parser.add_argument("--clients", type=int, default=1000, help="in all [1000]")
    parser.add_argument("--model", default=DEFAULT_MODEL, help=f"[{DEFAULT_MODEL}]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--tie", type=float, default=TIE,
        help=f"nats between two tokens below which either may come; 0: never [{TIE}]",
    )  # fmt: skip
    parser.add_argument("serve", nargs="*", help="after --: further options of `pumice serve`")
    given = parser.parse_args(arguments)
    if not 1 <= given.seconds <= 3600 or not 1 <= given.clients <= 100_000:
        parser.error("allowed: 1 to 3600 seconds, 1 to 100000 clients")
    try:
        checks = run(given.model, given.clients, given.seconds, given.seed, given.tie, given.serve)
    except PumiceError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    width = max(len(check.name) for check in checks)
    for check in checks:
        print(f"{'ok  ' if check.passed else 'FAIL'}  {check.name:{width}}  {check.detail}")
    return 0 if all(check.passed for check in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
