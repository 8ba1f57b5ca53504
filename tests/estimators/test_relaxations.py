"""Noisy relaxations: exact for their own objective, with the limits and the special cases of the papers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from scipy.integrate import quad
from torch import Tensor

from structgrad.estimators import (
    Gumbel,
    GumbelCRF,
    Noise,
    PerturbAndMAP,
    PerturbAndParse,
    RelaxedTopK,
    Simple,
    SparseMAP,
    StochasticSoftmax,
    StochasticSparseMAP,
    StraightThroughGumbel,
    StraightThroughGumbelCRF,
    StraightThroughMarginals,
    StraightThroughTopK,
    StructuredAttention,
    make_estimator,
)
from structgrad.estimators.gumbel import log_of_the_rest, successive_softmaxes
from structgrad.oracles import Alignment, Categorical, LinearChain, Subset
from structgrad.oracles.numerics import scaled
from tests.estimator_cases import (
    CASES,
    LOSSES,
    FixedNoise,
    exact_mean,
    loss_gradient,
    names_where,
    numbers,
    oracles,
    pairs_of,
    table_loss,
    three_classes,
)
from tests.helpers import OracleCase, enumerate_truth, make_scores, one_hots, read_parts, seeded, structures, subsets

SCORES, LOSS_TABLE, GRADIENT = three_classes()
CLASSES = OracleCase(Categorical(), (3,), one_hots)
STEP = 1e-5


def own_objective(estimator: Any) -> bool:
    """Whether an estimate is the derivative of what the same noise gives."""
    return bool(estimator.unbiased and estimator.objective == "relaxed" and not estimator.deterministic)


@pytest.mark.parametrize("kind", ["linear", "smooth"])
@pairs_of(names_where(own_objective))
def test_the_estimate_is_the_derivative_of_the_value(name: str, case: OracleCase, kind: str) -> None:
    """For the same noise, and so unbiased for the mean over noise."""
    estimator, loss, scores = make_estimator(name), LOSSES[kind](case), numbers(*case.event, seed=3)

    def value(theta: Tensor) -> Tensor:
        return estimator.surrogate(loss, case.oracle, theta, generator=seeded(5))

    steps = STEP * torch.eye(scores.numel(), dtype=torch.float64).reshape(-1, *case.event)
    expected = torch.stack([value(scores + step) - value(scores - step) for step in steps]).reshape(case.event) / (2 * STEP)
    found = estimator.gradient(loss, case.oracle, scores, generator=seeded(5))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("temperature", [0.4, 1.0, 3.0])
@oracles
def test_without_noise_they_are_attention_and_sparsemap(case: OracleCase, temperature: float) -> None:
    scores, loss = numbers(4, *case.event), LOSSES["smooth"](case)
    still: Noise = FixedNoise(torch.zeros(case.event, dtype=torch.float64))
    for noisy, plain in (
        (StochasticSoftmax(temperature, still), StructuredAttention()),
        (StochasticSparseMAP(temperature, still), SparseMAP()),
    ):
        found = noisy.gradient(loss, case.oracle, scores, generator=seeded())
        expected = plain.gradient(loss, case.oracle, scores / temperature, generator=seeded()) / temperature
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("kind", [StochasticSoftmax, StochasticSparseMAP])
@oracles
def test_at_low_temperature_they_are_the_best_structures(case: OracleCase, kind: type[StochasticSoftmax]) -> None:
    scores = numbers(20, *case.event)
    found = kind(temperature=1e-4).structure(case.oracle, scores, generator=seeded(2))
    if case.potentials is None:
        best = PerturbAndMAP().structure(case.oracle, scores, generator=seeded(2))
        assert float((found - best).abs().flatten(1).sum(1).median()) < 1e-6


@pytest.mark.parametrize(("gap", "expected"), [(0.0, 0.166667), (0.8, 0.156395)])
def test_the_gumbel_softmax_on_two_classes(gap: float, expected: float) -> None:
    """The backward of a linear loss is that of the straight-through one, whose mean has a closed form."""
    scores = torch.tensor([gap, 0.0], dtype=torch.float64)

    def integrand(x: float) -> float:
        noisy = StochasticSoftmax(noise=FixedNoise(torch.tensor([x, 0.0], dtype=torch.float64)))
        estimate = noisy.gradient(lambda z: z[..., 0], Categorical(), scores, generator=seeded())
        return float(estimate[0]) * 0.25 / math.cosh(x / 2) ** 2

    assert quad(integrand, -40, 40, epsabs=1e-9, limit=50)[0] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
@oracles
def test_the_backward_of_a_temperature_keeps_its_factor(case: OracleCase, temperature: float) -> None:
    """It is the derivative of ``⟨γ, μ(θ/τ)⟩``, by finite differences."""
    scores, loss = numbers(*case.event), LOSSES["smooth"](case)
    gamma = loss_gradient(loss, case.oracle.argmax(scores))
    steps = STEP * torch.eye(scores.numel(), dtype=torch.float64).reshape(-1, *case.event)
    ahead, behind = (case.oracle.marginals((scores + sign * steps) / temperature) for sign in (1, -1))
    expected = ((ahead - behind) * gamma).flatten(1).sum(1).reshape(case.event) / (2 * STEP)
    found = StraightThroughMarginals(temperature).gradient(loss, case.oracle, scores, generator=seeded())
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
@oracles
def test_perturb_and_parse_with_gumbel_noise_is_straight_through_gumbel(case: OracleCase, temperature: float) -> None:
    scores, loss = numbers(6, *case.event), LOSSES["smooth"](case)
    found, expected = (
        estimator.gradient(loss, case.oracle, scores, generator=seeded(4))
        for estimator in (PerturbAndParse(Gumbel(), temperature), StraightThroughGumbel(temperature))
    )
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("temperature", [0.5, 1.0])
@oracles
def test_the_mean_of_simple_for_a_quadratic_loss(case: OracleCase, temperature: float) -> None:
    """γ is affine, so that its mean is γ at the marginals: at temperature 1 structured attention."""
    scores, loss = numbers(*case.event), LOSSES["quadratic"](case)
    if case.potentials is not None:
        return
    gamma = loss_gradient(loss, enumerate_truth(case, scores).marginals[0])
    covariance = enumerate_truth(case, scores / temperature).covariance[0]
    expected = (covariance @ gamma.flatten()).reshape(case.event) / temperature
    torch.testing.assert_close(exact_mean(Simple(temperature), case, loss, scores), expected)
    if temperature == 1:
        attention = StructuredAttention().gradient(loss, case.oracle, scores, generator=seeded())
        torch.testing.assert_close(expected, attention)


@pytest.mark.parametrize("temperature", [0.5, 1.0])
@pytest.mark.parametrize("kind", ["linear", "quadratic", "smooth"])
def test_simple_on_one_of_n_is_straight_through_on_categories(kind: str, temperature: float) -> None:
    """Sample by sample, by dealing the same ones to both oracles; there it is the softmax's backward at an exact sample."""
    one, scores, n = OracleCase(Subset(1), (5,), subsets), numbers(5), 5
    categories, loss = CASES[0], LOSSES[kind](CASES[0])
    p = (scores / temperature).softmax(-1)
    jacobian = (p.diag() - torch.outer(p, p)) / temperature
    gammas = loss_gradient(loss, torch.eye(n, dtype=torch.float64))
    expected = scores.softmax(-1) @ (gammas @ jacobian)
    for case in (one, categories):
        torch.testing.assert_close(exact_mean(Simple(temperature), case, loss, scores), expected)


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


