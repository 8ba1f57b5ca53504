"""Straight-through estimators of second and higher order: ReinMax, its relatives, and quadrature along a path."""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from ..oracles.capabilities import FactorisedOracle
from ..oracles.options import Count, Positive, Within
from .base import Estimator, Evaluations
from .factorised import PullBack, conditional_race, log_probabilities, softmax_product, with_estimate
from .gumbel_rao import ConditionalRaces, ExactSampleForward, Race
from .score_function import with_slopes
from .surrogates import Loss, evaluate


@dataclass(frozen=True)
class ReinMax(ExactSampleForward, name="reinmax", references=("liu2023bridging",)):
    """ReinMax: forward an exact sample z, backward ``ĝ = 2 J((p_τ + z)/2) γ(z) − ½ J(p) γ(z)`` with ``J(q) = diag q − q qᵀ``.

    ``p_τ = softmax(θ/τ)`` in the first term, without a factor 1/τ, and ``p = softmax(θ)`` in the second.

    At τ = 1 the mean is ``Σ_ij p_i p_j ½ (γ(i) + γ(j))·(i − j)`` in place of ``Σ_ij p_i p_j (L(i) − L(j))``: the trapezoid rule along every
    edge. So it is exact where that rule is: for every loss that is quadratic in each category while the others stay as they are,
    whatever its degree in all of them together. Biased else.

    Args:
        temperature: τ, at least 1 as in the authors' code, which uses 1.1 to 1.3 for training; the paper's theory is about 1.

    References:
        Liu, Dong, Liu, Yu & Gao 2023, "Bridging discrete and backpropagation: straight-through and beyond", section 4 and algorithm 2.

    Example:
        >>> matrix = torch.tensor([[1.0, 0.5, 0.0], [0.5, -2.0, 1.0], [0.0, 1.0, 0.3]])
        >>> loss, scores = lambda z: ((z @ matrix) * z).sum(-1), torch.tensor([0.3, -0.2, 0.5]).expand(100_000, 3)
        >>> estimates = ReinMax().gradient(loss, "categorical", scores, generator=torch.Generator().manual_seed(0))
        >>> [round(value, 2) for value in estimates.mean(0).tolist()]  # that of a table of losses (1, −2, .3)
        [0.33, -0.44, 0.1]
    """

    temperature: Annotated[float, Within(least=1)] = 1.0

    calls = Evaluations(losses=1, loss_gradients=1, samples=1)

    def _pull_back(self, race: Race) -> PullBack:
        p = race.log_probs.exp()
        middle = ((race.log_probs / self.temperature).softmax(-1) + race.sample) / 2
        return lambda gamma: 2 * softmax_product(middle, gamma) - softmax_product(p, gamma) / 2


@dataclass(frozen=True)
class ReinMaxRao(ConditionalRaces, name="reinmax_rao", references=("wang2026beyond", "liu2023bridging", "paulus2021rao")):
    """ReinMax with a Gumbel-Rao average in its first term: ``ĝ = (2/K) Σ_k J_τ(x^k) γ(z) − ½ J(p) γ(z)``. Biased.

    ``x^k`` are Gumbel races with probabilities ``(p + z)/2`` that z won, and ``J_τ(x) = J(softmax(x/τ))/τ``. The formula is
    that of code in circulation; it was not compared with the paper's own. It is not exact for quadratic losses, as ReinMax is.

    Args:
        num_conditionals: K, at least 1.

    References:
        Wang & Bui 2026, "Beyond ReinMax: low-variance gradient estimators for discrete latent variables", which puts Liu et al. 2023,
        section 4, and Paulus, Maddison & Krause 2021, section 3, together.
    """

    def _pull_back(self, race: Race) -> PullBack:
        p = race.log_probs.exp()
        # A part of probability 0 keeps a logarithm that is finite, so that its race is lost by far and is no NaN.
        middle = ((p + race.sample) / 2).clamp(min=1e-300).log()
        relaxed = race.relaxed(self.num_conditionals, self.temperature, middle)
        return lambda gamma: 2 * relaxed(gamma) - softmax_product(p, gamma) / 2


