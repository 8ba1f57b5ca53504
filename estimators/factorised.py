"""Independent categories: log-probabilities, Gumbel races, and score functions with the choices of a category summed out."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..oracles.capabilities import FactorisedOracle, Oracle
from ..oracles.capabilities.base import FORBIDDEN
from ..oracles.capabilities.derivatives import unsqueeze_event
from ..oracles.magnitudes import beyond_memory, counted
from ..oracles.options import Count, Peers
from .base import Evaluations, UnbiasedEstimator
from .noise import Gumbel
from .score_function import with_slopes
from .surrogates import Loss, evaluate, with_gradient

PullBack = Callable[[Tensor], Tensor]
"""From γ to the estimate, both float64 ``[*batch, *event]``."""


def moving_categories(oracle: Oracle, scores: Tensor) -> Tensor:
    """Boolean ``[*batch, *event]``: the parts that carry gradient, which are those of categories with a choice, in feasible rows."""
    possible = possible_parts(oracle, scores)
    return possible & (possible.sum(-1, keepdim=True) > 1)


def possible_parts(oracle: Oracle, scores: Tensor) -> Tensor:
    """Boolean ``[*batch, *event]``: the parts of positive probability, none in infeasible rows."""
    if oracle.forbids_nothing(scores):
        return torch.ones_like(scores, dtype=torch.bool)
    free = oracle.free_parts(scores)
    return free & _feasible(free, oracle.event_ndim)


def with_estimate(values: Tensor, oracle: Oracle, scores: Tensor, estimate: Tensor) -> Tensor:
    """Values ``[*batch]``, whose gradient in the scores is the estimate, ``[*batch, *event]``, where categories have a choice."""
    return with_gradient(values, scores, torch.where(moving_categories(oracle, scores), estimate, 0).to(scores.dtype))


def log_probabilities(oracle: Oracle, scores: Tensor) -> Tensor:
    """Float64 log-softmax along the last dimension, differentiable.

    A forbidden part has a huge negative number in place of -inf, so that no derivative is NaN; an infeasible row is uniform and constant.
    """
    if oracle.forbids_nothing(scores):
        return scores.double().log_softmax(-1)
    free = oracle.free_parts(scores)
    return scores.double().masked_fill(~free, FORBIDDEN).masked_fill(~_feasible(free, oracle.event_ndim), 0).log_softmax(-1)


def _feasible(free: Tensor, event_ndim: int) -> Tensor:
    """Boolean ``[*batch, 1...]``: whether every category has a part that is free."""
    some = free.any(-1, keepdim=True)
    for dim in range(-event_ndim, -1):
        some = some.all(dim, keepdim=True)
    return some


def gumbels(oracle: Oracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
    """Float64 Gumbel noise ``[*batch, *event]``."""
    return Gumbel().draw(oracle, scores, generator=generator)


def conditional_race(log_probs: Tensor, sample: Tensor, noise: Tensor) -> Tensor:
    """``log p + G`` given that the sample won the race, from Gumbel noise without conditions; differentiable.

    The maximum is a Gumbel variable of location 0 whichever part wins, and the others are Gumbel variables cut off there:
    ``x_D = G_D`` and ``x_j = −log(e^{−G_D} + e^{−log p_j − G_j})``.
    """
    return (sample * noise).sum(-1, keepdim=True) - _behind(log_probs, sample, noise)


def _behind(log_probs: Tensor, sample: Tensor, noise: Tensor) -> Tensor:
    """``x_D − x``, how far every part is behind the winner: ``log(1 + e^{G_D − G_j}/p_j)``, and 0 for the winner."""
    won = sample > 0
    best = noise.gather(-1, won.to(torch.uint8).argmax(-1, keepdim=True).expand(*noise.shape[:-1], 1))
    return torch.nn.functional.softplus(best - noise - log_probs, threshold=40).masked_fill(won, 0)


def softmax_product(probabilities: Tensor, vector: Tensor) -> Tensor:
    """``(diag y − y yᵀ) v`` along the last dimension."""
    return probabilities * (vector - (probabilities * vector).sum(-1, keepdim=True))


@dataclass(frozen=True)
class LocalExpectation(
    UnbiasedEstimator[FactorisedOracle], name="local_expectation", references=("titsias2015local", "desmet2023differentiable")
):
    """Local expectation gradients, also IndeCateR: ``ĝ_ic = (1/N) Σ_n p_ic (L(z_n^{i→c}) − Σ_m p_im L(z_n^{i→m}))``. Unbiased.

    ``z^{i→c}`` is a sample whose category i has part c, and the others what they were drawn with: category by category it is REINFORCE with
    the own choice integrated out, so that its variance is never above that of REINFORCE on the same samples. A single category is exact.

    Cost: N samples; the loss on each of them and on every structure that differs from it in one category, ``n (C − 1) + 1`` for n
    categories of C parts; values of the loss suffice.

    References:
        Titsias & Lázaro-Gredilla 2015, "Local expectation gradients for black box variational inference"; De Smet, Sansone & Zuidberg Dos
        Martires 2023, "Differentiable sampling of categorical distributions using the CatLog-derivative trick". The formula is that of the
        latter's code (``indecater_grads``), where all categories share their samples, as here.
    """

    num_samples: Count = 1

    def evaluations(self) -> Evaluations:
        return Evaluations(samples=self.num_samples, alternatives=self.num_samples)

    def _limitation(self, oracle: FactorisedOracle, event_shape: tuple[int, ...]) -> str | None:
        changed = self.num_samples * math.prod(event_shape[:-1]) * (event_shape[-1] - 1)
        beyond = beyond_memory(8.0 * changed * math.prod(event_shape))
        return f"{self.name} takes the loss on {counted(changed)} structures at a time, {beyond}" if beyond else None

    def surrogate(self, loss: Loss, oracle: FactorisedOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        samples = oracle.sample(scores, self.num_samples, generator=generator)
        losses = evaluate(loss, samples, oracle.event_ndim)
        values = with_one_changed(loss, oracle, scores.detach(), samples, losses.detach().double())
        p = log_probabilities(oracle, scores.detach()).exp()
        estimate = (p * (values - (p * values).sum(-1, keepdim=True))).mean(0)
        return with_estimate(losses.mean(0), oracle, scores, estimate)


def with_one_changed(loss: Loss, oracle: FactorisedOracle, scores: Tensor, samples: Tensor, losses: Tensor) -> Tensor:
    """``L(z^{i→c})``, float64 ``[N, *batch, *event]``, as the distance from ``L(z)``: a large offset does not cancel.

    A part of probability 0 is never shown to the loss, and has distance 0. The losses are those of the samples, in float64.
    """
    parts = samples.shape[-1]
    categories = math.prod(scores.shape[losses.ndim - 1 : -1])
    flat = (*losses.shape, categories, parts)
    possible = possible_parts(oracle, scores).expand_as(samples).reshape(flat)
    chosen = samples.reshape(flat).argmax(-1)
    distances = torch.zeros(possible.shape, dtype=torch.float64, device=samples.device)
    if parts == 1:
        return distances.reshape(samples.shape)
    # [shift, category, N, *batch]: which part the category gets in place of its own.
    shifts = torch.arange(1, parts, device=samples.device).reshape(-1, *[1] * chosen.ndim)
    others = (chosen + shifts) % parts
    others = torch.where(possible.gather(-1, others.movedim(0, -1)).movedim(-1, 0), others, chosen)
    own = torch.eye(categories, dtype=torch.bool, device=samples.device).reshape(categories, *[1] * losses.ndim, categories)
    changed = torch.where(own, others.unsqueeze(1), chosen)
    with torch.no_grad():
        structures = torch.nn.functional.one_hot(changed, parts).to(samples.dtype).reshape(*changed.shape[:2], *samples.shape)
        found = evaluate(loss, structures, oracle.event_ndim).double() - losses
    # [shift, category, N, *batch] to the places of the parts; where the own part stood in, it adds nothing.
    return distances.scatter_add_(-1, others.movedim(0, -1), found.movedim((0, 1), (-1, -2))).reshape(samples.shape)


@dataclass(frozen=True)
class Rodeo(UnbiasedEstimator[FactorisedOracle], name="rodeo", references=("shi2022gradient",)):
    """RODEO: ``ĝ = (1/N) Σ_i (L(z_i) − mean_{j≠i}(L + α A h_j)(z_j)) s_i + β A(h_i s)(z_i)``, A of mean 0 under p. Unbiased.

    ``A f(z) = Σ_c (Σ_m p_cm f(z^{c→m}) − f(z))`` is the Gibbs Stein operator, one resampled category at a time, and s the score. ``h_i`` is
    built from the *other* samples alone, so that both corrections have mean 0: here it is ``h_i(z) = ⟨γ̄, z − p⟩`` with their mean gradient
    γ̄, where the authors send it through a network that they train along, with α and β. Of an h that is linear both have a closed form,
    without losses of the neighbours: ``A h(z) = −h(z)``, and for category c ``A(h s) = Cov γ̄_c + (⟨γ̄_c, s_c⟩ − 2 h(z)) s_c``.

    At α = 1, β = ½ a linear loss keeps half of its variance within each category, and none between categories.

    Args:
        alpha: α, of the control of the baseline. The operator is a sum over categories; that of the authors is the mean.
        beta: β, of the control of the estimate.

    References:
        Shi, Zhou, Hwang, Titsias & Mackey 2022, "Gradient estimation with discrete Stein operators"; the formula is that of the authors'
        code for bits (``discrete_stein_oldavg``) with the identity for its network, and with as many parts as there are.
    """

    alpha: float = 1.0
    beta: float = 0.5
    num_samples: Peers = 2

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=self.num_samples, loss_gradients=self.num_samples, samples=self.num_samples)

    def surrogate(self, loss: Loss, oracle: FactorisedOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        samples = oracle.sample(scores, self.num_samples, generator=generator)
        losses, slopes = with_slopes(self.name, loss, samples, oracle.event_ndim)
        p, slopes = log_probabilities(oracle, scores.detach()).exp(), slopes.double()
        others = (slopes.sum(0) - slopes) / (self.num_samples - 1)
        score = samples.double() - p
        within = (others * score).sum(-1, keepdim=True)
        across = within.sum(tuple(range(-oracle.event_ndim, 0)), keepdim=True)
        values = unsqueeze_event(losses.detach().double(), oracle.event_ndim)
        controlled = values - self.alpha * across
        baseline = (controlled.sum(0) - controlled) / (self.num_samples - 1)
        control = softmax_product(p, others) + (within - 2 * across) * score
        return with_estimate(losses.mean(0), oracle, scores, ((values - baseline) * score + self.beta * control).mean(0))
