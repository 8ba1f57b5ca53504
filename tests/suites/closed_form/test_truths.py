"""Analytic truths against enumeration, for every structure, form and scale."""

from __future__ import annotations

import math

import pytest
import torch

from structgrad.oracles import Alignment, LinearChain, SpanningTree, Subset
from structgrad.suites.problems import Offset
from structgrad.suites.problems.forms import CountForm, LinearForm
from structgrad.suites.problems.losses import Hamming, make_loss
from structgrad.suites.truth import exact_truth
from structgrad.suites.truth.closed_form import analytic_truth, known_truth
from tests.suites.closed_form.cases import CASES, KINDS, REGIMES, Formed, loss_of, scores_of


def assert_same(found, expected, tolerance=1e-12):
    """Gradients to 12 digits, and within the bound; the rest to what enumeration itself can tell."""
    norm = float(expected.gradient.norm())
    distance = float((found.gradient - expected.gradient).norm())
    assert distance <= tolerance * norm + 1e-290
    assert distance <= found.error + 1e-14 * norm
    assert found.value == pytest.approx(expected.value, rel=1e-13, abs=1e-14)
    assert found.log_partition == pytest.approx(expected.log_partition, rel=1e-13, abs=1e-13)
    assert found.entropy == pytest.approx(expected.entropy, rel=1e-9, abs=1e-12)
    assert (found.marginals - expected.marginals).abs().max() <= 1e-13
    assert found.count == expected.count
    if not math.isnan(found.loss_variance):
        assert found.loss_variance == pytest.approx(expected.loss_variance, rel=1e-11, abs=1e-13)


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("name", list(CASES))
def test_equals_enumeration(name, regime):
    oracle, _ = CASES[name]
    for kind in KINDS:
        loss, scores = loss_of(kind, name), scores_of(name, regime, seed=len(kind))
        found = analytic_truth(loss, oracle, scores)
        # A transform only keeps to its bound where counts matter that are far rarer than both their neighbours.
        transformed = found.method == "analytic:count" and isinstance(oracle, SpanningTree) and regime.endswith("50")
        assert_same(found, exact_truth(loss, oracle, scores), tolerance=math.inf if transformed else 1e-12)


@pytest.mark.parametrize("name", ["linear_chain", "alignment", "spanning_single"])
def test_an_offset_costs_no_digits(name):
    oracle, _ = CASES[name]
    scores, gold = scores_of(name, "5"), loss_of("point", name).form.structure
    # Values that stay exact under the offset.
    plain, moved = (Formed(CountForm((gold,), lambda k, by=by: k.double() ** 2 / 4 + by), oracle.event_ndim) for by in (0.0, 1e6))
    first, second = (analytic_truth(loss, oracle, scores) for loss in (plain, moved))
    assert torch.equal(first.gradient, second.gradient)
    assert second.value == pytest.approx(first.value + 1e6, rel=1e-15)
    assert_same(second, exact_truth(moved, oracle, scores))


def test_rare_counts_of_trees_stay_within_the_bound():
    """Where only counts far below their neighbours matter, a transform loses digits, and says so."""
    oracle, event = CASES["spanning"]
    worst = 0.0
    for seed in range(12):
        random = torch.Generator().manual_seed(seed)
        scores = (50 * torch.randn(event, generator=random, dtype=torch.float64)).round()
        weights = torch.randint(0, 3, event, generator=random) * oracle.read_mask(event)
        values = torch.randn(13, generator=random, dtype=torch.float64)
        loss = Formed(CountForm((weights,), lambda k, values=values: values[k]), 2)
        found, expected = analytic_truth(loss, oracle, scores), exact_truth(loss, oracle, scores)
        distance = float((found.gradient - expected.gradient).norm())
        assert distance <= found.error + 1e-13 * float(expected.gradient.norm())
        worst = max(worst, distance / float(expected.gradient.norm()))
    assert worst <= 1e-7


def test_without_a_form_or_sums_there_is_no_truth():
    assert analytic_truth(lambda z: z.sum(-1), Subset(3), torch.zeros(7)) is None
    event = (60, 60)
    counts = (torch.arange(3600).reshape(event), torch.ones(event))
    assert analytic_truth(Formed(CountForm(counts, lambda k, j: k / j), 2), Alignment(), torch.zeros(event)) is None


def test_infeasible_scores_and_batches_are_refused():
    loss = Formed(LinearForm(torch.ones(4)), 1)
    with pytest.raises(ValueError, match=r"`analytic_truth` got scores that forbid every structure; expected at least one"):
        analytic_truth(loss, Subset(2), torch.full((4,), -math.inf))
    with pytest.raises(ValueError, match=r"`analytic_truth` got scores of shape \(2, 4\); expected one instance"):
        analytic_truth(loss, Subset(2), torch.zeros(2, 4))


def test_known_truth_enumerates_up_to_the_cap():
    oracle, scores = LinearChain(), torch.zeros(4, 3, 3)
    loss = Hamming(oracle.argmax(scores))
    listed, summed = known_truth(loss, oracle, scores, cap=81), known_truth(loss, oracle, scores, cap=80)
    assert (listed.method, summed.method) == ("enumeration", "analytic:linear")
    torch.testing.assert_close(listed.gradient, summed.gradient)


def test_known_truth_says_what_would_help():
    with pytest.raises(ValueError, match=r"expected at most 10, .*; or take a loss that declares a form \(linear, low-rank quadratic"):
        known_truth(lambda z: z.sum((-1, -2)), SpanningTree(), torch.zeros(5, 5), cap=10)
    counts = (torch.arange(3600).reshape(60, 60), torch.ones(60, 60))
    with pytest.raises(ValueError, match=r"expected at most .*; or take a smaller structure: the form of this loss"):
        known_truth(Formed(CountForm(counts, lambda k, j: k / j), 2), Alignment(), torch.zeros(60, 60))


@pytest.mark.parametrize("name", ["linear", "quadratic", "f1", "exact_match"])
def test_a_constant_moves_the_value_alone(name: str) -> None:
    oracle, scores = Subset(2), torch.randn(5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    loss = make_loss(name, oracle.argmax(scores), oracle, seed=0)
    plain, shifted = analytic_truth(loss, oracle, scores), analytic_truth(Offset(loss, 1e6), oracle, scores)
    assert plain is not None
    assert shifted is not None
    torch.testing.assert_close(shifted.gradient, plain.gradient, rtol=1e-9, atol=1e-12)
    assert shifted.value == pytest.approx(plain.value + 1e6, rel=1e-12)
