"""One fault each, planted into REINFORCE and leave-one-out: what an audit may say of them, and what not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from structgrad.estimators import LeaveOneOut, Reinforce, Simple
from structgrad.estimators.base import Evaluations, Loss
from structgrad.estimators.score_function.reinforce import scores_of
from structgrad.oracles import SamplingOracle
from tests.suites.audit.broken_laws import Explicit, weighted


@dataclass(frozen=True)
class Times(Explicit):
    """A factor that no option has, on everything."""

    factor: ClassVar[float] = 0.5

    def finish(self, value: Tensor, scores: Tensor, estimate: Tensor) -> Tensor:
        return super().finish(value, scores, self.factor * estimate)


class Twice(Times):
    """Two."""

    factor: ClassVar[float] = 2.0


class Turned(Times):
    """Less than nothing."""

    factor: ClassVar[float] = -0.7


@dataclass(frozen=True)
class Shrunk(LeaveOneOut):
    """Two samples, and an option that is (N − 1)/N and 1/N by accident."""

    shrink: float = 0.5

    def _weights(self, losses: Tensor) -> Tensor:
        return self.shrink * super()._weights(losses)


@dataclass(frozen=True)
class ShrunkByNobody(LeaveOneOut):
    """The same factor from no option."""

    def _weights(self, losses: Tensor) -> Tensor:
        return 0.5 * super()._weights(losses)


@dataclass(frozen=True)
class OwnSample(LeaveOneOut):
    """The mean of all losses is the baseline."""

    def _weights(self, losses: Tensor) -> Tensor:
        return losses - losses.mean(0)


@dataclass(frozen=True)
class SumOverSamples(LeaveOneOut):
    """Summed, not averaged."""

    def _weights(self, losses: Tensor) -> Tensor:
        return len(losses) * super()._weights(losses)


class PartTurned(Explicit):
    """The sign of one part."""

    part: ClassVar[int] = 0
    factor: ClassVar[float] = -1.0

    def finish(self, value: Tensor, scores: Tensor, estimate: Tensor) -> Tensor:
        scale = torch.ones_like(estimate)
        scale[..., self.part] = self.factor
        return super().finish(value, scores, scale * estimate)


class PartDropped(PartTurned):
    """One part is left out."""

    part: ClassVar[int] = 1
    factor: ClassVar[float] = 0.0


class PartHalved(PartTurned):
    """One part is halved: nothing that has a name."""

    part: ClassVar[int] = 2
    factor: ClassVar[float] = 0.5


class Swapped(Explicit):
    """Two parts change places."""

    def finish(self, value: Tensor, scores: Tensor, estimate: Tensor) -> Tensor:
        return super().finish(value, scores, estimate[..., [1, 0, 2, 3]])


class AtMasksAlone(Explicit):
    """Right, but where parts are forbidden."""

    def finish(self, value: Tensor, scores: Tensor, estimate: Tensor) -> Tensor:
        masked = (scores == -torch.inf).flatten(1).any(-1).reshape(-1, *[1] * (scores.ndim - 1))
        return super().finish(value, scores, torch.where(masked, 0.5 * estimate, estimate))


_CALLS = {"second": 0, "third": 0}


class EverySecondCall(Explicit):
    """Every second call gives half of the estimate; the number of calls is kept outside of the object."""

    every: ClassVar[str] = "second"

    def finish(self, value: Tensor, scores: Tensor, estimate: Tensor) -> Tensor:
        _CALLS[self.every] += 1
        wrong = _CALLS[self.every] % (2 if self.every == "second" else 3) == 0
        return super().finish(value, scores, 0.5 * estimate if wrong else estimate)


class EveryThirdCall(EverySecondCall):
    """The same of the third."""

    every: ClassVar[str] = "third"


_SEEDS: dict[tuple[int, ...], int] = {}


class StaleNoise(Explicit):
    """The random numbers of the first call of a shape serve all others."""

    def surrogate(self, loss: Loss, oracle: Any, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        drawn = int(torch.randint(2**62, (1,), generator=torch.Generator().manual_seed(generator.initial_seed())))
        own = torch.Generator().manual_seed(_SEEDS.setdefault(tuple(scores.shape), drawn))
        samples = oracle.sample(scores, 1, generator=own)
        losses = self.losses(loss, samples, oracle)
        return self.finish(losses.mean(0), scores, weighted(losses.detach(), scores_of(oracle, samples, scores)))


@dataclass(frozen=True)
class NoScoreFunction(Explicit):
    """A control variate whose own gradient is all that is left: ``J a``, without ``(L − ⟨a, z⟩)`` times the score."""

    pathwise: ClassVar[bool] = True
    score_function: ClassVar[bool] = False

    def surrogate(self, loss: Loss, oracle: Any, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        samples = oracle.sample(scores, 1, generator=generator)
        losses = self.losses(loss, samples, oracle)
        weights = torch.linspace(-1, 2, scores.shape[-1], dtype=scores.dtype)
        leaf = scores.detach().requires_grad_()
        with torch.enable_grad():
            mean = (oracle.marginals(leaf) * weights).sum()
            (path,) = torch.autograd.grad(mean, leaf)
        excess = losses.detach() - (samples * weights).sum(-1)
        score = weighted(excess, scores_of(oracle, samples, scores))
        return self.finish(losses.mean(0), scores, self.score_function * score + self.pathwise * path)

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=1, marginals=2, samples=1)


class NoPathwise(NoScoreFunction):
    """Without ``J a``."""

    pathwise: ClassVar[bool] = False
    score_function: ClassVar[bool] = True


class BothTerms(NoScoreFunction):
    """The twin that is right."""

    score_function: ClassVar[bool] = True


class SeveralCosts(LeaveOneOut):
    """Four of its costs are wrong."""

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=7, loss_gradients=1, marginals=3, samples=1)


class InheritedCosts(Reinforce):
    """Takes one loss more than its base says."""

    def _weights(self, losses: Tensor) -> Tensor:
        return losses

    def surrogate(self, loss: Loss, oracle: SamplingOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        loss(oracle.sample(scores, 1, generator=generator))
        return super().surrogate(loss, oracle, scores, generator=generator)


class SaysUnbiased(Simple):
    """Straight-through, which is biased."""

    unbiased: ClassVar[bool] = True


class SaysDeterministic(Explicit):
    """Draws."""

    deterministic: ClassVar[bool] = True


class GlobalDraw(Explicit):
    """Draws from torch's own generator."""

    def surrogate(self, loss: Loss, oracle: Any, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        return super().surrogate(loss, oracle, scores, generator=torch.default_generator)


class MixedBatch(LeaveOneOut):
    """A baseline over the batch."""

    def _weights(self, losses: Tensor) -> Tensor:
        return losses - losses.mean()


@dataclass(frozen=True)
class Opaque(Explicit):
    """Samples of its own generator, so that its mean is tested and not dealt."""

    num_samples: int = 4
    fault: ClassVar[str] = ""

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=self.num_samples, marginals=self.num_samples, samples=self.num_samples)

    def surrogate(self, loss: Loss, oracle: Any, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        inner = torch.Generator().manual_seed(int(torch.randint(2**62, (1,), generator=generator)))
        samples = oracle.sample(scores, self.num_samples, generator=inner)
        losses = self.losses(loss, samples, oracle)
        excess = (losses - losses.mean(0)).detach()
        if self.fault != "own sample":
            excess = excess * (self.num_samples / (self.num_samples - 1))
        estimate = weighted(excess, scores_of(oracle, samples, scores))
        scale = torch.ones_like(estimate)
        scale[..., 0] = -1.0 if self.fault == "part" else 1.0
        return self.finish(losses.mean(0), scores, (0.5 if self.fault == "half" else 1.0) * scale * estimate)


class OpaqueHalf(Opaque):
    """Half of it."""

    fault: ClassVar[str] = "half"


class OpaqueOwnSample(Opaque):
    """The baseline includes the own sample."""

    fault: ClassVar[str] = "own sample"


class OpaquePart(Opaque):
    """One part has the other sign."""

    fault: ClassVar[str] = "part"