@pytest.mark.parametrize("temperature", [0.1, 1.0])
def test_the_relaxed_best_of_one_is_the_gumbel_softmax(temperature: float) -> None:
    scores, loss = numbers(6, 5), LOSSES["smooth"](CASES[0])
    for relaxed, oracle in ((RelaxedTopK(temperature), Subset(1)), (StochasticSoftmax(temperature), Categorical())):
        torch.testing.assert_close(
            relaxed.gradient(loss, oracle, scores, generator=seeded(1)),
            RelaxedTopK(temperature).gradient(loss, Subset(1), scores, generator=seeded(1)),
        )


@pytest.mark.parametrize("k", [1, 2, 4])
def test_the_relaxed_subset_tends_to_the_best_one(k: int) -> None:
    scores = numbers(100, 6)
    relaxed = RelaxedTopK(1e-4).structure(Subset(k), scores, generator=seeded(3))
    best = PerturbAndMAP().structure(Subset(k), scores, generator=seeded(3))
    assert float((relaxed - best).abs().sum(-1).quantile(0.95)) < 1e-6
    torch.testing.assert_close(relaxed.sum(-1), torch.full((100,), float(k), dtype=torch.float64))


def test_a_straight_through_subset_is_a_subset_with_the_relaxed_backward() -> None:
    scores, gamma = numbers(50, 6).requires_grad_(), numbers(50, 6, seed=1)
    hard = StraightThroughTopK(0.7).structure(Subset(3), scores, generator=seeded(3))
    soft = RelaxedTopK(0.7).structure(Subset(3), scores, generator=seeded(3))
    assert torch.equal(hard.detach(), PerturbAndMAP().structure(Subset(3), scores, generator=seeded(3)).detach())
    (found,), (expected,) = (torch.autograd.grad(z, scores, gamma) for z in (hard, soft))
    torch.testing.assert_close(found, expected)


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


