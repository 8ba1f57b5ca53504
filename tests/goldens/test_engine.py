"""Plans (cells, identities, estimated seconds, skips), as they were before the engine was rewritten.

``python -m tests.goldens.test_engine`` writes the file again.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from structgrad.suites.base import Problem
from structgrad.suites.learning import FIRST_STUDY
from structgrad.suites.problems import TaskProblem
from structgrad.suites.running.planning import grid as grid_module
from structgrad.suites.running.planning.estimates import START, CostModel, time_limit
from structgrad.suites.running.planning.grid import grid
from structgrad.suites.running.planning.plan import Plan
from structgrad.suites.running.planning.presets import learning_plan, plan_of
from structgrad.suites.tasks import make_task, references

FILE = Path(__file__).with_name("engine.json")
PLANS: dict[str, Plan] = {
    **{preset: plan_of(preset) for preset in ("quick", "standard", "thorough")},
    "chosen": plan_of(
        "quick", problems=("sub*", "chain_regimes@f1"), estimators=("spigot*", "imle[lambda=2.5]"), stages=("h=0.33", "early")
    ),
    "suites": plan_of("standard", suites=("bias", "wall_clock"), estimators=("rloo", "arm*"), instances=3, dtype="float32", seed=7),
    "learn": learning_plan(quick=True),
    "study": learning_plan(FIRST_STUDY, study=True, estimators=("exact", "ste", "unordered_set")),
    "learnt": plan_of("quick", suites=("bias", "parameter_bias"), problems=("learnt:clusters",), estimators=("ste", "imle")),
}


def digest(lines: Iterable[Any]) -> str:
    return hashlib.blake2b("\n".join(map(str, lines)).encode(), digest_size=8).hexdigest()


def planned(plan: Plan) -> dict[str, Any]:
    torch.set_num_threads(1)
    fingerprint = grid_module._fingerprint

    def of_source(problem: Problem, source: str) -> str:
        """Scores of models differ by rounding from one processor to another."""
        return source if isinstance(problem, TaskProblem) else fingerprint(problem, source)

    with (
        tempfile.TemporaryDirectory() as cache,
        mock.patch.dict(os.environ, XDG_CACHE_HOME=cache),  # a model of earlier code may lie in that of the user
        mock.patch.object(grid_module, "_fingerprint", of_source),
        mock.patch.object(references, "sources", return_value="code of tasks"),  # a comment there changes identities
    ):
        work = grid(plan)
    costs = CostModel(plan)
    suites: dict[str, Any] = {}
    for suite in dict.fromkeys(cell.suite for cell in work.cells):
        cells = [cell for cell in work.cells if cell.suite == suite]
        seconds, limits = sum(map(costs.seconds, cells)), sum(time_limit(plan, cell) for cell in cells)
        suites[suite] = [len(cells), digest(cell.identity for cell in cells), f"{seconds:.3g}", f"{limits:.3g}"]
    skips = [(row.suite, row.problem, row.stage, row.estimator, row.reason) for row in work.skips]
    return {"suites": suites, "skips": [len(skips), digest(skips)], "whole": f"{START + costs.left(work.cells, 2):.3g}"}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.sweep] * (name in ("thorough", "study"))) for name in PLANS])
def test_plans_are_as_they_were(name: str) -> None:
    tasks = [problem.partition(":")[2] for problem in PLANS[name].problems if problem.startswith("task:")]
    if reasons := [reason for task in tasks if (reason := make_task(task).unavailable())]:
        pytest.skip(reasons[0])
    assert planned(PLANS[name]) == json.loads(FILE.read_text())[name]


if __name__ == "__main__":
    FILE.write_text(json.dumps({name: planned(plan) for name, plan in PLANS.items()}, indent=1) + "\n")
