"""Calls become launches of compiled kernels, and intermediates get their places in the arena."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pumice.artifact import FILL, BufferRef, KernelRecord, Launch, Plan
from pumice.compiler.gpu.binaries import Binaries
from pumice.compiler.gpu.fuse_attention import fuse_attention
from pumice.compiler.gpu.fuse_products import fuse_products
from pumice.compiler.gpu.library_products import (
    NAMES,
    WORKSPACE_BYTES,
    LibraryStep,
    attach,
    library_step,
)
from pumice.compiler.gpu.select import Selected, Selection
from pumice.compiler.gpu.shapes import PlanShape
from pumice.compiler.gpu.translate import Call, Translator
from pumice.compiler.gpu.values import ALIGNMENT, Value
from pumice.compiler.gpu.weights import GpuWeight, make_weight
from pumice.compiler.graph import Graph
from pumice.compiler.memory import Lifetime, place
from pumice.operators.triton.build import signature
from pumice.operators.triton.plan import Launch as KernelLaunch
from pumice.operators.triton.plan import Plan as KernelPlan
from pumice.quantization.base import QuantFormat
from pumice.targets import Target
from pumice.tuning.database import Database


@dataclass
class GpuLowering:
    """What the plans of a model share: weights, choices and kernels are made once."""

    target: Target
    formats: Mapping[str, QuantFormat]
    shapes: Mapping[str, tuple[int, ...]]  # parameter → logical shape
    block_size: int
    dtype: str  # of activations and cache
    database: Database
    fuse_attention: bool = True
    fuse_products: bool = True
    vendor_blas: str = "measured"
    fusions: dict[str, str] = field(default_factory=dict)  # what was fused, or why not
    weights: dict[str, GpuWeight] = field(default_factory=dict)
    records: dict[str, KernelRecord] = field(default_factory=dict)
    libraries: dict[str, str] = field(default_factory=dict)  # product → whose, and why

    def __post_init__(self) -> None:
        self.binaries = Binaries(self.target)
        self.selection = Selection(self.target, self.database)

    def lower(self, graph: Graph, shape: PlanShape) -> Plan:
        """One plan."""
        translator, calls, result = self.calls(graph, shape)
        selected = [self.selection.of(call) for call in calls]
        steps = {
            index: step
            for index, (call, choice) in enumerate(zip(calls, selected, strict=True))
            if (step := self._library(call, choice)) is not None
        }
        offsets, arena = _place(translator.arena, calls, selected, result, steps)
        launches = _first_fill(selected, offsets)
        for index, (call, choice) in enumerate(zip(calls, selected, strict=True)):
            made = self.launches(index, call, choice, offsets)
            if index in steps:
                made = self._with_library(steps[index], index, call, choice, made, offsets)
            launches += made
        width = result.spec.shape[1]
        output = result.ref(offsets)
        return Plan(tuple(launches), arena, shape.bounds, output, width)

    def calls(self, graph: Graph, shape: PlanShape) -> tuple[Translator, list[Call], Value]:
        """A plan's calls in order, fused where that is faster, and where their result is."""
        translator = Translator(graph, shape, self.weight, self.dtype, self.block_size)
        result = translator.run()
        calls = self._fused(translator.calls)
        if shape.entry == "decode":
            calls = self._fused_products(calls, shape)
        return translator, calls, result

    def weight(self, parts: tuple[str, ...]) -> GpuWeight:
        """The weight that parameters make, stacked along N."""
        key = parts[0] + "".join(f"+{part.split('.')[-2]}" for part in parts[1:])
        if key not in self.weights:
            length = sum(self.shapes[part][0] for part in parts)
            shape = (length, *self.shapes[parts[0]][1:])
            self.weights[key] = make_weight(
                key, parts, shape, self.formats[parts[0]], self.target, self.dtype
            )
        return self.weights[key]

    def _fused(self, calls: list[Call]) -> list[Call]:
        """Calls that one launch can do together are one."""
        if not self.fuse_attention:
            self.fusions["decode_attention"] = "not fused: switched off"
            return calls
        fused, said = fuse_attention(calls, self.target)
        if said:
            self.fusions["decode_attention"] = said
        return fused

    def _fused_products(self, calls: list[Call], shape: PlanShape) -> list[Call]:
        """Products with 4-bit weights take what stands beside them, where that is faster."""
        name = f"fused_w4, {shape.tokens} tokens"
        if not self.fuse_products:
            self.fusions[name] = "not fused: switched off"
            return calls
        fused, said = fuse_products(calls, self.selection)
        if said:
            self.fusions[name] = said
        return fused

    def _library(self, call: Call, choice: Selected) -> LibraryStep | None:
        """What a vendor's library may compute of a call."""
        step, reason = library_step(call, choice, self.selection, self.vendor_blas)
        if reason and self.vendor_blas != "never":
            (m, k), n = choice.problem["x"].shape, choice.problem["out"].shape[1]
            whose = NAMES[self.target.api] if step is not None else "own kernel"
            self.libraries[f"{choice.problem.operator} {m}×{k} · {k}×{n}"] = f"{whose}: {reason}"
        return step

    def _with_library(
        self,
        step: LibraryStep,
        index: int,
        call: Call,
        choice: Selected,
        launches: list[Launch],
        offsets: dict[str, int],
    ) -> list[Launch]:
        """A call's launches with what a library may compute of them."""
        unpacked = step.unpacked
        before: list[Launch] = []
        spaces = {n: _scratch(index, n, choice.plan) for n in choice.plan.workspaces}
        if unpacked is not None:
            spaces = {n: _library_space(index, n) for n in unpacked.plan.workspaces}
            renamed = {_scratch(index, n, unpacked.plan): offsets[s] for n, s in spaces.items()}
            before = self.launches(index, call, unpacked, {**offsets, **renamed})

        def reference(name: str) -> BufferRef:
            if name in spaces:
                return BufferRef("arena", offset=offsets[spaces[name]])
            return call.tensors[name].ref(offsets)

        workspace = BufferRef("arena", offset=offsets[_library_space(index)])
        return attach(step, choice, launches, before, reference, workspace)

    def launches(
        self, index: int, call: Call, choice: Selected, offsets: dict[str, int]
    ) -> list[Launch]:
        """A call's launches. index: the call's in its plan. offsets: of the arena's tensors."""
        plan = choice.plan
        tensors = {**choice.problem.tensors, **plan.workspaces}
        workspaces = {
            name: BufferRef("arena", offset=offsets[_scratch(index, name, plan)])
            for name in plan.workspaces
        }
        found = [
            Launch(FILL, (workspaces[name], plan.workspaces[name].nbytes, 0), call.label)
            for name in sorted(plan.zeroed - plan.restored)
        ]
        # A call of several launches counts its bytes and operations once, at the first.
        nbytes, operations = call.nbytes, call.operations
        activations = _activations(call)
        for launch in plan.launches:
            symbol = self.binaries.symbol(launch, tensors)
            self._record(symbol, call, choice, launch)
            arguments: list[BufferRef | int | float] = []
            for name, kind in signature(launch, tensors).items():
                if kind == "constexpr":
                    continue
                value = launch.arguments[name]
                if not isinstance(value, str):
                    arguments.append(int(value) if isinstance(value, bool) else value)
                elif value in workspaces:
                    arguments.append(workspaces[value])
                else:
                    arguments.append(call.tensors[value].ref(offsets))
            # Two pointers follow a kernel's own parameters: scratch memory and a profiler's.
            arguments += [workspaces[launch.scratch] if launch.scratch else 0, 0]
            found.append(
                Launch(
                    symbol,
                    tuple(arguments),
                    call.label,
                    launch.grid,
                    nbytes,
                    operations,
                    activations,
                )
            )
            nbytes = operations = activations = 0
        return found

    def _record(self, symbol: str, call: Call, choice: Selected, launch: KernelLaunch) -> None:
        if symbol not in self.records:
            self.records[symbol] = KernelRecord(
                symbol=symbol,
                operator=call.operator,
                kernel=choice.kernel,
                reason="; ".join(filter(None, (call.reason, choice.reason))),
                config=dict(choice.config),
                rejected={**choice.rejected, **call.rejected},
                programmatic=bool(launch.options.get(self.target.api, {}).get("launch_pdl")),
            )


