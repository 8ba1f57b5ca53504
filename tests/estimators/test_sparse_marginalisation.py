"""Sparsemax over structures: its closed forms, what it shares with SparseMAP and with k-best lists, and what it refuses."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from torch import Tensor

from structgrad.estimators import (
    DifferentiableDP,
    ExactMarginalisation,
    SparseMAP,
    SparseMAPMarginalisation,
    SparsemaxMarginalisation,
    StructuredAttention,
    TopKSparsemax,
    make_estimator,
)
from structgrad.oracles import Categorical, IndependentCategoricals, LinearChain, ShiftReduce, Subset
from tests.catalogue.walks import sparsemax
from tests.estimator_cases import CASES, LOSSES, numbers, oracles, table_loss, three_classes
from tests.helpers import OracleCase, enumerate_truth, make_scores, one_hots, seeded, structures

SCORES, LOSS_TABLE, _ = three_classes()


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def gradient(name: str, case: OracleCase, kind: str, scores: Tensor) -> Tensor:
    return make_estimator(name).gradient(LOSSES[kind](case), case.oracle, scores, generator=seeded())


@pytest.mark.parametrize("name", ["sparsemax_marginalisation", "top_k_sparsemax", "sparsemap_marginalisation", "sparsemap"])
def test_the_golden_numbers(name: str) -> None:
    """``1_S (ℓ − mean_S ℓ)`` at 2θ, where the support is the first and the last class."""
    found = make_estimator(name).gradient(table_loss, Categorical(), 2 * SCORES, generator=seeded())
    torch.testing.assert_close(found, vector(-0.5, 0.0, 0.5), rtol=0, atol=1e-12)


@pytest.mark.parametrize("scale", [0.05, 0.5, 2.0, 20.0])
@pytest.mark.parametrize("name", ["sparsemax_marginalisation", "top_k_sparsemax[k=6]", "sparsemap_marginalisation"])
def test_on_one_hot_structures_all_marginalisations_are_one(name: str, scale: float) -> None:
    """Value ``Σ pℓ`` and gradient ``1_S (ℓ − mean_S ℓ)``, with p by trying every size of the support."""
    scores, losses = scale * numbers(20, 6), numbers(6, seed=1).exp()
    estimator, loss = make_estimator(name), lambda z: z.square() @ losses
    p = torch.from_numpy(np.stack([sparsemax(row)[1] for row in scores.numpy()]))
    support = (p > 0).double()
    mean = (support @ losses) / support.sum(-1)
    expected = support * (losses - mean.unsqueeze(-1))
    torch.testing.assert_close(estimator.gradient(loss, Categorical(), scores, generator=seeded()), expected, rtol=1e-12, atol=1e-12)
    value = estimator.surrogate(loss, Categorical(), scores, generator=seeded())
    torch.testing.assert_close(value, p @ losses, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("scale", [0.3, 2.0])
def test_sparsemap_on_one_hot_structures(scale: float) -> None:
    """``1_S (γ − mean_S γ)`` with γ at the sparsemax."""
    scores = scale * numbers(20, 6)
    loss = lambda z: (z @ numbers(6, seed=1)).sin() + z.square().sum(-1)  # noqa: E731
    p = torch.from_numpy(np.stack([sparsemax(row)[1] for row in scores.numpy()])).requires_grad_()
    (gamma,) = torch.autograd.grad(loss(p).sum(), p)
    support = (p.detach() > 0).double()
    expected = support * (gamma - (support * gamma).sum(-1, keepdim=True) / support.sum(-1, keepdim=True))
    torch.testing.assert_close(SparseMAP().gradient(loss, Categorical(), scores, generator=seeded()), expected, rtol=1e-11, atol=1e-11)


@oracles
@pytest.mark.parametrize("regime", [0.3, 3.0, "masked"], ids=str)
def test_the_best_are_enough_where_the_support_is_smaller(case: OracleCase, regime: float | str) -> None:
    """And a support that fills the list is the sparsemax of the list."""
    scores = make_scores(case, regime, rows=8, seed=2)
    sizes = [int((sparsemax(row)[1] > 0).sum()) for row in enumerate_truth(case, scores).structure_scores.numpy()]
    whole = gradient("sparsemax_marginalisation", case, "smooth", scores)
    k = min(max(sizes) + 1, len(structures(case)))
    torch.testing.assert_close(gradient(f"top_k_sparsemax[k={k}]", case, "smooth", scores), whole, rtol=1e-10, atol=1e-10)
    short = gradient("top_k_sparsemax[k=2]", case, "smooth", scores)
    fits = torch.tensor(sizes) < 2
    torch.testing.assert_close(short[fits], whole[fits], rtol=1e-10, atol=1e-10)


@oracles
def test_one_structure_alone_has_no_gradient(case: OracleCase) -> None:
    scores = numbers(4, *case.event)
    found = gradient("top_k_sparsemax[k=1]", case, "smooth", scores)
    assert not found.any()
    value = TopKSparsemax(k=1).surrogate(LOSSES["smooth"](case), case.oracle, scores, generator=seeded())
    torch.testing.assert_close(value, LOSSES["smooth"](case)(case.oracle.argmax(scores)))


@oracles
def test_peaked_scores_give_the_loss_of_the_best_structure(case: OracleCase) -> None:
    scores, loss = 1e3 * numbers(4, *case.event), LOSSES["smooth"](case)
    for estimator in (SparsemaxMarginalisation(), TopKSparsemax()):
        value = estimator.surrogate(loss, case.oracle, scores, generator=seeded())
        torch.testing.assert_close(value, loss(case.oracle.argmax(scores)), rtol=1e-12, atol=1e-12)


@oracles
def test_close_scores_give_the_mean_over_all_structures(case: OracleCase) -> None:
    """At equal scores the sparsemax is the uniform law, as the Gibbs law is; a policy has its own."""
    if case.potentials is not None:
        return
    scores, loss = torch.zeros(case.event, dtype=torch.float64), LOSSES["smooth"](case)
    space = structures(case)
    found = SparsemaxMarginalisation().gradient(loss, case.oracle, scores, generator=seeded())
    expected = torch.einsum("s,s...->...", loss(space) - loss(space).mean(), space)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)
    gibbs = ExactMarginalisation().gradient(loss, case.oracle, scores, generator=seeded())
    torch.testing.assert_close(found, len(space) * gibbs, rtol=1e-11, atol=1e-11)


def test_a_policy_is_ranked_by_its_probabilities() -> None:
    """``top_k_sparsemax`` and ``sparsemax_marginalisation`` take the sparsemax of what `kbest` ranks by: log-probabilities."""
    case = next(case for case in CASES if case.potentials is not None)
    scores = numbers(4, *case.event)
    weights = [sparsemax(row)[1] for row in enumerate_truth(case, scores).probabilities.log().numpy()]
    loss, space = LOSSES["smooth"](case), structures(case)
    expected = torch.from_numpy(np.stack(weights)) @ loss(space)
    for estimator in (SparsemaxMarginalisation(), TopKSparsemax()):
        value = estimator.surrogate(loss, case.oracle, scores, generator=seeded())
        torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["structured_attention", "sparsemap", "differentiable_dp", "entmax", "csoftmax"])
def test_a_relaxation_is_the_expectation_exactly_for_linear_losses(name: str) -> None:
    """``L(E z) = E L(z)`` for a loss that is linear on the hull; on every square there is an excess."""
    case = OracleCase(LinearChain(), (3, 2, 2), one_hots) if name == "differentiable_dp" else OracleCase(Categorical(), (4,), one_hots)
    scores, estimator = numbers(*case.event), make_estimator(name)
    mean = estimator.structure(case.oracle, scores, generator=seeded()).detach()
    space = case.oracle.enumerate(case.event, dtype=torch.float64)
    weights = torch.from_numpy(solved(space.flatten(1).numpy(), mean.flatten().numpy()))
    flat, matrix = numbers(space[0].numel(), seed=2), numbers(space[0].numel(), space[0].numel(), seed=3)

    def linear(z: Tensor) -> Tensor:
        return z.flatten(-len(case.event)) @ flat + 0.7

    def convex(z: Tensor) -> Tensor:
        return (z.flatten(-len(case.event)) @ matrix).square().sum(-1)

    generator = seeded()
    relaxed = [estimator.surrogate(loss, case.oracle, scores, generator=generator).detach() for loss in (linear, convex)]
    expected = [weights @ loss(space) for loss in (linear, convex)]
    torch.testing.assert_close(relaxed[0], expected[0], rtol=1e-8, atol=1e-8)
    assert float(expected[1] - relaxed[1]) > 1e-3


def solved(atoms: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Some weights of atoms with this mean."""
    from scipy.optimize import nnls

    return np.asarray(nnls(np.vstack([atoms.T, np.ones(len(atoms))]), np.append(mean, 1.0))[0])


