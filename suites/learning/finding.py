"""Results of learning over several tasks, and their predictors: rank correlations of numbers of a gradient with those of training.

A correlation is Spearman's over estimators, within each task. A resample draws ideas with replacement, each with all of its estimators, and
seeds; all tasks share it. Tasks are not drawn: an interval is about the given tasks. Its bounds are those of Fisher's z with the standard
deviation of the resamples. Student's t has one degree of freedom fewer than there are ideas, because percentiles of so few ideas are too
narrow.

Summaries over several tasks resample seeds within every task, and no tasks either. A score is a share of the way from the floor to the
ceiling of its task.

References:
    Cameron, Gelbach & Miller 2008, "Bootstrap-based improvements for inference with clustered errors".
    Agarwal, Schwarzer, Castro, Courville & Bellemare 2021, "Deep reinforcement learning at the edge of the statistical precipice".
    Kaplan & Meier 1958, "Nonparametric estimation from incomplete observations".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import scipy

from ..metrics import METRICS
from ..statistics.interval import LEVEL, Interval
from .arrays import HALVES, STAGES, Learner, Study, half_of_estimator, half_of_task

Array = np.ndarray

PREDICTORS = (  # Metrics that may predict. Those with the prefix ``parameter_`` are of the gradient of a batch.
    *("relative_bias", "relative_variance", "relative_mse", "cosine", "gain", "rho", "rho_16"),
    *(f"parameter_{name}" for name in ("bias", "variance", "mse", "cosine", "gain", "rho")),
)
OUTCOMES = ("accuracy", "curve_mean", "steps_to_target")  # predicted; a run that misses the target counts with its number of steps

KINDS: dict[str, Callable[[Learner], bool]] = {
    "all": lambda one: True,
    "stochastic": lambda one: not one.deterministic,
    "deterministic": lambda one: one.deterministic,
}
"""Kinds are correlated separately: deterministic estimators have no variance, and together with others they turn its sign."""

RESAMPLES, RESAMPLES_OF_SEEDS = 400, 1000
FEWEST = 4  # least number of estimators of a rank correlation, and of ideas of an interval
_LARGEST = 0.995  # correlations are clipped here, because Fisher's z of 1 is infinite


@dataclass(frozen=True)
class Association:
    """Rank correlation of a predictor with an outcome."""

    pooled: Interval  # the mean over tasks, with its interval; None if there is none
    within: dict[str, float]  # the correlation by task
    estimators: int  # over all tasks, as the ideas
    ideas: int
    note: str = ""  # why there is no correlation, or no interval

    @property
    def significant(self) -> bool:
        """Whether the interval does not contain 0."""
        low, high = self.pooled.low, self.pooled.high
        return low is not None and high is not None and not low <= 0 <= high


@dataclass(frozen=True)
class PredictorResult:
    """Correlations of a predictor at a stage with an outcome, over estimators of a kind."""

    predictor: str
    stage: str
    outcome: str
    kind: str
    whole: Association  # over all tasks, estimators and seeds
    choice: Association  # over one half of them
    confirmation: Association  # over the other half

    @property
    def confirmed(self) -> bool:
        """Whether the other half has a significant correlation of the same sign."""
        first, second = self.choice.pooled.value, self.confirmation.pooled.value
        return first is not None and second is not None and first * second > 0 and self.choice.significant and self.confirmation.significant


def association(study: Study, predictor: str, stage: str, outcome: str, *, resamples: int | None = None) -> Association:
    """One correlation over the estimators of a study, with the signs of both metrics; without resamples no interval."""
    competing = study.of(contenders=lambda one: one.competes)
    before = METRICS[predictor].sign * competing.predictor(predictor, stage)
    after = METRICS[outcome].sign * competing.outcome(outcome)
    return associate(competing.tasks, before, after, [one.idea for one in competing.contenders], resamples=resamples)


def predictor_result(study: Study, predictor: str, stage: str, outcome: str, kind: str) -> PredictorResult:
    """One predictor and outcome, over the whole study and both halves."""
    some = study.of(contenders=KINDS[kind])
    parts = (some, half(some, "choice"), half(some, "confirmation"))
    return PredictorResult(predictor, stage, outcome, kind, *(association(part, predictor, stage, outcome) for part in parts))


def half(study: Study, which: str) -> Study:
    """Tasks, estimators and seeds of one half."""
    return study.of(
        tasks=lambda task: half_of_task(task) == which,
        contenders=lambda one: half_of_estimator(one.family) == which,
        seeds=lambda seed: HALVES[seed % 2] == which,
    )


def measured(study: Study) -> Iterator[tuple[str, str]]:
    """Predictors and stages that there are numbers of."""
    for predictor in PREDICTORS:
        for stage in STAGES:
            if np.isfinite(study.predictor(predictor, stage)).any():
                yield predictor, stage


def chosen(found: list[PredictorResult], outcome: str, kind: str = "all") -> PredictorResult | None:
    """The predictor with the largest correlation, of either sign, on the choosing half, if its interval excludes 0."""
    candidates = [one for one in found if one.outcome == outcome and one.kind == kind and one.choice.significant]
    return max(candidates, key=lambda one: abs(one.choice.pooled.value or 0.0), default=None)


def associate(tasks: Sequence[str], predictor: Array, outcome: Array, ideas: Sequence[str], *, resamples: int | None = None) -> Association:
    """The correlation over estimators of means over seeds, of numbers ``[T, E, S]``, NaN if missing; 0 resamples give no interval."""
    known = (np.isfinite(predictor) & np.isfinite(outcome)).any(-1)
    enough = known.sum(-1) >= FEWEST
    whole = _correlations(predictor, outcome, np.ones((1, predictor.shape[1])), np.ones((1, predictor.shape[2])))[:, 0]
    whole = np.where(enough, whole, np.nan)
    within = {task: float(value) for task, value in zip(tasks, whole, strict=True) if np.isfinite(value)}
    used = [idea for idea, any_task in zip(ideas, known[np.isfinite(whole)].any(0), strict=True) if any_task]
    found = Association(Interval(None), within, len(used), len(set(used)))
    if not within:
        fewest = int(known.sum(-1).max(initial=0))
        why = "all alike" if fewest >= FEWEST else f"expected at least {FEWEST}"
        return replace(found, estimators=fewest, ideas=0, note=f"no correlation: {fewest} estimators, {why}")
    value = float(np.mean(list(within.values())))
    if resamples == 0 or found.ideas < FEWEST:
        note = f"no interval: {found.ideas} ideas behind {found.estimators} estimators; expected at least {FEWEST}"
        return replace(found, pooled=Interval(value), note=note if resamples != 0 else "")
    predictor = np.where(np.isfinite(whole)[:, None, None], predictor, np.nan)
    drawn = _drawn(predictor, outcome, ideas, RESAMPLES if resamples is None else resamples)
    half = float(scipy.special.stdtrit(found.ideas - 1, (1 + LEVEL) / 2) * np.arctanh(np.clip(drawn, -_LARGEST, _LARGEST)).std(ddof=1))
    middle = float(np.arctanh(np.clip(value, -_LARGEST, _LARGEST)))
    pooled = Interval(value, float(min(np.tanh(middle - half), value)), float(max(np.tanh(middle + half), value)), "bootstrap")
    return replace(found, pooled=pooled)


def _drawn(predictor: Array, outcome: Array, ideas: Sequence[str], resamples: int) -> Array:
    """Pooled correlations of the resamples that have one."""
    random = np.random.default_rng(0)
    known = (np.isfinite(predictor) & np.isfinite(outcome)).any((0, 2))
    names = sorted({idea for idea, keep in zip(ideas, known, strict=True) if keep})
    position = np.array([names.index(idea) if idea in names else 0 for idea in ideas])
    # The number of times that each idea and each seed is drawn.
    times, seeds = (random.multinomial(n, np.full(n, 1 / n), size=resamples) * 1.0 for n in (len(names), predictor.shape[2]))
    times = times[:, position] * known
    each = _correlations(predictor, outcome, times, seeds)
    some = np.isfinite(each).any(0)
    return np.asarray(np.nanmean(each[:, some], axis=0))


def _correlations(predictor: Array, outcome: Array, times: Array, seeds: Array) -> Array:
    """Correlations ``[T, resamples]`` by the numbers of draws: ``times [resamples, E]`` and ``seeds [resamples, S]``."""
    found = np.full((len(predictor), len(times)), np.nan)
    for task, (first, second) in enumerate(zip(predictor, outcome, strict=True)):
        x, y = _over_seeds(first, seeds), _over_seeds(second, seeds)
        weights = np.where(np.isfinite(x) & np.isfinite(y), times, 0.0)
        enough = (weights > 0).sum(1) >= 2  # fewer than `FEWEST`: the estimators that a resample lacks are part of the uncertainty
        if enough.any():
            x, y = (np.broadcast_to(values, times.shape)[enough] for values in (x, y))
            found[task, enough] = _rank_correlation(x, y, weights[enough])
    return found


def _over_seeds(values: Array, seeds: Array) -> Array:
    """Means over the drawn seeds that have a number, ``[resamples, E]``."""
    present = np.isfinite(values)
    count = seeds @ present.T
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(count > 0, seeds @ np.where(present, values, 0.0).T / count, np.nan))


def _rank_correlation(x: Array, y: Array, weights: Array) -> Array:
    """Pearson's correlation of middle ranks, in which a value counts once for each draw; NaN if one side does not vary."""
    below = [(side[:, None, :] < side[:, :, None]) + 0.5 * (side[:, None, :] == side[:, :, None]) for side in (x, y)]
    ranks = [np.einsum("rij,rj->ri", side, weights) for side in below]
    x, y = (side - (weights * side).sum(1, keepdims=True) / weights.sum(1, keepdims=True) for side in ranks)
    spread = (weights * x * x).sum(1) * (weights * y * y).sum(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(spread > 1e-9, (weights * x * y).sum(1) / np.sqrt(spread), np.nan))


