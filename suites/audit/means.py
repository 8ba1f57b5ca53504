"""Means of an estimator, exact if all its samples can be dealt, else of replicates: the laws of the mean, and comparisons of variances."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...estimators import ESTIMATORS, Estimator, Evaluations, Loss, make_estimator
from ...estimators.base import Objective
from ...estimators.noise import Gumbel, SmoothNoise
from ...estimators.own import FunctionEstimator
from ...estimators.surrogates import evaluate, expand_samples, with_gradient
from ...oracles.capabilities import Oracle
from ..measures.bias_tests import averaged_losses, resolved, rounding_floor, sequential_test
from ..measures.draws import Sampling, deterministic_moments, draw_moments, finite
from ..statistics.interval import ABSENT, RARE
from ..statistics.intervals import UNRESOLVED, Interval
from ..statistics.metrics import Summary, estimated_metrics, exact_metrics, summarise
from ..statistics.moments import Moments
from ..text import estimate
from ..truth import Target
from ..truth.closed_form import central_difference, relaxed_gradient
from ..truth.replay import replay, slots_of
from .cases import FLAT, PEAKED, USUAL, AuditLoss, Case, Structure, masked_scores, random_scores, seeded, target
from .causes import Point
from .laws import world_state
from .result import Check, FlatComparison, Status, confirmed, numbers

REPLAY_CAP = 20_000  # largest number of tuples of samples that are dealt
REPLICATES = 8192  # replicates of an estimated metric of a comparison
TOLERANCE = 1e-9  # relative distance below which an exact mean is the target: the rest is rounding

REGIMES: dict[str, Callable[[Structure], Tensor]] = {  # kinds of scores; exact means are compared at all of them
    "flat": lambda structure: random_scores(structure, FLAT, 1)[0],
    "usual": lambda structure: random_scores(structure, USUAL, 1)[0],
    "peaked": lambda structure: random_scores(structure, PEAKED, 1)[0],
    "masked": lambda structure: masked_scores(structure, 1)[0],
    "equal": lambda structure: torch.zeros(structure.event, dtype=torch.float64),
}

TESTED = ("flat", "usual", "peaked")
"""Scores at which means are tested. Errors at unlikely structures, such as clipped weights, do not show at flat scores."""


def exact_mean(estimator: Estimator[Any], target: Target, sampling: Sampling) -> Summary | None:
    """The exact moments of the errors; None if the estimate is random in another way than by samples of the oracle."""
    if estimator.deterministic:
        return deterministic_moments(estimator, target, sampling)
    before = world_state()
    slots = slots_of(estimator, target.oracle, target.loss, target.scores)
    if slots is None or world_state() != before or target.truth.count**slots > REPLAY_CAP:
        return None
    return finite(replay(sampling.draws(target).warmed(estimator), target, slots), estimator, target, sampling)


MIN_COSINE = 0.98  # cosine of two means from which estimators resemble each other
Sampler = Callable[[str, int], Moments]  # moments of fresh replicates, by the name of their stream and their number


def sampler(estimator: Estimator[Any], target: Target, sampling: Sampling) -> Sampler:
    """The sampler of an estimator in the state in which it is measured."""
    warm = sampling.draws(target).warmed(estimator)
    return lambda slot, replicates: draw_moments(warm, target, replace(sampling, replicates=replicates), slot=slot)


def compare(case: Case) -> FlatComparison:
    """One structure at flat scores, against the gradient of the expected loss times the declared scale."""
    aim = target(case.structure, AuditLoss(case.structure), case.scores(FLAT, 1)[0], case.subject.estimator.scale)
    sampling = case.effort.sampling(case.structure.name, "comparison")
    summary = exact_mean(case.fresh(), aim, sampling)
    if summary is None:
        moments = sampler(case.fresh(), aim, sampling)("comparison", REPLICATES)
        metrics = estimated_metrics(moments, resolved=resolved(moments, aim.truth, torch.float64))
    else:
        metrics = exact_metrics(summary, None)
    return FlatComparison(
        case.structure.name,
        "mc" if summary is None else "exact",
        **{name: (metrics[name].value, metrics[name].low, metrics[name].high) for name in ("gain", "relative_bias", "cosine")},
        relative_variance=metrics["relative_variance"].value,
        zero_rate=metrics["zero_gradient_rate"].value,
    )


def described(metrics: dict[str, Interval]) -> str:
    """Bias, gain and cosine, with intervals."""
    if metrics["relative_bias"] is UNRESOLVED:
        return ABSENT[RARE]
    if metrics["relative_bias"].value is None:
        return f"the gradient is 0, and the bias {estimate(metrics.get('absolute_bias', Interval(None)))}"
    names = {"bias": "relative_bias", "gain": "gain", "cosine": "cosine"}
    return ", ".join(f"{name} {estimate(metrics[metric])}" for name, metric in names.items())


def mean_checks(case: Case, law: str, reference: Estimator[Any] | None, points: list[Point]) -> Iterator[Check]:
    """The law ``objective`` if the estimator is declared unbiased, or ``mean_of`` if there is a reference; adds to ``points``."""
    estimator, structure = case.subject.estimator, case.structure
    if law == "mean_of":
        if reference is not None and reference.incompatibility(structure.oracle, structure.event) is None:
            yield from same_mean_checks(case, reference, points)
    elif not estimator.unbiased or estimator.objective == "argmax":
        return
    elif estimator.objective == "perturbed":
        noise = getattr(estimator, "noise", Gumbel())
        if isinstance(noise, SmoothNoise):
            yield from same_mean_checks(case, ScoreOfNoise(noise), points, law)
        else:
            yield Check(law, structure.name, "undecided", f"the gradient under {noise} is not known: its density has no score here")
    else:
        yield from (expected_checks if estimator.objective == "expected" else relaxed_checks)(case, points)


def expected_checks(case: Case, points: list[Point]) -> Iterator[Check]:
    """The law ``objective`` for the expected loss; the means are added to ``points``."""
    structure, effort, found_wrong = case.structure, case.effort, False
    for regime, scores in REGIMES.items():
        aim = target(structure, AuditLoss(structure), scores(structure), case.subject.estimator.scale)
        sampling, where = effort.sampling(structure.name, regime), f"{structure.name}, {regime}"
        truth, options = aim.truth, numbers(case.subject.estimator)
        point = Point(where, structure.event, truth.gradient, truth.gradient.flatten(), options, truth.marginals.flatten())
        summary = exact_mean(case.fresh(), aim, sampling)
        if summary is not None:
            mean = summary.error + summary.gradient
            points.append(replace(point, found=mean.unsqueeze(0), wanted=summary.gradient))
            floor = rounding_floor(math.sqrt(float(mean.square().sum()) + float(summary.trace)), truth)
            right = float(summary.error.norm()) <= floor
            detail = "the exact mean over all samples is the gradient" if right else described(exact_metrics(summary, None))
            yield Check("objective", where, "holds" if right else "violated", detail)
        elif regime in TESTED:
            # At flat scores a mean is pinned down; elsewhere only errors are searched.
            looked = effort if regime == "flat" else replace(effort, most_replicates=min(effort.most_replicates, 4 * effort.replicates))
            draw, losses = sampler(case.fresh(), aim, sampling), averaged_losses(case.subject.estimator)
            moments, p_value, bound = sequential_test(draw, truth, looked, losses)
            # Batches at peaked scores are not normal: they explain a wrong mean only if all is right at flatter ones.
            if not found_wrong:
                points.append(replace(point, found=moments.mean + moments.gradient, wanted=moments.gradient, tolerance=None))
            found_wrong |= p_value is not None and p_value < effort.alpha
            pinned = bound is not None and bound <= looked.equivalence
            # Rare structures leave the bound wide at peaked scores: an error is proven there, or nothing follows.
            status: Status = "undecided" if regime == "flat" and not pinned else "holds"
            unproven = f"; no error is proven, and the bias is below {bound:.0%} of the gradient" if bound and not pinned else ""
            detail = described(estimated_metrics(moments))
            yield Check("objective", where, status, detail, p_value=p_value, unproven=unproven)


def relaxed_checks(case: Case, points: list[Point]) -> Iterator[Check]:
    """The law ``objective`` for a relaxed or sparse one: the estimate is the derivative of its value with the same random numbers."""
    structure, loss, own = case.structure, AuditLoss(case.structure), case.subject.estimator.scale
    for regime, scale in (("flat", FLAT), ("usual", USUAL)):
        where = f"{structure.name}, {regime}"
        scores = random_scores(structure, scale, 1, "relaxed").expand(16, *structure.event)
        found = case.gradient(scores, "relaxed", loss)
        if isinstance(case.subject.estimator, FunctionEstimator):
            # A function has no value: a relaxed objective is taken to be the loss at the marginals.
            wanted = own * relaxed_gradient(structure.oracle, loss, scores[0]).gradient.expand_as(found)
        else:
            derivative, doubt = derivatives(case.fresh(), structure, scores)
            sure = doubt <= 1e-4 * derivative.flatten(1).norm(dim=-1) + 1e-6
            if not bool(sure.any()):
                yield Check("objective", where, "undecided", "the value jumps at all of these scores: no derivative to compare with")
                continue
            wanted, found = own * derivative[sure], found[sure]
        flat = found.flatten(1).double(), wanted.flatten(1).double()
        points.append(Point(where, structure.event, *flat, numbers(case.subject.estimator), tolerance=1e-5))
        error, norm = float((found - wanted).norm()), float(wanted.norm())
        detail, cause = "the estimate is the derivative of the objective", ""
        if (bad := error > 1e-5 * norm + 1e-8) and norm < 1e-8:
            detail = "the estimate is not 0, and the derivative of the surrogate's value is"
            cause = "the value of the surrogate does not move with the scores: it must be the objective, or with_gradient of it"
        elif bad:
            gain = float((found * wanted).sum() / wanted.square().sum())
            detail = f"the estimate is not the derivative of the objective: bias {error / norm:.3g}, gain {gain:.3g}"
        yield Check("objective", where, "violated" if bad else "holds", detail, cause)


def derivatives(estimator: Estimator[Any], structure: Structure, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Central differences of the value of every row, ``[rows, *event]``, and by how much two steps disagree, ``[rows]``."""
    slopes, doubts, loss = torch.zeros_like(scores), torch.zeros_like(scores), AuditLoss(structure)
    for part in structure.oracle.read_mask(structure.event).nonzero().tolist():
        step = torch.zeros(structure.event, dtype=scores.dtype)
        step[tuple(part)] = 1

        def value(size: float, step: Tensor = step) -> Tensor:
            # With gradients enabled: an estimator may need that of the loss for its value.
            return estimator.surrogate(loss, structure.oracle, scores + size * step, generator=seeded(1, "relaxed")).detach().double()

        slopes[(slice(None), *part)], doubts[(slice(None), *part)] = central_difference(value)
    return slopes, doubts.flatten(1).norm(dim=-1)