@pytest.mark.parametrize("seed", range(3))
def test_a_linear_loss_makes_sparsemap_and_its_marginalisation_one(seed: int) -> None:
    case = CASES[3]
    scores = numbers(5, *case.event, seed=seed)
    relaxed, marginal = (
        each.gradient(LOSSES["linear"](case), case.oracle, scores, generator=seeded()) for each in (SparseMAP(), SparseMAPMarginalisation())
    )
    torch.testing.assert_close(relaxed, marginal, rtol=1e-9, atol=1e-9)
    relaxed, marginal = (
        each.gradient(LOSSES["smooth"](case), case.oracle, scores, generator=seeded()) for each in (SparseMAP(), SparseMAPMarginalisation())
    )
    assert float((relaxed - marginal).abs().max()) > 1e-3


def test_with_entropy_differentiable_dp_is_structured_attention() -> None:
    case = next(case for case in CASES if isinstance(case.oracle, LinearChain))
    scores = numbers(4, *case.event)
    found = gradient("differentiable_dp[omega=entropy]", case, "smooth", scores)
    assert torch.equal(found, StructuredAttention().gradient(LOSSES["smooth"](case), case.oracle, scores, generator=seeded()))
    assert not torch.equal(found, DifferentiableDP().gradient(LOSSES["smooth"](case), case.oracle, scores, generator=seeded()))