class Pooled(NamedTuple):
    """Fisher's z of a mean over tasks of rank correlations, with its variance over tasks and over estimators, and degrees of freedom."""

    z: Array
    of_tasks: Array
    of_estimators: Array
    degrees: Array

    @property
    def p_value(self) -> Array:
        """The probability of such a correlation if the true one is 0: Student's t, two-sided."""
        return np.asarray(2 * scipy.special.stdtr(self.degrees, -np.abs(self.z) / np.sqrt(self.of_tasks + self.of_estimators)))


def pooled(predictor: Array, outcome: Array, tasks: Sequence[str] | Array, estimators: Sequence[str] | Array) -> Pooled:
    """The mean correlation of numbers ``[..., T, E]``, with jackknives that leave out a family of tasks, or one of estimators.

    Both variances hold the noise of seeds, which is independent for each pair of task and estimator. Their sum counts it twice, so the
    interval is too wide rather than too narrow. Degrees of freedom are Satterthwaite's.
    """
    families = [[names == one for one in np.unique(names)] for names in map(np.asarray, (tasks, estimators))]
    within = rank_correlations(predictor, outcome)
    fewer_tasks = [_fisher(within[..., ~family]) for family in families[0]]
    fewer = [_fisher(rank_correlations(predictor[..., ~family], outcome[..., ~family])) for family in families[1]]
    of_tasks, of_estimators = ((len(left) - 1) * np.var(left, axis=0) for left in (fewer_tasks, fewer))
    degrees = (of_tasks + of_estimators) ** 2 / (of_tasks**2 / max(len(fewer_tasks) - 1, 1) + of_estimators**2 / max(len(fewer) - 1, 1))
    return Pooled(_fisher(within), of_tasks, of_estimators, degrees)


