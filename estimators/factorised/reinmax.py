"""ReinMax: a straight-through estimator of second order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from ...oracles.options import Count, Positive, Within
from ..base import Evaluations
from .common import ExactSampleForward, PullBack, Race, softmax_product
from .gumbel_rao import ConditionalRaces


@dataclass(frozen=True)
class ReinMax(ExactSampleForward):
    """ReinMax: forward an exact sample z, backward ``ĝ = 2 J((p_τ + z)/2) γ(z) − ½ J(p) γ(z)`` with ``J(q) = diag q − q qᵀ``.

    ``p_τ = softmax(θ/τ)`` in the first term, without a factor 1/τ, and ``p = softmax(θ)`` in the second.

    At τ = 1 the mean is ``Σ_ij p_i p_j ½ (γ(i) + γ(j))·(i − j)`` in place of ``Σ_ij p_i p_j (L(i) − L(j))``: the trapezoid rule along every
    edge. So it is exact where that rule is: for every loss that is quadratic in each category while the others stay as they are,
    whatever its degree in all of them together. Biased else.

    Cost: one exact sample, one loss gradient.

    Args:
        temperature: τ, at least 1 as in the authors' code, which uses 1.1 to 1.3 for training; the paper's theory is about 1.

    References:
        Liu, Dong, Liu, Yu & Gao 2023, "Bridging discrete and backpropagation: straight-through and beyond", section 4 and algorithm 2.

    Example:
        >>> import torch
        >>> from structgrad.oracles import Categorical
        >>> matrix = torch.tensor([[1.0, 0.5, 0.0], [0.5, -2.0, 1.0], [0.0, 1.0, 0.3]])
        >>> loss = lambda z: ((z @ matrix) * z).sum(-1)
        >>> scores, generator = torch.tensor([0.3, -0.2, 0.5]), torch.Generator().manual_seed(0)
        >>> estimates = ReinMax().gradient(loss, Categorical(), scores.expand(100_000, 3), generator=generator)
        >>> [round(value, 2) for value in estimates.mean(0).tolist()]  # that of a table of losses (1, −2, .3)
        [0.33, -0.44, 0.1]
    """

    temperature: Annotated[float, Within(least=1)] = 1.0

    name: ClassVar[str] = "reinmax"
    references: ClassVar[tuple[str, ...]] = ("liu2023bridging",)

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=1, loss_gradients=1, samples=1)

    def _pull_back(self, race: Race) -> PullBack:
        p = race.log_probs.exp()
        middle = ((race.log_probs / self.temperature).softmax(-1) + race.sample) / 2
        return lambda gamma: 2 * softmax_product(middle, gamma) - softmax_product(p, gamma) / 2


@dataclass(frozen=True)
class ReinMaxRao(ConditionalRaces):
    """ReinMax with a Gumbel-Rao average in its first term: ``ĝ = (2/K) Σ_k J_τ(x^k) γ(z) − ½ J(p) γ(z)``. Biased.

    ``x^k`` are Gumbel races with probabilities ``(p + z)/2`` that z won, and ``J_τ(x) = J(softmax(x/τ))/τ``. The formula is
    that of code in circulation; it was not compared with the paper's own. It is not exact for quadratic losses, as ReinMax is.

    Cost: one exact sample, K noise tensors, one loss gradient.

    Args:
        temperature: τ, positive.
        num_conditionals: K, at least 1.

    References:
        Wang & Bui 2026, "Beyond ReinMax: low-variance gradient estimators for discrete latent variables", which puts Liu et al. 2023,
        section 4, and Paulus, Maddison & Krause 2021, section 3, together.

    Example:
        >>> import torch
        >>> from structgrad.oracles import Categorical
        >>> loss = lambda z: z @ torch.tensor([1.0, -0.5, 2.0])
        >>> scores, generator = torch.tensor([0.3, -0.2, 0.5]), torch.Generator().manual_seed(0)
        >>> estimates = ReinMaxRao().gradient(loss, Categorical(), scores.expand(100_000, 3), generator=generator)
        >>> round(float(estimates[:, 2].mean()), 2)  # the exact gradient is 0.38
        0.25
    """

    temperature: Positive = 1.0
    num_conditionals: Count = 10

    name: ClassVar[str] = "reinmax_rao"
    references: ClassVar[tuple[str, ...]] = ("wang2026beyond", "liu2023bridging", "paulus2021rao")

    def _pull_back(self, race: Race) -> PullBack:
        p = race.log_probs.exp()
        # A part of probability 0 keeps a logarithm that is finite, so that its race is lost by far and is no NaN.
        middle = ((p + race.sample) / 2).clamp(min=1e-300).log()
        relaxed = race.relaxed(self.num_conditionals, self.temperature, middle)
        return lambda gamma: 2 * relaxed(gamma) - softmax_product(p, gamma) / 2
