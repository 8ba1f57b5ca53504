"""One discrete loss, written in two ways: ``python -m structgrad.suites.studies.extension_twins [--data DIR] [--instances N]``.

On 0/1 parts ``z² = z``, so that ``‖z − b‖²`` and ``⟨1 − 2b, z⟩ + ‖b‖²`` are one loss: the expectation, its gradient and every estimate that
uses values of the loss alone are the same. An estimator that differentiates the loss sees what lies between the structures, and there the
two differ. With the linear one, a straight-through gradient through the marginals is exact and has no variance; with the quadratic one it
is biased. What such an estimator is measured on is the continuation of the loss, not the discrete problem.

First the published toy of SIMPLE (n = 10, k = 5, ten seeds, see `subset_toy`), then real scores at every stage of training, with
``‖z − b‖²`` (b near gold) and with F1, whose other extension is the expectation over independent parts. All numbers are exact: medians over
items, and quartiles of the bias, once for the loss as it is written and once for its twin.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ...estimators import ConstantBaseline, Estimator, Simple, StraightThroughMarginals
from ...oracles import Subset
from ..base import Instance, Problem
from ..measures.bias import measure
from ..problems import default_data, load, split_loss, stages_of, with_loss
from ..problems.losses import StructureLoss
from ..statistics.aggregates import Measured, aggregate
from ..statistics.metrics import Interval
from ..truth import Truth, exact_truth
from .markdown import Entry, table
from .subset_toy import SEEDS, instance

ESTIMATORS: dict[str, Callable[[Truth], Estimator[Any]]] = {
    "simple": lambda truth: Simple(),
    "ste_marginals": lambda truth: StraightThroughMarginals(),
    "reinforce, baseline E L": lambda truth: ConstantBaseline(truth.value),
}
"""By name: two that differentiate the loss, and one that does not."""

SETS: tuple[tuple[str, str], ...] = (
    ("subset_fsdd_downstream", "squared_distance"),
    ("tagging_coarse5", "squared_distance"),
    ("dependency_en_ewt", "squared_distance"),
    ("assignment_alibi_fr_en", "squared_distance"),
    ("tagging_coarse5", "f1"),
    ("dtw_speech", "f1"),
)
"""Real scores, and the loss that is written in two ways."""

BUILT_IN: tuple[tuple[str, str], ...] = (("subset_regimes", "squared_distance"), ("alignment_regimes", "f1"))
"""Where there is no folder of real ones."""

Row = dict[str, Entry]
Metrics = dict[str, Interval]


def toy() -> Problem:
    """The ten published instances."""
    items = []
    for seed in SEEDS:
        scores, loss = instance(seed)
        twofold: StructureLoss = loss
        items.append(Instance(str(seed), scores, twofold))
    return Problem("toy of SIMPLE", "N(0, 1)", Subset(5), tuple(items), "published seeds")


def problems(data: str | None, instances: int, sets: Sequence[tuple[str, str]]) -> Iterator[Problem]:
    """The toy, then named problems at their stages of training."""
    yield toy()
    for name, loss in sets:
        for stage in (stage for stage in stages_of(name) if not stage.startswith("h=")):
            yield load(with_loss(name, loss), stage, instances=instances, data=data)


def rows_of(problem: Problem) -> list[Row]:
    """One row per estimator."""
    oracle: Any = problem.oracle
    truths = [exact_truth(item.loss, oracle, item.scores) for item in problem.instances]
    rows = []
    for name, make in ESTIMATORS.items():
        found: list[Metrics] = []
        for item, truth in zip(problem.instances, truths, strict=True):
            twins: Any = item.loss
            found += [measure(make(truth), oracle, loss, item.scores, truth=truth).metrics for loss in (twins, twins.twin())]
        rows.append(_row(problem, name, found[::2], found[1::2]))
    return rows


def _row(problem: Problem, estimator: str, written: list[Metrics], twin: list[Metrics]) -> Row:
    loss: Any = problem.instances[0].loss
    row: Row = {
        "scores": split_loss(problem.name)[0],
        "stage": problem.stage,
        "items": len(written),
        "loss": loss.name,
        "estimator": estimator,
    }
    for place, extension, found in (("as written", loss.extension, written), ("twin", loss.twin().extension, twin)):
        bias, variance = (aggregate(Measured.of([one[key].value for one in found])) for key in ("relative_bias", "relative_variance"))
        quartiles = f"{bias.lower_quartile.value or 0:.3f}–{bias.upper_quartile.value or 0:.3f}"
        row |= {place: extension, f"{place}: bias": bias.median.value, f"{place}: quartiles": quartiles}
        row[f"{place}: variance"] = variance.median.value
    return row


def reproduce(data: str | None, instances: int = 16, sets: Sequence[tuple[str, str]] | None = None) -> list[Row]:
    """All rows: of real scores, or of the built-in ones where there is no folder."""
    chosen = sets if sets is not None else BUILT_IN if data is None else SETS
    return [row for problem in problems(data, instances, chosen) for row in rows_of(problem)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m structgrad.suites.studies.extension_twins", description="One loss in two extensions.")
    parser.add_argument("--data", default=default_data(), help="folder of the real score files (default: %(default)s)")
    parser.add_argument("--instances", type=int, default=16, help="items of every set (default: %(default)s)")
    given = parser.parse_args(arguments)
    sys.stdout.write(table(reproduce(given.data, given.instances), digits=3) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