def _fisher(within: Array) -> Array:
    return np.asarray(np.arctanh(np.clip(np.nanmean(within, axis=-1), -_LARGEST, _LARGEST)))


def rank_correlations(x: Array, y: Array) -> Array:
    """Spearman's correlations ``[..., E] -> [...]`` of pairs without NaN; NaN if they are fewer than `FEWEST`, or one side is constant."""
    both = np.isfinite(x) & np.isfinite(y)
    ranks = [scipy.stats.rankdata(np.where(both, side, np.nan), axis=-1, nan_policy="omit") for side in (x, y)]
    counts = both.sum(-1)
    x, y = (np.where(both, side - (counts[..., None] + 1) / 2, 0.0) for side in ranks)
    spread = (x * x).sum(-1) * (y * y).sum(-1)
    known = (counts >= FEWEST) & (spread > 1e-9)
    return np.asarray(np.where(known, (x * y).sum(-1) / np.sqrt(np.where(known, spread, 1.0)), np.nan))


def interquartile_mean(scores: Array) -> Interval:
    """The mean of the middle half of all scores ``[task, seed]``, without NaN."""
    rows = [row[np.isfinite(row)] for row in scores if np.isfinite(row).any()]  # the seeds of every task that have a number
    return _bootstrapped(lambda drawn: np.asarray(scipy.stats.trim_mean(np.concatenate(drawn, axis=-1), 0.25, axis=-1)), rows)


def probability_of_improvement(scores: Array, base: Array) -> Interval:
    """P(a run is better than one of the base), a tie counting half: the mean over tasks that both have runs of."""
    both = [pair for pair in zip(scores, base, strict=True) if all(np.isfinite(side).any() for side in pair)]
    first, second = ([side[np.isfinite(side)] for side in sides] for sides in (zip(*both, strict=True) if both else ((), ())))

    def statistic(drawn: list[Array]) -> Array:
        pairs = zip(drawn[: len(both)], drawn[len(both) :], strict=True)
        above = [a[..., :, None] - b[..., None, :] for a, b in pairs]
        return np.asarray(np.mean([((one > 0) + 0.5 * (one == 0)).mean((-1, -2)) for one in above], axis=0))

    return _bootstrapped(statistic, first + second)


class Survival(NamedTuple):
    """The number of runs, of those that reach the target, and the time by which half of them have; None if fewer do."""

    runs: int
    reached: int
    median: float | None


def survival(times: Array, censored: Array) -> Survival:
    """The median of the Kaplan–Meier curve of runs, some of which ended before they reached the target."""
    times, censored = times[np.isfinite(times)], censored[np.isfinite(times)]
    curve = scipy.stats.ecdf(scipy.stats.CensoredData.right_censored(times, censored)).sf
    below = curve.quantiles[curve.probabilities <= 0.5]
    return Survival(len(times), int((~censored).sum()), float(below[0]) if len(below) else None)


def _bootstrapped(statistic: Callable[[list[Array]], Array], rows: list[Array]) -> Interval:
    if not rows:
        return Interval(None)
    value = float(statistic(rows))
    if max(map(len, rows)) < 2:
        return Interval(value)
    random = np.random.default_rng(0)
    resamples = [row[random.integers(len(row), size=(RESAMPLES_OF_SEEDS, len(row)))] for row in rows]  # [resamples, seed]
    low, high = np.quantile(statistic(resamples), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(value, float(low), float(high), "bootstrap")
