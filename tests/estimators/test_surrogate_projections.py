"""SPIGOT and its relatives, blackbox differentiation, identity with projection: closed forms, limits, and what they are to each other."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from structgrad.estimators import (
    SPIGOT,
    SPIGOTCE,
    SPIGOTEG,
    BlackboxDifferentiation,
    Identity,
    ImplicitMLE,
    PerturbedIdentity,
    SPIGOTSteps,
    StraightThrough,
    StructuredAttention,
    make_estimator,
)
from structgrad.oracles import Alignment, Categorical, Subset
from tests.estimator_cases import CASES, LOSSES, FixedNoise, loss_gradient, numbers, oracles, table_loss, three_classes
from tests.helpers import OracleCase, make_scores, read_parts, seeded, structures

SCORES, LOSS_TABLE, GRADIENT = three_classes()
PROBABILITIES = SCORES.softmax(-1)
STEPS = (0.01, 0.3, 2.0)


def still(event: tuple[int, ...]) -> FixedNoise:
    """No noise at all."""
    return FixedNoise(torch.zeros(event, dtype=torch.float64))


def estimate(estimator: object, case: OracleCase, kind: str, scores: Tensor) -> Tensor:
    found: Tensor = estimator.gradient(LOSSES[kind](case), case.oracle, scores, generator=seeded())  # type: ignore[attr-defined]
    return found


def linear_gamma(case: OracleCase) -> Tensor:
    """γ of the linear loss, which is the same everywhere."""
    return torch.where(read_parts(case), loss_gradient(LOSSES["linear"](case), torch.zeros(case.event, dtype=torch.float64)), 0)


def along_the_hull(case: OracleCase, vector: Tensor) -> Tensor:
    """The orthogonal projection on the directions of the whole polytope."""
    flat = structures(case).flatten(1)
    basis = torch.linalg.svd((flat - flat[0])[1:], full_matrices=False)
    directions = basis.Vh[basis.S > 1e-9]
    return (directions.mT @ (directions @ vector.flatten())).reshape(case.event)


@pytest.mark.parametrize("step", STEPS)
@oracles
def test_one_step_is_spigot(case: OracleCase, step: float) -> None:
    for scores in (numbers(4, *case.event), make_scores(case, "masked")):
        found = estimate(SPIGOTSteps(step, inner_steps=1), case, "smooth", scores)
        torch.testing.assert_close(found, estimate(SPIGOT(step), case, "smooth", scores), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("steps", [2, 5])
@oracles
def test_small_steps_of_a_linear_loss_add_up(case: OracleCase, steps: int) -> None:
    """At a vertex the projection is that on a cone, where T steps are T times one, and one step of T times its length."""
    scores, step = numbers(4, *case.event), 1e-3
    found = estimate(SPIGOTSteps(step, steps), case, "linear", scores)
    torch.testing.assert_close(found, steps * estimate(SPIGOT(step), case, "linear", scores), rtol=1e-7, atol=1e-10)
    torch.testing.assert_close(found, estimate(SPIGOT(steps * step), case, "linear", scores), rtol=1e-7, atol=1e-10)
    assert found.abs().sum() > 0


def test_small_steps_of_a_curved_loss_add_up_to_first_order() -> None:
    case, scores = CASES[3], numbers(*CASES[3].event)
    errors = []
    for step in (1e-2, 1e-3, 1e-4):
        several, one = SPIGOTSteps(step, 5), SPIGOT(step)
        difference = estimate(several, case, "smooth", scores) / several.scale - estimate(one, case, "smooth", scores) / one.scale
        errors.append(float(difference.norm()))
    assert errors[0] > 0
    assert errors[1] == pytest.approx(errors[0] / 10, rel=0.2)
    assert errors[2] == pytest.approx(errors[1] / 10, rel=0.02)


@pytest.mark.parametrize(("best", "expected"), [(0, (0.075, -0.075, 0.0)), (1, (0.0, 0.0, 0.0)), (2, (0.0, -0.125, 0.125))])
def test_several_steps_from_every_vertex(best: int, expected: tuple[float, ...]) -> None:
    scores = 10 * torch.eye(3, dtype=torch.float64)[best]
    found = SPIGOTSteps(step_size=0.02, inner_steps=5).gradient(table_loss, Categorical(), scores, generator=seeded())
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)


@oracles
def test_an_endless_step_is_the_update_of_the_perceptron(case: OracleCase) -> None:
    scores, far = numbers(4, *case.event), 1e5
    worst = case.oracle.argmax(-linear_gamma(case))
    expected = torch.where(read_parts(case), case.oracle.argmax(scores) - worst, 0)
    estimators = (
        SPIGOT(far),
        SPIGOTSteps(far, 3),
        ImplicitMLE(far, noise=still(case.event)),
        ImplicitMLE(far, noise=FixedNoise(0.01 * numbers(*case.event, seed=5))),
    )
    # Scores of a policy are no sums over actions, so that its best derivation is not the one of least cost.
    if case.potentials is None:
        for estimator in estimators:
            torch.testing.assert_close(estimate(estimator, case, "linear", scores), expected, rtol=0, atol=1e-6)
        found = far * estimate(BlackboxDifferentiation(far), case, "linear", scores)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
        for relaxed in (SPIGOTCE(far), SPIGOTEG(far)):
            from_marginals = torch.where(read_parts(case), case.oracle.marginals(scores) - worst, 0)
            torch.testing.assert_close(estimate(relaxed, case, "linear", scores), from_marginals, rtol=0, atol=1e-6)


@oracles
def test_the_estimate_is_zero_at_the_best_structure_alone(case: OracleCase) -> None:
    """Of ``⟨γ, ·⟩``: every projection of a descent stays there."""
    found = estimate(SPIGOTSteps(0.3, 3), case, "linear", -1e3 * linear_gamma(case))
    if case.potentials is None:
        torch.testing.assert_close(found, torch.zeros_like(found), rtol=0, atol=1e-9)


@pytest.mark.parametrize("steps", [1, 4])
@oracles
def test_a_small_step_from_the_marginals_is_gamma_along_the_hull(case: OracleCase, steps: int) -> None:
    estimator = SPIGOTCE(1e-3, steps)
    found = estimate(estimator, case, "linear", 0.3 * numbers(*case.event))
    expected = torch.where(read_parts(case), along_the_hull(case, linear_gamma(case)), 0)
    torch.testing.assert_close(found / estimator.scale, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("step", STEPS)
def test_from_the_marginals_of_three_classes(step: float) -> None:
    """``p − sparsemax(p − ηγ)``."""
    point = PROBABILITIES - step * LOSS_TABLE
    expected = PROBABILITIES - Categorical().project(point).mean
    found = SPIGOTCE(step).gradient(table_loss, Categorical(), SCORES, generator=seeded())
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_gamma_is_that_of_the_marginals() -> None:
    """Of a loss that is curved, and whose value is that of the best structure."""
    case, scores, loss = CASES[3], numbers(*CASES[3].event), LOSSES["smooth"](CASES[3])
    mean = case.oracle.marginals(scores)
    gamma = loss_gradient(loss, mean)
    assert not torch.allclose(gamma, loss_gradient(loss, case.oracle.argmax(scores)))
    for estimator in (SPIGOTCE(0.3), SPIGOTEG(0.3)):
        value = estimator.surrogate(loss, case.oracle, scores, generator=seeded())
        torch.testing.assert_close(value, loss(case.oracle.argmax(scores)))
    expected = mean - case.oracle.project(mean - 0.3 * gamma).mean
    torch.testing.assert_close(estimate(SPIGOTCE(0.3), case, "smooth", scores), expected)
    torch.testing.assert_close(estimate(SPIGOTEG(0.3), case, "smooth", scores), mean - case.oracle.marginals(scores - 0.3 * gamma))


@pytest.mark.parametrize(("step", "error"), [(0.1, 2.41e-2), (0.01, 2.41e-3), (0.001, 2.41e-4)])
def test_exponentiated_gradient_tends_to_structured_attention(step: float, error: float) -> None:
    found = SPIGOTEG(step).gradient(table_loss, Categorical(), SCORES, generator=seeded())
    assert float((found / step - GRADIENT).norm()) == pytest.approx(error, rel=5e-3)


@pytest.mark.parametrize("kind", ["linear", "smooth"])
@oracles
def test_a_small_exponentiated_step_is_structured_attention(case: OracleCase, kind: str) -> None:
    if case.potentials is None:
        scores, estimator = numbers(3, *case.event), SPIGOTEG(1e-6, inner_steps=3)
        expected = estimate(StructuredAttention(), case, kind, scores)
        torch.testing.assert_close(estimate(estimator, case, kind, scores) / estimator.scale, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("steps", [1, 2, 7])
@pytest.mark.parametrize("classes", [2, 5])
def test_exponentiated_steps_on_categories_are_multiplicative_updates(steps: int, classes: int) -> None:
    """``z_{t+1} ∝ z_t · exp(−ηγ(z_t))``."""
    scores, matrix = numbers(classes, seed=classes), numbers(classes, classes)
    loss = lambda z: ((z @ matrix) * z).sum(-1)  # noqa: E731
    z = scores.softmax(-1)
    for _ in range(steps):
        z = z * (-0.7 * (matrix + matrix.mT) @ z).exp()
        z = z / z.sum()
    found = SPIGOTEG(0.7, steps).gradient(loss, Categorical(), scores, generator=seeded())
    torch.testing.assert_close(found, scores.softmax(-1) - z, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("step", [0.2, 1.0, 4.0])
@pytest.mark.parametrize("gap", [0.0, 0.8, -2.5])
def test_exponentiated_gradient_is_the_mean_of_implicit_mle(step: float, gap: float) -> None:
    """With exact sampling, which Gumbel noise is on two classes, λ = η and a linear loss. Between the points where a choice changes the
    shipped estimate is constant, so that the mean over the logistic difference of two Gumbel variables is a finite sum."""
    table, scores = torch.tensor([1.0, -0.5], dtype=torch.float64), torch.tensor([gap, 0.0], dtype=torch.float64)
    loss = lambda z: z @ table  # noqa: E731
    changes = torch.tensor([-gap, step * 1.5 - gap], dtype=torch.float64).sort().values
    inside = torch.tensor([changes[0] - 1, changes.mean(), changes[1] + 1], dtype=torch.float64)
    distribution = torch.cat([torch.zeros(1), changes.sigmoid(), torch.ones(1)]).double()
    noise = torch.stack([inside, torch.zeros(3)], -1)
    found = ImplicitMLE(step, noise=FixedNoise(noise)).gradient(loss, Categorical(), scores.expand(3, 2), generator=seeded())
    mean = distribution.diff() @ found
    torch.testing.assert_close(mean, SPIGOTEG(step).gradient(loss, Categorical(), scores, generator=seeded()), rtol=0, atol=1e-12)


@pytest.mark.parametrize("step", [0.3, 1.0, 20.0])
@oracles
def test_blackbox_differentiation_is_implicit_mle_without_noise(case: OracleCase, step: float) -> None:
    for scores in (numbers(6, *case.event), make_scores(case, "masked")):
        expected = estimate(ImplicitMLE(step, noise=still(case.event)), case, "smooth", scores)
        torch.testing.assert_close(step * estimate(BlackboxDifferentiation(step), case, "smooth", scores), expected, rtol=1e-12, atol=1e-12)
        divided = ImplicitMLE(step, noise=still(case.event), divide_by_lambda=True)
        assert torch.equal(estimate(BlackboxDifferentiation(step), case, "smooth", scores), estimate(divided, case, "smooth", scores))


def test_the_least_range_that_sees_anything() -> None:
    below, above = (
        BlackboxDifferentiation(step).gradient(table_loss, Categorical(), SCORES, generator=seeded()) for step in (0.199999, 0.200001)
    )
    assert not below.any()
    torch.testing.assert_close(above, torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64) / 0.200001)


@pytest.mark.parametrize("seed", range(5))
def test_the_least_range_of_other_scores(seed: int) -> None:
    """``λ_c = min_j (θ_k − θ_j)/(γ_k − γ_j)`` over the classes of smaller γ than that of the best one."""
    scores, gamma = numbers(6, seed=seed), numbers(6, seed=seed + 100)
    best = int(scores.argmax())
    better = gamma < gamma[best]
    if not better.any():
        return
    least = float(((scores[best] - scores) / (gamma[best] - gamma))[better].min())
    for factor, blind in ((1 - 1e-9, True), (1 + 1e-9, False)):
        found = BlackboxDifferentiation(least * factor).gradient(lambda z: z @ gamma, Categorical(), scores, generator=seeded())
        assert (not found.any()) == blind


@oracles
def test_blackbox_differentiation_is_the_gradient_of_an_interpolation(case: OracleCase) -> None:
    """``(1/λ) [max ⟨θ, z⟩ − max ⟨θ − λγ, z⟩]`` is piecewise linear in θ."""
    if case.potentials is not None:
        return
    scores, gamma, step = numbers(*case.event), linear_gamma(case), 2.0
    best = lambda theta: (structures(case) * theta).flatten(1).sum(-1).max()  # noqa: E731
    leaf = scores.clone().requires_grad_()
    (expected,) = torch.autograd.grad((best(leaf) - best(leaf - step * gamma)) / step, leaf)
    torch.testing.assert_close(estimate(BlackboxDifferentiation(step), case, "linear", scores), expected)


def test_identity_with_projection_on_three_classes() -> None:
    found = Identity().gradient(table_loss, Categorical(), SCORES, generator=seeded())
    torch.testing.assert_close(found, torch.tensor([-0.352003, 0.100572, 0.251431], dtype=torch.float64), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("centre", "normalise"), [(True, True), (True, False), (False, True)])
@oracles
def test_the_backward_is_that_of_the_projection(case: OracleCase, centre: bool, normalise: bool) -> None:
    """By automatic differentiation of ``⟨γ, Π(θ)⟩``."""
    scores, read = numbers(*case.event), read_parts(case)
    leaf = scores.clone().requires_grad_()
    theta = leaf[read]
    theta = theta - theta.mean() if centre else theta
    theta = theta / theta.norm() if normalise else theta
    gamma = loss_gradient(LOSSES["smooth"](case), case.oracle.argmax(scores))[read]
    (expected,) = torch.autograd.grad(theta @ gamma, leaf)
    torch.testing.assert_close(estimate(Identity(centre, normalise), case, "smooth", scores), expected, rtol=1e-11, atol=1e-12)


@oracles
def test_without_projection_it_is_straight_through(case: OracleCase) -> None:
    for scores in (numbers(6, *case.event), make_scores(case, "masked")):
        found = estimate(Identity(centre=False, normalise=False), case, "smooth", scores)
        assert torch.equal(found, estimate(StraightThrough(), case, "smooth", scores))


@oracles
def test_neither_shift_nor_scale_has_a_gradient(case: OracleCase) -> None:
    scores, read = numbers(4, *case.event), read_parts(case)
    found = estimate(Identity(), case, "smooth", scores)
    event = tuple(range(1, 1 + len(case.event)))
    torch.testing.assert_close(found.sum(event), torch.zeros(4, dtype=torch.float64), rtol=0, atol=1e-12)
    centred = torch.where(read, scores, 0) - (torch.where(read, scores, 0).sum(event, keepdim=True) / read.sum()) * read
    torch.testing.assert_close((found * centred).sum(event), torch.zeros(4, dtype=torch.float64), rtol=0, atol=1e-12)
    # The best derivation of a policy changes with the scale of its scores.
    if case.potentials is None:
        torch.testing.assert_close(estimate(Identity(), case, "smooth", 3 * scores), found / 3, rtol=1e-10, atol=1e-12)


@oracles
def test_the_projection_leaves_the_best_structure_alone_where_all_are_of_one_size(case: OracleCase) -> None:
    scores, read = numbers(20, *case.event), read_parts(case)
    sizes = structures(case).flatten(1).sum(-1)
    centred = scores - scores[:, read].mean(1).reshape(-1, *[1] * len(case.event))
    same = torch.equal(case.oracle.argmax(scores), case.oracle.argmax(centred))
    assert same == bool((sizes == sizes[0]).all()) or case.potentials is not None


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


@oracles
def test_the_noise_comes_before_the_projection(case: OracleCase) -> None:
    scores, noise = numbers(*case.event), torch.where(read_parts(case), numbers(*case.event, seed=3), 0)
    for options in ({}, {"centre": False}, {"normalise": False}):
        found = estimate(PerturbedIdentity(noise=FixedNoise(noise), **options), case, "smooth", scores)  # type: ignore[arg-type]
        torch.testing.assert_close(found, estimate(Identity(**options), case, "smooth", scores + noise), rtol=1e-12, atol=1e-12)
    assert torch.equal(
        estimate(PerturbedIdentity(noise=still(case.event)), case, "smooth", scores), estimate(Identity(), case, "smooth", scores)
    )


@pytest.mark.parametrize("name", ["spigot_steps", "spigot_ce", "spigot_eg"])
def test_a_loss_without_a_gradient_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"`{name}` got a loss without a gradient in the structure"):
        make_estimator(name).gradient(lambda z: z.detach().sum(-1), Categorical(), SCORES, generator=seeded())
