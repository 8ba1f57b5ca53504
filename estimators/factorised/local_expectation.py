"""Local expectations: every category summed out exactly, around one sample of the others."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ...oracles.capabilities import FactorisedOracle, Oracle
from ...oracles.magnitudes import beyond_memory, counted
from ...oracles.options import Count
from ..base import Estimator, Evaluations, Loss, Objective, evaluate, with_gradient
from .common import log_probabilities, moving_categories, possible_parts


@dataclass(frozen=True)
class LocalExpectation(Estimator[FactorisedOracle]):
    """Local expectation gradients, also IndeCateR: ``ĝ_ic = (1/N) Σ_n p_ic (L(z_n^{i→c}) − Σ_m p_im L(z_n^{i→m}))``. Unbiased.

    ``z^{i→c}`` is a sample whose category i has part c, and the others what they were drawn with: category by category it is REINFORCE with
    the own choice integrated out, so that its variance is never above that of REINFORCE on the same samples. A single category is exact.

    Cost: N samples; the loss on each of them and on every structure that differs from it in one category, ``n (C − 1) + 1`` for n
    categories of C parts; values of the loss suffice.

    Args:
        num_samples: N, at least 1.

    References:
        Titsias & Lázaro-Gredilla 2015, "Local expectation gradients for black box variational inference"; De Smet, Sansone & Zuidberg Dos
        Martires 2023, "Differentiable sampling of categorical distributions using the CatLog-derivative trick". The formula is that of the
        latter's code (``indecater_grads``), where all categories share their samples, as here.

    Example:
        >>> from structgrad.oracles import IndependentCategoricals
        >>> scores, generator = torch.tensor([[0.0, 0.5], [0.0, -1.0]]), torch.Generator().manual_seed(0)
        >>> loss = lambda z: (z[..., 1].sum(-1) - 0.3).square()
        >>> estimates = LocalExpectation().gradient(loss, IndependentCategoricals(), scores.expand(100_000, 2, 2), generator=generator)
        >>> [round(value, 2) for value in estimates.mean(0)[:, 1].tolist()]  # σ(1 − σ)(1 − 2·0.3 + 2·(the other's σ))
        [0.22, 0.32]
    """

    num_samples: Count = 1

    name: ClassVar[str] = "local_expectation"
    references: ClassVar[tuple[str, ...]] = ("titsias2015local", "desmet2023differentiable")
    needs: ClassVar[tuple[type[Oracle], ...]] = (FactorisedOracle,)
    objective: ClassVar[Objective] = "expected"
    unbiased: ClassVar[bool] = True

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
        estimate = torch.where(moving_categories(oracle, scores), estimate, 0)
        return with_gradient(losses.mean(0), scores, estimate.to(scores.dtype))


def with_one_changed(loss: Loss, oracle: FactorisedOracle, scores: Tensor, samples: Tensor, losses: Tensor) -> Tensor:
    """``L(z^{i→c})``, float64 ``[N, *batch, *event]``, as the distance from ``L(z)``: a large offset does not cancel.

    Args:
        loss: the loss.
        oracle: independent categories.
        scores: ``[*batch, *event]``; a part of probability 0 is never shown to the loss, and has distance 0.
        samples: ``[N, *batch, *event]``.
        losses: of the samples, float64 ``[N, *batch]``.
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
