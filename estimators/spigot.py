"""SPIGOT and its relatives: projected steps of descent in the polytope."""

import math
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from ..oracles.capabilities import MarginalOracle, ProjectionOracle
from ..oracles.capabilities.derivatives import unsqueeze_event
from ..oracles.options import Count, Positive, Within
from .base import Estimator, Evaluations, O, PathwiseEstimator
from .score_function import with_slopes
from .surrogates import Loss, evaluate, moving_parts, with_backward, with_gradient


@dataclass(frozen=True)
class SPIGOT(PathwiseEstimator[ProjectionOracle], name="spigot", tier="core", references=("peng2018backpropagating",)):
    """SPIGOT, structured projection of intermediate gradients: forward ``z = argmax θ``, backward ``ĝ = z − P(z − η γ)``.

    P is the Euclidean projection on the marginal polytope (the authors project on a relaxation of it). The estimate is 0 exactly where z
    already minimises ``⟨γ, ·⟩``; it is bounded by the polytope's diameter, and its scale is η.

    Args:
        step_size: η, positive. The authors use 1.
        max_norm: γ, of the free parts, is scaled down to this norm first. The authors use 1; the default does not clip.

    References:
        Peng, Thomson & Smith 2018, "Backpropagating through structured argmax using a SPIGOT", section 3.2.

    Example:
        >>> loss, scores = lambda z: z @ torch.tensor([1.0, -0.5, 2.0]), torch.tensor([0.3, -0.2, 0.5])
        >>> SPIGOT(step_size=0.1).gradient(loss, "categorical", scores, generator=torch.Generator())
        tensor([ 0.0000, -0.1250,  0.1250])
    """

    step_size: Positive = 1.0
    max_norm: Annotated[float, Within(above=0, infinite=True)] = math.inf

    objective = "argmax"
    deterministic = True

    @property
    def scale(self) -> float:
        return self.step_size

    calls = Evaluations(losses=1, loss_gradients=1, argmax=1, projections=1)

    def structure(self, oracle: ProjectionOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        best = oracle.argmax(scores)
        moving = moving_parts(best, scores, oracle)

        def pull_back(gamma: Tensor) -> Tensor:
            step = self.step_size * self._clipped(torch.where(moving, gamma, 0), oracle.event_ndim)
            return torch.where(moving, best - nearest_point(oracle, best - step, moving), 0)

        return with_backward(best, scores, pull_back)

    def _clipped(self, gamma: Tensor, event_ndim: int) -> Tensor:
        if self.max_norm == math.inf:
            return gamma
        norm = gamma.flatten(gamma.ndim - event_ndim).norm(dim=-1)
        return gamma * unsqueeze_event((self.max_norm / norm.clamp(min=1e-300)).clamp(max=1.0), event_ndim)


def nearest_point(oracle: ProjectionOracle, point: Tensor, moving: Tensor) -> Tensor:
    """The projection of a point on the hull of the structures that use moving parts alone; 0 in the other parts."""
    return torch.where(moving, oracle.project(torch.where(moving, point, -math.inf)).mean, 0)


class _MarginalsAndProjections(MarginalOracle, ProjectionOracle):
    """What `SPIGOTCE` needs, as a type."""


@dataclass(frozen=True)
class InnerDescent(Estimator[O]):
    """``ĝ = x_0 − x_T``: T steps of descent inside the hull, each with the γ of the point that it starts from.

    The value, and with it the gradient in the loss's own parameters, is that of the best structure.
    """

    step_size: Positive = 1.0
    inner_steps: Count = 1

    objective = "argmax"
    deterministic = True
    inside_hull = True

    @property
    def scale(self) -> float:
        return self.step_size * self.inner_steps

    def _travel(self, loss: Loss, oracle: Any, start: Tensor, moving: Tensor) -> tuple[Tensor, Tensor]:
        """The losses at the start, and ``x_0 − x_T`` of ``x_{t+1} = P(x_t − η γ(x_t))``, P the projection on the marginal polytope."""
        values, point = [], start
        for _ in range(self.inner_steps):
            losses, gamma = with_slopes(self.name, loss, point, oracle.event_ndim)
            values.append(losses)
            point = nearest_point(oracle, point - self.step_size * gamma, moving)
        return values[0], torch.where(moving, start - point, 0)


@dataclass(frozen=True)
class SPIGOTSteps(InnerDescent[ProjectionOracle], name="spigot_steps", references=("mihaylova2020understanding",)):
    """SPIGOT with several steps: ``z_0 = argmax θ``, ``z_{t+1} = P(z_t − η γ(z_t))``, ``ĝ = z_0 − z_T``. Biased; deterministic.

    With one step it is `SPIGOT`. A small step at a vertex follows the cone of feasible directions, and so does each one after it: in the
    limit the estimate is T times that of `SPIGOT`, and its scale ηT. From the second step on the loss is evaluated inside the hull.

    Args:
        step_size: η, positive; the authors try .1, 1 and 2. By default the T steps together are as long as the one of `SPIGOT`.
        inner_steps: T, at least 1; the authors try 1, 5 and 10.

    References:
        Mihaylova, Niculae & Martins 2020, "Understanding the mechanics of SPIGOT", the pulled-back updates of several steps.
    """

    step_size: Positive = 0.2
    inner_steps: Count = 5

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=self.inner_steps, loss_gradients=self.inner_steps, argmax=1, projections=self.inner_steps)

    def surrogate(self, loss: Loss, oracle: ProjectionOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        best = oracle.argmax(scores)
        value, estimate = self._travel(loss, oracle, best, moving_parts(best, scores, oracle))
        return with_gradient(value, scores, estimate)


@dataclass(frozen=True)
class SPIGOTCE(InnerDescent[_MarginalsAndProjections], name="spigot_ce", references=("mihaylova2020understanding",)):
    """SPIGOT for the cross-entropy: forward ``z = argmax θ``, backward ``ĝ = μ(θ) − P(μ(θ) − η γ(μ))``. Biased; deterministic.

    The descent starts at the marginals, where the cross-entropy to a target distribution has the gradient ``μ − target``; with several
    steps γ is taken anew at each. The marginals lie in the interior of the hull, so that a small step gives η times γ along the hull.

    Args:
        step_size: η, positive; the authors try .1, 1 and 2.
        inner_steps: T, at least 1; the authors try 1, 5 and 10. The scale is ηT.

    References:
        Mihaylova, Niculae & Martins 2020, "Understanding the mechanics of SPIGOT", SPIGOT-CE.
    """

    needs = (MarginalOracle, ProjectionOracle)

    def evaluations(self) -> Evaluations:
        return Evaluations(
            losses=self.inner_steps + 1, loss_gradients=self.inner_steps, argmax=1, marginals=1, projections=self.inner_steps
        )

    def surrogate(self, loss: Loss, oracle: _MarginalsAndProjections, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        best = oracle.argmax(scores)
        value = evaluate(loss, best, oracle.event_ndim)
        _, estimate = self._travel(loss, oracle, oracle.marginals(scores.detach()), moving_parts(best, scores, oracle))
        return with_gradient(value, scores, estimate)


@dataclass(frozen=True)
class SPIGOTEG(InnerDescent[MarginalOracle], name="spigot_eg", references=("mihaylova2020understanding",)):
    """SPIGOT by exponentiated gradient: forward ``z = argmax θ``, backward ``ĝ = μ(θ) − μ(θ − η γ(μ))``. Biased; deterministic.

    The step is one of mirror descent: it moves the scores, ``θ_{t+1} = θ_t − η γ(μ(θ_t))``, and needs no projection. It tends to
    ``η Cov(z) γ(μ)``, η times structured attention; for a linear loss it is the mean of `ImplicitMLE` with λ = η if the forward of that
    were an exact sample.

    Args:
        step_size: η, positive; the authors try .1, 1 and 2.
        inner_steps: T, at least 1; the authors try 1, 5 and 10. The scale is ηT.

    References:
        Mihaylova, Niculae & Martins 2020, "Understanding the mechanics of SPIGOT", SPIGOT-EG.

    Example:
        >>> loss, scores = lambda z: z @ torch.tensor([1.0, -0.5, 2.0]), torch.tensor([0.3, -0.2, 0.5])
        >>> SPIGOTEG(step_size=0.01).gradient(loss, "categorical", scores, generator=torch.Generator()) / 0.01
        tensor([-0.0374, -0.3472,  0.3845])
    """

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=self.inner_steps + 1, loss_gradients=self.inner_steps, argmax=1, marginals=self.inner_steps + 1)

    def surrogate(self, loss: Loss, oracle: MarginalOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        best = oracle.argmax(scores)
        value = evaluate(loss, best, oracle.event_ndim)
        moving, moved = moving_parts(best, scores, oracle), scores.detach()
        start = point = oracle.marginals(moved)
        for _ in range(self.inner_steps):
            gamma = with_slopes(self.name, loss, point, oracle.event_ndim)[1]
            moved = moved - self.step_size * torch.where(moving, gamma, 0)
            point = oracle.marginals(moved)
        return with_gradient(value, scores, torch.where(moving, start - point, 0))
