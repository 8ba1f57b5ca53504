"""Every mistake is called wrong, under the law that it breaks, with the cause that it has where that can be told; its twin is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from structgrad.estimators import (
    CARMS,
    DoubleControl,
    ImportanceWeightedSet,
    LeaveOneOut,
    MuProp,
    Reinforce,
    ReinMaxControl,
    RunningMeanBaseline,
    Simple,
    StraightThrough,
    StructuredAttention,
)
from structgrad.suites.audit import audit
from tests.suites.audit import published_mistakes as mistakes

ON_CLASSES: dict[str, Any] = {"structures": ("categorical",)}
REINMAX: dict[str, Any] = {**ON_CLASSES, "mean_of": "reinmax"}
TEMPERED: dict[str, Any] = {**ON_CLASSES, "mean_of": "simple[temperature=0.5]"}
GUMBEL_RAO: dict[str, Any] = {**ON_CLASSES, "mean_of": "st_gumbel"}

WRONG: dict[str, tuple[Callable[[], Any], dict[str, Any], str, str]] = {
    "batch mean called leave-one-out": (
        mistakes.BatchMean,
        ON_CLASSES,
        "objective",
        "gain 0.5 = (N − 1)/N with N = 2: the baseline of a sample includes the sample itself",
    ),
    "the same with three samples": (
        lambda: mistakes.BatchMean(num_samples=3),
        ON_CLASSES,
        "objective",
        "gain 0.6667 = (N − 1)/N with N = 3",
    ),
    "the same as a function, whose N is fixed": (lambda: own_sample, ON_CLASSES, "objective", "(N − 1)/N with N = 4"),
    "own gradient in the double control": (
        mistakes.OwnGradient,
        ON_CLASSES,
        "objective",
        "the slope of the control variate of a sample includes that of the sample itself",
    ),
    "a control variate whose mean is forgotten": (
        mistakes.NothingReturned,
        ON_CLASSES,
        "objective",
        "the mean of a control variate is not put back",
    ),
    "weights of a coupling that are clipped": (mistakes.ClippedWeights, ON_CLASSES, "objective", "with most=1 the mean is right"),
    "a constant in the ratio of a Stein operator": (
        mistakes.SmoothedStein,
        ON_CLASSES,
        "objective",
        "with beta=0 or smoothing=0 the mean is right",
    ),
    "Runge-Kutta of another parameter": (mistakes.RungeKuttaReinMax, REINMAX, "mean_of", "with alpha=1 the mean is right"),
    "a relaxed sample in place of its noise": (
        lambda: mistakes.RelaxedForNoise(num_conditionals=4),
        REINMAX,
        "mean_of",
        "with eta=0 the mean is right",
    ),
    "a control variate that moves the mean": (
        lambda: ReinMaxControl(num_conditionals=4),
        REINMAX,
        "mean_of",
        "with eta=0 the mean is right",
    ),
    "temperature dropped from the Jacobian": (mistakes.TemperatureDropped, TEMPERED, "mean_of", "gain 0.5 = temperature"),
    "normalised weights without replacement": (
        lambda: ImportanceWeightedSet(2, normalised=True),
        ON_CLASSES,
        "objective",
        "with normalised=False the mean",
    ),
    "the loss of the batch": (mistakes.BatchLoss, ON_CLASSES, "batch", "that is taken over the batch: take it for each row"),
    "off by sigma": (
        lambda: mistakes.PerturbedFunction(forgets_sigma=True),
        ON_CLASSES,
        "objective",
        "gain 0.5 = noise.scale: the estimate is multiplied by noise.scale, or not divided by it",
    ),
    "lambda shrunk by the reduction": (mistakes.ReducedImplicitMLE, ON_CLASSES, "batch", "its gradient shrinks as 1/B"),
    "running mean updated before use": (
        mistakes.RunningMeanFirst,
        ON_CLASSES,
        "objective",
        "gain 0.95 = 1 − (1 − decay)/N with decay = 0.9, N = 2: the running mean is updated before it is used",
    ),
    "running mean in place": (mistakes.RunningMeanInPlace, ON_CLASSES, "state", "state that a call updates in place"),
    "diagonal-only Jacobian, straight-through": (mistakes.DiagonalSimple, ON_CLASSES, "jacobian", "diagonal-only Jacobian"),
    "diagonal-only Jacobian, attention": (mistakes.DiagonalAttention, ON_CLASSES, "objective", "diagonal-only Jacobian"),
    "wrong sign": (mistakes.WrongSign, ON_CLASSES, "sign", "wrong sign"),
    "no normaliser": (mistakes.NoNormaliser, {"structures": ("subset",)}, "objective", "without the normaliser"),
    "total derivative of Gumbel-Rao": (
        lambda: mistakes.TotalGumbelRao(through_noise=True),
        GUMBEL_RAO,
        "mean_of",
        "with through_noise=False the mean is right",
    ),
    "an argmax that keeps state": (mistakes.StickyArgmax, ON_CLASSES, "state", "state that is kept between calls"),
    "unseeded draws": (lambda: mistakes.unseeded, ON_CLASSES, "global_random", "a draw without generator="),
}

RIGHT: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "leave-one-out": (LeaveOneOut, ON_CLASSES),
    "leave-one-out as a function": (lambda: mistakes.leave_one_out, ON_CLASSES),
    "double control": (DoubleControl, ON_CLASSES),
    "MuProp": (MuProp, ON_CLASSES),
    "weights of a coupling that are not": (CARMS, ON_CLASSES),
    "the ratio of a Stein operator as it is": (lambda: mistakes.SmoothedStein(smoothing=0.0), ON_CLASSES),
    "Heun's parameter": (lambda: mistakes.RungeKuttaReinMax(alpha=1.0), REINMAX),
    "no control": (lambda: ReinMaxControl(eta=0.0), REINMAX),
    "temperature kept": (lambda: Simple(0.5), TEMPERED),
    "divided by sigma": (mistakes.PerturbedFunction, ON_CLASSES),
    "the sum of the losses": (lambda: mistakes.ReducedImplicitMLE(mean=False), ON_CLASSES),
    "running mean used before": (lambda: mistakes.RunningMeanFirst(updates_first=False), ON_CLASSES),
    "running mean as a value": (RunningMeanBaseline, ON_CLASSES),
    "the whole Jacobian, straight-through": (Simple, ON_CLASSES),
    "the whole Jacobian, attention": (StructuredAttention, ON_CLASSES),
    "REINFORCE": (Reinforce, {"structures": ("subset",)}),
    "Gumbel-Rao": (mistakes.TotalGumbelRao, GUMBEL_RAO),
    "straight-through": (StraightThrough, ON_CLASSES),
}


def own_sample(loss: Any, oracle: Any, scores: Any, generator: Any) -> Any:
    return mistakes.leave_one_out(loss, oracle, scores, generator, own_sample=True)


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_is_found_and_explained(name: str) -> None:
    make, options, law, cause = WRONG[name]
    found = audit(make(), quick=True, **options)
    assert found.verdict == "wrong"
    assert found.exit_code() == 1
    assert law in {check.law for check in found.violations}
    if cause:
        assert cause in found.causes[0]
    else:
        assert found.causes == ()
        assert found.seen


@pytest.mark.parametrize("name", RIGHT)
def test_its_twin_is_right(name: str) -> None:
    make, options = RIGHT[name]
    found = audit(make(), quick=True, **options)
    verdict = "right" if found.declared["unbiased"] or "mean_of" in options else "consistent"
    assert (found.verdict, found.violations, found.causes) == (verdict, (), ())
    assert found.exit_code(strict=True) == 0


def test_the_gain_of_the_total_derivative() -> None:
    """On two classes of equal scores, .0417 of .1667: a quarter."""
    import torch

    from structgrad.oracles import Categorical

    generator, scores = torch.Generator().manual_seed(0), torch.zeros(100_000, 2, dtype=torch.float64)
    for through_noise, mean in ((True, 1 / 24), (False, 1 / 6)):
        estimator = mistakes.TotalGumbelRao(through_noise=through_noise)
        found = estimator.gradient(lambda z: z[..., 0], Categorical(), scores, generator=generator)
        assert float(found[:, 0].mean()) == pytest.approx(mean, abs=1e-3)
