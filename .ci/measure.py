"""Measurements of the project's own gate: bias, variance and sparsity of every estimator on small problems.

Usage: ``python .ci/measure.py DIRECTORY``. Numbers are exact where samples can be replayed, and come from fixed seeds elsewhere.
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from pathlib import Path

import numpy as np

from structgrad.reports import results
from structgrad.suites.base import Row
from structgrad.suites.measures.suite import Effort
from structgrad.suites.problems.score_files import ScoreFile
from structgrad.suites.running.planning.plan import Machine, Plan
from structgrad.suites.running.runner import run

BITS = [[[0.0, 0.5], [0.0, -1.0], [0.0, 0.25]]]
"""Scores of three bits: the only structure of `arm` and `disarm`, which no built-in problem has."""

EFFORT = Effort(replicates=1024, most_replicates=1024, replay_cap=50_000)
SMALL = Plan(
    suites=("bias", "sparsity"),
    problems=("categorical_regimes", "categories_regimes", "subset_regimes", "policy_regimes"),
    stages=("h=0.95",),
    instances=1,
    effort=EFFORT,
)
CHAIN = dataclasses.replace(SMALL, problems=("chain_regimes",), estimators=("differentiable_dp", "gumbel_crf*", "spigot", "sparsemap"))


def plans(folder: Path) -> list[Plan]:
    """Every estimator is measured by one of them at least."""
    path = folder / "bits.npz"
    np.savez(path, scores=np.array(BITS))
    bits = dataclasses.replace(SMALL, problems=(), stages=(), estimators=("arm", "disarm"), file=ScoreFile(str(path), "categories"))
    return [SMALL, CHAIN, bits]


def main() -> None:
    """Measure, and write the table."""
    target = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        found: list[Row] = []
        for number, plan in enumerate(plans(folder)):
            found += run(plan, folder / str(number), machine=Machine(jobs=2))
    about = {"seed": 0, "command": "python .ci/measure.py", "environment": results.environment()}
    results.write([row for row in found if row.status != "skipped"], target, about)


if __name__ == "__main__":
    main()
