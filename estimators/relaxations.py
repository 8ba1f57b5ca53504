"""Relaxations without noise: structured attention and differentiable dynamic programming."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..oracles.capabilities import MarginalOracle, RelaxedOracle
from .base import Evaluations, Relaxation


@dataclass(frozen=True)
class StructuredAttention(Relaxation[MarginalOracle], name="structured_attention", tier="core", references=("kim2017structured",)):
    """Structured attention network: the loss sees the marginals, ``L(μ(θ))``, with the exact gradient ``Cov(z) γ(μ)``.

    Exact for its own, relaxed, objective; equal to the gradient of ``E L(z)`` where the loss is linear. Cost: one inside-outside pass and
    one more for the backward.

    References:
        Kim, Denton, Hoang & Rush 2017, "Structured attention networks", section 3.

    Example:
        >>> loss, scores = lambda z: z @ torch.tensor([1.0, -0.5, 2.0]), torch.tensor([0.3, -0.2, 0.5])
        >>> StructuredAttention().gradient(loss, "categorical", scores, generator=torch.Generator())
        tensor([-0.0390, -0.3454,  0.3843])
    """

    deterministic = True
    calls = Evaluations(losses=1, loss_gradients=1, marginals=1)

    def structure(self, oracle: MarginalOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        return oracle.marginals(scores)


@dataclass(frozen=True)
class DifferentiableDP(Relaxation[RelaxedOracle], name="differentiable_dp", references=("mensch2018differentiable",)):
    """Differentiable dynamic programming: ``L(E(θ))``, with ``E = ∇DP_Ω`` the gradient of the recursion whose maxima Ω smooths.

    E is the expected structure of a walk back through the recursion whose every step is drawn from a regularised maximum. Deterministic,
    and exact for its own, relaxed, objective: the backward is the Hessian of ``DP_Ω`` times γ. With the entropy, E is the marginals, and
    the estimate that of structured attention; with ``Ω(p) = ½‖p‖²`` every step is a sparsemax and E sparse, but not SparseMAP.

    Cost: one smoothed recursion and its gradient, one more of each for the backward; one loss gradient.

    Args:
        omega: ``"l2"`` or ``"entropy"``.

    References:
        Mensch & Blondel 2018, "Differentiable dynamic programming for structured prediction and attention", sections 3 and 4.

    Example:
        >>> from structgrad.oracles import LinearChain
        >>> scores, loss = LinearChain.from_potentials(torch.tensor([[0.0, 0.4], [3.0, 0.0]]), torch.zeros(2, 2)), lambda z: z[..., 0, 0, 1]
        >>> DifferentiableDP().gradient(loss, "linear_chain", scores, generator=torch.Generator())[0, 0]
        tensor([-0.5000,  0.5000])
    """

    omega: Literal["l2", "entropy"] = "l2"

    deterministic = True
    calls = Evaluations(losses=1, loss_gradients=1, relaxations=1)

    def structure(self, oracle: RelaxedOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        return oracle.relax(scores, self.omega)


def smoothed_maximum(
    oracle: RelaxedOracle, scores: Tensor, omega: Literal["l2", "entropy"] = "l2", *, lengths: Tensor | None = None
) -> Tensor:
    """``DP_Ω(θ)``, the smoothed best score, as a layer that hands on a value: ``[*batch]``, convex in the scores, of gradient ``E(θ)``.

    With the entropy it is the log-partition, at most the logarithm of the number of structures above the best score; with ½‖·‖² it lies
    below the best score, by at most ½ for every maximum on the way, of which there are more in padding (which adds a constant).
    ``DP_Ω(θ) − ⟨θ, y⟩`` is a convex loss, least where ``E(θ) = y``. ``-inf``, with gradient 0, for an infeasible item.

    Cost: one smoothed recursion.

    References:
        Mensch & Blondel 2018, section 3 (a smoothed value, as for soft dynamic time warping: Cuturi & Blondel 2017).

    Example:
        >>> from structgrad.oracles import LinearChain
        >>> scores = LinearChain.from_potentials(torch.tensor([[0.0, 0.4], [3.0, 0.0]]), torch.zeros(2, 2)).requires_grad_()
        >>> smoothed_maximum(LinearChain(), scores).backward()
        >>> scores.grad[0, 0]
        tensor([0.3000, 0.7000])
    """
    return oracle.relaxed_value(scores, omega, lengths=lengths)
