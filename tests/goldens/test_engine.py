"""Plans (cells, identities, estimated seconds, skips) and rows of failing cells, as they were before the engine was rewritten.

``python -m tests.goldens.test_engine`` writes the file again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from structgrad.suites.running.planning.estimates import START, CostModel, time_limit
from structgrad.suites.running.planning.grid import grid
from structgrad.suites.running.planning.plan import Machine, Plan
from structgrad.suites.running.planning.presets import learning_plan, plan_of
from structgrad.suites.running.runner import run
from structgrad.suites.tasks import make_task, references
from tests.suites.running_cases import SMALL, broken

FILE = Path(__file__).with_name("engine.json")
PLANS: dict[str, Plan] = {
    **{preset: plan_of(preset) for preset in ("quick", "standard", "thorough")},
    "chosen": plan_of(
        "quick", problems=("sub*", "chain_regimes@f1"), estimators=("spigot*", "imle[lambda=2.5]"), stages=("h=0.33", "early")
    ),
    "suites": plan_of("standard", suites=("bias", "wall_clock"), estimators=("rloo", "arm*"), instances=3, dtype="float32", seed=7),
    "learn": learning_plan(quick=True),
    "study": learning_plan(study=True, estimators=("exact", "ste", "unordered_set")),
    "learnt": plan_of("quick", suites=("bias", "parameter_bias"), problems=("learnt:clusters",), estimators=("ste", "imle")),
}
FAILING = ("Aborting", "Killed", "Greedy", "Hanging", "Failing", "Nan")


def digest(lines: Iterable[Any]) -> str:
    return hashlib.blake2b("\n".join(map(str, lines)).encode(), digest_size=8).hexdigest()


def planned(plan: Plan) -> dict[str, Any]:
    torch.set_num_threads(1)  # untrained tasks differ by rounding
    with mock.patch.object(references, "sources", return_value="code of tasks"):  # a comment there changes identities
        work = grid(plan)
    costs = CostModel(plan)
    suites: dict[str, Any] = {}
    for suite in dict.fromkeys(cell.suite for cell in work.cells):
        cells = [cell for cell in work.cells if cell.suite == suite]
        seconds, limits = sum(map(costs.seconds, cells)), sum(time_limit(plan, cell) for cell in cells)
        suites[suite] = [len(cells), digest(cell.identity for cell in cells), f"{seconds:.3g}", f"{limits:.3g}"]
    skips = [(row.suite, row.problem, row.stage, row.estimator, row.reason) for row in work.skips]
    return {"suites": suites, "skips": [len(skips), digest(skips)], "whole": f"{START + costs.left(work.cells, 2):.3g}"}


def rows_of_failures(folder: Path) -> dict[str, Any]:
    plan = dataclasses.replace(SMALL, estimators=("ste", *broken(*FAILING)), instances=1)
    rows = run(plan, folder, machine=Machine(jobs=2, timeout=10.0, memory=2.0))
    return {
        row.estimator.rpartition(":")[2]: [row.status, row.error_type, row.reason, row.verdict, row.suite, row.problem, row.value]
        for row in rows
        if row.estimator != "ste"
    } | {"ste": sorted({row.status for row in rows if row.estimator == "ste"})}


@pytest.mark.parametrize("name", PLANS)
def test_plans_are_as_they_were(name: str) -> None:
    tasks = [problem.partition(":")[2] for problem in PLANS[name].problems if problem.startswith("task:")]
    if reasons := [reason for task in tasks if (reason := make_task(task).unavailable())]:
        pytest.skip(reasons[0])
    assert planned(PLANS[name]) == json.loads(FILE.read_text())["plans"][name]


def test_failing_cells_give_the_rows_that_they_gave(tmp_path: Path) -> None:
    assert rows_of_failures(tmp_path) == json.loads(FILE.read_text())["rows"]


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        found = {"plans": {name: planned(plan) for name, plan in PLANS.items()}, "rows": rows_of_failures(Path(folder))}
    FILE.write_text(json.dumps(found, indent=1) + "\n")
