"""The k-subset toy of the SIMPLE paper (Ahmed, Zeng, Niepert & Van den Broeck 2023, figure 2), to the digits given.

n = 10, k = 5 (252 structures), ten published seeds; ``θ`` and ``|b|`` standard normal, ``L(z) = ‖z − b‖²``, ``p(z) ∝ exp⟨θ, z⟩``. The
paper reports cosines: bias ``1 − cos(∇, E ĝ)``, variance ``Var cos(ĝ, E ĝ)``, error ``E[1 − cos(∇, ĝ)]``. Estimators that draw one
structure through the oracle are evaluated on all 252 of them, without sampling error; others by 10 000 draws, as in the paper.
"""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from structgrad.estimators import Estimator, ImplicitMLE, LeaveOneOut, Reinforce, SampledStraightThrough, Simple, SumOfGamma
from structgrad.oracles import Subset
from structgrad.suites.measures.bias import Sampling, measure
from structgrad.suites.problems.losses import SquaredDistance
from structgrad.suites.statistics.seeds import generator
from structgrad.suites.truth import Truth, exact_truth
from structgrad.suites.truth.replay import scripted, slots_of

ORACLE, DRAWS = Subset(5), 10_000
SEEDS = (1234, 1067, 9198, 9453, 6240, 7044, 1755, 7898, 3131, 1277)
SAMPLED = ImplicitMLE(lambda_=2.5, noise=SumOfGamma(k=5, scale=1.0, terms=10))
NAMES = ("bias", "variance", "error")


def instance(seed: int) -> tuple[Tensor, SquaredDistance, Truth]:
    """Scores, loss and exact gradient of one published seed."""
    random = np.random.RandomState(seed)
    scores, loss = torch.from_numpy(random.randn(10)), SquaredDistance(torch.from_numpy(np.abs(random.randn(10))))
    return scores, loss, exact_truth(loss, ORACLE, scores)


def cosine_statistics(estimator: Estimator[Any], seed: int) -> tuple[float, float, float]:
    """Bias, variance and error of one estimator on one instance."""
    scores, loss, truth = instance(seed)
    if slots_of(estimator, ORACLE, loss, scores) == 1:
        structures = ORACLE.enumerate((10,), dtype=torch.float64)
        weights, dealt = (structures @ scores - truth.log_partition).exp(), scripted(ORACLE, structures.unsqueeze(0))
        estimates = estimator.gradient(loss, dealt, scores.expand(len(structures), -1), generator=torch.Generator())
    else:
        estimates = estimator.gradient(loss, ORACLE, scores.expand(DRAWS, -1), generator=generator(0, "subset_toy"))
        weights = estimates.new_full((DRAWS,), 1 / DRAWS)
    cosine, mean = torch.nn.functional.cosine_similarity, weights @ estimates
    to_mean, to_truth = cosine(estimates, mean, dim=-1), cosine(estimates, truth.gradient, dim=-1)
    bias = 1 - float(cosine(truth.gradient, mean, dim=0))
    return bias, float(weights @ (to_mean - weights @ to_mean).square()), 1 - float(weights @ to_truth)


def digits(precision: float = 5.1e-5, **numbers: float) -> dict[str, Any]:
    return {name: pytest.approx(value, abs=precision) for name, value in numbers.items()}


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        (Reinforce(), digits(bias=0.0, variance=0.1312, error=0.9988)),
        (SampledStraightThrough(), digits(bias=0.1897, bias_sd=0.0588, variance=0.0076, error=0.3357)),
        (Simple(), digits(bias=0.0368, bias_sd=0.0205, variance=0.0123, variance_sd=0.0129, error=0.2468)),
        (SAMPLED, digits(0.002, bias_sd=0.1388, error=0.5784) | digits(0.003, bias=0.4593) | digits(0.001, variance=0.0308)),
    ],
)  # fmt: skip
def test_mean_and_deviation_over_ten_seeds(estimator: Estimator[Any], expected: dict[str, Any]) -> None:
    found = [cosine_statistics(estimator, seed) for seed in SEEDS]
    numbers = dict(zip(NAMES, np.mean(found, axis=0), strict=True))
    numbers |= {f"{name}_sd": value for name, value in zip(NAMES, np.std(found, axis=0, ddof=1), strict=True)}
    assert {name: numbers[name] for name in expected} == expected


def test_first_seed() -> None:
    """Exact values of seed 1234: norm of the gradient, expected loss, and traces of covariances."""
    scores, loss, truth = instance(SEEDS[0])
    assert (float(truth.gradient.norm()), truth.value) == pytest.approx((0.919681, 8.685266), abs=5.1e-5)
    for estimator, trace in ((Simple(), 0.4325), (Reinforce(), 147.7269), (LeaveOneOut(2), 6.7914)):
        found = measure(estimator, ORACLE, loss, scores, truth=truth, sampling=Sampling()).metrics["relative_variance"].value
        assert found * float(truth.gradient.square().sum()) == pytest.approx(trace, abs=5.1e-5)
