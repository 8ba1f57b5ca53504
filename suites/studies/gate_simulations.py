"""False alarms and power of the gate: ``python -m structgrad.suites.studies.gate_simulations``.

Every gate compares two measurements of the same problems with fresh random numbers, of unchanged code or with a planted change; each run
is the baseline of the next one. Shares are over many gates. The estimators reach from light to heavy tails: at a normalised entropy of 0.1,
the estimates that carry the variance of REINFORCE are rare.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import Tensor

from ...estimators import make_estimator
from ...estimators.base import Estimator, Loss, with_gradient
from ...estimators.exact import ExactMarginalisation
from ..base import Problem, Row
from ..comparison.gating import GateResult, gate
from ..comparison.timing import TimeComparison
from ..measures.bias import Bias
from ..measures.suite import Context, Effort
from ..problems import load
from ..running.planning.plan import Plan
from ..running.rows import RowWriter
from ..statistics.intervals import wilson

ESTIMATORS = ("reinforce", "rloo", "st_gumbel", "imle")
PROBLEMS = (("categorical_regimes", "h=0.95"), ("categorical_regimes", "h=0.1"), ("subset_regimes", "h=0.4"))
"""From light tails to heavy ones."""

MOMENTS = ("relative_bias", "relative_bias_squared", "gain", "relative_variance", "relative_mse")
"""What a planted change is to be found by; that it leaves no part exactly 0 is an artefact."""


@dataclass(frozen=True)
class Change:
    """What is planted into an estimator: ``E ĝ`` times ``scale``, and the covariance times ``spread``.

    The mean that deviations are stretched around is the exact gradient: the planted change is exact for unbiased estimators, and for others
    it moves the bias too.
    """

    scale: float = 1.0
    spread: float = 1.0

    @property
    def name(self) -> str:
        """For people."""
        parts = [f"{what} × {value:g}" for what, value in (("mean", self.scale), ("variance", self.spread)) if value != 1]
        return ", ".join(parts) or "nothing"

    def planted(self, estimator: Estimator[Any], oracle: Any) -> Estimator[Any]:
        """The estimator with the change in it; it has the same name and declares the same."""
        if self == Change():
            return estimator
        change, kind, enumerated = self, type(estimator), oracle

        class Planted(kind):  # type: ignore[misc, valid-type]
            def surrogate(self, loss: Loss, oracle: Any, scores: Tensor, *, generator: torch.Generator) -> Tensor:
                estimate = estimator.gradient(loss, oracle, scores.detach(), generator=generator)
                centre = ExactMarginalisation().gradient(loss, enumerated, scores.detach(), generator=generator)
                changed = change.scale * (centre + change.spread**0.5 * (estimate - centre))
                return with_gradient(scores.new_zeros(scores.shape[: scores.ndim - oracle.event_ndim]), scores, changed)

        planted: Estimator[Any] = Planted(**vars(estimator))
        return planted


CHANGES = (
    Change(),
    Change(scale=0.98),
    Change(scale=0.9),
    Change(spread=1.05),
    Change(spread=1.2),
    Change(spread=1.5),
)


def measured(problem: Problem, estimators: Mapping[str, Estimator[Any]], seed: int, replicates: int) -> list[Row]:
    """What the suite ``bias`` finds by replicates, with random numbers of a seed, on scores that are always the same."""
    effort = Effort(replicates=replicates, most_replicates=replicates)
    context = Context(seed=seed, tier="mc", effort=effort)
    writer = RowWriter(Plan(seed=seed), problem, "bias", "simulated")
    return list(writer.rows(Bias().findings(problem, estimators, context), context))


@functools.lru_cache
def _problem(name: str, stage: str) -> Problem:
    """Kept, and with it its exact gradient."""
    return load(name, stage, instances=1, data=None)


@functools.lru_cache(maxsize=512)
def run_of(seed: int, replicates: int, planted: str, change: Change) -> list[Row]:
    """All problems and estimators, one of them with a change."""
    rows: list[Row] = []
    for name, stage in PROBLEMS:
        problem = _problem(name, stage)
        chosen = {key: make_estimator(key) for key in ESTIMATORS}
        chosen[planted] = change.planted(chosen[planted], problem.oracle)
        rows += measured(problem, chosen, seed, replicates)
    return rows


@dataclass(frozen=True)
class Result:
    """Over many gates.

    Attributes:
        gates: how many. ``failed``: how many of them failed. ``found``: in how many the planted estimator was among what failed.
        others: in how many anything else was.
    """

    gates: int
    failed: int
    found: int
    others: int


def simulate(change: Change, *, gates: int, replicates: int, paired: bool, planted: str = "rloo") -> Result:
    """Gates between measurements with and without a change.

    Args:
        change: into one estimator.
        gates: how many.
        replicates: of every cell.
        paired: whether both sides draw the same random numbers.
        planted: the estimator.
    """
    failed = found = others = 0
    for number in range(gates):
        seeds = (number + 1, number + (1 if paired else 2))
        base, head = run_of(seeds[0], replicates, planted, Change()), run_of(seeds[1], replicates, planted, change)
        fails = failing(gate(base, head))
        failed += bool(fails)
        found += any((planted, metric) in fails for metric in MOMENTS)
        others += any(estimator != planted for estimator, _ in fails)
    return Result(gates, failed, found, others)


def failing(result: GateResult) -> set[tuple[str, str]]:
    """The estimators that a gate fails on, each with a metric."""
    return {(item.key.estimator, item.key.metric) for item in result.failures if not isinstance(item, TimeComparison)}


def lines(gates: int, powered: int, replicates: int) -> Iterator[str]:
    """The table, line by line as it is found."""
    yield f"{len(PROBLEMS) * len(ESTIMATORS)} cells, {replicates} replicates each; the change is in `rloo`; α = 0.01 for a whole gate."
    yield ""
    yield "| planted | random numbers | gates | failed | found | something else failed |"
    yield "|---|---|---|---|---|---|"
    for change in CHANGES:
        for paired in (False, True):
            if change == Change() and paired:
                continue  # identical to the last bit
            result = simulate(change, gates=gates if change == Change() else powered, replicates=replicates, paired=paired)
            yield _line(change, paired, result)


def _line(change: Change, paired: bool, result: Result) -> str:
    high = wilson(result.failed / result.gates, result.gates).high or 0.0
    share = f"{result.failed / result.gates:.3f}" + (f" (95 %: at most {high:.3f})" if change == Change() else "")
    cells = (change.name, "the same" if paired else "fresh", result.gates, share, f"{result.found / result.gates:.2f}", result.others)
    return f"| {' | '.join(map(str, cells))} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m structgrad.suites.studies.gate_simulations", description=__doc__)
    parser.add_argument("--gates", type=int, default=200, help="on unchanged code")
    parser.add_argument("--powered", type=int, default=10, help="with every planted change")
    parser.add_argument("--replicates", type=int, default=1024)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    for line in lines(options.gates, options.powered, options.replicates):
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
