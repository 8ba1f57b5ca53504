"""REINFORCE and straight-through, each with one law broken."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from structgrad.estimators import LeaveOneOut, Reinforce, Simple, StraightThrough, StructuredAttention
from structgrad.estimators.base import Estimator, Evaluations, Loss, Objective, evaluate, with_gradient
from structgrad.estimators.score_function.reinforce import scores_of
from structgrad.oracles import MarginalOracle, Oracle, SamplingOracle


def weighted(losses: Tensor, scores: Tensor) -> Tensor:
    return (losses.reshape(*losses.shape, *[1] * (scores.ndim - losses.ndim)) * scores).mean(0)


@dataclass(frozen=True)
class Explicit(Estimator[SamplingOracle]):
    """REINFORCE with its gradient written out; what a subclass changes is the mistake."""

    name: ClassVar[str] = "explicit"
    objective: ClassVar[Objective] = "expected"
    unbiased: ClassVar[bool] = True
    needs: ClassVar[tuple[type[Oracle], ...]] = (SamplingOracle,)

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=1, marginals=1, samples=1)

    def surrogate(self, loss: Loss, oracle: SamplingOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        samples = oracle.sample(scores, 1, generator=generator)
        losses = self.losses(loss, samples, oracle)
        estimate = weighted(losses.detach(), scores_of(oracle, samples, scores))
        return self.finish(losses.mean(0), scores, estimate)

    def losses(self, loss: Loss, samples: Tensor, oracle: SamplingOracle) -> Tensor:
        return evaluate(loss, samples, oracle.event_ndim)

    def finish(self, value: Tensor, scores: Tensor, estimate: Tensor) -> Tensor:
        return with_gradient(value, scores, estimate)


class Double(Explicit):
    """Draws in double precision, whatever the scores are."""

    def losses(self, loss: Loss, samples: Tensor, oracle: SamplingOracle) -> Tensor:
        return loss(samples.double()).to(samples)


class Flattening(Explicit):
    """Shows the loss one long list of structures."""

    def losses(self, loss: Loss, samples: Tensor, oracle: SamplingOracle) -> Tensor:
        batch = samples.shape[: samples.ndim - oracle.event_ndim]
        return loss(samples.reshape(1, -1, *samples.shape[len(batch) :])).reshape(batch)


class Scalar(Explicit):
    """The mean over the batch, as one number."""

    def finish(self, value: Tensor, scores: Tensor, estimate: Tensor) -> Tensor:
        return with_gradient(value, scores, estimate).sum()


class Leaking(Explicit):
    """Adds a little to every part."""

    def finish(self, value: Tensor, scores: Tensor, estimate: Tensor) -> Tensor:
        return with_gradient(value, scores, estimate + 1e-3 * (estimate - estimate.sum((-1,), keepdim=True)))


class Exponential(Explicit):
    """Divides by a sum of exponentials that overflows."""

    def finish(self, value: Tensor, scores: Tensor, estimate: Tensor) -> Tensor:
        one = (30 * scores.detach()).exp()
        return with_gradient(value, scores, estimate * (one / one).nan_to_num(1.0, posinf=1.0) + 0 * one)


class InPlace(Explicit):
    """Subtracts the mean from what it was handed."""

    def finish(self, value: Tensor, scores: Tensor, estimate: Tensor) -> Tensor:
        with torch.no_grad():
            scores.sub_(0.25)
        return with_gradient(value, scores, estimate)


class SaysDeterministic(Explicit):
    """Draws, and declares that it does not."""

    deterministic: ClassVar[bool] = True


class Cheap(LeaveOneOut):
    """Declares half of its losses."""

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=1, marginals=1, samples=2)


class Modest(Reinforce):
    """Does not say that it needs samples."""

    needs: ClassVar[tuple[type[Oracle], ...]] = (MarginalOracle,)


class Outside(StructuredAttention):
    """Does not say that the loss is evaluated inside the hull."""

    inside_hull: ClassVar[bool] = False


class Deaf(Explicit):
    """Passes nothing on to the parameters of the loss."""

    def finish(self, value: Tensor, scores: Tensor, estimate: Tensor) -> Tensor:
        return with_gradient(value.detach(), scores, estimate)


class Together(LeaveOneOut):
    """The other rows of the batch are the baseline."""

    def _weights(self, losses: Tensor) -> Tensor:
        return losses - losses.mean()


class Summed(Explicit):
    """Multiplies by the number of rows."""

    def finish(self, value: Tensor, scores: Tensor, estimate: Tensor) -> Tensor:
        return with_gradient(value, scores, estimate * len(estimate))


class Uphill(Simple):
    """Straight-through that climbs: biased, so that its sign is all that can be wrong."""

    def structure(self, oracle: Any, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        return super().structure(oracle, 2 * scores.detach() - scores, generator=generator)


class Raising(Explicit):
    """Cannot do what is asked."""

    def finish(self, value: Tensor, scores: Tensor, estimate: Tensor) -> Tensor:
        raise RuntimeError("planted")


class RaisingAtMasks(StraightThrough):
    """Cannot do with forbidden parts."""

    def structure(self, oracle: Any, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        if bool((scores == -torch.inf).any()):
            raise RuntimeError("no masks here")
        return super().structure(oracle, scores, generator=generator)


class Slow(Reinforce):
    """Takes a moment."""

    def surrogate(self, loss: Loss, oracle: SamplingOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        time.sleep(0.005)
        return super().surrogate(loss, oracle, scores, generator=generator)


class Coarse(Estimator[Any]):
    """A relaxed objective whose value is not the objective."""

    name: ClassVar[str] = "coarse"
    objective: ClassVar[Objective] = "relaxed"
    unbiased: ClassVar[bool] = True
    deterministic: ClassVar[bool] = True
    inside_hull: ClassVar[bool] = True
    needs: ClassVar[tuple[type[Oracle], ...]] = (MarginalOracle,)

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=1, loss_gradients=1, marginals=1)

    def surrogate(self, loss: Loss, oracle: Any, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        leaf = scores.detach().requires_grad_()
        with torch.enable_grad():
            losses = loss(oracle.marginals(leaf))
            (estimate,) = torch.autograd.grad(losses.sum(), leaf)
        return with_gradient(torch.zeros_like(losses), scores, estimate)


def function_without_shape(loss: Loss, oracle: Any, scores: Tensor, generator: torch.Generator) -> Tensor:
    return scores.sum()


def opaque_batch(loss: Loss, oracle: Any, scores: Tensor, generator: torch.Generator) -> Tensor:
    """REINFORCE with numbers of its own, divided by the number of rows."""
    inner = torch.Generator().manual_seed(int(torch.randint(2**62, (1,), generator=generator)))
    samples = oracle.sample(scores, 1, generator=inner)
    return weighted(loss(samples), scores_of(oracle, samples, scores)) / max(scores.shape[: scores.ndim - oracle.event_ndim].numel(), 1)