@dataclass(frozen=True)
class ScoreOfNoise(Estimator[Oracle], name="score_of_noise"):
    """The gradient of ``E_ε L(argmax(θ + ε))`` by the score of the noise, without bias: ``1/(n−1) Σ (L_i − L̄) ν(ε_i)``."""

    noise: SmoothNoise = Gumbel()
    draws: int = 8

    objective: ClassVar[Objective] = "perturbed"
    unbiased: ClassVar[bool] = True

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=self.draws, argmax=self.draws, perturbations=self.draws)

    def surrogate(self, loss: Loss, oracle: Oracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        theta, dim = expand_samples(scores.detach(), self.draws, oracle.event_ndim), scores.ndim - oracle.event_ndim
        noise = self.noise.draw(oracle, theta, generator=generator)
        losses = evaluate(loss, oracle.argmax(theta + noise).movedim(dim, 0), oracle.event_ndim).detach().movedim(0, dim)
        centred = (losses - losses.mean(dim, keepdim=True)).reshape(*losses.shape, *[1] * oracle.event_ndim)
        estimate = (centred * self.noise.score(noise)).sum(dim) / (self.draws - 1)
        return with_gradient(losses.mean(dim), scores, torch.where(oracle.free_parts(scores), estimate, 0))


def same_mean_checks(case: Case, reference: Estimator[Any], points: list[Point], law: str = "mean_of") -> Iterator[Check]:
    """A law: the mean is the scale times that of a reference. Exactly if both can be replayed, else by a test at flat scores."""
    structure, effort, own, name = case.structure, case.effort, case.subject.estimator.scale, reference.name
    for regime, scale in (("flat", FLAT), ("usual", USUAL)):
        where = f"{structure.name}, {regime}"
        aim = target(structure, AuditLoss(structure), case.scores(scale, 1)[0])
        sampling = effort.sampling(structure.name, regime, law)
        point = Point(where, structure.event, aim.scores, aim.scores, numbers(case.subject.estimator))
        first, second = exact_mean(case.fresh(), aim, sampling), exact_mean(reference, aim, sampling)
        if first is not None and second is not None:
            found, wanted = first.error + first.gradient, own * (second.error + second.gradient)
            points.append(replace(point, found=found.unsqueeze(0), wanted=wanted))
            distance = float((found - wanted).norm()) / max(float(wanted.norm()), 1e-300)
            gain = float(found @ wanted) / max(float(wanted @ wanted), 1e-300)
            right = f"the exact mean is that of {name}"
            wrong = f"the exact mean is not that of {name}: off by {distance:.3g}, gain {gain:.3g}"
            yield Check(law, where, "holds", right) if distance <= 10 * TOLERANCE else Check(law, where, "violated", wrong)
        elif regime == "flat":
            draws = sampler(case.fresh(), aim, sampling), sampler(reference, aim, effort.sampling(structure.name, regime, law, "reference"))
            pairs: list[Point] = []

            def test(
                slot: str, times: int, draws: tuple[Sampler, Sampler] = draws, point: Point = point, pairs: list[Point] = pairs
            ) -> float:
                here, there = (draw(slot, times * min(effort.most_replicates, 4 * effort.replicates)) for draw in draws)
                pairs.append(replace(point, found=here.mean + here.gradient, wanted=own * (there.mean + there.gradient), tolerance=None))
                return pairs[-1].distance(pairs[-1].wanted)[1]

            p_value = confirmed(test, effort.alpha)
            points.append(pairs[-1])
            (mean, wanted), rows = pairs[-1].pair, pairs[-1].found - pairs[-1].wanted
            size, noise = max(float(wanted.norm()), 1e-300), 2 * float(rows.std(0).norm()) / math.sqrt(len(rows))
            bound = (float((mean - wanted).norm()) + noise) / size
            status: Status = "holds" if bound <= effort.equivalence else "undecided"
            detail = f"gain {float((mean * wanted).sum()) / size**2:.3g} ± {noise / size:.2g} against the mean of {name}"
            yield Check(law, where, status, detail, p_value=p_value, unproven=f"; the means differ by less than {bound:.0%}")


def twin_of(case: Case) -> tuple[Estimator[Any], str] | None:
    """The registered ancestor, or the registered estimator of the most similar mean, with shared options, and why; None if none."""
    own, structure = case.fresh(), case.structure
    registered = {kind: name for name, kind in ESTIMATORS.items()}
    ancestor = next((registered[kind] for kind in type(own).__mro__ if kind in registered), "")
    if type(own) in registered:
        return None
    if ancestor:
        return _with_options(own, ancestor), "by ancestry"
    aim = target(structure, AuditLoss(structure), random_scores(structure, FLAT, 1)[0])

    def mean(estimator: Estimator[Any]) -> Tensor:
        sampling = case.effort.sampling(structure.name, "twin")
        summary = exact_mean(estimator, aim, sampling) or summarise(sampler(estimator, aim, sampling)("comparison", REPLICATES))
        return summary.error + summary.gradient

    def differentiates(estimator: Estimator[Any]) -> bool:
        like = dataclasses.replace(case, subject=dataclasses.replace(case.subject, estimator=estimator))
        return bool(like.observed().counts["loss_gradients"])

    here, slopes, best = mean(own), differentiates(own), (0.0, "")
    for name, kind in ESTIMATORS.items():
        if kind.objective == own.objective and make_estimator(name).incompatibility(structure.oracle, structure.event) is None:
            other = _with_options(own, name)
            if differentiates(other) == slopes:
                best = max(best, (float(torch.cosine_similarity(here, mean(other), dim=0)), name))
    return (_with_options(own, best[1]), f"by its mean, cosine {best[0]:.3f}") if best[0] >= MIN_COSINE else None


def _with_options(own: Estimator[Any], name: str) -> Estimator[Any]:
    """A registered estimator with the values of all options that it shares."""
    other: Any = make_estimator(name)
    shared = {field.name: getattr(own, field.name) for field in dataclasses.fields(other) if field.init and hasattr(own, field.name)}
    with contextlib.suppress(TypeError, ValueError):  # an equal name for another kind of option
        other = dataclasses.replace(other, **shared)
    return other  # type: ignore[no-any-return]
