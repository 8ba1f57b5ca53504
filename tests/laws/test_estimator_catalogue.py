"""Every estimate is the formula of the catalogue, with the Jacobian, the best structures and the projections of an enumeration."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import nnls
from torch import Tensor

from structgrad.estimators import ESTIMATORS, Gumbel, Loss, make_estimator
from tests.estimator_cases import CASES, LOSSES, NAMES, estimators, exact_mean, loss_gradient, numbers
from tests.helpers import OracleCase, enumerate_truth, make_scores, read_parts, seeded, structures

oracles = pytest.mark.parametrize("case", [case for case in CASES if case.potentials is None], ids=str)
"""Where scores are natural parameters: the formulas below say so by z − μ."""


@dataclass(frozen=True)
class Setting:
    """One row of scores [*event], the estimator and its loss; randomness is drawn anew from the same seed."""

    estimator: Any
    case: OracleCase
    loss: Loss
    scores: Tensor
    generator: torch.Generator

    @cached_property
    def free(self) -> Tensor:
        return (self.scores > -math.inf) & read_parts(self.case)

    def noise(self, source: Any) -> Tensor:
        """ε, drawn as the estimator draws it."""
        return source.perturb(self.case.oracle, torch.zeros(self.case.event, dtype=torch.float64), generator=self.generator)

    def samples(self, count: int | None) -> Tensor:
        drawn: Tensor = self.case.oracle.sample(self.scores, count, generator=self.generator)
        return drawn

    def gamma(self, point: Tensor) -> Tensor:
        return loss_gradient(self.loss, point)

    def best(self, scores: Tensor) -> Tensor:
        return structures(self.case)[enumerate_scores(self.case, scores).argmax()]

    def marginals(self) -> Tensor:
        return enumerate_truth(self.case, self.scores).marginals[0]

    def pushed(self, scores: Tensor, vector: Tensor) -> Tensor:
        """Cov(z)·v at scores."""
        return (enumerate_truth(self.case, scores).covariance[0] @ vector.flatten()).reshape(self.case.event)

    def score_function(self, samples: Tensor, weights: Tensor) -> Tensor:
        """(1/N) Σ w (z − μ)."""
        return torch.einsum("s,s...->...", weights, samples - self.marginals()) / len(samples)


def enumerate_scores(case: OracleCase, scores: Tensor) -> Tensor:
    """⟨θ, z⟩ of every structure."""
    product = torch.where(structures(case) > 0, scores, 0)
    return product.flatten(1).sum(-1)


def nearest(case: OracleCase, point: Tensor) -> Tensor:
    """The nearest point of the hull of the feasible structures, as a least-squares problem with non-negative weights."""
    allowed = enumerate_scores(case, point) > -math.inf
    atoms = structures(case)[allowed].flatten(1).numpy()
    target = torch.where(point > -math.inf, point, 0).flatten().numpy()
    weights, _ = nnls(np.vstack([(atoms - target).T, np.ones(len(atoms))]), np.append(np.zeros(atoms.shape[1]), 1.0))
    return torch.from_numpy(weights @ atoms / weights.sum()).reshape(case.event)


def along_the_face(case: OracleCase, scores: Tensor, vector: Tensor) -> Tensor:
    """The Jacobian of the projection: orthogonal projection on the directions of the face that holds the nearest point."""
    values = enumerate_scores(case, scores - nearest(case, scores))
    face = structures(case)[values > values.max() - 1e-7].flatten(1).numpy()
    _, sizes, directions = np.linalg.svd(face - face[0])
    basis = torch.from_numpy(directions[: len(sizes)][sizes > 1e-9])
    return (basis.mT @ (basis @ vector.flatten())).reshape(case.event)


def exact(s: Setting) -> Tensor:
    values = s.loss(structures(s.case))
    probabilities = enumerate_truth(s.case, s.scores).probabilities[0]
    centred = probabilities * (values - probabilities @ values)
    return torch.einsum("s,s...->...", centred, structures(s.case))


def reinforce(s: Setting, baseline: float | Tensor = 0.0) -> Tensor:
    samples = s.samples(s.estimator.num_samples)
    return s.score_function(samples, s.loss(samples) - baseline)


def rloo(s: Setting) -> Tensor:
    n = s.estimator.num_samples
    samples = s.samples(n)
    values = s.loss(samples)
    others = torch.stack([(values.sum() - value) / (n - 1) for value in values])
    return s.score_function(samples, values - others)


def perturb_and_map(s: Setting) -> Tensor:
    return s.gamma(s.best(s.scores + s.noise(s.estimator.noise)))


def relaxed_at_noise(s: Setting, noise: Tensor, temperature: float = 1.0) -> Tensor:
    perturbed = s.scores + noise
    return s.pushed(perturbed / temperature, s.gamma(s.best(perturbed))) / temperature


def spigot(s: Setting) -> Tensor:
    best = s.best(s.scores)
    gamma = torch.where(s.free, s.gamma(best), 0)
    gamma = gamma * min(1.0, s.estimator.max_norm / float(gamma.norm()))
    return best - nearest(s.case, torch.where(s.free | ~read_parts(s.case), best - s.estimator.step_size * gamma, -math.inf))


def imle(s: Setting) -> Tensor:
    zeros = torch.zeros(s.estimator.num_samples, *s.case.event, dtype=torch.float64)
    noise = s.estimator.noise.perturb(s.case.oracle, zeros, generator=s.generator)
    estimates = []
    for epsilon in noise:
        z = s.best(s.scores + epsilon)
        estimates.append(z - s.best(s.scores - s.estimator.lambda_ * s.gamma(z) + epsilon))
    return torch.stack(estimates).mean(0) / (s.estimator.lambda_ if s.estimator.divide_by_lambda else 1.0)


def sparsemap_marginalisation(s: Setting) -> Tensor:
    """Mᵀ (S − S11ᵀS / 1ᵀS1) ℓ with S = (M Mᵀ)⁻¹ over the atoms."""
    solution = s.case.oracle.project(s.scores)
    atoms = solution.atoms[solution.weights > 0]
    inverse = torch.linalg.inv(atoms.flatten(1) @ atoms.flatten(1).mT)
    row_sums = inverse.sum(-1)
    jacobian = inverse - torch.outer(row_sums, row_sums) / row_sums.sum()
    return (atoms.flatten(1).mT @ jacobian @ s.loss(atoms)).reshape(s.case.event)


FORMULAS: dict[str, Callable[[Setting], Tensor]] = {
    "exact": exact,
    "reinforce": reinforce,
    "reinforce_constant": lambda s: reinforce(s, s.estimator.value),
    "reinforce_running_mean": lambda s: reinforce(s, s.estimator.mean),
    "reinforce_greedy": lambda s: reinforce(s, s.loss(s.best(s.scores))),
    "rloo": rloo,
    "ste": lambda s: s.gamma(s.best(s.scores)),
    "ste_marginals": lambda s: s.pushed(s.scores, s.gamma(s.best(s.scores))),
    "ste_sample": lambda s: s.gamma(s.samples(None)),
    "simple": lambda s: s.pushed(s.scores, s.gamma(s.samples(None))),
    "st_gumbel": lambda s: relaxed_at_noise(s, s.noise(Gumbel()), s.estimator.temperature),
    "perturb_and_map": perturb_and_map,
    "perturb_and_parse": lambda s: relaxed_at_noise(s, s.noise(s.estimator.noise)),
    "spigot": spigot,
    "imle": imle,
    "structured_attention": lambda s: s.pushed(s.scores, s.gamma(s.marginals())),
    "sparsemap": lambda s: along_the_face(s.case, s.scores, s.gamma(nearest(s.case, s.scores))),
    "sparsemap_marginalisation": sparsemap_marginalisation,
}
"""What the estimate is for one row and one draw; only free parts count."""


def test_every_estimator_has_a_formula() -> None:
    assert list(FORMULAS) == list(ESTIMATORS)
    assert {name.partition("[")[0] for name in NAMES} == set(ESTIMATORS)


@pytest.mark.parametrize("regime", [0.3, 5.0, "masked"], ids=str)
@oracles
@estimators
def test_the_estimate_is_the_formula(name: str, case: OracleCase, regime: float | str) -> None:
    estimator, loss = make_estimator(name), LOSSES["smooth"](case)
    for row, scores in enumerate(make_scores(case, regime, rows=3, seed=5)):
        setting = Setting(estimator, case, loss, scores, seeded(row))
        found = estimator.gradient(loss, case.oracle, scores, generator=seeded(row))
        expected = torch.zeros(case.event, dtype=torch.float64)
        if case.oracle.feasible(scores):
            expected = torch.where(setting.free, FORMULAS[estimator.name](setting), 0)
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("kind", ["linear", "smooth"])
@oracles
def test_the_mean_of_straight_through_on_samples(case: OracleCase, kind: str) -> None:
    scores, loss = numbers(*case.event), LOSSES[kind](case)
    truth = enumerate_truth(case, scores)
    mean_gamma = torch.einsum("s,s...->...", truth.probabilities[0], loss_gradient(loss, structures(case)))
    free = read_parts(case)
    torch.testing.assert_close(exact_mean(make_estimator("ste_sample"), case, loss, scores), torch.where(free, mean_gamma, 0))
    pushed = (truth.covariance[0] @ mean_gamma.flatten()).reshape(case.event)
    torch.testing.assert_close(exact_mean(make_estimator("simple"), case, loss, scores), pushed)