@pytest.mark.parametrize("rows", [1, 7])
def test_the_loss_sees_the_support_alone(rows: int) -> None:
    """Slots that a row does not need repeat its best structure."""
    case = CASES[3]
    scores, seen = numbers(rows, *case.event), []

    def loss(z: Tensor) -> Tensor:
        seen.append(z)
        return LOSSES["smooth"](case)(z)

    for estimator in (SparsemaxMarginalisation(), TopKSparsemax(k=8)):
        seen.clear()
        estimator.surrogate(loss, case.oracle, scores, generator=seeded())
        sizes = [int((sparsemax(row)[1] > 0).sum()) for row in enumerate_truth(case, scores).structure_scores.numpy()]
        assert [len(z) for z in seen] == [max(sizes)]
        best = case.oracle.argmax(scores)
        for row, size in enumerate(sizes):
            assert torch.equal(seen[0][0, row], best[row])
            assert len(seen[0][:, row].unique(dim=0)) == size


def test_chunks_change_nothing() -> None:
    case = CASES[4]
    scores = numbers(3, *case.event)
    whole = gradient("sparsemax_marginalisation", case, "smooth", scores)
    for chunk in (1, 3, 7):
        assert torch.equal(gradient(f"sparsemax_marginalisation[chunk={chunk}]", case, "smooth", scores), whole)


def test_an_infeasible_row_has_value_and_gradient_0() -> None:
    scores = torch.full((2, 4), -math.inf, dtype=torch.float64)
    scores[1, :2] = 0.0
    for estimator in (SparsemaxMarginalisation(), TopKSparsemax()):
        leaf = scores.clone().requires_grad_()
        value = estimator.surrogate(lambda z: z.sum(-1) + z[..., 0], Subset(2), leaf, generator=seeded())
        value.sum().backward()
        assert value.tolist() == [0.0, 3.0]
        assert leaf.grad is not None
        assert not leaf.grad.any()


def test_a_large_space_is_refused() -> None:
    loss = lambda z: z.sum((-2, -1))  # noqa: E731
    message = (
        "sparsemax_marginalisation enumerates at most limit=65536 structures, and the oracle categories has 131,072 of the shape (17, 2), "
        "which take 7 seconds at a typical 20,000 a second, raise limit= for so long a wait (sparsemax_marginalisation[limit=131072])"
    )
    assert SparsemaxMarginalisation().incompatibility(IndependentCategoricals(), (16, 2)) is None
    assert SparsemaxMarginalisation().incompatibility(IndependentCategoricals(), (17, 2)) == message
    with pytest.raises(ValueError, match=re.escape(f"{message}; choose another pair")):
        SparsemaxMarginalisation().gradient(loss, IndependentCategoricals(), torch.zeros(17, 2), generator=seeded())


def test_a_list_may_be_longer_than_the_space() -> None:
    case = CASES[0]
    torch.testing.assert_close(
        gradient("top_k_sparsemax[k=1000]", case, "smooth", numbers(5)), gradient("sparsemax_marginalisation", case, "smooth", numbers(5))
    )


def test_many_rows_of_a_large_space_with_local_policies() -> None:
    """Rows share nothing, and the support of each is its own."""
    oracle = ShiftReduce("local")
    scores = 3 * numbers(16, 6, 6, 2)
    loss = lambda z: (z * numbers(6, 6, 2, seed=1)).sum((-3, -2, -1)).sin()  # noqa: E731
    together = SparsemaxMarginalisation().gradient(loss, oracle, scores, generator=seeded())
    single = [SparsemaxMarginalisation().gradient(loss, oracle, row, generator=seeded()) for row in scores]
    torch.testing.assert_close(together, torch.stack(single), rtol=1e-11, atol=1e-12)
