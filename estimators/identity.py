"""The negative identity, with the projection that removes what the best structure does not depend on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..oracles.capabilities import Oracle
from .base import Evaluations, Objective, PathwiseEstimator, Tier, moving_parts, with_backward
from .noise import AnyNoise, Gumbel


class ProjectedIdentity(PathwiseEstimator[Oracle]):
    """``γ`` pulled back through ``Π: θ → c / ‖c‖``, ``c = θ − mean θ``, over the free parts of each row: ``(I − 11ᵀ/n)(I − uuᵀ) γ / ‖c‖``.

    Π is what the best structure does not see, where all structures have the same number of parts: a shift and a positive factor. Where
    they have several (alignments), a shift of the scores changes the best structure; the forward is that of the scores as they are, and
    ``centre=False`` keeps Π from hiding that direction.
    """

    centre: bool
    normalise: bool

    linear: ClassVar[bool] = True

    def _through(self, oracle: Oracle, scores: Tensor, best: Tensor) -> Tensor:
        """``best``, with the backward through Π at scores that it is the best structure of."""
        moving, event = moving_parts(best, scores, oracle), tuple(range(-oracle.event_ndim, 0))
        free = torch.where(moving, scores, 0)
        count = moving.sum(event, keepdim=True).clamp(min=1)

        def centred(values: Tensor) -> Tensor:
            return torch.where(moving, values - values.sum(event, keepdim=True) / count, 0) if self.centre else values

        shifted = centred(free)
        norm, size = _norm(shifted, event), _norm(free, event)
        # Equal scores have no direction; centred, they are the rounding of their mean.
        lengthy = norm > 16 * torch.finfo(norm.dtype).eps * size
        inverse = torch.where(lengthy, 1 / torch.where(lengthy, norm, 1), 0)
        unit = shifted * inverse

        def pull_back(gamma: Tensor) -> Tensor:
            gamma = torch.where(moving, gamma, 0)
            if self.normalise:
                gamma = (gamma - unit * (unit * gamma).sum(event, keepdim=True)) * inverse
            return centred(gamma)

        return with_backward(best, scores, pull_back)


def _norm(values: Tensor, event: tuple[int, ...]) -> Tensor:
    return values.square().sum(event, keepdim=True).sqrt()


@dataclass(frozen=True)
class Identity(ProjectedIdentity):
    """Identity with projection: forward ``z = argmax θ``, backward ``ĝ = (I − 11ᵀ/n)(I − uuᵀ) γ(z) / ‖c‖``. Biased; deterministic.

    ``c = θ − mean θ`` over the free parts of each row and ``u = c / ‖c‖``. Equal scores give 0. (For a solver of least cost the authors
    hand −γ back, whence "negative identity": here argmax is a maximum.) Without both options it is `StraightThrough`. Where structures have
    different numbers of parts a shift does change the best one; the forward is then still the argmax of the scores as they are.

    Cost: one argmax, one loss gradient.

    Args:
        centre: project shifts out.
        normalise: project the scale out. The authors use both.

    References:
        Sahoo, Paulus, Vlastelica, Musil, Kuleshov & Martius 2023, "Backpropagation through combinatorial algorithms: identity with
        projection works", section 3.

    Example:
        >>> from structgrad.oracles import Categorical
        >>> loss = lambda z: z @ torch.tensor([1.0, -0.5, 2.0])
        >>> scores = torch.tensor([0.3, -0.2, 0.5])
        >>> Identity().gradient(loss, Categorical(), scores, generator=torch.Generator())
        tensor([-0.3520,  0.1006,  0.2514])
    """

    centre: bool = True
    normalise: bool = True

    name: ClassVar[str] = "identity"
    tier: ClassVar[Tier] = "core"
    references: ClassVar[tuple[str, ...]] = ("sahoo2023backpropagation",)
    objective: ClassVar[Objective] = "argmax"
    deterministic: ClassVar[bool] = True

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=1, loss_gradients=1, argmax=1)

    def structure(self, oracle: Oracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        return self._through(oracle, scores, oracle.argmax(scores))


@dataclass(frozen=True)
class PerturbedIdentity(ProjectedIdentity):
    """Identity with projection on noisy scores: forward ``z = argmax(θ + ε)``, backward γ through Π at ``θ + ε``. Biased.

    The noise comes before the projection, as in the authors' code, so that u and ‖c‖ are those of the noisy scores.

    Cost: one argmax, one noise tensor, one loss gradient.

    Args:
        noise: any `Noise`.
        centre: project shifts out.
        normalise: project the scale out. The authors use both.

    References:
        Sahoo et al. 2023, "Backpropagation through combinatorial algorithms: identity with projection works"; the
        order of noise and projection is that of the code.

    Example:
        >>> from structgrad.oracles import Categorical
        >>> loss = lambda z: z @ torch.tensor([1.0, -0.5, 2.0])
        >>> scores = torch.tensor([0.3, -0.2, 0.5]).expand(4, 3)
        >>> estimates = PerturbedIdentity().gradient(loss, Categorical(), scores, generator=torch.Generator())
        >>> bool((estimates.sum(-1).abs() < 1e-6).all())  # no shift
        True
    """

    noise: AnyNoise = Gumbel()
    centre: bool = True
    normalise: bool = True

    name: ClassVar[str] = "identity_perturbed"
    references: ClassVar[tuple[str, ...]] = ("sahoo2023backpropagation",)
    objective: ClassVar[Objective] = "perturbed"

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=1, loss_gradients=1, argmax=1, perturbations=1)

    def structure(self, oracle: Oracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        perturbed = self.noise.perturb(oracle, scores, generator=generator)
        return self._through(oracle, perturbed, oracle.argmax(perturbed))
