"""The group-sequential test: doubling looks and a confirmation on fresh seeds."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import torch

from structgrad.estimators import (
    ConditionalMeanBaseline,
)
from structgrad.suites.measures.group_sequential import look_sizes, sequential_test
from structgrad.suites.measures.suite import Effort
from tests.suites.studies.laws import instance, law

EFFORT = Effort(replicates=4096, most_replicates=32_768, seconds=math.inf, equivalence=0.02)


def numbers(*values):
    return torch.tensor(values, dtype=torch.float64)


class Source:
    """Draws from a law, and records the calls."""

    def __init__(self, sample, fresh=None):
        self.sample, self.fresh, self.random, self.asked = sample, fresh or sample, np.random.default_rng(0), []

    def __call__(self, slot, replicates):
        self.asked.append((slot, replicates))
        return (self.fresh if slot == "confirmation" else self.sample).moments(replicates, self.random)


def outcome_of(sample, fresh=None, **changes):
    source = Source(sample, fresh)
    return sequential_test(source, instance("subset10", 0.5).truth, dataclasses.replace(EFFORT, **changes)), source.asked


def unbiased():
    return law(ConditionalMeanBaseline(), "subset10", 0.5)


def scaled(factor):
    return unbiased().changed(unbiased().estimates * factor)


def test_looks_double_up_to_the_budget():
    assert look_sizes(4096, 32_768) == (4096, 8192, 16_384, 32_768)
    assert look_sizes(4096, 4096) == (4096,)
    assert look_sizes(4096, 100) == (100,)


def test_every_look_adds_the_replicates_that_it_lacks():
    found, asked = outcome_of(unbiased(), equivalence=0.0)
    assert asked == [("look-0", 4096), ("look-1", 4096), ("look-2", 8192), ("look-3", 16_384)]
    assert found.moments.total == 32_768
    assert (found.verdict, found.sampling) == ("unresolved", "budget")


def test_a_large_error_is_found_at_the_first_look_and_confirmed_with_four_times_the_replicates():
    found, asked = outcome_of(scaled(1.5))
    assert asked == [("look-0", 4096), ("confirmation", 16_384)]
    assert (found.verdict, found.sampling) == ("biased", "converged")
    assert found.p_value < EFFORT.alpha**2


def test_what_is_not_confirmed_is_not_called_biased():
    found, asked = outcome_of(scaled(1.5), fresh=unbiased())
    assert asked[-1] == ("confirmation", 16_384)
    assert found.verdict == "unresolved"
    assert found.p_value > 1e-4


def test_equivalence_stops_the_looks():
    found, asked = outcome_of(unbiased(), equivalence=0.3)
    assert len(asked) < 4
    assert (found.verdict, found.sampling) == ("equivalent", "converged")
    assert found.bound <= 0.3


def test_the_seconds_stop_the_looks_too():
    assert len(outcome_of(unbiased(), seconds=-1.0)[1]) == 1


def test_p_values_count_the_looks():
    single, several = (outcome_of(unbiased(), equivalence=0.0, replicates=32_768 // n)[0].p_value for n in (1, 8))
    assert 0 < single < 1
    assert 0 < several <= 1
