"""What is declared unbiased for the expected loss has the exact gradient as its mean, over every possible sample."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from structgrad.estimators import make_estimator
from structgrad.suites.measures.bias import Sampling, measure
from structgrad.suites.truth import exact_truth
from structgrad.suites.truth.replay import slots_of
from tests.estimator_cases import CASES, GRADIENT_FREE, LOSSES, SMALLEST, TARGETS_THE_EXPECTATION, a_case_for, losses, numbers, pairs_of
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


@losses
@pairs
def test_the_mean_is_the_exact_gradient(name: str, case: OracleCase, kind: str) -> None:
    kind = "offset" if kind == "black_box" and name not in GRADIENT_FREE else kind
    found = measure(make_estimator(name), case.oracle, LOSSES[kind](case), numbers(*case.event), sampling=EXACTLY)
    assert found.verdict == "unbiased-exact"
    assert found.metrics["relative_bias"].value < 1e-10  # type: ignore[operator]


@pytest.mark.parametrize("scale", [0.05, 5.0, 50.0])
@pairs
def test_at_every_scale_of_scores(name: str, case: OracleCase, scale: float) -> None:
    loss, scores = LOSSES["smooth"](case), scale * numbers(*case.event)
    truth = exact_truth(loss, case.oracle, scores)
    found = measure(make_estimator(name), case.oracle, loss, scores, truth=truth, sampling=EXACTLY)
    norm = float(truth.gradient.norm())
    # A marginal close to 1 is rounded, so that the score of the best structure has an error of 1e-16, however small the gradient is.
    relative = found.metrics["relative_bias"].value
    bias = found.metrics["absolute_bias"].value if relative is None else relative * norm
    assert bias is not None
    assert bias <= 1e-10 * norm + 1e-15 * abs(truth.value)


@pairs
def test_with_forbidden_parts_and_ties(name: str, case: OracleCase) -> None:
    scores = numbers(*case.event).round()
    use = structures(case).mean(0)
    scores[tuple(((use > 0) & (use < 1)).nonzero()[-1])] = -math.inf
    found = measure(make_estimator(name), case.oracle, LOSSES["smooth"](case), scores, sampling=EXACTLY)
    assert found.verdict == "unbiased-exact"
    assert found.metrics["relative_bias"].value < 1e-10  # type: ignore[operator]


@pytest.mark.parametrize("name", ["rloo[num_samples=3]", "reinforce[num_samples=3]"])
def test_with_more_samples(name: str) -> None:
    case = CASES[0]
    found = measure(make_estimator(name), case.oracle, LOSSES["offset"](case), numbers(*case.event), sampling=EXACTLY)
    assert found.verdict == "unbiased-exact"
    assert found.metrics["relative_bias"].value < 1e-10  # type: ignore[operator]


@pairs_of(REPLAYED, SMALLEST)
def test_a_single_structure_has_no_gradient(name: str, case: OracleCase) -> None:
    found = measure(make_estimator(name), case.oracle, LOSSES["smooth"](case), numbers(*case.event), sampling=EXACTLY)
    assert found.verdict == "unbiased-exact"
    assert found.metrics["gain"].value is None


@pairs_of(GRADIENT_FREE)
def test_values_of_the_loss_suffice(name: str, case: OracleCase) -> None:
    """The loss gets no tensor to differentiate, and its result has no history."""

    def loss(z: Tensor) -> Tensor:
        assert not z.requires_grad
        return LOSSES["black_box"](case)(z)

    estimate = make_estimator(name).gradient(loss, case.oracle, numbers(20, *case.event), generator=torch.Generator().manual_seed(0))
    assert estimate.isfinite().all()
    assert estimate.abs().sum() > 0
