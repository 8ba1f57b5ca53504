"""Analytic truths against enumeration, for every structure, form and scale, and beyond enumeration against derivatives."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from structgrad.oracles import Alignment, SpanningTree, Subset, make_oracle
from structgrad.suites.problems.losses import CountForm, LinearForm, PointForm, QuadraticForm
from structgrad.suites.truth import exact_truth
from structgrad.suites.truth.closed_form import analytic_truth
from tests.oracle_cases import TABLE

SMALL = {
    "categorical": (9,), "categories": (5, 3), "subset[k=4]": (9,), "linear_chain": (5, 3, 3), "alignment": (4, 5), "constituency": (7, 7),
    "shift_reduce": (8, 8, 2), "shift_reduce[normalization=local]": (7, 7, 2), "assignment": (5, 5), "projective_tree": (6, 6),
    "projective_tree[single_root=False]": (6, 6), "spanning_tree": (6, 6), "spanning_tree[single_root=False]": (6, 6),
}  # fmt: skip
CASES: dict[str, tuple[Any, tuple[int, ...]]] = {
    **{name: (make_oracle(name), event) for name, event in SMALL.items()},
    **{row.oracle.name: (row.oracle, row.ragged) for row in TABLE if row.derived},
}
REGIMES = ("0.05", "1", "5", "50", "ties", "masked 1", "masked 50")


def scores_of(name: str, regime: str, seed: int = 0) -> Tensor:
    """Feasible scores; ties are whole numbers, of which few differ."""
    oracle, event = CASES[name]
    random = torch.Generator().manual_seed(seed)
    scores = torch.randn(event, generator=random, dtype=torch.float64)
    if regime == "ties":
        return (2 * scores).round()
    scores = scores * float(regime.split()[-1])
    if not regime.startswith("masked"):
        return scores
    kept = oracle.sample(scores / 50, generator=random)
    return torch.where((torch.rand(event, generator=random) < 0.3) & (kept == 0), -math.inf, scores)


class Formed:
    """A loss made of a form, evaluated as the form says."""

    def __init__(self, form: Any, event_ndim: int) -> None:
        self.form, self.event_ndim = form, event_ndim

    def __call__(self, structure: Tensor) -> Tensor:
        rows, form = structure.flatten(structure.ndim - self.event_ndim), self.form
        if isinstance(form, LinearForm):
            return rows @ form.weights.flatten() + form.constant
        if isinstance(form, QuadraticForm):
            return (rows @ form.matrix.flatten(1).mT - form.target).square().sum(-1)
        if isinstance(form, PointForm):
            return torch.where((rows == form.structure.flatten()).all(-1), form.here, form.elsewhere).to(rows)
        return form.function(*((rows @ count.flatten().to(rows)).round().long() for count in form.counts))


KINDS = ("linear", "quadratic", "point", "squared_count", "threshold", "two_counts")


def loss_of(kind: str, name: str, seed: int = 0) -> Formed:
    """Losses that no simpler form describes."""
    oracle, event = CASES[name]
    random = torch.Generator().manual_seed(100 + seed)
    mask = oracle.read_mask(event)
    noise = torch.randn((3, *event), generator=random, dtype=torch.float64) * mask
    gold = oracle.sample(noise[0], generator=random)
    other = torch.randint(0, 3, event, generator=random) * mask
    half = int(gold.sum()) // 2
    forms: dict[str, Any] = {
        "linear": LinearForm(noise[0], 0.5),
        "quadratic": QuadraticForm(noise, noise.flatten(1) @ gold.flatten()),
        "point": PointForm(gold, -1.0, 2.0),
        "squared_count": CountForm((other,), lambda k: (k.double() - 1.5) ** 2),
        "threshold": CountForm((gold,), lambda k: (k > half).double()),
        "two_counts": CountForm((gold, other), lambda k, j: k / (1.0 + j)),
    }
    return Formed(forms[kind], oracle.event_ndim)


def assert_same(found, expected):
    """Gradients to 12 digits, and within the bound; the rest to the precision of enumeration."""
    norm = float(expected.gradient.norm())
    distance = float((found.gradient - expected.gradient).norm())
    assert distance <= 1e-12 * norm + 1e-290
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
        if found is None:
            assert isinstance(oracle, SpanningTree)  # which has no law of a count
            assert kind in ("squared_count", "threshold", "two_counts")
        else:
            assert_same(found, exact_truth(loss, oracle, scores))


def test_without_a_form_or_sums_there_is_no_truth():
    assert analytic_truth(lambda z: z.sum(-1), Subset(3), torch.zeros(7)) is None
    event = (60, 60)
    counts = (torch.arange(3600).reshape(event), torch.ones(event))
    assert analytic_truth(Formed(CountForm(counts, lambda k, j: k / j), 2), Alignment(), torch.zeros(event)) is None


def test_infeasible_scores_are_refused():
    loss = Formed(LinearForm(torch.ones(4)), 1)
    with pytest.raises(ValueError, match=r"`analytic_truth` got scores that forbid every structure; expected at least one"):
        analytic_truth(loss, Subset(2), torch.full((4,), -math.inf))
