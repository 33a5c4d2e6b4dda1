"""One run over operators on the GPU at hand: compile, try every case, time what is chosen (or every
candidate) in turns with its peers, keep the fastest of each row."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from pumice.bench.operators import cases as case_runs
from pumice.bench.operators.measure import (
    Offer,
    OperatorBench,
    Row,
    Timing,
    chosen,
    gpu_operators,
    is_ours,
    is_wrong,
    precompile,
    results,
    row_for,
    rows_of,
)
from pumice.bench.operators.warm import warm_peers
from pumice.errors import UnsupportedError
from pumice.operators.registry import GPU_OPERATORS
from pumice.operators.triton.plan import Problem
from pumice.targets import Target
from pumice.tuning.database import Database, MeasuredRow, row_of, write_rows
from pumice.tuning.gpu import candidates as every_candidate

# What of ours is timed. chosen: the kernel that a user gets, for every row. all: every kernel under
# every configuration. unmeasured: the same, for rows that the shipped data has nothing of.
Offered = Literal["chosen", "all", "unmeasured"]
NO_BUDGET = 1e9  # seconds
LARGEST_FLOOR = 1.3  # of the floor; more is work that was not done (a cache may help a little)


@dataclass
class Session:
    """What a run found. rows: the fastest of each problem, ours or a vendor's, for the database."""

    facts: dict[str, Any] = field(default_factory=dict)
    best: list[dict[str, Any]] = field(default_factory=list)
    everything: list[dict[str, Any]] = field(default_factory=list)
    rows: dict[str, list[MeasuredRow]] = field(default_factory=dict)
    cases: list[case_runs.CaseResult] = field(default_factory=list)

    @property
    def failed(self) -> list[case_runs.CaseResult]:
        return [case for case in self.cases if not case.passed]

    def write(self, folder: Path) -> None:
        """best.json, all.json, cases.json, and a file of rows for each operator."""
        folder.mkdir(parents=True, exist_ok=True)
        lines = ",\n".join(json.dumps(row) for row in self.best)
        head = json.dumps(self.facts)
        (folder / "best.json").write_text(f'{{"facts": {head}, "best": [\n{lines}\n]}}\n')
        (folder / "all.json").write_text(json.dumps(self.everything))
        (folder / "cases.json").write_text(json.dumps([vars(case) for case in self.cases]))
        lines = json.dumps({name: [asdict(r) for r in rows] for name, rows in self.rows.items()})
        (folder / "rows.json").write_text(lines)


def write_database(rows: dict[str, list[MeasuredRow]], folder: Path) -> None:
    """`<folder>/<operator>.json`; rows of the same problems that were there are replaced."""
    from pumice.tuning.database import read_rows

    for operator, found in rows.items():
        path = folder / f"{operator}.json"
        known = {(row.kind, tuple(sorted(row.dims.items()))) for row in found}
        kept = []
        if path.is_file():
            kept = [
                row
                for row in read_rows(path)
                if (row.kind, tuple(sorted(row.dims.items()))) not in known
            ]
        write_rows(path, [*kept, *found])


def run(
    target: Target,
    say: Callable[[str], None],
    *,
    operators: Iterable[str] = (),
    pattern: str = "",
    problems: Sequence[tuple[str, Problem]] | None = None,
    offered: Offered = "all",
    configs: int = 2,
    with_cases: bool = True,
    with_times: bool = True,
    budget_s: float = NO_BUDGET,
    measured: str = "",
    keep: Callable[[str, list[MeasuredRow]], None] | None = None,
) -> Session:
    """operators: those to take, all when empty. pattern: text that a row's label must hold.
    problems: (label, problem) to time in place of the operators' own rows. offered: what of ours.
    configs: of every kernel, how many the cases are tried with. budget_s: when it is used up, the
    remaining rows are left out, which is said; those never measured come first. measured: what the
    rows record of when. keep: takes each problem's rows as soon as they are measured."""
    start = time.perf_counter()
    session = Session()
    named = list(operators)
    every = named or list(GPU_OPERATORS)
    jobs: list[Row] = []
    if problems is not None:
        jobs = [row_for(label, problem) for label, problem in problems]
    elif with_times:
        jobs = [row for name in gpu_operators(named) for row in rows_of(name, pattern)]
    offer: Offer = chosen if offered == "chosen" else every_candidate
    shipped = Database(target.name)
    if offered == "unmeasured":
        jobs = [job for job in jobs if not is_measured(shipped, job[2])]
    jobs = [job for job in jobs if _runs(job, target, offer, say)]
    if with_cases:
        failures = case_runs.precompile_cases(every, target, configs)
        say(f"cases compiled in {time.perf_counter() - start:.0f} s")
        for text in failures[:20]:
            say(f"does not compile: {text[:300]}")
    if jobs:
        for text in precompile(jobs, target, offer, say)[:20]:
            say(f"does not compile: {text[:300]}")
        for text in warm_peers(jobs, say)[:20]:
            say(text[:300])
    bench = OperatorBench(target, say)
    session.facts = {**bench.facts(), "measured": measured, "offered": offered}
    say(json.dumps(session.facts))
    if with_cases:
        session.cases = case_runs.run_cases(every, target, configs, say)
        for case in session.failed[:30]:
            say(f"FAILED {case.operator} case {case.case} {case.kernel} {case.config} "
                f"{case.output}: {case.error:.3g} > {case.tolerance:.3g} {case.text}")  # fmt: skip
    if budget_s < NO_BUDGET:
        jobs.sort(key=lambda row: is_measured(shipped, row[2]))
    for index, (spec, label, problem, inputs) in enumerate(jobs):
        if time.perf_counter() - start > budget_s:
            say(f"out of time at {spec.name} {label}; {len(jobs) - index} rows are left out")
            break
        timings = bench.row(spec, label, problem, inputs, offer)
        session.everything += results(timings)
        _keep(session, problem, label, timings, bench, say)
        if keep is not None and problem.operator in session.rows:
            keep(problem.operator, session.rows[problem.operator])
    return session


