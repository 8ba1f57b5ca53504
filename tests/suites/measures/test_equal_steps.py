"""Steps of equal divergence: against the oracle's own sums, and against the theory of small steps."""

from __future__ import annotations

import math

import pytest
import torch

from structgrad.estimators import Reinforce, SampledStraightThrough
from structgrad.oracles import ShiftReduce, Subset
from structgrad.suites.measures.draws import Draws, estimates
from structgrad.suites.measures.equal_steps import Rays, StructureTable, equal_step, natural_direction, relative_decrease
from structgrad.suites.truth import exact_truth
from tests.suites.planted import CONTEXT, problem


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def policy():
    """Three words: 2 trees, whose law is not a linear function of the scores."""
    oracle, scores = ShiftReduce("local"), normal(5, 5, 2)
    weights = normal(*scores.shape, seed=1)
    return oracle, lambda z: ((z * weights).sum((-1, -2, -3)) + 1) ** 2, scores


def subset():
    (instance,) = problem().instances
    return Subset(2), instance.loss, instance.scores


def forbidden():
    oracle, loss, scores = subset()
    return oracle, loss, scores.clone().index_fill_(0, torch.tensor([3]), -math.inf)


SETTINGS = {"subset": subset, "policy": policy, "forbidden": forbidden}


def place(name):
    oracle, loss, scores = SETTINGS[name]()
    table = StructureTable.of(oracle, loss, scores)
    return table, torch.where(table.free, table.scores, 0), exact_truth(loss, oracle, scores)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_table_agrees_with_the_truth(name):
    table, here, truth = place(name)
    rows = here.unsqueeze(0)
    assert float(table.expected(rows)[0]) == pytest.approx(truth.value, rel=1e-12)
    torch.testing.assert_close(table.gradient(here), torch.where(table.free, truth.gradient.flatten(), 0), rtol=1e-9, atol=1e-12)
    assert len(table.losses) == truth.support


@pytest.mark.parametrize("name", SETTINGS)
def test_the_fisher_information_is_the_curvature_of_the_divergence(name):
    table, here, _ = place(name)
    direction = torch.where(table.free, normal(len(here), seed=2), 0)
    size = 1e-3
    divergence = float(Rays(table, here, direction.unsqueeze(0)).step(size).divergence[0])
    assert 2 * divergence / size**2 == pytest.approx(float(direction @ table.fisher(here) @ direction), rel=1e-2)
    assert Rays(table, here, direction.unsqueeze(0)).curvature == pytest.approx(float(direction @ table.fisher(here) @ direction), rel=1e-6)


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("divergence", [0.001, 0.3])
def test_the_mean_divergence_is_as_asked(name, divergence):
    table, here, truth = place(name)
    rays = Rays(table, here, normal(5, len(here), seed=3))
    found = equal_step(rays, divergence)
    after = table.shaped(here - found.size * rays.directions)
    oracle, _, scores = SETTINGS[name]()
    torch.testing.assert_close(oracle.kl(scores.expand_as(after), after), found.divergence, rtol=1e-7, atol=1e-10)
    assert float(found.divergence.mean()) == pytest.approx(divergence, rel=1e-7)
    torch.testing.assert_close(truth.value - table.expected(after.flatten(1)), found.decrease, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", SETTINGS)
def test_slopes_are_derivatives_in_the_logarithm_of_the_size(name):
    table, here, _ = place(name)
    rays = Rays(table, here, normal(4, len(here), seed=4))
    low, here_, high = (rays.step(0.5 * math.exp(shift)) for shift in (-1e-4, 0.0, 1e-4))
    torch.testing.assert_close((high.divergence - low.divergence) / 2e-4, here_.divergence_slope, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close((high.decrease - low.decrease) / 2e-4, here_.decrease_slope, rtol=1e-5, atol=1e-7)


def relative(table, here, directions, divergence=0.001):
    exact = float(equal_step(Rays(table, here, table.gradient(here).unsqueeze(0)), divergence).decrease[0])
    return relative_decrease(equal_step(Rays(table, here, directions), divergence), exact)


@pytest.mark.parametrize("divergence", [0.001, 0.3])
def test_of_the_exact_gradient_it_is_1_at_any_scale_and_of_its_opposite_negative(divergence):
    table, here, _ = place("subset")
    gradient = table.gradient(here).unsqueeze(0)
    for factor in (1e-6, 1.0, 1e6):
        assert relative(table, here, factor * gradient, divergence).value == pytest.approx(1, abs=1e-6)
    assert relative(table, here, -gradient, divergence).value < -0.5


def test_what_never_moves_the_law_decreases_nothing():
    table, here, _ = place("subset")
    for directions in (torch.zeros(3, 6).double(), torch.ones(3, 6).double()):
        assert equal_step(Rays(table, here, directions), 0.03) is None
        assert relative(table, here, directions).value == 0


def test_no_direction_beats_the_natural_gradient():
    table, here, _ = place("subset")
    ceiling = relative(table, here, natural_direction(table, here, table.gradient(here)).unsqueeze(0)).value
    assert 1 <= ceiling <= 1.4
    assert max(relative(table, here, row.unsqueeze(0)).value for row in normal(300, 6, seed=5)) <= ceiling + 0.01


@pytest.mark.parametrize("estimator", [Reinforce(), SampledStraightThrough()])
@pytest.mark.parametrize("averaged", [1, 16])
def test_small_steps_decrease_as_the_theory_says(estimator, averaged):
    """m·g √(g'Hg) / (‖g‖² √(m'Hm + tr(HS)/M)), from the moments of other samples than those of the steps."""
    oracle, loss, scores = subset()
    table, here, _ = place("subset")
    gradient, fisher = table.gradient(here), table.fisher(here)
    found = estimates(estimator, Draws(oracle, loss, scores, CONTEXT, ("theory",)), 8192 * averaged)
    other = estimates(estimator, Draws(oracle, loss, scores, CONTEXT, ("moments",)), 20_000)
    mean, spread = other.mean(0), ((other - other.mean(0)) @ fisher * (other - other.mean(0))).sum(-1).mean()
    predicted = mean @ gradient * (gradient @ fisher @ gradient).sqrt()
    predicted = float(predicted / (gradient.square().sum() * (mean @ fisher @ mean + spread / averaged).sqrt()))
    observed = relative(table, here, found.unflatten(0, (8192, averaged)).mean(1))
    assert observed.value == pytest.approx(predicted, abs=0.03)


def test_the_interval_counts_in_the_fitted_size():
    oracle, loss, scores = subset()
    table, here, _ = place("subset")
    found = estimates(Reinforce(), Draws(oracle, loss, scores, CONTEXT, ("coverage",)), 20_000)
    truth = relative(table, here, found, 0.03).value
    intervals = [relative(table, here, rows, 0.03) for rows in found.split(100)]
    covered = sum(interval.low <= truth <= interval.high for interval in intervals) / len(intervals)
    assert 0.9 <= covered <= 0.99
    claimed = sum(interval.high - interval.low for interval in intervals) / len(intervals) / (2 * 1.984)
    assert claimed == pytest.approx(float(torch.tensor([interval.value for interval in intervals]).std()), rel=0.12)