@walks
def test_at_low_temperature_the_walk_is_hard(case: OracleCase) -> None:
    scores = numbers(100, *case.event)
    soft, hard = (
        kind(temperature=1e-4).structure(case.oracle, scores, generator=seeded(2)) for kind in (GumbelCRF, StraightThroughGumbelCRF)
    )
    assert float((soft - hard).abs().flatten(1).sum(1).median()) < 1e-6


def test_a_chain_of_one_is_the_straight_through_gumbel_softmax() -> None:
    """On two tags and a linear loss its mean has a closed form: .166667 against the true .25."""
    scores = torch.zeros(1, 2, 2, dtype=torch.float64).expand(200_000, 1, 2, 2)
    for estimator in (GumbelCRF(), StraightThroughGumbelCRF()):
        found = estimator.gradient(lambda z: z[..., 0, 0, 0], LinearChain(), scores, generator=seeded())[:, 0, 0, 0]
        assert abs(float(found.mean()) - 1 / 6) < 5 * float(found.std()) / math.sqrt(len(found))


@walks
def test_a_cold_walk_is_less_biased(case: OracleCase) -> None:
    """For a linear loss the mean tends to the gradient of the expected loss as τ falls: the authors lower it for that."""
    scores = 0.5 * numbers(*case.event)
    truth = enumerate_truth(case, scores)
    weights = loss_gradient(LOSSES["linear"](case), structures(case)[0])
    gradient = torch.where(read_parts(case), (truth.covariance[0] @ weights.flatten()).reshape(case.event), 0)
    errors = []
    for temperature in (2.0, 0.5, 0.125):
        found = GumbelCRF(temperature).gradient(LOSSES["linear"](case), case.oracle, scores.expand(50_000, *case.event), generator=seeded())
        errors.append(float((found.mean(0) - gradient).norm() / gradient.norm()))
    assert errors[0] > 2 * errors[1] > 4 * errors[2]


@pytest.mark.parametrize("name", ["relaxed_top_k", "relaxed_top_k_st"])
def test_only_subsets_have_a_relaxed_subset(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} needs SubsetOracle, which the oracle categorical does not offer"):
        make_estimator(name).gradient(table_loss, Categorical(), SCORES, generator=seeded())


@oracles
def test_masks_of_relaxations(case: OracleCase) -> None:
    """Forbidden parts are 0 in every relaxed point."""
    scores = make_scores(case, "masked")
    for name in names_where(own_objective):
        estimator: Any = make_estimator(name)
        if estimator.incompatibility(case.oracle, case.event) is None:
            point = estimator.structure(case.oracle, scores, generator=seeded())
            assert bool((point[scores == -math.inf] == 0).all()), name
