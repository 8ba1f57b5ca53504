"""The k-subset toy of the SIMPLE paper.

n = 10, k = 5 (252 structures), ten published seeds; ``θ`` and ``|b|`` standard normal, ``L(z) = ‖z − b‖²``, ``p(z) ∝ exp⟨θ, z⟩``. The
paper reports 10 000 sampled gradients in terms of cosines: bias ``1 − cos(∇, E ĝ)``, variance ``Var cos(ĝ, E ĝ)``, error ``E[1 − cos(∇,
ĝ)]``. Estimators that draw structures through the oracle are evaluated on all 252 of them, without sampling error.

References:
    Ahmed, Zeng, Niepert & Van den Broeck 2023, "SIMPLE: a gradient estimator for k-subset sampling", figure 2.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from structgrad.estimators import Estimator, ImplicitMLE, LeaveOneOut, Reinforce, SampledStraightThrough, Simple, SumOfGamma
from structgrad.oracles import Subset
from structgrad.suites.measures.bias import Sampling, measure
from structgrad.suites.problems.losses import SquaredDistance
from structgrad.suites.statistics.seeds import generator
from structgrad.suites.truth import Truth, exact_truth
from structgrad.suites.truth.replay import scripted, slots_of

SEEDS = (1234, 1067, 9198, 9453, 6240, 7044, 1755, 7898, 3131, 1277)
SAMPLES = 10_000

ESTIMATORS: dict[str, Estimator[Any]] = {
    "imle": ImplicitMLE(lambda_=2.5, noise=SumOfGamma(k=5, scale=1.0, terms=10)),
    "reinforce": Reinforce(),
    "ste_sample": SampledStraightThrough(),
    "simple": Simple(),
}


def instance(seed: int) -> tuple[Tensor, SquaredDistance]:
    """Scores and loss of one published seed."""
    random = np.random.RandomState(seed)
    scores = torch.from_numpy(random.randn(10))
    return scores, SquaredDistance(torch.from_numpy(np.abs(random.randn(10))))


def cosine_statistics(estimator: Estimator[Any], scores: Tensor, loss: SquaredDistance, truth: Truth) -> tuple[float, float, float]:
    """Bias, variance and error of one estimator on one instance, in the paper's terms."""
    estimates, weights = _estimates(estimator, scores, loss, truth)
    mean = weights @ estimates
    cosine = torch.nn.functional.cosine_similarity
    to_mean = cosine(estimates, mean, dim=-1)
    to_truth = cosine(estimates, truth.gradient, dim=-1)
    bias = 1 - float(cosine(truth.gradient, mean, dim=0))
    return bias, float(weights @ (to_mean - weights @ to_mean).square()), 1 - float(weights @ to_truth)


def _estimates(estimator: Estimator[Any], scores: Tensor, loss: SquaredDistance, truth: Truth) -> tuple[Tensor, Tensor]:
    """All estimates with their probabilities where one exact sample decides; else `SAMPLES` draws."""
    oracle = Subset(5)
    if slots_of(estimator, oracle, loss, scores) == 1:
        structures = oracle.enumerate(tuple(scores.shape), dtype=torch.float64)
        dealt = scripted(oracle, structures.unsqueeze(0))
        rows = scores.expand(len(structures), -1)
        weights = (structures @ scores - truth.log_partition).exp()
        return estimator.gradient(loss, dealt, rows, generator=torch.Generator()), weights
    stream = generator(0, "subset_toy")
    estimates = estimator.gradient(loss, oracle, scores.expand(SAMPLES, -1), generator=stream)
    return estimates, estimates.new_full((SAMPLES,), 1 / SAMPLES)


def reproduce() -> pd.DataFrame:
    """One row per estimator: mean and standard deviation of bias, variance and error over the ten seeds."""
    rows = []
    for name, estimator in ESTIMATORS.items():
        found = []
        for seed in SEEDS:
            scores, loss = instance(seed)
            found.append(cosine_statistics(estimator, scores, loss, exact_truth(loss, Subset(5), scores)))
        means, spreads = np.mean(found, axis=0), np.std(found, axis=0, ddof=1)
        row: dict[str, Any] = {"estimator": name}
        for i, metric in enumerate(("bias", "variance", "error")):
            row |= {metric: means[i], f"{metric}_sd": spreads[i]}
        rows.append(row)
    return pd.DataFrame(rows).set_index("estimator")


def first_seed() -> dict[str, float]:
    """Exact values of seed 1234: norm of the gradient, expected loss, and traces of covariances."""
    scores, loss = instance(SEEDS[0])
    truth = exact_truth(loss, Subset(5), scores)
    square = float(truth.gradient.square().sum())
    result = {"gradient_norm": square**0.5, "expected_loss": truth.value}
    for name, estimator in (("simple", Simple()), ("reinforce", Reinforce()), ("rloo", LeaveOneOut(2))):
        found = measure(estimator, Subset(5), loss, scores, truth=truth, sampling=Sampling())
        result[f"{name}_trace"] = (found.metrics["relative_variance"].value or 0.0) * square
    return result
