"""What is declared unbiased for the expected loss has the exact gradient as its mean, over every possible sample."""

from __future__ import annotations

import math

import pytest

from structgrad.estimators import make_estimator
from structgrad.suites.measures.bias import Sampling, measure
from structgrad.suites.truth import exact_truth
from structgrad.suites.truth.replay import slots_of
from tests.covering import sampled
from tests.estimator_cases import CASES, GRADIENT_FREE, LOSSES, SMALLEST, TARGETS_THE_EXPECTATION, a_case_for, fitting, numbers, pairs_of
from tests.helpers import OracleCase, structures

REPLAYED = [
    str(name)
    for name in TARGETS_THE_EXPECTATION
    if not name.startswith(
        (
            "unordered_set",
            "sum_and_sample",
            "importance_weighted_set",
            "arm",
            "disarm",
            "arsm",
            "rebar",
            "relax",
            "step_sampled",
            "step_local",
            "carms",
            "antithetic",
        )
    )
    and make_estimator(name).evaluations().samples < 3
]
"""What is decided by at most two samples that are drawn through the oracle; others have tests of their own."""

pairs = pairs_of(REPLAYED)
EXACTLY = Sampling(tier="exact")


@pytest.mark.parametrize("name", TARGETS_THE_EXPECTATION)
def test_the_table_holds_what_can_be_replayed(name: str) -> None:
    estimator, case = make_estimator(name), a_case_for(name)
    slots = slots_of(estimator, case.oracle, LOSSES["smooth"](case), numbers(*case.event))
    assert (slots is not None and slots < 3) is (name in REPLAYED)


@pairs
def test_the_mean_is_the_exact_gradient(name: str, case: OracleCase) -> None:
    """For every kind of loss, at every scale of scores, with forbidden parts and ties."""
    estimator, scores = make_estimator(name), numbers(*case.event)
    use = structures(case).mean(0)
    masked = scores.round()
    masked[tuple(((use > 0) & (use < 1)).nonzero()[-1])] = -math.inf
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


@pytest.mark.parametrize("name", ["rloo[num_samples=3]", "reinforce[num_samples=3]"])
def test_with_more_samples(name: str) -> None:
    case = CASES[0]
    found = measure(make_estimator(name), case.oracle, LOSSES["offset"](case), numbers(*case.event), sampling=EXACTLY)
    assert found.verdict == "unbiased-exact"
    assert found.metrics["relative_bias"].value < 1e-10  # type: ignore[operator]


@pytest.mark.parametrize("name", REPLAYED)
def test_a_single_structure_has_no_gradient(name: str) -> None:
    for case in fitting(name, SMALLEST):
        found = measure(make_estimator(name), case.oracle, LOSSES["smooth"](case), numbers(*case.event), sampling=EXACTLY)
        assert found.verdict == "unbiased-exact"
        assert found.metrics["gain"].value is None
