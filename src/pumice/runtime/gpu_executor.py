"""Runs a GPU artifact's plans on a device, by its driver alone.

Every plan has one shape, so all its addresses and integers are known when it is loaded: its
launches are captured once, and a step is a copy of the batch, a captured graph and a copy of the
result. Copies are outside the graph: the result's size is the batch's own, and two buffers take
turns, so that a batch may be written while the one before it is still copied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pumice.artifact import AGAIN, FILL, BufferRef, Launch, Manifest, Plan, evaluate
from pumice.errors import ArtifactError, PumiceError, UnsupportedError
from pumice.runtime.devices.driver.device import DriverDevice
from pumice.runtime.devices.driver.graph import Graph
from pumice.runtime.devices.driver.stream import Event, Stream
from pumice.runtime.gpu_budget import CachePlan, fixed_need
from pumice.runtime.gpu_cache import DeviceCache
from pumice.runtime.gpu_inputs import PackedInputs, Views, write_batch, write_sampling
from pumice.runtime.gpu_kernels import Kernels
from pumice.runtime.gpu_plans import PlanTable, ShapedPlan
from pumice.runtime.gpu_products import LibraryProducts
from pumice.runtime.gpu_sampling import Drawn, runs
from pumice.runtime.gpu_weights import DeviceWeights, Progress, WeightLayout
from pumice.runtime.step import RowSampling, SampledStep, StepBatch, StepLimits

_STAGES = 2  # batches that may be on their way at once
_Issue = Callable[[Stream], None]


@dataclass
class _BoundPlan:
    """A plan with its graph; a view of each staging buffer."""

    shaped: ShapedPlan
    inputs: PackedInputs
    views: list[Views]
    graph: Graph
    sample: list[_Issue]  # draws tokens from its result; empty where the artifact cannot


class _SampledStep:
    """A launched step; implements `runtime.step.SampledStep`."""

    def __init__(
        self, tokens: Callable[[], npt.NDArray[np.int32]], logits: Callable[[], np.ndarray]
    ) -> None:
        self.tokens, self.logits = tokens, logits


class GpuExecutor:
    """A model loaded on a GPU; implements `runtime.step.Executable`.

    One thread at a time, any thread. notes: what a person should know of the loading (a cache that
    is smaller than it could be). cache_tokens: tokens that the cache holds. samples: whether
    `launch` may be called.
    """

    def __init__(
        self,
        directory: Path,
        manifest: Manifest,
        device: DriverDevice,
        plans: PlanTable,
        cache: CachePlan,
        *,
        random_weights: bool = False,
        progress: Progress | None = None,
        library_homes: Sequence[Path] = (),
    ) -> None:
        self.manifest, self.device, self._plans = manifest, device, plans
        device.activate()
        self._stream = device.stream()
        need = fixed_need(directory, manifest, plans)
        self._arena = device.allocate(max(1, need.arena))
        self._inputs = device.allocate(need.inputs)
        self._stages = [device.allocate_host(need.inputs) for _ in range(_STAGES)]
        self._copied = [device.event(timed=False) for _ in range(_STAGES)]
        self._turn = 0
        self._results = device.allocate_host(max(4 * p.shape.rows * self._width(p)
                                                 for p in plans.all()))  # fmt: skip
        drawing = [*plans.of("decode"), *plans.of("extend")]
        self.samples = all(_sampling(p) in manifest.entries for p in drawing)
        self._drawn = Drawn(device, max(p.shape.rows for p in drawing))
        self._kernels = Kernels(device, directory, manifest)
        self._library = LibraryProducts(device, manifest, library_homes)
        self._weights = DeviceWeights(device, WeightLayout(manifest.weights))
        self._cache = DeviceCache(device, manifest.cache, cache)
        cache = self._cache.plan
        self.notes = list(cache.notes)
        made_up = self._weights.load(
            self._stream, directory, random_weights=random_weights, progress=progress
        )
        if made_up:
            self.notes.append(f"{made_up} of {len(manifest.weights)} weights are random numbers")
        if self._library.said:
            self.notes.append(self._library.said)
        spec, widest = manifest.cache, plans.widest
        self.max_blocks = -(-cache.context_length // spec.block_size)
        embed = plans.of("embed")
        self.limits = StepLimits(
            vocab_size=manifest.model.vocab_size,
            max_tokens=widest.tokens,
            max_sequences=widest.sequences,
            max_rows=widest.rows,
            context_length=cache.context_length,
            block_size=spec.block_size,
            num_blocks=cache.num_blocks,
            hidden_size=self._width(embed[0]) if embed else 0,
            padded_tokens=tuple(sorted({p.shape.tokens for p in plans.of("extend")})),
        )
        self._bound: dict[str, _BoundPlan] = {}
        # The first token of a conversation should not wait for the capture of its plan.
        self._bind(next(iter(plans.of("decode") or plans.of("extend"))))

    @property
    def cache_tokens(self) -> int:
        return self.limits.num_blocks * self.limits.block_size

    @property
    def products(self) -> str:
        """Which way the products go that a vendor's library may compute, for a person; "" where
        the artifact has none."""
        return self._library.said

    def _width(self, shaped: ShapedPlan) -> int:
        """Columns of a plan's result."""
        width = shaped.plan.width
        return self.manifest.model.vocab_size if width is None else width

    # -- plans ------------------------------------------------------------------------------------

    def _address(self, ref: BufferRef, shaped: ShapedPlan, inputs: PackedInputs) -> int:
        match ref.space:
            case "output":
                places = {
                    "logits": lambda: self._address(shaped.plan.output, shaped, inputs),
                    "tokens": lambda: self._drawn.tokens,
                    "logprobs": lambda: self._drawn.logprobs,
                }
                return places[ref.name]() + ref.offset
            case "arena":
                return self._arena.address + ref.offset
            case "weight":
                return self._weights.address(ref.name) + ref.offset
            case "input":
                return self._inputs.address + inputs.offsets[ref.name] + ref.offset
            case "cache":
                return self._cache.address(ref.name, ref.layer) + ref.offset
        raise ArtifactError(f"the plan refers to the unknown space {ref.space!r}", hint=AGAIN)

    def _issues(
        self, plan: Plan, shaped: ShapedPlan, inputs: PackedInputs
    ) -> list[tuple[str, _Issue]]:
        """What puts each launch of a plan into a stream, the shaped one's or one after it, and by
        which kernel or library."""
        found: list[tuple[str, _Issue]] = []
        for index, launch in enumerate(plan.launches):
            if index < len(found):  # part of what a library computes
                continue
            if launch.product is not None:
                product = self._library.bind(
                    launch.product, lambda ref: self._address(ref, shaped, inputs), self._stream
                )
                if product is not None:
                    name, rest = self._library.name, launch.product.launches - 1
                    first = [
                        self._issue(one, plan, shaped, inputs) for one in launch.product.before
                    ]
                    found.append((name, _all([*first, product.issue])))
                    found += [(name, _all([]))] * rest
                    continue
            found.append((launch.kernel, self._issue(launch, plan, shaped, inputs)))
        return found

    def _issue(
        self, launch: Launch, plan: Plan, shaped: ShapedPlan, inputs: PackedInputs
    ) -> _Issue:
        """A kernel's launch, or a fill."""
        values = [
            self._address(a, shaped, inputs)
            if isinstance(a, BufferRef)
            else (a if isinstance(a, float) else evaluate(a, plan.bounds))
            for a in launch.arguments
        ]
        if launch.kernel == FILL:
            return self._fill(*(int(v) for v in values))
        return self._kernels.bind(launch, values).issue

    def _fill(self, address: int, nbytes: int, value: int) -> _Issue:
        return lambda stream: self.device.fill(address, value, nbytes, stream)

    def _bind(self, shaped: ShapedPlan) -> _BoundPlan:
        """A plan ready to run, captured when it is first needed."""
        bound = self._bound.get(shaped.name)
        if bound is not None:
            return bound
        inputs = PackedInputs(shaped.shape)
        try:
            issues = self._issues(shaped.plan, shaped, inputs)
            after = self.manifest.entries.get(_sampling(shaped)) if self.samples else None
            sample = [] if after is None else [i for _, i in self._issues(after, shaped, inputs)]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            if isinstance(error, PumiceError):
                raise
            raise ArtifactError(f"plan {shaped.name!r} is damaged: {error!r}", hint=AGAIN) from None

        def record() -> None:
            for _, issue in issues:
                issue(self._stream)

        graph = self.device.capture(self._stream, record)
        views = [inputs.views(stage.array) for stage in self._stages]
        bound = _BoundPlan(shaped, inputs, views, graph, sample)
        self._bound[shaped.name] = bound
        return bound

    def plans_to_capture(self) -> list[ShapedPlan]:
        """Those that batches can need and that were not captured yet, the smallest first."""
        bounds = [p.shape.blocks for p in self._plans.all() if p.shape.blocks >= self.max_blocks]
        reached = min(bounds, default=self.max_blocks)
        return [
            p for p in self._plans.all() if p.shape.blocks <= reached and p.name not in self._bound
        ]

    def capture(self, shaped: ShapedPlan) -> None:
        """Captures a plan before the first batch that needs it, which else waits for that."""
        self.device.activate()
        self._bind(shaped)

    # -- steps ------------------------------------------------------------------------------------

    def step(self, batch: StepBatch) -> np.ndarray:
        """Runs a batch; returns logits float32[R, V], valid until the next step.

        UsageError when no plan is large enough.
        """
        return self._run(self._plans.choose(batch, self.limits), batch)

    def embed(self, batch: StepBatch) -> np.ndarray:
        """Runs a batch; returns hidden states float32[R, H], valid until the next step.

        UsageError when no plan is large enough, UnsupportedError when the artifact has none.
        """
        model = self.manifest.model.name
        return self._run(self._plans.choose_embedding(batch, self.limits, model), batch)

    def _run(self, shaped: ShapedPlan, batch: StepBatch) -> np.ndarray:
        self.device.activate()
        bound = self._bind(shaped)
        self._upload(bound, batch)
        bound.graph.launch(self._stream)
        return self._download(shaped, len(batch.sample_rows))

    def launch(
        self, batch: StepBatch, sampling: RowSampling, sources: np.ndarray | None = None
    ) -> SampledStep:
        """Launches a step and draws a token from each of its rows, on the device. sources: see
        `runtime.step.SamplingExecutable`. UsageError when no plan is large enough,
        UnsupportedError when the artifact cannot draw.
        """
        if not self.samples:
            raise UnsupportedError(
                f"the artifact of {self.manifest.model.name} has no plans that draw tokens",
                hint=AGAIN,
            )
        shaped = self._plans.choose(batch, self.limits)
        self.device.activate()
        bound = self._bind(shaped)
        self._upload(bound, batch, sampling)
        if sources is not None:
            to = self._inputs.address + bound.inputs.offsets["tokens"]
            for first, row, count in runs(sources):
                self.device.copy(
                    to + 4 * first, self._drawn.tokens + 4 * row, 4 * count, self._stream
                )
        bound.graph.launch(self._stream)
        for issue in bound.sample:
            issue(self._stream)
        rows = len(batch.sample_rows)
        tokens = self._drawn.fetch(rows, self._stream)
        return _SampledStep(tokens, lambda: self._download(shaped, rows))

    def _upload(
        self, bound: _BoundPlan, batch: StepBatch, sampling: RowSampling | None = None
    ) -> None:
        """Puts the copy of a batch's arrays into the stream."""
        turn = self._turn
        self._turn = (turn + 1) % _STAGES
        copied = self._copied[turn]
        copied.synchronize()  # the last copy out of this buffer
        write_batch(bound.views[turn], batch)
        end = bound.inputs.step_nbytes
        if sampling is not None:
            write_sampling(bound.views[turn], sampling)
            end = bound.inputs.nbytes
        self.device.driver.call(
            "copy_to_device", self._inputs.address, self._stages[turn].address, end,
            self._stream.handle, attempted="copying a batch to the device",
        )  # fmt: skip
        self._stream.record(copied)

    def _download(self, shaped: ShapedPlan, rows: int) -> np.ndarray:
        """The first rows of a plan's result, after everything in the stream."""
        width = self._width(shaped)
        nbytes = 4 * rows * width
        if rows:
            address = self._address(shaped.plan.output, shaped, self._bound[shaped.name].inputs)
            self.device.driver.call(
                "copy_to_host", self._results.address, address, nbytes, self._stream.handle,
                attempted="copying a step's result from the device",
            )  # fmt: skip
        self._stream.synchronize()
        return self._results.array[:nbytes].view(np.float32).reshape(rows, width)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copies blocks of the cache, in all layers: (from, to), one after the other."""
        self.device.activate()
        self._cache.copy_blocks(pairs, self._stream)

    def profile(self, batch: StepBatch) -> list[tuple[str, str, float]]:
        """Runs a batch launch by launch; returns (label, kernel or library, seconds) of each."""
        self.device.activate()
        shaped = self._plans.choose(batch, self.limits)
        bound = self._bind(shaped)
        self._upload(bound, batch)
        issues = self._issues(shaped.plan, shaped, bound.inputs)
        marks: list[Event] = [self.device.event() for _ in range(len(issues) + 1)]
        self._stream.record(marks[0])
        for (_, issue), mark in zip(issues, marks[1:], strict=True):
            issue(self._stream)
            self._stream.record(mark)
        self._stream.synchronize()
        return [
            (launch.label, kernel, end.milliseconds_since(begin) / 1e3)
            for launch, (kernel, _), begin, end in zip(
                shaped.plan.launches, issues, marks, marks[1:], strict=False
            )
        ]

    def plan_name(self, batch: StepBatch) -> str:
        """Which of the manifest's entries a batch runs."""
        return self._plans.choose(batch, self.limits).name


def _all(issues: list[_Issue]) -> _Issue:
    """One after the other."""

    def issue(stream: Stream) -> None:
        for one in issues:
            one(stream)

    return issue


def _sampling(shaped: ShapedPlan) -> str:
    """The entry that draws from a plan's result."""
    return f"sample@{shaped.shape.rows}"
