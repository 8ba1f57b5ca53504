"""The test for bias and the verdict."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from scipy import stats

from structgrad.estimators import ConditionalMeanBaseline
from structgrad.suites.measures.bias_tests import ALPHA, bias_test, partial_tests, sequential_test
from structgrad.suites.measures.suite import Effort
from structgrad.suites.statistics.moments import Moments
from tests.suites.studies.laws import ERRORS, instance, law

FLAT_SPACE = ("subset10", 0.5)


def exact_law(space, deviation):
    return law(ConditionalMeanBaseline(), space, deviation)


def drawn(sample, replicates=32_000, seed=0, **options):
    return sample.moments(replicates, np.random.default_rng(seed), **options)


def raw(sample, replicates=32_000, seed=0):
    return sample.estimates[torch.from_numpy(sample.draw(replicates, np.random.default_rng(seed)))]


def of_estimates(sample, estimates):
    moments = Moments.empty(sample.gradient, sample.information)
    for batch, block in enumerate(estimates.chunk(32)):
        moments.add(block, batch)
    return moments


def test_tests_along_the_gradient_and_over_parts_are_those_of_scipy():
    sample, truth = exact_law(*FLAT_SPACE), instance(*FLAT_SPACE).truth
    estimates = raw(sample)
    found = partial_tests(of_estimates(sample, estimates), truth)
    along = stats.ttest_1samp((estimates @ sample.direction).numpy(), float(sample.gradient.norm())).pvalue
    parts = stats.ttest_1samp(estimates.numpy(), sample.gradient.numpy()).pvalue
    assert found["along"] == pytest.approx(along, rel=1e-6)
    assert found["parts"] == pytest.approx(min(1.0, parts.min() * len(parts)), rel=1e-6)
    assert bias_test(of_estimates(sample, estimates), truth) == pytest.approx(min(1.0, 3 * min(found.values())))


def test_the_joint_test_is_hotellings_in_a_basis_of_the_directions_that_vary():
    """Subsets of 3 span 9 of 10 dimensions; in 9 of the coordinates T² needs no pseudo-inverse."""
    sample, truth = exact_law(*FLAT_SPACE), instance(*FLAT_SPACE).truth
    estimates = raw(sample).numpy()
    errors = estimates[:, :9] - sample.gradient.numpy()[:9]
    n = len(errors)
    square = n * errors.mean(0) @ np.linalg.solve(np.cov(errors.T), errors.mean(0))
    expected = stats.f.sf(square * (n - 9) / (9 * (n - 1)), 9, n - 9)
    assert partial_tests(of_estimates(sample, raw(sample)), truth)["joint"] == pytest.approx(expected, rel=1e-6)


def test_an_error_in_a_direction_that_never_varies_is_found_with_certainty():
    """Estimates lie in the direction space of the hull; the added error orthogonal to it is the same in every estimate."""
    sample, truth = exact_law(*FLAT_SPACE), instance(*FLAT_SPACE).truth
    constant = torch.ones(10, dtype=torch.float64) / 10**0.5
    wrong = sample.changed(sample.estimates + 0.01 * sample.gradient.norm() * constant)
    assert partial_tests(drawn(wrong), truth)["joint"] == 0
    assert partial_tests(drawn(sample), truth)["joint"] > ALPHA


def test_estimates_that_differ_by_rounding_alone_are_constant():
    """An estimator that looks at every structure is exact: its spread is of the last digit, and so is its error."""
    truth = instance(*FLAT_SPACE).truth
    gradient, generator = truth.gradient.flatten(), torch.Generator().manual_seed(0)
    rounding = 1e-16 * (0.5 + torch.rand(32_000, len(gradient), generator=generator, dtype=torch.float64))
    sample = exact_law(*FLAT_SPACE)
    assert bias_test(of_estimates(sample, gradient + rounding), truth) == 1.0
    assert bias_test(of_estimates(sample, 1.001 * gradient + rounding), truth) == 0.0


def test_a_constant_error_of_an_entry_that_is_no_part_is_found():
    sample, truth = exact_law("trees5", 0.5), instance("trees5", 0.5).truth
    estimates = sample.estimates.clone()
    estimates[:, 0] += 0.01
    assert partial_tests(drawn(sample.changed(estimates)), truth)["constant"] == 0
    assert "constant" not in partial_tests(drawn(sample), truth)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_the_unit_of_the_loss_does_not_matter(scale):
    sample, truth = exact_law(*FLAT_SPACE), instance(*FLAT_SPACE).truth
    scaled = dataclasses.replace(sample, gradient=scale * sample.gradient, estimates=scale * sample.estimates)
    assert bias_test(drawn(scaled), dataclasses.replace(truth, gradient=scale * truth.gradient)) == pytest.approx(
        bias_test(drawn(sample), truth), rel=1e-6
    )


NEEDED = {
    "scale": 609_903, "own sample in the baseline": 237_301, "one part": 251_483, "sign of the smallest part": 24_438,
    "temperature": 3_648_000, "two structures swapped": 46_918,
}  # fmt: skip
"""Replicates at which the best of the tests finds an error δ with power .9: ``(z_{1−α/2} + z_.9)² σ²/δ²``, or by the noncentral χ²."""


@pytest.mark.parametrize("name", ERRORS)
def test_every_known_error_is_found_with_twice_the_predicted_replicates(name):
    wrong, truth = ERRORS[name](exact_law(*FLAT_SPACE)), instance(*FLAT_SPACE).truth
    found = [bias_test(drawn(wrong, 2 * NEEDED[name], seed, batches=1), truth) < ALPHA for seed in range(10)]
    assert sum(found) >= 9


# The sequential test: doubling looks, and a confirmation on fresh seeds.

EFFORT = Effort(replicates=4096, most_replicates=32_768, seconds=math.inf, equivalence=0.02)


def outcome_of(sample, fresh=None, **changes):
    """The outcome, and the slots and replicates that were drawn."""
    random, asked = np.random.default_rng(0), []

    def draw(slot, replicates):
        asked.append((slot, replicates))
        return ((fresh or sample) if slot == "confirmation" else sample).moments(replicates, random)

    return sequential_test(draw, instance(*FLAT_SPACE).truth, dataclasses.replace(EFFORT, **changes)), asked


def test_every_look_adds_the_replicates_that_it_lacks_until_bias_or_equivalence_is_proven():
    unbiased = exact_law(*FLAT_SPACE)
    found, asked = outcome_of(unbiased, equivalence=0.0)
    assert asked == [("look-0", 4096), ("look-1", 4096), ("look-2", 8192), ("look-3", 16_384)]
    assert found[0].total == 32_768
    found, asked = outcome_of(unbiased, equivalence=0.3)
    assert len(asked) < 4
    assert found[2] <= 0.3
    assert len(outcome_of(unbiased, seconds=-1.0)[1]) == 1


def test_a_rejection_is_confirmed_with_four_times_the_replicates():
    unbiased = exact_law(*FLAT_SPACE)
    wrong = unbiased.changed(unbiased.estimates * 1.5)
    found, asked = outcome_of(wrong)
    assert asked == [("look-0", 4096), ("confirmation", 16_384)]
    assert found[1] < EFFORT.alpha**2
    found, asked = outcome_of(wrong, fresh=unbiased)
    assert asked[-1] == ("confirmation", 16_384)
    assert found[1] > 1e-4
