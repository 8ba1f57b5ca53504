"""Intervals cover the exact values, and the laws that this is simulated from are those of the shipped estimators."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from structgrad.estimators import ConditionalMeanBaseline, ImplicitMLE, LeaveOneOut, Reinforce
from structgrad.suites.measures.draws import Sampling, draw_moments
from structgrad.suites.statistics import intervals
from structgrad.suites.statistics.metrics import exact_metrics
from structgrad.suites.truth.replay import replay
from tests.suites.studies.coverage import METRICS, MIN_COVERAGE, Cell, covered, covered_of_sets
from tests.suites.studies.laws import SPACES, EstimateLaw, instance, law

FLAT: Cell = ("categorical10", 0.5, "reinforce", 1024)
PEAKED: Cell = ("categorical5", 1e-3, "reinforce", 2**16)


@pytest.mark.parametrize("cell", [FLAT, PEAKED])
def test_intervals_cover_and_narrow_ones_do_not(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    hits = covered(cell, 60)
    quantile = intervals.quantile
    monkeypatch.setattr(intervals, "quantile", lambda *given, **named: quantile(*given, **named) / 2)
    narrow = covered(cell, 60)
    for metric in METRICS:
        right, given = hits[metric]
        if given:
            assert stats.binomtest(right, given).proportion_ci(0.999).high >= MIN_COVERAGE, metric
    assert sum(narrow[name][0] for name in ("relative_variance", "gain")) < sum(hits[name][0] for name in ("relative_variance", "gain"))


def test_rare_events_give_no_interval() -> None:
    assert covered(("categorical5", 1e-6, "reinforce", 2**12), 5)["relative_variance"] == (0, 0)


def test_intervals_of_sets_cover_the_exact_variance() -> None:
    """Rare structures outside of a set carry its variance: without the rule of `SPREAD_SEEN`, 80 % are covered at this entropy level."""
    right, given = covered_of_sets(0.2, 2**12, 10)["relative_variance"]
    assert 10 <= given < 80
    assert stats.binomtest(right, given).proportion_ci(0.999).high >= MIN_COVERAGE
    hits = covered_of_sets(0.7, 2**12, 10)
    assert {hits[metric][1] for metric in ("relative_variance", "rho")} == {80}


@pytest.mark.parametrize("estimator", [Reinforce(), ConditionalMeanBaseline(), LeaveOneOut(2)], ids=lambda e: e.name)
def test_a_law_has_the_moments_of_replay(estimator) -> None:
    target = instance("categorical10", 1.0)
    sample, exact = law(estimator, "categorical10", 1.0), replay(estimator, target, 2 if isinstance(estimator, LeaveOneOut) else 1)
    torch.testing.assert_close(sample.bias, exact.error, atol=1e-12, rtol=0)
    torch.testing.assert_close(sample.covariance.trace(), exact.trace, atol=1e-12, rtol=1e-9)
    assert exact_metrics(exact)["relative_bias"].value < 1e-12


@pytest.mark.parametrize("space", ["categorical10", "subset10"])
def test_samples_from_a_law_are_distributed_as_those_of_the_estimator(space: str) -> None:
    """Two samples of 8192, by Welch's test of every part and of the squared length."""
    target, sample = instance(space, 1.0), law(Reinforce(), space, 1.0)
    shipped = draw_moments(Reinforce(), target, Sampling(replicates=8192, key=("simulations",)), information=sample.information)
    drawn = sample.moments(8192, np.random.default_rng(0))
    p_values = []
    for one, two in zip(*((m.mean.T, m.square.T) for m in (shipped, drawn)), strict=True):
        p_values += [stats.ttest_ind(a, b, equal_var=False).pvalue for a, b in zip(one, two, strict=True)]
    assert min(p_values) * len(p_values) > 1e-3


def test_a_law_refuses_an_estimator_with_other_random_numbers() -> None:
    with pytest.raises(ValueError, match=r"`EstimateLaw.of` got imle, which draws other random numbers than samples"):
        EstimateLaw.of(ImplicitMLE(), instance("subset10", 0.5))


def test_every_space_has_its_instance() -> None:
    assert all(instance(space, 0.5).truth.gradient.norm() > 0.1 for space in SPACES)
