#!/usr/bin/env python3
"""How near the analytic model's picks come to the fastest candidate that was measured.

    scripts/judge_model.py RUN/all.json [--target sm_90]

RUN is a folder that scripts/bench_ops_h200 wrote. Beside the model stands the operator's own order.
"""

import argparse
import json
import math
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))


def line(name, slower):
    near = [sum(s <= most for s in slower) / len(slower) for most in (1.1, 1.25)]
    mean = math.exp(sum(map(math.log, slower)) / len(slower))
    within = f"within 10% {near[0]:4.0%}  within 25% {near[1]:4.0%}"
    return f"{name:24} {len(slower):4} rows  {within}  {mean:.2f} of the best"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--target", default="sm_90")
    given = parser.parse_args()

    from pumice.bench.operators.measure import rows_of
    from pumice.bench.operators.session import LARGEST_FLOOR
    from pumice.targets import get_target
    from pumice.tuning.gpu import candidates
    from pumice.tuning.model import OPERATORS, estimate_s

    target = get_target(given.target)
    measured = defaultdict(dict)
    for row in json.loads(given.file.read_text()):
        if not row["failed"] and row["floor"] <= LARGEST_FLOOR:
            key = (row["kernel"], *sorted(row["config"].items()))
            measured[row["operator"], row["label"]][key] = row["us"]
    every = {"model": [], "order": []}
    for operator in sorted(OPERATORS):
        found = {"model": [], "order": []}
        for _, label, problem, _ in rows_of(operator):
            times = measured[operator, label]
            rows = []
            for kernel, config in candidates(problem, target):
                key = (kernel.name, *sorted(config.items()))
                if key in times:
                    rows.append((times[key], estimate_s(problem, target, config)))
            if len(rows) > 1:
                best = min(us for us, _ in rows)
                found["model"].append(min(rows, key=lambda row: row[1])[0] / best)
                found["order"].append(rows[0][0] / best)
        for how, slower in found.items():
            if slower:
                print(line(f"{operator} by {how}", slower))
            every[how] += slower
    for how, slower in every.items():
        if slower:
            print(line(f"all by {how}", slower))
    return 0 if every["model"] else f"no rows of {', '.join(sorted(OPERATORS))} in {given.file}"


if __name__ == "__main__":
    sys.exit(main())
