"""Ranks of estimators as a model is trained: ``python -m structgrad.suites.studies.training_stages [--data DIR] [--instances N]``.

Scores of real models before, early in and after training, beside standard normal ones of the same shapes: how peaked they are, which
standard deviation of normal scores would be as peaked, and what that does to three estimators with the loss ``‖A (z − gold)‖²``, A random
of 8 rows. Early, a straight-through gradient points the right way; in the end the best structure mostly *is* gold, where its gradient is 0.
Hence quantiles over items, no means, and zero gradients counted apart. All numbers are exact but for the draws of A and of normal scores.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import brentq
from torch import Tensor

from ...estimators import ConstantBaseline, StraightThrough, StructuredAttention
from ...oracles import LinearChain
from ...oracles.capabilities import MarginalOracle
from ..base import Instance, Problem
from ..measures.bias import measure
from ..problems import default_data, load, stages_of
from ..statistics.seeds import seed_sequence
from ..truth import exact_truth
from .markdown import Entry, table

NORMAL = "N(0, 1)"
"""The stage of standard normal scores."""

RANKED = "dependency_en_ewt"
"""The set that estimators are ranked on."""

PEAKED: dict[str, int] = {
    "dependency_en_ewt": 200,
    "tagging_coarse5": 200,
    "binary_trees_listops": 150,
    "assignment_alibi_fr_en": 200,
    "dtw_speech": 180,
}
"""Sets of the first table, with their numbers of items."""

Row = dict[str, Entry]


@dataclass(frozen=True)
class Item:
    """What is exact about one item.

    Attributes:
        size: of the first event axis.
        attention_bias: relative bias of the gradient through the marginals.
        cosine: of the straight-through gradient with the exact one, 0 where it is 0. ``zero``: whether it is.
        log_variance: log₁₀ of the relative variance of REINFORCE with the baseline ``E L``; None where the gradient is 0.
    """

    size: int
    attention_bias: float | None
    cosine: float
    zero: bool
    log_variance: float | None


def scores_of(name: str, stage: str, *, instances: int, data: str, seed: int = 0) -> Problem:
    """A real set at a stage, or standard normal scores of its shapes; gold and A are those of the set."""
    if stage != NORMAL:
        return load(name, stage, instances=instances, data=data, seed=seed)
    real = load(name, stages_of(name)[0], instances=instances, data=data, seed=seed)
    items = tuple(dataclasses.replace(item, scores=_normal(real, item, seed)) for item in real.instances)
    return dataclasses.replace(real, stage=NORMAL, instances=items)


def _normal(problem: Problem, item: Instance, seed: int) -> Tensor:
    """Standard normal scores, the same for an item always, 0 at ignored entries. Those of a chain are a tagger's of normal potentials."""
    random = np.random.default_rng(seed_sequence(seed, "training_stages", problem.name, item.name))
    event = tuple(item.scores.shape)
    if isinstance(problem.oracle, LinearChain):
        unary, transition = (torch.from_numpy(random.standard_normal(shape)) for shape in (event[:2], event[1:]))
        return LinearChain.from_potentials(unary, transition)
    return torch.where(problem.oracle.read_mask(event), torch.from_numpy(random.standard_normal(event)), 0)


def peakedness(problem: Problem) -> Row:
    """Mean entropy in nats and mean probability of the best structure."""
    oracle: Any = problem.oracle
    scores = [item.scores for item in problem.instances]
    best = [float(oracle.log_prob(oracle.argmax(theta), theta).exp()) for theta in scores]
    entropy = float(np.mean([float(oracle.entropy(theta)) for theta in scores]))
    return {"set": problem.name, "stage": problem.stage, "items": len(scores), "entropy": entropy, "p(best)": float(np.mean(best))}


