"""One decoder layer's launches after each other, as a model runs them: which configurations make
the layer fastest.

A kernel that is timed alone finds its inputs written long ago, and the device to itself. In a model
it begins while the launch in front of it ends: what helps there (an early start, room left for the
next launch's programs) can only be seen there. Starting from what was fastest alone, each call's
candidates are tried in the layer, one call after the other; what makes the layer faster is kept.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from pumice.bench.operators.inputs import random_tensor
from pumice.bench.operators.measure import OperatorBench
from pumice.bench.operators.timing import event_ms, microseconds
from pumice.dtypes import itemsize
from pumice.operators.registry import get_spec
from pumice.operators.triton.build import build_plan
from pumice.operators.triton.plan import Config, Problem, TensorSpec, TritonKernel
from pumice.processes import worker_pool
from pumice.targets import Target
from pumice.torch.launch import BoundPlan
from pumice.tuning.database import Database, MeasuredRow, row_of
from pumice.tuning.gpu import candidates, choose_kernel

Binding = dict[str, tuple[str, str, int]]  # argument → (space, name, offset in bytes)
Choice = tuple[TritonKernel, Config]
_LEAST = 0.003  # of a layer's time that a change must save
_REPLAYS = 7
_ALIGNMENT = 256
_COLD_BYTES = 3 << 28  # of weights in rotation: much more than a cache


def _compile(job: tuple[Problem, TritonKernel, Config, Target]) -> str:
    problem, kernel, config, target = job
    try:
        build_plan(problem, kernel.plan(problem, target, config), target)
    except Exception as error:
        return f"{problem.operator} {dict(config)}: {error}"
    return ""


@dataclass
class Chain:
    """A layer's calls. context: keys that attention sees. µs are of one layer."""

    calls: Sequence[tuple[Problem, Binding]]
    target: Target
    context: int
    say: Callable[[str], None]
    chosen: dict[int, Choice] = field(default_factory=dict)
    tried: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        rows = Database(self.target.name)
        self.options: dict[int, list[Choice]] = {}
        for index, (problem, _) in enumerate(self.calls):
            self.options[index] = candidates(problem, self.target)
            found = choose_kernel(problem, self.target, rows)
            assert found.kernel is not None
            self.chosen[index] = (found.kernel, found.config)

    def narrow(self, tried: Sequence[dict[str, Any]], keep: int) -> None:
        """Leaves the candidates that were best in an earlier search, whose `tried` this is, and
        those that it did not have."""
        for index in self.options:
            us: dict[str, float] = {}
            for row in tried:
                if row["call"] == index:
                    key = str(sorted(row["config"].items()))
                    us[key] = min(row["us"], us.get(key, math.inf))
            best = sorted(us, key=us.__getitem__)[:keep]
            now = self.chosen[index]
            keys = [str(sorted(config.items())) for _, config in self.options[index]]
            kept = [
                option
                for key, option in zip(keys, self.options[index], strict=True)
                if key in best or key not in us
            ]
            self.options[index] = kept if now in kept else [*kept, now]

    def leave_room(self, waves: int) -> None:
        """Leaves the products' candidates that take at most so many waves of a compute unit, so
        that the next launch's programs find a place before this one's have ended; begins with the
        first of them. (One call at a time, that shows nothing: all must leave room.)"""
        for index, options in self.options.items():
            kept = [o for o in options if o[1].get("units", 0) * o[1]["warps"] <= waves]
            if "units" in self.chosen[index][1] and kept:
                early = [o for o in kept if o[1].get("early")]
                self.options[index], self.chosen[index] = kept, (early or kept)[0]

    def compile(self, workers: int) -> None:
        """Before any use of the GPU: the workers are forks."""
        start = time.perf_counter()
        jobs = [
            (problem, *option, self.target)
            for index, (problem, _) in enumerate(self.calls)
            for option in self.options[index]
        ]
        with worker_pool(workers, "fork") as pool:
            failed = [text for text in pool.map(_compile, jobs, chunksize=2) if text]
        self.say(f"{len(jobs)} candidates compiled in {time.perf_counter() - start:.0f} s")
        for text in failed[:5]:
            self.say(f"does not compile: {text[:200]}")

    # -- tensors ----------------------------------------------------------------------------------

    def allocate(self) -> None:
        """Weights and caches of as many layers as no cache holds; the rest once."""
        nbytes = sum(
            problem.tensors[name].nbytes
            for problem, binding in self.calls
            for name, (space, _, _) in binding.items()
            if space == "weight"
        )
        self.layers = max(4, math.ceil(_COLD_BYTES / nbytes))
        generator = torch.Generator(device="cuda")
        generator.manual_seed(1)
        self._shared: dict[tuple[str, str], torch.Tensor] = {}
        # In the order of their use, as a model's lie on the device.
        self._weights = torch.empty(
            self.layers * (nbytes + _ALIGNMENT * 32), dtype=torch.uint8, device="cuda"
        )
        self._end = 0
        self._tensors = [self._layer(generator) for _ in range(self.layers)]
        self._bound: dict[tuple[int, str], BoundPlan] = {}
        self._kept: dict[str, torch.Tensor] = {}

    def _layer(self, generator: Any) -> list[dict[str, torch.Tensor]]:
        own: dict[tuple[str, str], torch.Tensor] = {}
        made = []
        for problem, binding in self.calls:
            tensors = {}
            for name, spec in problem.tensors.items():
                space, value, offset = binding[name]
                store = self._shared if space in ("arena", "input") else own
                if (space, value) not in store:
                    store[space, value] = self._storage(space, value, name, spec, generator)
                tensors[name] = _view(store[space, value], spec, offset)
            made.append(tensors)
        return made

    def _storage(
        self, space: str, value: str, name: str, spec: TensorSpec, generator: Any
    ) -> torch.Tensor:
        if space == "arena":  # large enough for any tensor of a layer
            most = max(_span(s) + b[n][2] for p, b in self.calls for n, s in p.tensors.items()
                       if b[n][0] == "arena" and b[n][1] == value)  # fmt: skip
            return torch.zeros(most, dtype=torch.uint8, device="cuda")
        if space == "input":
            return self._input(value, spec).view(torch.uint8).flatten()
        if space == "weight":
            tensor = random_tensor(spec, name, "cuda", generator)
            data = tensor.contiguous().view(torch.uint8).flatten()
            place = self._weights[self._end : self._end + data.numel()]
            self._end += -(-data.numel() // _ALIGNMENT) * _ALIGNMENT
            return place.copy_(data)
        return torch.zeros(_span(spec), dtype=torch.uint8, device="cuda")  # a cache

    def _input(self, name: str, spec: TensorSpec) -> torch.Tensor:
        if name == "block_table":
            found = torch.arange(math.prod(spec.shape), dtype=torch.int32).reshape(spec.shape)
            return (found % self._blocks()).cuda()
        last = {"context_len": self.context, "positions": self.context - 1,
                "slots": self.context - 1}.get(name, 0)  # fmt: skip
        return torch.full(spec.shape, last, dtype=torch.int32, device="cuda")

    def _blocks(self) -> int:
        return next(p["k_cache"].shape[0] for p, _ in self.calls if "k_cache" in p.tensors)

    # -- timing -----------------------------------------------------------------------------------

    def _plan(self, index: int, choice: Choice) -> BoundPlan:
        kernel, config = choice
        key = (index, f"{kernel.name} {sorted(config.items())}")
        if key not in self._bound:
            problem = self.calls[index][0]
            plan = kernel.plan(problem, self.target, config)
            self._bound[key] = BoundPlan(problem, plan, self.target)
            self._kept |= {
                name: t
                for name, t in self._bound[key].restored("cuda").items()
                if name not in self._kept or self._kept[name].numel() < t.numel()
            }
        return self._bound[key]

    def microseconds(self, chosen: dict[int, Choice], without: Sequence[int] = ()) -> float:
        """Of one layer, the calls `without` left out: the least of several replays of a graph of
        all layers (nothing makes a replay faster than it is; other work makes it slower)."""
        plans = [self._plan(index, chosen[index]) for index in range(len(self.calls))]
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        graph = torch.cuda.CUDAGraph()

        def run() -> None:
            for layer in self._tensors:
                for index, (plan, tensors) in enumerate(zip(plans, layer, strict=True)):
                    if index not in without:
                        plan({**tensors, **self._kept})

        with torch.cuda.stream(stream):
            run()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            run()
        graph.replay()
        return min(event_ms(graph.replay) for _ in range(_REPLAYS)) * 1e3 / self.layers

    # -- the search -------------------------------------------------------------------------------

    def descend(self, rounds: int = 2, budget_s: float = 1e9, keep: int = 12) -> float:
        """Tries each call's candidates in turn; from the second round on only its best ones."""
        start = time.perf_counter()
        best = self.microseconds(self.chosen)
        parts = [f"{self.microseconds(self.chosen, [i]):.2f}" for i in self.options]
        self.say(f"as it was: {best:.2f} µs a layer; without one call: {', '.join(parts)}")
        times: dict[int, list[tuple[float, int]]] = {}
        for turn in range(rounds):
            for index in sorted(self.options, key=lambda i: -self._bytes(i)):
                options = self.options[index]
                order = [i for _, i in sorted(times[index])[:keep]] if turn else range(len(options))
                found = []
                for i in order:
                    if time.perf_counter() - start > budget_s:
                        self.say("out of time")
                        return best
                    try:
                        us = self.microseconds({**self.chosen, index: options[i]})
                    except Exception as error:
                        torch.cuda.synchronize()
                        self.say(f"failed: {options[i]}: {error}"[:300])
                        continue
                    found.append((us, i))
                    self.tried.append({"call": index, "us": round(us, 3),
                                       "config": dict(options[i][1])})  # fmt: skip
                times[index] = found
                if found and min(found)[0] < best * (1 - _LEAST):
                    best = min(found)[0]
                    self.chosen[index] = options[min(found)[1]]
                self.say(f"{self.calls[index][0].operator} {index}: {best:.2f} µs a layer with "
                         f"{dict(self.chosen[index][1])}")  # fmt: skip
        return best

    def alone(self, index: int) -> float:
        """µs of one call of each layer after another, without the rest."""
        plan = self._plan(index, self.chosen[index])
        calls = [{**layer[index], **self._kept} for layer in self._tensors]
        return microseconds(plan, calls)

    def rows(self, bench: OperatorBench, measured: str) -> list[MeasuredRow]:
        """Of what was chosen; their µs are the call's alone."""
        found = []
        for index, (problem, _) in enumerate(self.calls):
            kernel, config = self.chosen[index]
            work, us = get_spec(problem.operator).work, self.alone(index)
            assert work is not None
            floor = work(problem).floor_s(bench.bandwidth, bench.peak) / (us * 1e-6)
            found.append(
                row_of(
                    problem, kernel=kernel.name, config=dict(config), us=round(us, 2),
                    floor=round(floor, 3), error=0.0, device=bench.device, measured=measured,
                )
            )  # fmt: skip
        return found

    def free(self) -> None:
        """Gives the tensors back."""
        self._tensors, self._shared, self._kept, self._bound = [], {}, {}, {}
        self._weights = torch.empty(0)
        torch.cuda.empty_cache()

    def _bytes(self, index: int) -> int:
        return sum(t.nbytes for t in self.calls[index][0].tensors.values())


def _span(spec: TensorSpec) -> int:
    """Bytes from the first element's start to the last one's end."""
    last = sum((size - 1) * stride for size, stride in zip(spec.shape, spec.stride, strict=True))
    return (last + 1) * itemsize(spec.dtype)


def _view(storage: torch.Tensor, spec: TensorSpec, offset: int) -> torch.Tensor:
    """A tensor of that spec in bytes that begin at `offset`."""
    dtype = getattr(torch, spec.dtype)
    return storage[offset : offset + _span(spec)].view(dtype).as_strided(spec.shape, spec.stride)
