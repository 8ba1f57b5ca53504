"""REINFORCE, leave-one-out and straight-through, each with one law broken or one fault planted."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from structgrad.estimators import Estimator, Evaluations, LeaveOneOut, Loss, Reinforce, Simple, StraightThrough, StructuredAttention
from structgrad.estimators.base import Objective
from structgrad.estimators.score_function import scores_of
from structgrad.estimators.surrogates import evaluate, with_gradient
from structgrad.oracles import MarginalOracle, Oracle, SamplingOracle
from structgrad.suites.audit import Audit, audit

TWO = ("categorical", "subset")


class Fault(NamedTuple):
    """An estimator with a fault, or a lambda that makes it, and options of its audit. Causes are in `tests/goldens/audit.json`."""

    make: Any
    options: dict[str, Any] = {"structures": TWO}  # noqa: RUF012

    def audited(self) -> Audit:
        """Its audit, as of a new process: calls and seeds that faults keep outside of themselves are forgotten."""
        CALLS.clear()
        SEEDS.clear()
        made = self.make() if getattr(self.make, "__name__", "") == "<lambda>" else self.make
        return audit(made, quick=True, **self.options)


ON_CLASSES: dict[str, Any] = {"structures": ("categorical",)}


def weighted(losses: Tensor, scores: Tensor) -> Tensor:
    return (losses.reshape(*losses.shape, *[1] * (scores.ndim - losses.ndim)) * scores).mean(0)


@dataclass(frozen=True)
class Explicit(Estimator[SamplingOracle]):
    """REINFORCE with its gradient written out; a subclass changes it."""

    name: ClassVar[str] = "explicit"
    objective: ClassVar[Objective] = "expected"
    unbiased: ClassVar[bool] = True
    needs: ClassVar[tuple[type[Oracle], ...]] = (SamplingOracle,)

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=1, marginals=1, samples=1)

    def surrogate(self, loss: Loss, oracle: SamplingOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        samples = oracle.sample(scores, 1, generator=generator)
        losses = self.losses(loss, samples, oracle)
        return self.finish(losses.mean(0), scores, weighted(losses.detach(), scores_of(oracle, samples, scores)))

    def losses(self, loss: Loss, samples: Tensor, oracle: SamplingOracle) -> Tensor:
        return evaluate(loss, samples, oracle.event_ndim)

    def finish(self, value: Tensor, scores: Tensor, estimate: Tensor) -> Tensor:
        return with_gradient(value, scores, self.changed(scores, estimate))

    def changed(self, scores: Tensor, estimate: Tensor) -> Tensor:
        return estimate


def changed(change: Callable[[Tensor, Tensor], Tensor]) -> type[Explicit]:
    """REINFORCE whose estimate is a function of the scores and of the right one."""
    return type("Changed", (Explicit,), {"changed": lambda self, scores, estimate: change(scores, estimate)})


def ending(finish: Callable[[Tensor, Tensor, Tensor], Tensor]) -> type[Explicit]:
    """REINFORCE with another surrogate of the value, the scores and the estimate."""
    return type("Ending", (Explicit,), {"finish": lambda self, value, scores, estimate: finish(value, scores, estimate)})


def seeing(losses: Callable[[Loss, Tensor, Any], Tensor]) -> type[Explicit]:
    """REINFORCE that evaluates the loss in another way."""
    return type("Seeing", (Explicit,), {"losses": lambda self, loss, samples, oracle: losses(loss, samples, oracle)})


def with_weights(weights: Callable[[Tensor], Tensor]) -> type[LeaveOneOut]:
    """Leave-one-out with other advantages."""
    return type("Weights", (LeaveOneOut,), {"_carrier": lambda self, losses, log_probs: (weights(losses) * log_probs).mean(0)})


def declaring(kind: type, **declarations: Any) -> type:
    return type("Declaring", (kind,), declarations)


def advantages(losses: Tensor) -> Tensor:
    return (losses - losses.mean(0)) * (len(losses) / (len(losses) - 1))


def part(index: int, factor: float) -> type[Explicit]:
    """One part of the estimate gets a factor."""

    def change(scores: Tensor, estimate: Tensor) -> Tensor:
        scale = torch.ones_like(estimate)
        scale[..., index] = factor
        return scale * estimate

    return changed(change)


def flattening(loss: Loss, samples: Tensor, oracle: Any) -> Tensor:
    batch = samples.shape[: samples.ndim - oracle.event_ndim]
    return loss(samples.reshape(1, -1, *samples.shape[len(batch) :])).reshape(batch)


def overflowing(scores: Tensor, estimate: Tensor) -> Tensor:
    one = (30 * scores.detach()).exp()
    return estimate * (one / one).nan_to_num(1.0, posinf=1.0) + 0 * one


def in_place(scores: Tensor, estimate: Tensor) -> Tensor:
    with torch.no_grad():
        scores.sub_(0.25)
    return estimate


def raises(*_: Any) -> Tensor:
    raise RuntimeError("planted")


class SaysDeterministic(Explicit):
    """Draws, and declares that it does not."""

    deterministic: ClassVar[bool] = True


class SeveralCosts(LeaveOneOut):
    """Four of its costs are wrong."""

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=7, loss_gradients=1, marginals=3, samples=1)


class InheritedCosts(Reinforce):
    """Takes one loss more than its base declares."""

    def surrogate(self, loss: Loss, oracle: SamplingOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        loss(oracle.sample(scores, 1, generator=generator))
        return super().surrogate(loss, oracle, scores, generator=generator)


class Uphill(Simple):
    """Straight-through that ascends: biased, so that only its sign can be wrong."""

    def structure(self, oracle: Any, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        return super().structure(oracle, 2 * scores.detach() - scores, generator=generator)


class RaisingAtMasks(StraightThrough):
    """Raises for forbidden parts."""

    def structure(self, oracle: Any, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        if bool((scores == -torch.inf).any()):
            raise RuntimeError("no masks here")
        return super().structure(oracle, scores, generator=generator)


class GlobalDraw(Explicit):
    """Draws from torch's own generator."""

    def surrogate(self, loss: Loss, oracle: Any, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        return super().surrogate(loss, oracle, scores, generator=torch.default_generator)


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


@dataclass(frozen=True)
class Shrunk(LeaveOneOut):
    """Two samples, and an option that equals (N − 1)/N and 1/N by accident."""

    shrink: float = 0.5

    def _carrier(self, losses: Tensor, log_probs: Tensor) -> Tensor:
        return self.shrink * super()._carrier(losses, log_probs)


CALLS: Counter[int] = Counter()
SEEDS: dict[tuple[int, ...], int] = {}


def every(number: int) -> type[Explicit]:
    """Half of the estimate in every such call; the number of calls is kept outside of the object."""

    def change(scores: Tensor, estimate: Tensor) -> Tensor:
        CALLS[number] += 1
        return estimate if CALLS[number] % number else 0.5 * estimate

    return changed(change)


class StaleNoise(Explicit):
    """The random numbers of the first call of a shape are used in all others."""

    def surrogate(self, loss: Loss, oracle: Any, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        drawn = int(torch.randint(2**62, (1,), generator=torch.Generator().manual_seed(generator.initial_seed())))
        own = torch.Generator().manual_seed(SEEDS.setdefault(tuple(scores.shape), drawn))
        return super().surrogate(loss, oracle, scores, generator=own)


@dataclass(frozen=True)
class ControlVariate(Explicit):
    """A linear control variate: ``(L − ⟨a, z⟩)`` times the score, and ``J a``."""

    score_function: bool = True
    pathwise: bool = True

    def surrogate(self, loss: Loss, oracle: Any, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        samples = oracle.sample(scores, 1, generator=generator)
        losses = self.losses(loss, samples, oracle)
        weights = torch.linspace(-1, 2, scores.shape[-1], dtype=scores.dtype)
        leaf = scores.detach().requires_grad_()
        with torch.enable_grad():
            (path,) = torch.autograd.grad((oracle.marginals(leaf) * weights).sum(), leaf)
        score = weighted(losses.detach() - (samples * weights).sum(-1), scores_of(oracle, samples, scores))
        return self.finish(losses.mean(0), scores, self.score_function * score + self.pathwise * path)

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=1, marginals=2, samples=1)


@dataclass(frozen=True)
class Opaque(Explicit):
    """Samples of a generator of its own, so that its mean is tested and not dealt."""

    num_samples: int = 4
    factor: ClassVar[float] = 1.0
    first: ClassVar[float] = 1.0
    own_sample: ClassVar[bool] = False

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=self.num_samples, marginals=self.num_samples, samples=self.num_samples)

    def surrogate(self, loss: Loss, oracle: Any, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        inner = torch.Generator().manual_seed(int(torch.randint(2**62, (1,), generator=generator)))
        samples = oracle.sample(scores, self.num_samples, generator=inner)
        losses = self.losses(loss, samples, oracle)
        excess = (losses - losses.mean(0) if self.own_sample else advantages(losses)).detach()
        scale = torch.full_like(scores, self.factor)
        scale[..., 0] *= self.first
        return self.finish(losses.mean(0), scores, scale * weighted(excess, scores_of(oracle, samples, scores)))


def opaque_batch(loss: Loss, oracle: Any, scores: Tensor, generator: torch.Generator) -> Tensor:
    """REINFORCE with numbers of its own, divided by the number of rows."""
    inner = torch.Generator().manual_seed(int(torch.randint(2**62, (1,), generator=generator)))
    samples = oracle.sample(scores, 1, generator=inner)
    return weighted(loss(samples), scores_of(oracle, samples, scores)) / max(scores.shape[: scores.ndim - oracle.event_ndim].numel(), 1)


def half(losses: Tensor) -> Tensor:
    return 0.5 * advantages(losses)


OwnSample = with_weights(lambda losses: losses - losses.mean(0))

PLANTED: dict[str, Fault] = {
    "gain of a half": Fault(changed(lambda scores, estimate: 0.5 * estimate)),
    "gain of two": Fault(changed(lambda scores, estimate: 2 * estimate)),
    "gain below 0": Fault(changed(lambda scores, estimate: -0.7 * estimate)),
    "an option that shrinks by a half": Fault(Shrunk),
    "a half from nowhere, with two samples": Fault(with_weights(half)),
    "own sample of two": Fault(OwnSample),
    "sum over samples": Fault(lambda: with_weights(lambda losses: len(losses) * advantages(losses))(3)),
    "sign of one part": Fault(part(0, -1.0)),
    "one part dropped": Fault(part(1, 0.0)),
    "one part halved": Fault(part(2, 0.5)),
    "two parts swapped": Fault(changed(lambda scores, estimate: estimate[..., [1, 0, 2, 3]])),
    "sign of all parts with one index": Fault(part(0, -1.0), {"structures": ("categorical", "categories")}),
    "at masks alone": Fault(
        changed(lambda scores, estimate: torch.where((scores == -torch.inf).any(-1, keepdim=True), 0.5 * estimate, estimate))
    ),
    "every second call": Fault(every(2)),
    "every third call": Fault(every(3)),
    "stale noise": Fault(StaleNoise),
    "no score-function term": Fault(lambda: ControlVariate(score_function=False)),
    "no pathwise term": Fault(lambda: ControlVariate(pathwise=False)),
    "says that it is unbiased": Fault(declaring(Simple, unbiased=True)),
    "a global generator": Fault(GlobalDraw),
    "a baseline over the batch": Fault(with_weights(lambda losses: losses - losses.mean())),
    "tested, a half": Fault(declaring(Opaque, factor=0.5), ON_CLASSES),
    "tested, own sample of four": Fault(declaring(Opaque, own_sample=True), ON_CLASSES),
    "double precision": Fault(seeing(lambda loss, samples, oracle: loss(samples.double()).to(samples))),
    "a flat list of structures": Fault(seeing(flattening)),
    "one value for the batch": Fault(ending(lambda value, scores, estimate: with_gradient(value, scores, estimate).sum())),
    "a little for every part": Fault(changed(lambda scores, estimate: estimate + 0.001 * (estimate - estimate.sum((-1,), keepdim=True)))),
    "an exponential that overflows": Fault(changed(overflowing)),
    "scores changed in place": Fault(changed(in_place)),
    "no gradient for parameters": Fault(ending(lambda value, scores, estimate: with_gradient(value.detach(), scores, estimate))),
    "a sum over the batch": Fault(changed(lambda scores, estimate: estimate * len(estimate))),
    "rows by distribution": Fault(opaque_batch, ON_CLASSES),
    "uphill": Fault(Uphill),
    "a value that is not the objective": Fault(Coarse, ON_CLASSES),
}
"""Faults by name."""

MISDECLARED: dict[str, Fault] = {
    "several costs": Fault(SeveralCosts),
    "inherited costs": Fault(InheritedCosts),
    "says that it is deterministic": Fault(SaysDeterministic),
    "does not say that it needs samples": Fault(declaring(Reinforce, needs=(MarginalOracle,))),
    "does not say that it leaves the structures": Fault(declaring(StructuredAttention, inside_hull=False)),
}
"""Wrong declarations by name."""
