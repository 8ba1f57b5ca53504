"""Gumbel-CRF: the walk that draws a structure, with a Gumbel-softmax at every choice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ...oracles.capabilities import Oracle, RelaxedOracle
from ...oracles.options import Positive
from ..base import Evaluations, Objective, PathwiseEstimator


class RelaxedWalk(PathwiseEstimator[RelaxedOracle]):
    """A walk through the recursion whose every choice is a Gumbel-softmax."""

    temperature: float

    version: ClassVar[int] = 2
    needs: ClassVar[tuple[type[Oracle], ...]] = (RelaxedOracle,)
    linear: ClassVar[bool] = True

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=1, loss_gradients=1, relaxations=1)


@dataclass(frozen=True)
class GumbelCRF(RelaxedWalk):
    """Gumbel-CRF: the loss sees a relaxed sample y of the Gibbs law, and the scores its derivative.

    The sample is drawn from the last choice of the recursion to the first, each a Gumbel-softmax of the exact messages (see
    `RelaxedOracle.relaxed_sample`); for τ → 0 it is an exact sample, unlike that of perturbed scores. Unbiased for its relaxed objective
    ``E L(y)``, biased for that of structures.

    Cost: one relaxed sample (two passes of the recursion) and the derivative through both, one loss gradient.

    Args:
        temperature: τ of every choice, positive. The authors lower it from 1 to .01.

    References:
        Fu, Tan, Bi, Hu & Rush 2020, "Latent template induction with Gumbel-CRFs", algorithm 2.

    Example:
        >>> from structgrad.oracles import LinearChain
        >>> scores = LinearChain.from_potentials(torch.tensor([[0.0, 0.4], [3.0, 0.0]]), torch.zeros(2, 2))
        >>> y = GumbelCRF().structure(LinearChain(), scores, generator=torch.Generator().manual_seed(0))
        >>> y.sum((-2, -1))  # one transition each
        tensor([1., 1.])
    """

    temperature: Positive = 1.0

    name: ClassVar[str] = "gumbel_crf"
    references: ClassVar[tuple[str, ...]] = ("fu2020latent",)
    objective: ClassVar[Objective] = "relaxed"
    unbiased: ClassVar[bool] = True
    inside_hull: ClassVar[bool] = True

    def structure(self, oracle: RelaxedOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        return oracle.relaxed_sample(scores, self.temperature, generator=generator)


@dataclass(frozen=True)
class StraightThroughGumbelCRF(RelaxedWalk):
    """Straight-through Gumbel-CRF: forward an exact sample z of the Gibbs law, backward that of the Gumbel-softmax at every choice. Biased.

    Every choice of the walk is hard in the forward, and so the choices that condition on it are those of z.

    Cost: one relaxed sample (two passes of the recursion) and the derivative through both, one loss gradient.

    Args:
        temperature: τ of the backward, positive. The authors lower it from 1 to .01.

    References:
        Fu, Tan, Bi, Hu & Rush 2020, "Latent template induction with Gumbel-CRFs", algorithm 2, straight-through.

    Example:
        >>> from structgrad.oracles import LinearChain
        >>> scores = LinearChain.from_potentials(torch.tensor([[0.0, 0.4], [3.0, 0.0]]), torch.zeros(2, 2))
        >>> z = StraightThroughGumbelCRF().structure(LinearChain(), scores.expand(10_000, 2, 2, 2), generator=torch.Generator())
        >>> bool(((z == 0) | (z == 1)).all()), [round(p, 1) for p in z.mean(0)[0, 0].tolist()]
        (True, [0.4, 0.6])
    """

    temperature: Positive = 1.0

    name: ClassVar[str] = "gumbel_crf_st"
    references: ClassVar[tuple[str, ...]] = ("fu2020latent",)
    objective: ClassVar[Objective] = "expected"

    def structure(self, oracle: RelaxedOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        return oracle.relaxed_sample(scores, self.temperature, hard=True, generator=generator)