@dataclass(frozen=True)
class ReinMaxControl(ExactSampleForward, name="reinmax_cv", references=("wang2026beyond", "liu2023bridging", "paulus2021rao")):
    """ReinMax-CV: ``ĝ = ReinMax + η ((1/K) Σ_k J_τ(x^k) − J_τ(log q + G)) γ(z)`` with ``q = (p + z)/2``. Biased.

    ``x^k`` are Gumbel races of probabilities q that z won, as in `ReinMaxRao`, and G is the noise with which z won the race of p itself.
    Given z, ReinMax is no random number: what has mean 0 given z can only add variance to it, and what lowers its variance moves its mean.
    The two relaxations do not have the same mean, because a winner under p leaves other noise than a winner under q; so for η ≠ 0 the mean
    is not that of ReinMax, and linear losses are biased. (The authors' code puts the relaxed sample in place of G, which moves it further.)

    Args:
        temperature: τ of the relaxations, positive; ReinMax itself is that of temperature 1, as in the code.
        eta: η; 0 is ReinMax.
        num_conditionals: K, at least 1.

    References:
        Wang & Bui 2026; the formula is that of the authors' code (``reinmax_cv``), with G and τ where its comments have them.

    Example:
        >>> loss, scores = lambda z: z @ torch.tensor([1.0, -0.5, 2.0]), torch.tensor([0.3, -0.2, 0.5]).expand(100_000, 3)
        >>> estimates = ReinMaxControl().gradient(loss, "categorical", scores, generator=torch.Generator().manual_seed(0))
        >>> bool((estimates[:, 2].mean() - 0.38).abs() > 0.01)  # the exact gradient, which ReinMax has, is 0.38
        True
    """

    temperature: Positive = 0.5
    eta: float = 0.5
    num_conditionals: Count = 10

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=1, loss_gradients=1, samples=1, perturbations=self.num_conditionals + 1)

    def _pull_back(self, race: Race) -> PullBack:
        p = race.log_probs.exp()
        middle = (p + race.sample) / 2
        log_middle = middle.clamp(min=1e-300).log()
        noise = conditional_race(race.log_probs, race.sample, race.draw()) - race.log_probs
        plain = ((log_middle + noise) / self.temperature).softmax(-1)
        average = race.relaxed(self.num_conditionals, self.temperature, log_middle)

        def pulled(gamma: Tensor) -> Tensor:
            control = average(gamma) - softmax_product(plain, gamma) / self.temperature
            return 2 * softmax_product(middle, gamma) - softmax_product(p, gamma) / 2 + self.eta * control

        return pulled


_RULES: dict[str, tuple[tuple[float, float], ...]] = {
    "midpoint": ((1 / 2, 1.0),),
    "gauss": ((1 / 2 - 3**0.5 / 6, 1 / 2), (1 / 2 + 3**0.5 / 6, 1 / 2)),
    "simpson": ((0.0, 1 / 6), (1 / 2, 4 / 6), (1.0, 1 / 6)),
}
"""Places between the mean and the sample, and their weights."""


@dataclass(frozen=True)
class PathQuadrature(Estimator[FactorisedOracle], name="path_quadrature", references=("wang2026beyond", "liu2023bridging")):
    """Path quadrature: ``ĝ_c = (z_c − p_c) ⟨z_c − p_c, Σ_q w_q γ_c(p + t_q (z − p))⟩`` for the parts c of each category. Biased.

    REINFORCE with the baseline L(p) multiplies ``z_c − p_c`` by ``L(z) − L(p)``, the integral of γ along the line from p to z. Here each
    category takes its own share of that integral alone, by a rule of places ``t_q`` with weights ``w_q``. In the mean nothing is missing
    where the loss is a sum over categories, of polynomials that the rule integrates, or a quadratic of all categories together: so the
    midpoint is exact for all quadratics, by one gradient, and two places of Gauss or three of Simpson (Runge-Kutta's weights of order 4
    on an integral) for sums over categories of degree 4. Products of three and more categories are biased, which for ReinMax, the
    trapezoid rule along edges of the hull, they need not be: neither is the better one everywhere. Derived here: a rule whose
    places are structures has the ends of an edge alone, of which the trapezoid rule makes the most; more takes gradients inside the hull.

    Args:
        rule: ``midpoint``, ``gauss`` of two places, or ``simpson`` with both ends.

    References:
        Wang & Bui 2026, whose abstract asks for other integrators; Liu et al. 2023, section 4. Neither has this formula.

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

    objective = "expected"
    inside_hull = True

    def evaluations(self) -> Evaluations:
        places = len(_RULES[self.rule])
        return Evaluations(losses=places + 1, loss_gradients=places, samples=1)

    def surrogate(self, loss: Loss, oracle: FactorisedOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        sample = oracle.sample(scores, generator=generator)
        losses = evaluate(loss, sample, oracle.event_ndim)
        p = log_probabilities(oracle, scores.detach()).exp()
        along = sample.double() - p
        places = torch.stack([p + place * along for place, _ in _RULES[self.rule]]).to(scores.dtype)
        slopes = with_slopes(self.name, loss, places, oracle.event_ndim)[1].double()
        slope = sum(weight * each for (_, weight), each in zip(_RULES[self.rule], slopes, strict=True))
        estimate = along * (along * slope).sum(-1, keepdim=True)
        return with_estimate(losses, oracle, scores, estimate)
