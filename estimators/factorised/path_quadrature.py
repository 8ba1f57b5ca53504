"""The gradient of the loss integrated along the straight line from the mean to a sample: straight-through of higher order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ...oracles.capabilities import FactorisedOracle, Oracle
from ..base import Estimator, Evaluations, Loss, Objective, evaluate, upstream_gradient, with_gradient
from .common import log_probabilities, moving_categories

_RULES: dict[str, tuple[tuple[float, float], ...]] = {
    "midpoint": ((1 / 2, 1.0),),
    "gauss": ((1 / 2 - 3**0.5 / 6, 1 / 2), (1 / 2 + 3**0.5 / 6, 1 / 2)),
    "simpson": ((0.0, 1 / 6), (1 / 2, 4 / 6), (1.0, 1 / 6)),
}
"""Places between the mean and the sample, and their weights."""


@dataclass(frozen=True)
class PathQuadrature(Estimator[FactorisedOracle]):
    """Path quadrature: ``ĝ_c = (z_c − p_c) ⟨z_c − p_c, Σ_q w_q γ_c(p + t_q (z − p))⟩`` for the parts c of each category. Biased.

    REINFORCE with the baseline L(p) multiplies ``z_c − p_c`` by ``L(z) − L(p)``, the integral of γ along the line from p to z. Here each
    category takes its own share of that integral alone, by a rule of places ``t_q`` with weights ``w_q``. In the mean nothing is missing
    where the loss is a sum over categories, of polynomials that the rule integrates, or a quadratic of all categories together: so the
    midpoint is exact for all quadratics, by one gradient, and two places of Gauss or three of Simpson (Runge-Kutta's weights of order 4
    on an integral) for sums over categories of degree 4. Products of three and more categories are biased, which for ReinMax, the
    trapezoid rule along edges of the hull, they need not be: neither is the better one everywhere. Derived here: a rule whose
    places are structures has the ends of an edge alone, of which the trapezoid rule makes the most; more takes gradients inside the hull.

    Cost: one exact sample, its loss value, and one loss gradient inside the hull for each place.

    Args:
        rule: ``midpoint``, ``gauss`` of two places, or ``simpson`` with both ends.

    References:
        Wang & Bui 2026, "Beyond ReinMax", whose abstract asks for other integrators; Liu et al. 2023, section 4, for ReinMax.
        Neither has this formula.

    Example:
        >>> from structgrad.oracles import IndependentCategoricals
        >>> from structgrad.suites.measures.bias import measure
        >>> scores = torch.tensor([[0.3, -0.2, 0.5], [0.0, 1.0, -1.0]], dtype=torch.float64)
        >>> loss = lambda z: ((z @ torch.tensor([1.0, -0.5, 2.0], dtype=z.dtype) - 0.4) ** 4).sum(-1)
        >>> for rule in ("midpoint", "simpson"):
        ...     print(round(measure(PathQuadrature(rule), IndependentCategoricals(), loss, scores).metrics["relative_bias"].value, 3))
        0.253
        0.0
    """

    rule: Literal["midpoint", "gauss", "simpson"] = "midpoint"

    name: ClassVar[str] = "path_quadrature"
    references: ClassVar[tuple[str, ...]] = ("wang2026beyond", "liu2023bridging")
    needs: ClassVar[tuple[type[Oracle], ...]] = (FactorisedOracle,)
    objective: ClassVar[Objective] = "expected"
    inside_hull: ClassVar[bool] = True

    def evaluations(self) -> Evaluations:
        places = len(_RULES[self.rule])
        return Evaluations(losses=places + 1, loss_gradients=places, samples=1)

    def surrogate(self, loss: Loss, oracle: FactorisedOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        sample = oracle.sample(scores, generator=generator)
        losses = evaluate(loss, sample, oracle.event_ndim)
        p = log_probabilities(oracle, scores.detach()).exp()
        along = sample.double() - p
        with torch.enable_grad():
            places = torch.stack([p + place * along for place, _ in _RULES[self.rule]]).to(scores.dtype).requires_grad_()
            values = evaluate(loss, places, oracle.event_ndim)
            slopes = upstream_gradient(self.name, values, places, retain_graph=False).double()
        slope = sum(weight * each for (_, weight), each in zip(_RULES[self.rule], slopes, strict=True))
        estimate = along * (along * slope).sum(-1, keepdim=True)
        return with_gradient(losses, scores, torch.where(moving_categories(oracle, scores), estimate, 0).to(scores.dtype))