def _runs(job: Row, target: Target, offer: Offer, say: Callable[[str], None]) -> bool:
    """Whether a kernel takes a row; says why when none does."""
    try:
        return bool(offer(job[2], target))
    except UnsupportedError as error:
        say(f"{job[0].name} {job[1]} is left out: {error}")
        return False


def is_measured(rows: Database, problem: Problem) -> bool:
    """Whether a row of exactly this problem is there; a short run begins with those that are
    not."""
    found = rows.nearest(problem)
    return found is not None and found[1] == 0


def _keep(
    session: Session, problem: Any, label: str, timings: list[Timing], bench: OperatorBench,
    say: Callable[[str], None],
) -> None:  # fmt: skip
    failed = [t for t in timings if t.failed]
    if failed:
        say(f"{problem.operator} {label}: {len(failed)} of {len(timings)} failed")
        for timing in {t.kernel: t for t in failed}.values():  # one of each
            say(f"  {timing.kernel} {timing.config}: {timing.failed[:200]}")
    good = [t for t in timings if not t.failed and not _wrong(t)]
    for timing in [t for t in timings if not t.failed and _wrong(t)][:2]:
        say(
            f"WRONG {problem.operator} {label} {timing.kernel} {timing.config}: "
            f"error {timing.error}, {timing.floor:.2f} of the floor"
        )
    ours = [t for t in good if is_ours(t.kernel)]
    peers = {t.kernel: round(t.us, 2) for t in good if not is_ours(t.kernel)}
    if not ours:
        say(f"{problem.operator} {label}: no kernel of ours ran")
        return
    best = ours[0]
    beside = ", ".join(f"{name} {us:.1f} ({us / best.us:.2f}x)" for name, us in peers.items())
    say(
        f"{problem.operator:16} {label:36} {best.us:9.1f} µs {best.gb_per_s:6.0f} GB/s "
        f"{best.tflop_per_s:6.1f} TF {best.floor:4.0%}  {best.kernel.split('.', 2)[-1]} "
        f"{' '.join(f'{k}={v}' for k, v in best.config.items())} | {beside}"
    )
    session.best.append({**results([best])[0], "peers": peers})
    rows = rows_to_keep(problem, good, bench.device, session.facts["measured"])
    session.rows.setdefault(problem.operator, []).extend(rows)


def rows_to_keep(
    problem: Problem, good: list[Timing], device: str, measured: str
) -> list[MeasuredRow]:
    """The database's rows of a problem, from right results, fastest first: the fastest kernel's,
    and where that is a vendor's the fastest of ours, too, for whoever has no vendor's library."""
    found = []
    for timing in good:
        if not (is_ours(timing.kernel) or timing.kernel.startswith("vendor.")):
            continue
        found.append(
            row_of(
                problem,
                kernel=timing.kernel,
                config=timing.config,
                us=round(timing.us, 2),
                floor=round(timing.floor, 3),
                error=None if timing.error is None else float(f"{timing.error:.2g}"),
                device=device,
                measured=measured,
            )
        )
        if is_ours(timing.kernel):
            break
    vendors = [row for row in found if not is_ours(row.kernel)]
    return vendors[:1] + [row for row in found if is_ours(row.kernel)]


def _wrong(timing: Timing) -> bool:
    return timing.floor > LARGEST_FLOOR or is_wrong(timing.error)
