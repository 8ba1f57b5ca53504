"""Straight-through estimators, Gumbel relaxations and perturbation: edges, exactness and refusals; the catalogue has their formulas."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from structgrad.estimators import (
    GappedStraightThrough,
    Identity,
    MultiplicativePerturbation,
    PerturbedOptimizer,
    StraightThroughGumbelCRF,
    make_estimator,
)
from structgrad.estimators.factorised import conditional_race
from structgrad.estimators.gumbel import log_of_the_rest, successive_softmaxes
from structgrad.oracles import Alignment, Categorical, IndependentCategoricals, LinearChain, Subset
from structgrad.oracles.numerics import scaled
from tests.estimator_cases import CASES, LOSSES, names_where, numbers, oracles, table_loss, three_classes
from tests.helpers import OracleCase, enumerate_truth, make_scores, seeded


def test_paths_of_several_lengths_depend_on_a_shift() -> None:
    """The forward is the best path of the scores as they are, and only the backward is centred."""
    scores = torch.ones(3, 3, dtype=torch.float64)
    forward = Identity().structure(Alignment(), scores, generator=seeded())
    assert torch.equal(forward, Alignment().argmax(scores))
    assert not torch.equal(forward, Alignment().argmax(scores - 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("level", [0.0, 0.1, 1e6 / 3, -1e-30])
@pytest.mark.parametrize("name", ["identity", "identity[centre=False]"])
def test_equal_scores_have_no_direction(name: str, level: float, dtype: torch.dtype) -> None:
    scores = torch.full((7,), level, dtype=dtype)
    found = make_estimator(name).gradient(lambda z: z @ torch.arange(7, dtype=dtype), Subset(3), scores, generator=seeded())
    assert found.isfinite().all()
    assert name != "identity" or not found.any()


def test_a_race_given_its_winner() -> None:
    """The winner wins; its score is a Gumbel variable of location 0; over all winners, every score is one of location log p."""
    log_probs = numbers(4).log_softmax(-1).expand(200_000, 4)
    noise = -(-torch.rand(200_000, 4, generator=seeded(), dtype=torch.float64).log()).log()
    chosen = torch.multinomial(log_probs[0].exp(), 200_000, replacement=True, generator=seeded(1))
    sample = torch.nn.functional.one_hot(chosen, 4).double()
    race = conditional_race(log_probs, sample, noise)
    assert torch.equal(race.argmax(-1), chosen)
    for values in ((race * sample).sum(-1), *(race - log_probs).unbind(-1)):
        uniform = (-(-values).exp()).exp().sort().values
        assert float((uniform - torch.linspace(0, 1, len(uniform), dtype=torch.float64)).abs().max()) < 1.95 / math.sqrt(len(uniform))
    losers = race.gather(-1, sample.argsort(-1)[:, :3])
    assert bool((losers < race.amax(-1, keepdim=True)).all())


def test_a_certain_category_leaves_no_gap_to_gst_p() -> None:
    scores = torch.tensor([[500.0, 0.0], [0.0, -math.inf], [0.2, 0.1]], dtype=torch.float64)
    found = GappedStraightThrough(gap="p").gradient(lambda z: z[..., 0].sum(-1), IndependentCategoricals(), scores, generator=seeded())
    assert found.isfinite().all()
    assert bool((found[:2] == 0).all())


SCORES, LOSS_TABLE, GRADIENT = three_classes()


@pytest.mark.parametrize("name", ["ste_marginals[temperature=0.5]", "simple[temperature=0.5]"])
def test_tempered_rows_stay_shared(name: str) -> None:
    """Ten million replicates of one row cost one row."""
    leaf = numbers(3).expand(1000, 3).requires_grad_()
    tempered = scaled(leaf, 2.0, 1)
    assert tempered.stride(0) == 0
    (gradient,) = torch.autograd.grad(tempered, leaf, numbers(1000, 3))
    torch.testing.assert_close(gradient, 2 * numbers(1000, 3))
    found = make_estimator(name).gradient(table_loss, Categorical(), SCORES.expand(5, 3), generator=seeded())
    torch.testing.assert_close(found, found[:1].expand_as(found))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("gap", [1.0, 30.0, 200.0, 1e4, 1e6])
def test_what_a_softmax_leaves_over_is_never_lost(gap: float, dtype: torch.dtype) -> None:
    """``log(1 − a)`` of ``(gap, 0)`` is ``(−log(1 + e^gap), −log(1 + e^{−gap}))``, far beyond where a rounds to 1."""
    logits = torch.tensor([gap, 0.0], dtype=dtype, requires_grad=True)
    rest = log_of_the_rest(logits)
    expected = -torch.nn.functional.softplus(torch.tensor([gap, -gap], dtype=torch.float64))
    torch.testing.assert_close(rest.double(), expected, rtol=1e-6, atol=1e-30)
    (gradient,) = torch.autograd.grad(rest[0], logits)
    torch.testing.assert_close(gradient, torch.tensor([-1.0, 1.0], dtype=dtype) * torch.sigmoid(torch.tensor(gap, dtype=dtype)))


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e6])
def test_no_part_is_taken_twice_where_scores_are_far_apart(scale: float) -> None:
    scores = scale * torch.tensor([[5.0, 4.0, 3.0, -1.0], [1.0, 5.0, -math.inf, 2.0]], dtype=torch.float64)
    leaf = scores.requires_grad_()
    relaxed = successive_softmaxes(leaf, 3, 0.01)
    torch.testing.assert_close(relaxed, torch.tensor([[1.0, 1, 1, 0], [1.0, 1, 0, 1]], dtype=torch.float64), rtol=0, atol=1e-9)
    (gradient,) = torch.autograd.grad(relaxed @ numbers(4), leaf, torch.ones(2, dtype=torch.float64))
    assert gradient.isfinite().all()


def test_a_row_with_too_few_parts_gives_nothing() -> None:
    scores = torch.tensor([[1.0, -math.inf, -math.inf], [0.0, 1.0, -math.inf]], dtype=torch.float64, requires_grad=True)
    relaxed = successive_softmaxes(scores, 2, 0.5)
    assert not relaxed[0].any()
    (gradient,) = torch.autograd.grad(relaxed.square().sum(), scores)
    assert gradient.isfinite().all()
    assert not gradient[0].any()


CHAIN = next(case for case in CASES if isinstance(case.oracle, LinearChain))
PATHS = next(case for case in CASES if isinstance(case.oracle, Alignment))
walks = pytest.mark.parametrize("case", [CHAIN, PATHS], ids=str)


@walks
def test_the_forward_of_the_hard_walk_is_an_exact_sample(case: OracleCase) -> None:
    """Within 5 standard errors of the marginals, at any temperature."""
    scores = numbers(*case.event)
    drawn = StraightThroughGumbelCRF(0.3).structure(case.oracle, scores.expand(40_000, *case.event), generator=seeded())
    marginals = enumerate_truth(case, scores).marginals[0]
    error = (marginals * (1 - marginals) / 40_000).clamp(min=0).sqrt()
    assert bool(((drawn.mean(0) - marginals).abs() <= 5 * error + 1e-12).all())


@pytest.mark.parametrize("name", ["relaxed_top_k", "relaxed_top_k_st"])
def test_only_subsets_have_a_relaxed_subset(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} needs SubsetOracle, which the oracle categorical does not offer"):
        make_estimator(name).gradient(table_loss, Categorical(), SCORES, generator=seeded())


def own_objective(estimator: Any) -> bool:
    """Whether an estimate is the derivative of what the same noise gives."""
    return bool(estimator.unbiased and estimator.objective == "relaxed" and not estimator.deterministic)


@oracles
def test_masks_of_relaxations(case: OracleCase) -> None:
    """Forbidden parts are 0 in every relaxed point."""
    scores = make_scores(case, "masked")
    for name in names_where(own_objective):
        estimator: Any = make_estimator(name)
        if estimator.incompatibility(case.oracle, case.event) is None:
            point = estimator.structure(case.oracle, scores, generator=seeded())
            assert bool((point[scores == -math.inf] == 0).all()), name


def test_a_score_of_zero_is_not_perturbed() -> None:
    scores = torch.tensor([0.0, 0.4, 0.2, 0.3], dtype=torch.float64).expand(200, 4)
    found = MultiplicativePerturbation().gradient(lambda z: z @ numbers(4), Subset(2), scores, generator=seeded())
    assert found.isfinite().all()
    assert not found[:, 0].any()
    assert found[:, 1:].any(0).all()


@oracles
def test_control_variates_give_nothing_where_all_samples_agree(case: OracleCase) -> None:
    scores = 1e4 * numbers(3, *case.event)
    if case.potentials is None:
        for control_variate in ("argmax", "leave_one_out"):
            estimator = PerturbedOptimizer(1e-3, 4, control_variate=control_variate)  # type: ignore[arg-type]
            found = estimator.gradient(LOSSES["smooth"](case), case.oracle, scores, generator=seeded())
            torch.testing.assert_close(found, torch.zeros_like(found), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: PerturbedOptimizer(num_samples=1), "got num_samples=1; expected at least 2, the others are the control variate"),
    ],
)
def test_options_that_make_no_sense(build: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()
