"""Laws for every estimator, biased ones too: estimates go downhill on a linear loss, and the Jacobian is whole."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from scipy import special
from torch import Tensor

from ....estimators.base import Estimator
from ....estimators.exact import ExactMarginalisation
from ....oracles.capabilities import MarginalOracle
from ...base import check_finite
from ..cases import FLAT, USUAL, AuditLoss, Structure, random_scores, seeded
from ..confirmation import confirmed
from ..counting import Ledger, counting_loss
from ..diagnosis import diagonal_estimate, parallel
from ..means import AuditEffort
from ..result import Check
from ..subject import Subject

ROWS = 512
"""Random scores of the test of the sign."""

ROUNDING = 1e-9
"""A gain above minus that is not below 0."""


def sign_check(fresh: Callable[[], Estimator[Any]], structure: Structure, effort: AuditEffort) -> Check:
    """The law ``sign``: on a linear loss at flat scores, the mean of ``⟨ĝ, g⟩ / ‖g‖²`` over random scores is not below 0."""
    kept: list[tuple[float, float]] = []

    def test(slot: str, times: int) -> float:
        ratios = _gains(fresh(), structure, (effort.seed, slot, times * ROWS))
        mean, error = float(ratios.mean()), float(ratios.std()) / math.sqrt(len(ratios))
        kept.append((mean, error))
        # A mean of 0 comes out as rounding of either sign.
        return 1.0 if mean >= -ROUNDING else float(special.stdtr(len(ratios) - 1, mean / max(error, 1e-300)))

    p_value = confirmed(test, effort.alpha)
    mean, error = kept[-1]
    detail = f"gain {mean:.3g} ± {2 * error:.2g} over random scores, linear loss"
    return Check("sign", structure.name, "holds", detail, "", "test", p_value)


def _gains(estimator: Estimator[Any], structure: Structure, stream: tuple[int, str, int]) -> Tensor:
    """[rows]: of one estimate at each of many random scores."""
    seed, slot, rows = stream
    loss = AuditLoss(structure, "linear")
    scores = FLAT * torch.randn(rows, *structure.event, generator=seeded(seed, "sign", "scores", slot), dtype=torch.float64)
    estimate = check_finite(estimator.gradient(loss, structure.oracle, scores, generator=seeded(seed, "sign", slot)), estimator.name)
    exact = ExactMarginalisation().gradient(loss, structure.oracle, scores, generator=seeded(0))
    return (estimate * exact).flatten(1).sum(-1) / exact.square().flatten(1).sum(-1)


def jacobian_check(subject: Subject, fresh: Callable[[], Estimator[Any]], structure: Structure) -> Iterator[Check]:
    """The law ``jacobian``: the estimate is not the diagonal of the marginals' Jacobian times the loss's gradient.

    Parts compete, so that raising the score of one lowers the chance of the others: a diagonal alone is a product that was taken
    elementwise.
    """
    ledger = Ledger(rows=8)
    scores, loss = random_scores(structure, USUAL, 8), AuditLoss(structure)
    estimate = fresh().gradient(counting_loss(loss, ledger, structure.ndim), structure.oracle, scores, generator=seeded(1, "jacobian"))
    if not ledger.counts["loss_gradients"] or not isinstance(structure.oracle, MarginalOracle) or float(estimate.abs().max()) == 0:
        return
    points = [point for point in ledger.points if point.shape == scores.shape]
    temperatures = {
        1.0,
        *(value for name, value in subject.numbers().items() if name.rpartition(".")[2] in ("temperature", "tau") and value > 0),
    }
    for temperature in temperatures:
        marginals = structure.oracle.marginals(scores / temperature)
        if any(parallel(estimate, diagonal_estimate(marginals, _gradient(loss, point))) for point in points[-1:]):
            cause = "diagonal-only Jacobian: μ(1 − μ)γ in place of Cov(z)γ"
            yield Check("jacobian", structure.name, "violated", "the estimate is diag(J) γ: the other parts' share is left out", cause)
            return
    yield Check("jacobian", structure.name, "holds", "no diagonal in place of the Jacobian")


def _gradient(loss: AuditLoss, point: Tensor) -> Tensor:
    leaf = point.detach().clone().requires_grad_()
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(loss(leaf).sum(), leaf)
    return gradient
