"""Relaxations without noise: structured attention, differentiable dynamic programming, and attention of each category by α-entmax."""

import abc
import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from ..oracles.capabilities import FactorisedOracle, MarginalOracle, RelaxedOracle
from ..oracles.numerics import share_rows
from ..oracles.options import Within
from ..oracles.simplex import projection
from ..oracles.transforms import operation
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


class Attention(Relaxation[FactorisedOracle]):
    """The loss sees ``p(θ)``, a mapping of every category's scores, with the exact gradient of ``L(p(θ))``.

    A subclass implements `mapping`.
    """

    deterministic = True

    @abc.abstractmethod
    def mapping(self, scores: Tensor) -> Tensor:
        """Probabilities along the last dimension, differentiable; 0 where a row has no allowed part."""

    calls = Evaluations(losses=1, loss_gradients=1)

    def structure(self, oracle: FactorisedOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        probabilities = self.mapping(scores)
        some = (share_rows(scores.detach(), oracle.event_ndim) > -math.inf).any(-1, keepdim=True)
        feasible = some.flatten(some.ndim - oracle.event_ndim).all(-1)
        return torch.where(feasible.reshape(*feasible.shape, *[1] * oracle.event_ndim), probabilities, 0)


@dataclass(frozen=True)
class Entmax(Attention, name="entmax", references=("peters2019sparse", "correia2019adaptively")):
    """α-entmax attention: ``L(p)`` at ``p = argmax ⟨p, θ⟩ + H_α(p)`` of each category. Deterministic.

    The Jacobian is ``diag(s) − ssᵀ/Σs`` with ``s = p^(2−α)`` on the support. Exact for its own, relaxed, objective; α = 1 is structured
    attention, α = 2 SparseMAP.

    Cost: a sort for α of 1.5 and 2, else 60 halvings; one loss gradient. No oracle call.

    Args:
        alpha: α, at least 1. The authors use 1.5.

    References:
        Peters, Niculae & Martins 2019, "Sparse sequence-to-sequence models", section 3.
    """

    alpha: Annotated[float, Within(least=1)] = 1.5

    version = 2

    def mapping(self, scores: Tensor) -> Tensor:
        return entmax(scores, float(self.alpha))


@operation(scores=1, alpha=0, gives="event")
def entmax(scores: Tensor, alpha: float | Tensor = 1.5) -> Tensor:
    """α-entmax along the last dimension: ``argmax_p ⟨p, θ⟩ + H_α(p)`` over the simplex, H_α the Tsallis entropy.

    ``p_i = [1 + (α − 1)(θ_i − t)]₊^(1/(α−1))``, with t such that they sum to 1: softmax in the limit α → 1, sparse for α > 1, sparsemax at
    α = 2. A score of -inf gives 0, a row without any other gives 0 throughout. Computed in float64. Differentiable, twice and more, in the
    scores, with Jacobian ``diag(s) − ssᵀ/Σs`` for ``s = p^(2−α)`` on the support, and in α.

    Cost: a sort where α is the number 1.5 or 2; else 60 halvings of an interval that holds one probability.

    Args:
        scores: ``[*batch, n]``.
        alpha: at least 1; a tensor that broadcasts to ``[*batch]`` may require a gradient.

    References:
        Peters, Niculae & Martins 2019, "Sparse sequence-to-sequence models", sections 3 and 4, algorithm 2; Correia, Niculae & Martins
        2019, "Adaptively sparse transformers", proposition 1 (the derivative in α).

    Example:
        >>> scores = torch.tensor([1.0, 0.8, -0.2])
        >>> entmax(scores, 2.0), entmax(scores, 1.5)
        (tensor([0.6000, 0.4000, 0.0000]), tensor([0.5589, 0.4194, 0.0218]))

        A row learns how sparse it is:

        >>> alpha = torch.tensor(1.5, requires_grad=True)
        >>> entmax(scores, alpha)[2].backward()
        >>> bool(alpha.grad < 0)  # more of α, less of the last part
        True
    """
    rows = checked_rows("entmax", scores)
    known = None if isinstance(alpha, Tensor) else float(alpha)
    each = alpha if isinstance(alpha, Tensor) else rows.new_full((), float(alpha))
    # Values are looked at on the CPU alone.
    if not (each.device.type != "cpu" if known is None else 1 <= known < math.inf) and not bool(((each >= 1) & (each < math.inf)).all()):
        raise ValueError(f"`entmax` got alpha={alpha}; expected finite numbers of at least 1")
    result: Tensor = _Entmax.apply(rows, each.to(rows).unsqueeze(-1), known)  # type: ignore[no-untyped-call]
    return result.to(scores.dtype)


def checked_rows(call: str, scores: Tensor) -> Tensor:
    """The scores in float64, or ValueError; values are looked at on the CPU alone: elsewhere it would synchronise."""
    if not isinstance(scores, Tensor) or not scores.is_floating_point() or scores.ndim < 1 or scores.shape[-1] < 1:
        got = f"dtype {scores.dtype}, shape {tuple(scores.shape)}" if isinstance(scores, Tensor) else type(scores).__name__
        raise ValueError(f"`{call}` got scores of {got}; expected a floating-point torch.Tensor [*batch, n]")
    if scores.device.type == "cpu" and not bool((share_rows(scores.detach(), 1) < math.inf).all()):
        raise ValueError(f"`{call}` got scores with NaN or +inf; expected finite scores, or -inf for a forbidden part")
    return scores.double()


class _Entmax(torch.autograd.Function):
    """Rows [*batch, n] and α [*batch, 1], which broadcast; ``known`` is α where it is a number."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, alpha: Tensor, known: float | None) -> Tensor:
        ctx.shape = rows.shape
        p = _solved(share_rows(rows, 1), alpha, known).expand(torch.broadcast_shapes(rows.shape, (*alpha.shape[:-1], 1)))
        ctx.save_for_backward(p, alpha)
        return p

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None]:
        p, alpha = ctx.saved_tensors
        support = p > 0
        inside = torch.where(support, p, 1)
        logarithms = torch.where(support, (2 - alpha) * inside.log(), -math.inf)
        # Measured from the part of the greatest weight, which may outweigh the others by more than rounding leaves of a difference.
        heaviest = logarithms.detach().argmax(-1, keepdim=True)
        shares = torch.where(support, (logarithms - logarithms.gather(-1, heaviest)).exp(), 0)
        centred = grads[0] - grads[0].gather(-1, heaviest)
        centred = centred - (shares * centred).sum(-1, keepdim=True) / shares.sum(-1, keepdim=True).clamp(min=1)
        others = (logarithms.exp().clamp(max=1e300) * centred).scatter(-1, heaviest, 0)
        of_scores = others.scatter(-1, heaviest, -others.sum(-1, keepdim=True)).sum_to_size(ctx.shape)
        if not ctx.needs_input_grad[1]:
            return of_scores, None, None
        rates = torch.where(support, _rate_in_alpha(inside, alpha - 1), 0)
        return of_scores, (rates * centred).sum_to_size(alpha.shape), None


def _solved(rows: Tensor, alpha: Tensor, known: float | None) -> Tensor:
    if known == 2:
        flat: Tensor = projection.project(rows.reshape(-1, rows.shape[-1]), 1)[0]
        return flat.reshape(rows.shape)
    top = rows.amax(-1, keepdim=True)
    feasible = top > -math.inf
    shifted = rows - torch.where(feasible, top, 0)
    if known == 1:
        return torch.where(feasible, shifted, -math.inf).softmax(-1).nan_to_num(0)
    p = _by_sorting(shifted) if known == 1.5 else projection.by_halving(shifted, alpha - 1)
    return torch.where(feasible, p, 0)


def _by_sorting(shifted: Tensor) -> Tensor:
    """α = 1.5 of rows whose greatest score is 0: ``[θ/2 − τ]₊²``; the k best are the support for one k."""
    halves = (shifted / 2).clamp(min=-2)  # nothing at -1 or below is in the support
    order = halves.sort(-1, descending=True).values
    place = torch.arange(1, order.shape[-1] + 1, device=order.device, dtype=order.dtype)
    mean = order.cumsum(-1) / place
    spread = order.square().cumsum(-1) - place * mean.square()
    threshold = mean - ((1 - spread) / place).clamp(min=0).sqrt()
    size = (threshold <= order).sum(-1, keepdim=True).clamp(min=1)
    return (halves - threshold.gather(-1, size - 1)).clamp(min=0).square()


def _rate_in_alpha(p: Tensor, excess: Tensor) -> Tensor:
    """``∂p_i/∂α`` at fixed t, up to a multiple of the weights, which the change of t takes away.

    With ``y = (α−1) log p``: ``p (1 − y)/(α−1)²`` where α is at least 2, else ``p (1 − y − e^(−y))/(α−1)²``, by a series where y is small.
    """
    y = excess * p.log()
    steep, small = excess >= 1, y.abs() < 0.1
    series = torch.zeros_like(y)
    for k in range(9, -1, -1):
        series = 1 / math.factorial(k + 2) - y * series
    safe = torch.where(small | steep, 1, y)
    gentle = -p * p.log().square() * torch.where(small, series, (torch.expm1(-safe) + safe) / safe.square())
    return torch.where(steep, p * (1 - y) / torch.where(steep, excess, 1).square(), gentle)
