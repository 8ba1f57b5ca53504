"""Intervals cover the exact values, and the laws that this is simulated from are those of the shipped estimators.

`docs/results/simulations.md` shows a table of many more cells.
"""

import numpy as np
import pytest
import torch
from scipy import optimize, stats

from structgrad.estimators import ConditionalMeanBaseline, ImplicitMLE, LeaveOneOut, Reinforce, make_estimator
from structgrad.oracles import Categorical
from structgrad.suites.measures.bias_tests import averaged_losses, resolved
from structgrad.suites.measures.draws import Sampling, draw_moments
from structgrad.suites.problems import make_loss
from structgrad.suites.statistics import intervals
from structgrad.suites.statistics.metrics import estimated_metrics, exact_metrics
from structgrad.suites.statistics.seeds import seed_sequence
from structgrad.suites.truth import Target, exact_truth
from structgrad.suites.truth.replay import replay
from tests.suites.studies.laws import EstimateLaw, instance, law

METRICS = ("relative_variance", "relative_bias", "gain", "cosine", "rho")
MIN_COVERAGE = 0.93
EQUAL = 1e-6
"""Distance from the exact value that is rounding."""


def peaked(share: float) -> Target:
    """Normal scores of five categories, multiplied until so much of the law lies outside of its mode."""
    random, oracle = np.random.default_rng(0), Categorical()
    direction, gold = torch.from_numpy(random.standard_normal(5)), oracle.argmax(torch.from_numpy(random.standard_normal(5)))
    scale = optimize.brentq(lambda scale: 1 - float((scale * direction).softmax(0).max()) - share, 0, 1000, xtol=1e-14)
    loss = make_loss("mlp", gold, oracle, seed=1)
    return Target(oracle, loss, scale * direction, exact_truth(loss, oracle, scale * direction))


def covered(target: Target, replicates: int, repetitions: int = 60) -> dict[str, tuple[int, int]]:
    """Covered and given intervals of REINFORCE by metric."""
    estimator, hits = make_estimator("reinforce"), dict.fromkeys(METRICS, (0, 0))
    exact, sample = exact_metrics(replay(estimator, target, 1)), EstimateLaw.of(estimator, target)
    random = np.random.default_rng(seed_sequence(0, "coverage", str(replicates)))
    for _ in range(repetitions):
        moments = sample.moments(replicates, random)
        known = resolved(moments, target.truth, torch.float64, losses=averaged_losses(estimator))
        found = estimated_metrics(moments, resolved=known)
        for metric, (right, given) in hits.items():
            value, interval = exact[metric].value, found[metric]
            if interval.low is not None:
                room = EQUAL * max(1.0, abs(value))
                hits[metric] = right + (interval.low - room <= value <= interval.high + room), given + 1
    return hits


@pytest.mark.parametrize(("share", "replicates"), [(None, 1024), (1e-3, 2**16)])
def test_intervals_cover_and_narrow_ones_do_not(share: float | None, replicates: int, monkeypatch: pytest.MonkeyPatch) -> None:
    target = instance("categorical10", 0.5) if share is None else peaked(share)
    hits = covered(target, replicates)
    quantile = intervals.quantile
    monkeypatch.setattr(intervals, "quantile", lambda *given, **named: quantile(*given, **named) / 2)
    narrow = covered(target, replicates)
    for metric, (right, given) in hits.items():
        assert not given or stats.binomtest(right, given).proportion_ci(0.999).high >= MIN_COVERAGE, metric
    assert sum(narrow[name][0] for name in ("relative_variance", "gain")) < sum(hits[name][0] for name in ("relative_variance", "gain"))


def test_rare_events_give_no_interval() -> None:
    assert covered(peaked(1e-6), 2**12, 5)["relative_variance"] == (0, 0)


@pytest.mark.parametrize("estimator", [Reinforce(), ConditionalMeanBaseline(), LeaveOneOut(2)], ids=lambda e: e.name)
def test_a_law_has_the_moments_of_replay(estimator) -> None:
    target = instance("categorical10", 1.0)
    sample, exact = law(estimator, "categorical10", 1.0), replay(estimator, target, 2 if isinstance(estimator, LeaveOneOut) else 1)
    torch.testing.assert_close(sample.bias, exact.error, atol=1e-12, rtol=0)
    torch.testing.assert_close(sample.covariance.trace(), exact.trace, atol=1e-12, rtol=1e-9)
    assert exact_metrics(exact)["relative_bias"].value < 1e-12


def test_samples_from_a_law_are_distributed_as_those_of_the_estimator() -> None:
    """Two samples of 8192, by Welch's test of every part and of the squared length."""
    target, sample = instance("subset10", 1.0), law(Reinforce(), "subset10", 1.0)
    shipped = draw_moments(Reinforce(), target, Sampling(replicates=8192, key=("simulations",)), information=sample.information)
    drawn = sample.moments(8192, np.random.default_rng(0))
    p_values = []
    for one, two in zip(*((m.mean.T, m.square.T) for m in (shipped, drawn)), strict=True):
        p_values += [stats.ttest_ind(a, b, equal_var=False).pvalue for a, b in zip(one, two, strict=True)]
    assert min(p_values) * len(p_values) > 1e-3


def test_a_law_refuses_an_estimator_with_other_random_numbers() -> None:
    with pytest.raises(ValueError, match=r"`EstimateLaw.of` got imle, which draws other random numbers than samples"):
        EstimateLaw.of(ImplicitMLE(), instance("subset10", 0.5))
