"""Several steps on the same samples: proximal policy optimisation with a clipped ratio, of structures and of actions."""

import abc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, TypeVar

import torch
from torch import Tensor

from ..oracles.capabilities import PolicyOracle, SamplingOracle
from ..oracles.capabilities.base import inner
from ..oracles.capabilities.derivatives import unsqueeze_event
from ..oracles.numerics import in_single
from ..oracles.options import Count, Positive, Within
from .base import Estimator, Evaluations, check_call
from .surrogates import Loss, carry, evaluate, with_gradient


@dataclass(frozen=True, eq=False)
class Rollout:
    """Samples that several updates go over."""

    samples: Tensor  # [N, *batch, *event], drawn at the old scores
    advantages: Tensor  # [N, *batch], R = L(z) − b: minimised
    log_probs: Tensor  # at the old scores, of every sample [N, *batch] or of every action [*batch, *event]


S = TypeVar("S", bound=SamplingOracle)


@dataclass(frozen=True)
class ClippedUpdates(Estimator[S]):
    """Several steps of gradient descent over the same samples; a subclass says what is clipped, a sample or each of its actions.

    In training, `rounds` gives a surrogate for each of k steps in the model's parameters. The first carries the gradient of the losses in
    their own parameters; the later ones know the losses as numbers.
    """

    inner_steps: Count = 4
    step_size: Positive = 0.1
    clip: Annotated[float, Within(above=0, below=1)] = 0.2
    value: float = 0.0
    num_samples: Count = 1

    objective = "expected"

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=self.num_samples, marginals=self.inner_steps, samples=self.num_samples)

    @abc.abstractmethod
    def _log_probs(self, oracle: S, samples: Tensor, scores: Tensor) -> Tensor:
        """What a `Rollout` keeps."""

    @abc.abstractmethod
    def _clipped(self, rollout: Rollout, log_probs: Tensor, event_ndim: int) -> Tensor:
        """[*batch], the clipped objective."""

    def surrogate(self, loss: Loss, oracle: S, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        samples = oracle.sample(scores, self.num_samples, generator=generator)
        losses = evaluate(loss, samples, oracle.event_ndim)
        rollout, theta, total = None, scores.detach(), torch.zeros_like(scores)
        for _ in range(self.inner_steps):
            with torch.enable_grad():
                leaf = theta.detach().requires_grad_()
                log_probs = self._log_probs(oracle, samples, leaf)
                rollout = rollout or Rollout(samples, losses.detach() - self.value, log_probs.detach())
                (step,) = torch.autograd.grad(self._clipped(rollout, log_probs, oracle.event_ndim).sum(), leaf)
            theta, total = theta - self.step_size * step, total + step
        return with_gradient(losses.mean(0), scores, total / self.inner_steps)

    def rounds(self, loss: Loss, oracle: S, scores: Callable[[], Tensor], *, generator: torch.Generator) -> Iterator[Tensor]:
        """``inner_steps`` surrogates on the same samples."""
        (oracle,) = check_call(self.name, oracle=oracle)
        losses, log_probs, rollout = self._drawn(loss, oracle, scores(), generator)
        yield carry(losses.mean(0), self._clipped(rollout, log_probs, oracle.event_ndim))
        for _ in range(self.inner_steps - 1):
            yield carry(losses.detach().mean(0), self.inner_objective(rollout, oracle, scores()))

    @torch.no_grad()
    def rollout(self, loss: Loss, oracle: S, scores: Tensor, *, generator: torch.Generator) -> Rollout:
        """N samples at these scores with their advantages, for later steps of a model to go over."""
        return self._drawn(loss, oracle, scores, generator)[2]

    def _drawn(self, loss: Loss, oracle: S, scores: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Rollout]:
        """The losses of N samples, what a `Rollout` keeps of the scores, differentiable, and the rollout."""
        given = self._prepared({"loss": loss, "oracle": oracle, "scores": scores, "generator": generator})
        oracle, samples = given["oracle"], given["oracle"].sample(given["scores"], self.num_samples, generator=generator)
        losses, log_probs = evaluate(given["loss"], samples, oracle.event_ndim), self._log_probs(oracle, samples, given["scores"])
        return losses, log_probs, Rollout(samples, losses.detach() - self.value, log_probs.detach())

    def inner_objective(self, rollout: Rollout, oracle: S, scores: Tensor) -> Tensor:
        """``[*batch]``, to be minimised over whatever gives the scores; at those of the rollout its gradient is that of REINFORCE."""
        (oracle,) = check_call(self.name, oracle=oracle)
        return self._clipped(rollout, self._log_probs(oracle, rollout.samples, in_single(scores, oracle.event_ndim)), oracle.event_ndim)


@dataclass(frozen=True)
class ProximalPolicy(ClippedUpdates[SamplingOracle], name="reinforce_ppo", references=("schulman2017proximal", "havrylov2019cooperative")):
    """PPO with clipping: minimise ``(1/N) Σ max(r_i R_i, clip(r_i, 1−ε, 1+ε) R_i)``, with ``r = p_new/p_old`` and ``R = L(z) − b``.

    The gradient of a sample is ``r R ∇ log p``, and 0 once its ratio has left the interval in the direction that R asks for: where
    ``R > 0`` and ``r < 1 − ε``, or ``R < 0`` and ``r > 1 + ε``.

    As an estimator: samples are drawn at θ, k steps ``θ_{t+1} = θ_t − η g_t`` go over them, and ``ĝ = (1/k) Σ g_t`` is what these steps
    moved the scores by, per step and learning rate. The first g is REINFORCE with a constant baseline, which is unbiased; the later ones
    look at the samples again, and are biased. A model is trained by `train_step`, which takes the inner steps in its parameters; by hand,
    `rollout` and `inner_objective` do.

    Args:
        inner_steps: k. The authors take 15 (in a model's parameters); 4 here, a common number of epochs over the same samples.
        step_size: η of the inner steps in the scores.
        clip: ε, between 0 and 1.
        value: b, a constant baseline.

    References:
        Schulman, Wolski, Dhariwal, Radford & Klimov 2017, "Proximal policy optimization algorithms", equation 7;
        Havrylov, Kruszewski & Joulin 2019, "Cooperative learning of disjoint syntax and semantics", section 3.2.

    Example:
        >>> from structgrad.oracles import Subset
        >>> oracle, target = Subset(2), torch.tensor([1.0, 0.0, 0.0, 1.0])
        >>> loss = lambda z: (z - target).square().sum(-1)
        >>> from structgrad.estimators import StructuredLayer, train_step
        >>> scores, layer = torch.zeros(8, 4, requires_grad=True), StructuredLayer(oracle, ProximalPolicy(value=2.0))
        >>> optimiser = torch.optim.SGD([scores], lr=2.4)
        >>> for _ in range(30):
        ...     values = train_step(layer, optimiser, lambda: scores, loss)
        >>> loss(oracle.argmax(scores)).max()
        tensor(0.)
    """

    def _log_probs(self, oracle: SamplingOracle, samples: Tensor, scores: Tensor) -> Tensor:
        return oracle.log_prob(samples, scores)

    def _clipped(self, rollout: Rollout, log_probs: Tensor, event_ndim: int) -> Tensor:
        drawn = rollout.log_probs > -torch.inf
        ratios = torch.where(drawn, log_probs - rollout.log_probs, 0).exp()
        clipped = ratios.clamp(1 - self.clip, 1 + self.clip)
        return torch.maximum(ratios * rollout.advantages, clipped * rollout.advantages).mean(0)


@dataclass(frozen=True)
class StepPPO(ClippedUpdates[PolicyOracle], name="step_ppo", references=("schulman2017proximal", "havrylov2019cooperative")):
    """PPO, clipped action by action: descend ``(1/N) Σ_i Σ_t max(r_t R_i, clip(r_t, 1 − ε, 1 + ε) R_i)`` several times on the same samples.

    ``r_t = π_new(a_t|s_t) / π_old(a_t|s_t)`` and ``R = L − b``. An action adds nothing once it has become less likely by more than ε where
    R > 0, or more likely where R < 0. The estimate is the mean of ``inner_steps`` gradients: the first at the scores, which is
    `step_reinforce` exactly, the others after steps of size ``step_size`` down the gradients before. Biased after the first.

    Options are those of `ProximalPolicy`, and so is the way in which a model is trained.

    References:
        Schulman et al. 2017, equation 7; Havrylov, Kruszewski & Joulin 2019, section 3.3 (ε = 0.2, 15 steps).
    """

    def _log_probs(self, oracle: PolicyOracle, samples: Tensor, scores: Tensor) -> Tensor:
        return oracle.step_log_probs(scores)

    def _clipped(self, rollout: Rollout, log_probs: Tensor, event_ndim: int) -> Tensor:
        taken = rollout.samples != 0
        ratios = (torch.where(taken, log_probs, 0) - torch.where(taken, rollout.log_probs, 0)).exp()
        advantages = unsqueeze_event(rollout.advantages, event_ndim)
        worse = torch.maximum(ratios * advantages, ratios.clamp(1 - self.clip, 1 + self.clip) * advantages)
        return inner(rollout.samples, worse, event_ndim).mean(0)
