"""Every estimator that is declared unbiased for the expected loss has the exact gradient as its mean."""

import math
from typing import Any

import pytest
from torch import Tensor, nn

from structgrad.estimators import Estimator, Relax, make_estimator
from structgrad.oracles import IndependentCategoricals
from structgrad.suites.measures.bias import Sampling, measure
from structgrad.suites.truth import exact_truth
from structgrad.suites.truth.replay import slots_of
from tests.covering import sampled
from tests.estimator_cases import GRADIENT_FREE, LOSSES, TARGETS_THE_EXPECTATION, numbers, pairs_of
from tests.helpers import OracleCase, seeded, structures

EXACTLY = Sampling(tier="exact")
REPLICATES = 2000

UNBIASED = [str(name) for name in TARGETS_THE_EXPECTATION]


@pairs_of(UNBIASED)
def test_the_mean_is_the_exact_gradient(name: str, case: OracleCase) -> None:
    """Over every possible sample if at most two samples of the oracle decide an estimate, else over replicates."""
    estimator, scores = make_estimator(name), numbers(*case.event)
    masked, optional = scores.round(), structures(case).mean(0)
    masked[tuple(((optional > 0) & (optional < 1)).nonzero()[-1])] = -math.inf
    slots = slots_of(estimator, case.oracle, LOSSES["smooth"](case), scores)
    if slots is None or slots > 2:
        for rows in (0.7 * scores, masked):
            assert deviation(estimator, case, rows) < 5
        return
    kinds = [kind for kind in LOSSES if kind != "black_box" or name in GRADIENT_FREE]
    for kind, rows in (*((kind, scores) for kind in sampled(kinds, 2)), ("smooth", masked)):
        found = measure(estimator, case.oracle, LOSSES[kind](case), rows, sampling=EXACTLY)
        assert found.verdict == "unbiased-exact", kind
        assert found.metrics["relative_bias"].value < 1e-10, kind  # type: ignore[operator]
    for scale in sampled((0.05, 5.0, 50.0), 2):
        loss = LOSSES["smooth"](case)
        truth = exact_truth(loss, case.oracle, scale * scores)
        found = measure(estimator, case.oracle, loss, scale * scores, truth=truth, sampling=EXACTLY)
        # A marginal close to 1 is rounded, so that the score of the best structure has an error of 1e-16, however small the gradient is.
        relative, norm = found.metrics["relative_bias"].value, float(truth.gradient.norm())
        bias = found.metrics["absolute_bias"].value if relative is None else relative * norm
        assert bias is not None
        assert bias <= 1e-10 * norm + 1e-15 * abs(truth.value)


def deviation(estimator: Estimator[Any], case: OracleCase, scores: Tensor, replicates: int = REPLICATES) -> float:
    """The largest distance of an entry of the mean from the exact gradient, in standard errors."""
    loss = LOSSES["smooth"](case)
    rows = scores.expand(replicates, *case.event)
    estimates = estimator.gradient(loss, case.oracle, rows, generator=seeded(3))
    error = estimates.std(0) / math.sqrt(replicates)
    return float(((estimates.mean(0) - exact_truth(loss, case.oracle, scores).gradient).abs() / (error + 1e-12)).max())


def test_replicates_resolve_a_bias() -> None:
    case = OracleCase(IndependentCategoricals(), (2, 3))
    biased = make_estimator("importance_weighted_set[num_samples=2, normalised=True]")
    assert not biased.unbiased
    assert deviation(biased, case, 0.3 * numbers(2, 3), 20_000) > 10


@pytest.mark.parametrize("with_loss", [True, False])
def test_relax_is_unbiased_with_any_network(with_loss: bool) -> None:
    control = nn.Sequential(nn.Flatten(-2), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1), nn.Flatten(-2)).double()
    case = OracleCase(IndependentCategoricals(), (2, 3))
    assert deviation(Relax(0.7, 0.8, control, with_loss), case, numbers(2, 3), 20_000) < 5