def matched_deviation(problem: Problem, entropy: float) -> float:
    """The standard deviation of normal scores whose mean entropy is that of a real set.

    Args:
        problem: standard normal scores.
        entropy: the mean over the items, in nats.
    """
    oracle = problem.oracle
    if not isinstance(oracle, MarginalOracle):
        raise ValueError(f"`matched_deviation` got the oracle {oracle.name}, which has no entropy; expected one with marginals")
    shapes: dict[torch.Size, list[Tensor]] = {}
    for item in problem.instances:
        shapes.setdefault(item.scores.shape, []).append(item.scores)
    stacked = [torch.stack(scores) for scores in shapes.values()]

    def excess(log_deviation: float) -> float:
        total = sum(float(oracle.entropy(math.exp(log_deviation) * scores).sum()) for scores in stacked)
        return total / len(problem.instances) - entropy

    return math.exp(float(brentq(excess, math.log(1e-4), math.log(1e6), xtol=1e-6)))


def item_of(problem: Problem, item: Instance) -> Item:
    """The three estimators on one item."""
    oracle: Any = problem.oracle
    truth = exact_truth(item.loss, oracle, item.scores)
    attention, straight, reinforce = (
        measure(estimator, oracle, item.loss, item.scores, truth=truth).metrics
        for estimator in (StructuredAttention(), StraightThrough(), ConstantBaseline(truth.value))
    )
    variance = reinforce["relative_variance"].value
    return Item(
        size=len(item.scores),
        attention_bias=attention["relative_bias"].value,
        cosine=straight["cosine"].value or 0.0,
        zero=straight["zero_gradient_rate"].value == 1.0,
        log_variance=math.log10(variance) if variance else None,
    )


def ranking(problem: Problem, items: Sequence[Item]) -> Row:
    """Quantiles over items."""
    cosines = [item.cosine for item in items]
    bias = [item.attention_bias for item in items if item.attention_bias is not None]
    variances = [item.log_variance for item in items if item.log_variance is not None]
    return {
        "set": problem.name,
        "stage": problem.stage,
        "items": len(items),
        "attention: relative bias, median": float(np.median(bias)),
        "quartiles": "{:.2f}–{:.2f}".format(*np.quantile(bias, [0.25, 0.75])),
        "ste: cosine, median": float(np.median(cosines)),
        "of those not 0": float(np.median([item.cosine for item in items if not item.zero] or [0.0])),
        "ste is 0": float(np.mean([item.zero for item in items])),
        "reinforce: log₁₀ variance, median": float(np.median(variances)),
        "90 %": float(np.quantile(variances, 0.9)),
    }


def ranked(data: str, *, instances: int, seed: int = 0) -> tuple[list[Row], list[Row]]:
    """The ranking of all items at every stage, and that of items of three words or more (of two words there are two trees)."""
    every, longer = [], []
    for stage in (NORMAL, *stages_of(RANKED)):
        problem = scores_of(RANKED, stage, instances=instances, data=data, seed=seed)
        items = [item_of(problem, item) for item in problem.instances]
        every.append(ranking(problem, items))
        kept = [item for item in items if item.size > 3]
        longer += [ranking(problem, kept)] if kept else []
    return every, longer


def peaked(data: str, *, instances: int | None = None, seed: int = 0) -> list[Row]:
    """How peaked the sets are at every stage, beside normal scores, and the deviation of normal scores that are as peaked."""
    rows = []
    for name, items in PEAKED.items():
        count = min(instances or items, items)
        normal = scores_of(name, NORMAL, instances=count, data=data, seed=seed)
        for stage in stages_of(name):
            row = peakedness(scores_of(name, stage, instances=count, data=data, seed=seed))
            rows.append(row | {"σ as peaked": matched_deviation(normal, float(row["entropy"] or 0))})
        rows.append(peakedness(normal) | {"σ as peaked": 1.0})
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        prog="python -m structgrad.suites.studies.training_stages", description="Estimators as a model is trained."
    )
    parser.add_argument("--data", default=default_data(), help="folder of the real score files (default: %(default)s)")
    parser.add_argument("--instances", type=int, default=None, help="items of every set (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="of A and of normal scores (default: %(default)s)")
    given = parser.parse_args(arguments)
    if given.data is None:
        parser.error("no folder of real score files was found; give one with --data, or set STRUCTGRAD_DATA")
    every, longer = ranked(given.data, instances=min(given.instances or PEAKED[RANKED], PEAKED[RANKED]), seed=given.seed)
    texts = [table(peaked(given.data, instances=given.instances, seed=given.seed), digits=3), table(every), table(longer)]
    sys.stdout.write("\n\n".join(texts) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