def _activations(call: Call) -> int:
    """Bytes of the arena's tensors that a call reads and writes, its workspaces aside: what changes
    in place both ways, of a matrix whose rows are gathered as much as is written."""
    total = 0
    for name, value in call.tensors.items():
        if value.space == "arena":
            gathered = call.operator == "token_embedding" and name == "weight"
            spec = call.tensors["out"].spec if gathered else value.spec
            total += spec.nbytes * (2 if name == "residual" else 1)
    return total


RESTORED = "restored"  # the one workspace of all calls that leave it as zero as they found it


def _scratch(index: int, name: str, plan: KernelPlan) -> str:
    """A workspace's name in the arena."""
    return RESTORED if name in plan.restored else f"call {index}: {name}"


def _restored(selected: list[Selected]) -> int:
    """Bytes of the workspace that calls share, one after another."""
    return max(
        (
            choice.plan.workspaces[name].nbytes
            for choice in selected
            for name in choice.plan.restored
        ),
        default=0,
    )


def _library_space(index: int, name: str = "workspace") -> str:
    """The name in the arena of what a library's way to a call needs."""
    return f"call {index}: a library's {name}"


def _first_fill(selected: list[Selected], offsets: dict[str, int]) -> list[Launch]:
    """Other plans use the arena, too: what must be zero is so again from a plan's start on."""
    nbytes = _restored(selected)
    if not nbytes:
        return []
    counters = BufferRef("arena", offset=offsets[RESTORED])
    return [Launch(FILL, (counters, nbytes, 0), "zero counters")]


def _place(
    arena: Mapping[str, int],
    calls: list[Call],
    selected: list[Selected],
    result: Value,
    libraries: Mapping[int, LibraryStep],
) -> tuple[dict[str, int], int]:
    """Offsets of the arena's tensors and of the calls' workspaces. libraries: by call."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    tensors: list[Lifetime] = []
    for index, (call, choice) in enumerate(zip(calls, selected, strict=True)):
        for value in call.tensors.values():
            if value.space == "arena":
                first.setdefault(value.name, index)
                last[value.name] = index
        for name, spec in choice.plan.workspaces.items():
            if name not in choice.plan.restored:
                scratch = _scratch(index, name, choice.plan)
                tensors.append(Lifetime(scratch, max(1, spec.nbytes), index, index))
    if nbytes := _restored(selected):
        tensors.append(Lifetime(RESTORED, nbytes, 0, len(calls)))
    for index, step in libraries.items():
        tensors.append(Lifetime(_library_space(index), WORKSPACE_BYTES, index, index))
        for name, spec in step.unpacked.plan.workspaces.items() if step.unpacked else ():
            tensors.append(Lifetime(_library_space(index, name), spec.nbytes, index, index))
    last[result.name] = len(calls)
    for name, begin in first.items():
        tensors.append(Lifetime(name, max(1, arena[name]), begin, last[name]))
    return place(tensors, ALIGNMENT)
