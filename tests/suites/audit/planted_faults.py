"""REINFORCE, leave-one-out and straight-through, each with one law broken or one fault planted, and the words that the audit must use."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from structgrad.estimators import LeaveOneOut, Reinforce, Simple, StraightThrough, StructuredAttention
from structgrad.estimators.base import Estimator, Evaluations, Loss, Objective, evaluate, with_gradient
from structgrad.estimators.score_function.reinforce import scores_of
from structgrad.oracles import MarginalOracle, Oracle, SamplingOracle

TWO = ("categorical", "subset")


class Fault(NamedTuple):
    """An estimator with a fault: words of its cause or of its symptoms, the violated law with words of its detail, and its structures."""

    make: Any
    cause: str = ""
    seen: str = ""
    law: str = "objective"
    detail: str = ""
    options: dict[str, Any] = {"structures": TWO}  # noqa: RUF012


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
    return type("Weights", (LeaveOneOut,), {"_weights": lambda self, losses: weights(losses)})


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


class Slow(Reinforce):
    """Takes a moment."""

    def surrogate(self, loss: Loss, oracle: SamplingOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        time.sleep(0.005)
        return super().surrogate(loss, oracle, scores, generator=generator)


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

    def _weights(self, losses: Tensor) -> Tensor:
        return self.shrink * super()._weights(losses)


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


def own_sample(loss: Loss, oracle: Any, scores: Tensor, generator: torch.Generator) -> Tensor:
    """Four samples with their own mean as the baseline, as a function."""
    samples = oracle.sample(scores, 4, generator=generator)
    losses = loss(samples)
    return weighted(losses - losses.mean(0), scores_of(oracle, samples, scores))


def summed(losses: Tensor) -> Tensor:
    return len(losses) * advantages(losses)


def half(losses: Tensor) -> Tensor:
    return 0.5 * advantages(losses)


OWN_SAMPLE = "the baseline of a sample includes the sample itself"
KEPT = "state that is kept between calls, outside of the estimator"
BATCH = "a baseline, a norm or a running value that is taken over the batch"
OwnSample = with_weights(lambda losses: losses - losses.mean(0))

PLANTED: dict[str, Fault] = {
    "gain of a half": Fault(changed(lambda scores, estimate: 0.5 * estimate), seen="gain 0.5 on every part at all 10 places"),
    "gain of two": Fault(changed(lambda scores, estimate: 2 * estimate), seen="gain 2 on every part at all 10 places"),
    "gain below 0": Fault(
        changed(lambda scores, estimate: -0.7 * estimate),
        seen="gain -0.7 on every part at all 10 places, and no certain cause; the sign is wrong too",
    ),
    "an option that shrinks by a half": Fault(Shrunk, "gain 0.5 = shrink: the estimate is multiplied by shrink"),
    "another value of it": Fault(lambda: Shrunk(3, shrink=2 / 3), "gain 0.6667 = shrink: the estimate is multiplied by shrink"),
    "a half from nowhere, with two samples": Fault(with_weights(half), seen="gain 0.5 on every part"),
    "own sample of two": Fault(OwnSample, f"gain 0.5 = (N − 1)/N with N = 2: {OWN_SAMPLE}"),
    "own sample of four": Fault(lambda: OwnSample(4), f"gain 0.75 = (N − 1)/N with N = 4: {OWN_SAMPLE}"),
    "own sample of a function": Fault(own_sample, f"gain 0.75 = (N − 1)/N with N = 4: {OWN_SAMPLE}"),
    "sum over samples": Fault(
        lambda: with_weights(lambda losses: len(losses) * advantages(losses))(3),
        "gain 3 = N with N = 3: the samples are summed, not averaged",
    ),
    "sign of one part": Fault(part(0, -1.0), "part (0) has the other sign, and all others are right"),
    "one part dropped": Fault(part(1, 0.0), "part (1) has no gradient, and all others are right"),
    "one part halved": Fault(part(2, 0.5), "part (2) has a factor of 0.5, and all others are right"),
    "two parts swapped": Fault(
        changed(lambda scores, estimate: estimate[..., [1, 0, 2, 3]]), "parts (0) and (1) change places, and all others are right"
    ),
    "sign of all parts with one index": Fault(
        part(0, -1.0),
        "the parts with the last index 0 have the other sign, and all others are right",
        options={"structures": ("categorical", "categories")},
    ),
    "at masks alone": Fault(
        changed(lambda scores, estimate: torch.where((scores == -torch.inf).any(-1, keepdim=True), 0.5 * estimate, estimate)),
        seen="the mean is wrong at 2 of 10 places, gain 0.5; ",
    ),
    "every second call": Fault(every(2), KEPT, law="state", detail="calls 4, 6, 8, 10 of 11"),
    "every third call": Fault(every(3), KEPT, law="state", detail="of 11 gave other numbers"),
    "stale noise": Fault(StaleNoise, "noise that is kept from an earlier call, outside of the estimator", law="state"),
    "no score-function term": Fault(lambda: ControlVariate(score_function=False), "the estimate does not depend on the losses"),
    "no pathwise term": Fault(lambda: ControlVariate(pathwise=False), "that of the control variate that is subtracted from them"),
    "says that it is unbiased": Fault(declaring(Simple, unbiased=True), "made of the gradient of the loss alone, as a straight-through"),
    "a global generator": Fault(GlobalDraw, "a draw without generator=", law="global_random"),
    "a baseline over the batch": Fault(with_weights(lambda losses: losses - losses.mean()), BATCH, law="rows"),
    "tested, a half": Fault(declaring(Opaque, factor=0.5), seen="gain 0.498 ± 0.0", options=ON_CLASSES),
    "tested, own sample of four": Fault(declaring(Opaque, own_sample=True), "(N − 1)/N with N = 4", options=ON_CLASSES),
    "tested, own sample of three": Fault(lambda: declaring(Opaque, own_sample=True)(3), "(N − 1)/N with N = 3", options=ON_CLASSES),
    "tested, sign of one part": Fault(declaring(Opaque, first=-1.0), "part (0) has the other sign", options=ON_CLASSES),
    "double precision": Fault(
        seeing(lambda loss, samples, oracle: loss(samples.double()).to(samples)),
        law="dtypes",
        detail="the loss was shown structures of torch.float64",
    ),
    "a flat list of structures": Fault(
        seeing(flattening), "rows that are flattened", law="shapes", detail="the loss was shown (1, 6, 4) for scores (2, 3, 4)"
    ),
    "one value for the batch": Fault(
        ending(lambda value, scores, estimate: with_gradient(value, scores, estimate).sum()),
        law="shapes",
        detail="the surrogate is () for a batch (6,)",
    ),
    "a little for every part": Fault(
        changed(lambda scores, estimate: estimate + 1e-3 * (estimate - estimate.sum((-1,), keepdim=True))),
        law="forbidden",
        detail="forbidden or ignored parts get a gradient",
        seen="gain",
    ),
    "an exponential that overflows": Fault(changed(overflowing), law="finite", detail="NaN or infinite estimates at scores of 50"),
    "scores changed in place": Fault(
        changed(in_place), "an operation in place", law="inputs", detail="the scores that were handed in were modified"
    ),
    "no gradient for parameters": Fault(
        ending(lambda value, scores, estimate: with_gradient(value.detach(), scores, estimate)),
        "the value is detached from the loss",
        law="parameters",
        detail="a parameter of the loss gets 0",
    ),
    "a sum over the batch": Fault(
        changed(lambda scores, estimate: estimate * len(estimate)),
        "grows with the batch",
        law="batch",
        detail="a row gets another estimate in a batch of 6 than alone",
    ),
    "rows by distribution": Fault(opaque_batch, "shrinks as 1/B", law="batch", detail="by their distributions", options=ON_CLASSES),
    "uphill": Fault(Uphill, law="sign", detail="over random scores, linear loss"),
    "a value that is not the objective": Fault(
        Coarse,
        "the value of the surrogate does not move with the scores",
        law="objective",
        detail="the estimate is not 0, and the derivative of the surrogate's value is",
        options=ON_CLASSES,
    ),
}
"""Faults by name."""

MISDECLARED: dict[str, Fault] = {
    "several costs": Fault(
        SeveralCosts,
        "`return Evaluations(losses=2, marginals=1, samples=2)`, with these options; what counts, per row of the batch: losses: structures "
        "that the loss is shown; loss_gradients: structures in which the loss is differentiated; marginals: rows given to `marginals`, "
        "`log_partition`, `log_prob`, `entropy`, `step_log_probs`; samples: structures that `sample` draws",
        law="evaluations",
        detail="one estimate took losses 2 (declared 7), loss_gradients 0 (declared 1), marginals 1 (declared 3), samples 2 (declared 1)",
    ),
    "inherited costs": Fault(
        InheritedCosts,
        "add to InheritedCosts, which inherits `evaluations` of ScoreFunction: `return Evaluations(losses=2, marginals=1, samples=2)`",
        law="evaluations",
        detail="one estimate took losses 2 (declared 1), samples 2 (declared 1)",
    ),
    "says that it is deterministic": Fault(
        SaysDeterministic,
        "`deterministic: ClassVar[bool] = False`",
        law="deterministic",
        detail="it declares to be deterministic, and draws",
    ),
    "does not say that it needs samples": Fault(
        declaring(Reinforce, needs=(MarginalOracle,)),
        "needs: ClassVar",
        law="needs",
        detail="it uses SamplingOracle",
    ),
    "does not say that it leaves the structures": Fault(
        declaring(StructuredAttention, inside_hull=False), "inside_hull: ClassVar[bool] = True", law="hull", detail="is declared False"
    ),
}
"""Faults by name; the cause is the remedy."""
