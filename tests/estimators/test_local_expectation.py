"""Local expectations: exact for one category, never noisier than REINFORCE, and unbiased for policies."""

from __future__ import annotations

import math

import pytest
import torch

from structgrad.estimators import LocalExpectation, Reinforce, StepLocalExpectation
from structgrad.oracles import Categorical, IndependentCategoricals, ShiftReduce
from structgrad.suites.measures.bias import measure
from structgrad.suites.truth import exact_truth
from tests.estimator_cases import LOSSES, numbers
from tests.helpers import OracleCase, derivations, products, seeded


@pytest.mark.parametrize("scale", [0.05, 1.0, 50.0])
def test_one_category_is_exact(scale: float) -> None:
    scores = scale * numbers(5)
    scores[2] = -math.inf
    loss = lambda z: 1e3 + (z @ numbers(5, seed=1)).sin()  # noqa: E731
    found = LocalExpectation().gradient(loss, Categorical(), scores.expand(20, 5), generator=seeded())
    torch.testing.assert_close(found, exact_truth(loss, Categorical(), scores).gradient.expand_as(found), rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("event", [(3, 2), (2, 3)], ids=str)
@pytest.mark.parametrize("scale", [0.3, 3.0])
def test_never_noisier_than_reinforce_on_the_same_samples(event: tuple[int, ...], scale: float) -> None:
    """The exact variance of an estimate that integrates the own choice out, category by category."""
    case = OracleCase(IndependentCategoricals(), event, products)
    for kind in ("smooth", "offset"):
        loss, scores = LOSSES[kind](case), scale * numbers(*event)
        local, plain = (
            measure(estimator, case.oracle, loss, scores).metrics["relative_variance"].value
            for estimator in (LocalExpectation(), Reinforce())
        )
        assert local is not None
        assert plain is not None
        assert local < plain


@pytest.mark.parametrize("normalization", ["local", "global"])
def test_the_mean_over_all_actions(normalization: str) -> None:
    """Within 5 standard errors, an action forbidden in the second batch of scores."""
    case = OracleCase(ShiftReduce(normalization), (5, 5, 2), derivations)  # type: ignore[arg-type]
    loss = LOSSES["smooth"](case)
    scores = torch.stack([numbers(5, 5, 2), numbers(5, 5, 2, seed=3)])
    scores[1, 2, 1, 0] = -math.inf
    rows = scores.expand(1500, 2, 5, 5, 2)
    found = StepLocalExpectation().gradient(loss, case.oracle, rows, generator=seeded())
    for i in range(2):
        error = found[:, i].std(0) / math.sqrt(len(found))
        exact = exact_truth(loss, case.oracle, scores[i]).gradient
        assert bool(((found[:, i].mean(0) - exact).abs() <= 5 * error + 1e-12).all())
        assert float(error.max()) > 0


def test_changes_beyond_memory_are_refused() -> None:
    said = LocalExpectation().incompatibility(IndependentCategoricals(), (10**3, 10**4))
    assert said
    assert said.startswith("local_expectation takes the loss on 9,999,000 structures at a time, ")
