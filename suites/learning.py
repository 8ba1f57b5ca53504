"""The study of learning: results over several tasks, and rank correlations of numbers of a gradient with those of training.

The rows of a run are arrays over tasks, estimators and seeds.

A correlation is Spearman's over estimators, within each task, and its mean over tasks. An interval is that of Fisher's z, with jackknives
over families of tasks and of estimators. With fewer than four families of tasks it is about the given tasks. Which predictors are tested,
and when one is confirmed, `docs/decisions/0032-learning-study-design.md` settled before the measurements.

Summaries over several tasks resample seeds within every task, and no tasks. A score is a share of the way from the floor to the ceiling of
its task.

References:
    Cameron, Gelbach & Miller 2011, "Robust inference with multiway clustering".
    Agarwal, Schwarzer, Castro, Courville & Bellemare 2021, "Deep reinforcement learning at the edge of the statistical precipice".
    Kaplan & Meier 1958, "Nonparametric estimation from incomplete observations".
"""

from __future__ import annotations

import functools
import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import scipy

from .base import LEARNT, TASK, Row
from .metrics import METRICS
from .statistics.interval import LEVEL, Interval
from .statistics.selection import holm

Array = np.ndarray
K = TypeVar("K")

STAGES = ("init", "early", "final")
REFERENCES = ("exact", "frozen")  # families that others are compared with: the exact gradient, and no gradient at all

STEPS, SECONDS, STEP_TIME = "steps_to_target", "seconds_to_target", "step_time"
"""Seconds are steps × the time of a step. Steps of all estimators are timed in turn, not during training."""

_SEED = re.compile(r"seed[-=](\d+)")
OWN = "own"  # prefix of the idea of a user's own estimator; its name follows


@dataclass(frozen=True)
class Learner:
    """An estimator with its declarations, and the idea that it shares with others."""

    name: str
    family: str
    idea: str
    objective: str
    deterministic: bool
    unbiased: bool

    @property
    def competes(self) -> bool:
        """Whether it estimates a gradient from losses alone. The exact gradient, supervised losses and frozen encoders do not."""
        return self.family not in REFERENCES and self.objective != "supervised"


@dataclass(frozen=True, eq=False)
class Study:
    """Numbers of a run, each an array ``[task, estimator, seed]`` with NaN where there is none."""

    tasks: tuple[str, ...]
    contenders: tuple[Learner, ...]
    seeds: tuple[int, ...]
    outcomes: dict[str, Array]  # by metric of the suite ``learning``
    censored: dict[str, Array]  # by metric of time, True if the run ended before the target was reached
    predictors: dict[tuple[str, str], Array]  # by metric and stage, the median over the instances of a seed
    chosen: dict[tuple[str, str], str] = field(default_factory=dict)  # by task and estimator the validated option, such as ``lambda=10``

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the estimators."""
        return tuple(one.name for one in self.contenders)

    @property
    def families(self) -> tuple[str, ...]:
        """The families of the tasks."""
        return tuple(declared(task).family for task in self.tasks)

    @property
    def common(self) -> tuple[str, ...]:
        """The tasks that more than half of the competing estimators were trained on; all tasks if there are none."""
        trained = np.isfinite(self.of(contenders=lambda one: one.competes).outcome("accuracy")).any(-1)
        most = [task for task, row in zip(self.tasks, trained, strict=True) if row.mean() > 0.5] if trained.size else []
        return tuple(most) or self.tasks

    def of_family(self, family: str) -> str | None:
        """The name of the first estimator of a family, with any options; None if there is none."""
        return next((one.name for one in self.contenders if one.family == family), None)

    def outcome(self, metric: str) -> Array:
        """An outcome; all NaN if it was not measured."""
        return self.outcomes.get(metric, self._empty())

    def predictor(self, metric: str, stage: str) -> Array:
        """A predictor; all NaN if it was not measured."""
        return self.predictors.get((metric, stage), self._empty())

    def _empty(self) -> Array:
        return np.full((len(self.tasks), len(self.contenders), len(self.seeds)), np.nan)

    def of(
        self,
        *,
        tasks: Callable[[str], bool] = lambda task: True,
        contenders: Callable[[Learner], bool] = lambda one: True,
        seeds: Callable[[int], bool] = lambda seed: True,
    ) -> Study:
        """Some of the tasks, estimators and seeds."""
        wanted: dict[str, Callable[[Any], bool]] = {"tasks": tasks, "contenders": contenders, "seeds": seeds}
        kept = {axis: [i for i, one in enumerate(getattr(self, axis)) if keep(one)] for axis, keep in wanted.items()}
        axes: dict[str, Any] = {axis: tuple(getattr(self, axis)[i] for i in places) for axis, places in kept.items()}
        for name in ("outcomes", "censored", "predictors"):
            axes[name] = {key: values[np.ix_(*kept.values())] for key, values in getattr(self, name).items()}
        return replace(self, **axes)


def study(rows: Iterable[Row]) -> Study:
    """The study of a run; rows of other problems, of curves and of failed cells are left out."""
    found = [row for row in rows if row.status == "ok" and row.metric and row.problem.startswith((TASK, LEARNT))]
    of_tasks = [row for row in found if row.problem.startswith(TASK) and row.suite != "references"]
    learning = [row for row in of_tasks if not row.setting]
    chosen = {(_task(row), row.estimator): row.setting for row in of_tasks if row.metric == "chosen_option"}
    before = [row for row in found if row.problem.startswith(LEARNT) and row.stage in STAGES and not row.setting]
    tasks = tuple(dict.fromkeys(_task(row) for row in learning))
    contenders = {
        row.estimator: Learner(row.estimator, row.family, idea_of(row.family), row.objective, row.deterministic, row.unbiased)
        for row in learning
    }
    seeds = tuple(sorted({seed for row in learning if (seed := seed_of(row)) is not None}))
    empty = Study(tasks, tuple(contenders.values()), seeds, {}, {}, {}, chosen)
    outcomes = _arrays(empty, [(row.metric, row, row.low if _is_censored(row) else row.value) for row in learning])
    stopped = _arrays(empty, [(True, row, float(_is_censored(row))) for row in learning if row.metric == STEPS])
    censored = {STEPS: stopped[True] == 1} if stopped else {}
    if STEPS in outcomes and STEP_TIME in outcomes:
        outcomes[SECONDS], censored[SECONDS] = outcomes[STEPS] * outcomes[STEP_TIME], censored[STEPS]
    predictors = _arrays(empty, [((row.metric, row.stage), row, row.value) for row in before])
    return replace(empty, outcomes=outcomes, censored=censored, predictors=predictors)


def seed_of(row: Row) -> int | None:
    """The seed of an instance; None if it belongs to no single seed."""
    found = _SEED.search(row.instance)
    return int(found.group(1)) if found else None


def _is_censored(row: Row) -> bool:
    """Whether the row is a time to a target that the run did not reach; its lower bound is the length of the run."""
    return row.value is None and row.low is not None


def _task(row: Row) -> str:
    return row.problem.partition(":")[2]


def _arrays(found: Study, numbers: Iterable[tuple[K, Row, float | None]]) -> dict[K, Array]:
    """Medians over the numbers of each entry ``[task, estimator, seed]``, by key; a row without a seed counts for all seeds."""
    entries: dict[K, dict[tuple[str, str, int], list[float]]] = defaultdict(lambda: defaultdict(list))
    for key, row, value in numbers:
        seed, several = seed_of(row), entries[key]
        for one in found.seeds if seed is None else (seed,):
            several[_task(row), row.estimator, one] += [] if value is None else [value]
    places, shape = [*itertools.product(found.tasks, found.names, found.seeds)], found._empty().shape
    medians = {key: [np.median(several[at]) if several[at] else np.nan for at in places] for key, several in entries.items()}
    return {key: np.array(values).reshape(shape) for key, values in medians.items()}


@functools.cache
def idea_of(family: str) -> str:
    """The module of a registry family. Jackknives leave out modules, because numbers of one idea are dependent."""
    from ..estimators import ESTIMATORS  # a page without learning does not import torch

    return ESTIMATORS[family].__module__.rpartition(".")[2] if family in ESTIMATORS else f"{OWN}: {family}"


class Declared(NamedTuple):
    """Declarations of a task; empty for an unregistered one, whose family is its name."""

    family: str
    kind: str = ""  # of its loss
    decoding: str = ""
    structure: str = ""


@functools.cache
def declared(task: str) -> Declared:
    """The declarations of a task by name."""
    from .tasks import TASKS, make_task

    if task.partition("[")[0] not in TASKS:
        return Declared(task)
    made = make_task(task)
    return Declared(made.family or made.name, made.kind, made.decoding, made.oracle.name)


PREDICTORS = (  # Metrics that may predict. Those with the prefix ``parameter_`` are of the gradient of a batch.
    *("relative_bias", "relative_variance", "relative_mse", "cosine", "gain", "rho", "rho_16"),
    *(f"parameter_{name}" for name in ("bias", "variance", "mse", "cosine", "gain", "rho")),
)
OUTCOMES = ("accuracy", "curve_mean", "steps_to_target")  # predicted; a run that misses the target counts with its number of steps

DECLARED = (  # the predictors that are tested, with their stages
    *((f"parameter_{name}", "init") for name in ("bias", "variance", "mse", "cosine", "rho")),
    *(("parameter_mse", "early"), ("parameter_rho", "early"), ("rho_16", "early")),
)
TESTED = OUTCOMES[:2]  # outcomes of the tests: final accuracy, and speed as the mean of the learning curve
FIRST_STUDY = ("clusters", "l2x_switch", "fsdd", "listops_frozen", "listops", "listops_parser", "vae", "pipeline", "matching")
"""Tasks of the first study; what tasks of other families do not show too is not confirmed."""

WORTHWHILE = 0.4  # a predictor whose interval ends below this correlation is refuted

KINDS: dict[str, Callable[[Learner], bool]] = {
    "all": lambda one: True,
    "stochastic": lambda one: not one.deterministic,
    "deterministic": lambda one: one.deterministic,
}
"""Kinds are correlated separately: deterministic estimators have no variance, and together with others they turn its sign."""

RESAMPLES_OF_SEEDS = 1000
FEWEST = 4  # least number of estimators of a rank correlation, and of families of an interval
_LARGEST = 0.995  # correlations are clipped here, because Fisher's z of 1 is infinite


@dataclass(frozen=True)
class Association:
    """Rank correlation of a predictor with an outcome."""

    pooled: Interval  # the mean over tasks, with its interval; None if there is none
    within: dict[str, float]  # the correlation by task
    estimators: int  # over all tasks, as the families
    families: int
    note: str = ""  # why there is no correlation, or no interval
    p_value: float = 1.0  # that the correlation is 0

    @property
    def significant(self) -> bool:
        """Whether the interval does not contain 0."""
        low, high = self.pooled.low, self.pooled.high
        return low is not None and high is not None and not low <= 0 <= high


@dataclass(frozen=True)
class Verdict:
    """The result of a declared predictor."""

    predictor: str
    stage: str
    whole: Association
    fresh: Association | None  # over the families of tasks that the first study lacks; None without both kinds of tasks
    adjusted: float  # p-value after Holm's correction over the declared predictors

    @property
    def verdict(self) -> Literal["confirmed", "refuted", "open"]:
        """``confirmed``, ``refuted`` if the correlation is below `WORTHWHILE`, or ``open``."""
        fresh, high = self.fresh, self.whole.pooled.high
        again = fresh is None or (fresh.significant and (fresh.pooled.value or 0) > 0)
        if self.adjusted < 1 - LEVEL and (self.whole.pooled.value or 0) > 0 and again:
            return "confirmed"
        return "refuted" if high is not None and high < WORTHWHILE else "open"


def association(study: Study, predictor: str, stage: str, outcome: str) -> Association:
    """One correlation over the competing estimators of a study, with the signs of both metrics."""
    competing = study.of(contenders=lambda one: one.competes)
    before = METRICS[predictor].sign * over_seeds(competing.predictor(predictor, stage))
    after = METRICS[outcome].sign * over_seeds(competing.outcome(outcome))
    return associate(competing.tasks, competing.families, before, after, [one.idea for one in competing.contenders])


@functools.lru_cache(maxsize=4)
def verdicts(study: Study, outcome: str) -> list[Verdict]:
    """The results of the declared predictors that were measured."""
    first = {declared(task).family for task in FIRST_STUDY}
    old = [family in first for family in study.families]
    fresh = study.of(tasks=lambda task: declared(task).family not in first) if any(old) and not all(old) else None
    pairs = [pair for pair in measured(study) if pair in DECLARED]
    whole = {pair: association(study, *pair, outcome) for pair in pairs}
    adjusted = holm({pair: whole[pair].p_value if pair in whole else 1.0 for pair in DECLARED})
    return [Verdict(*pair, whole[pair], None if fresh is None else association(fresh, *pair, outcome), adjusted[pair]) for pair in pairs]


def measured(study: Study) -> Iterator[tuple[str, str]]:
    """Predictors and stages that there are numbers of."""
    for predictor in PREDICTORS:
        for stage in STAGES:
            if np.isfinite(study.predictor(predictor, stage)).any():
                yield predictor, stage


def associate(tasks: Sequence[str], families: Sequence[str], predictor: Array, outcome: Array, ideas: Sequence[str]) -> Association:
    """The correlation over estimators of numbers ``[T, E]``, NaN if missing."""
    known = np.isfinite(predictor) & np.isfinite(outcome)
    correlations = rank_correlations(predictor, outcome)
    rows = np.isfinite(correlations)
    within = {task: float(value) for task, value in zip(tasks, correlations, strict=True) if np.isfinite(value)}
    columns = known[rows].any(0)
    used = [idea for idea, any_task in zip(ideas, columns, strict=True) if any_task]
    found = Association(Interval(None), within, len(used), len(set(used)))
    if not within:
        fewest = int(known.sum(-1).max(initial=0))
        why = "all alike" if fewest >= FEWEST else f"expected at least {FEWEST}"
        return replace(found, estimators=fewest, families=0, note=f"no correlation: {fewest} estimators, {why}")
    value = float(correlations[rows].mean())
    if found.families < FEWEST:
        few = f"no interval: {found.families} families behind {found.estimators} estimators; expected at least {FEWEST}"
        return replace(found, pooled=Interval(value), note=few)
    z, variance, degrees = _pooled(predictor[rows][:, columns], outcome[rows][:, columns], np.asarray(families)[rows], used)
    half, error = float(scipy.special.stdtrit(degrees, (1 + LEVEL) / 2)) * variance**0.5, abs(z) / variance**0.5
    low, high = (float(np.tanh(z + side)) for side in (-half, half))
    p_value = float(2 * scipy.special.stdtr(degrees, -error))  # Student's t, two-sided
    return replace(found, pooled=Interval(value, min(low, value), max(high, value), "jackknife"), p_value=p_value)


def over_seeds(values: Array) -> Array:
    """Means over seeds ``[T, E]`` of numbers ``[T, E, S]``, NaN where there is none."""
    known = np.isfinite(values)
    return np.asarray(np.where(known.any(-1), np.where(known, values, 0.0).sum(-1) / np.maximum(known.sum(-1), 1), np.nan))


def _pooled(predictor: Array, outcome: Array, tasks: Array, estimators: Sequence[str]) -> tuple[float, float, float]:
    """Fisher's z of the mean correlation of numbers ``[T, E]``, its variance, and Satterthwaite's degrees of freedom.

    The variance is the sum of those of two jackknives, which leave out a family of tasks, and one of estimators. Both hold the noise of
    seeds, which is independent for each pair of task and estimator. Their sum counts it twice, so the interval is rather too wide.
    """
    families = [[names == one for one in np.unique(names)] for names in map(np.asarray, (tasks, estimators))]
    within = rank_correlations(predictor, outcome)
    several = len(families[0]) >= FEWEST  # else the result is about the given tasks
    fewer_tasks = [_fisher(within[~family]) for family in families[0]] if several else [_fisher(within)]
    fewer = [_fisher(rank_correlations(predictor[:, ~family], outcome[:, ~family], 2)) for family in families[1]]
    of_tasks, of_estimators = ((len(left) - 1) * float(np.var(left)) for left in (fewer_tasks, fewer))
    of_estimators = max(of_estimators, 1e-12)  # ranks that agree whatever is left out
    variance = of_tasks + of_estimators
    return _fisher(within), variance, variance**2 / (of_tasks**2 / max(len(fewer_tasks) - 1, 1) + of_estimators**2 / max(len(fewer) - 1, 1))


def _fisher(within: Array) -> float:
    """Fisher's z of the mean over tasks with a correlation; 0 if a jackknife leaves none."""
    known = within[np.isfinite(within)]
    return float(np.arctanh(np.clip(known.mean() if len(known) else 0.0, -_LARGEST, _LARGEST)))


def rank_correlations(x: Array, y: Array, fewest: int = FEWEST) -> Array:
    """Spearman's correlations ``[..., E] -> [...]`` of pairs without NaN; NaN if they are too few, or one side is constant."""
    both = np.isfinite(x) & np.isfinite(y)
    ranks = [scipy.stats.rankdata(np.where(both, side, np.nan), axis=-1, nan_policy="omit") for side in (x, y)]
    counts = both.sum(-1)
    x, y = (np.where(both, side - (counts[..., None] + 1) / 2, 0.0) for side in ranks)
    spread = (x * x).sum(-1) * (y * y).sum(-1)
    known = (counts >= fewest) & (spread > 1e-9)
    return np.asarray(np.where(known, (x * y).sum(-1) / np.sqrt(np.where(known, spread, 1.0)), np.nan))


def probability_of_improvement(scores: Array, base: Array) -> Interval:
    """P(a run is better than one of the base), a tie counting half: the mean over tasks that both have runs of."""
    both = [pair for pair in zip(scores, base, strict=True) if all(np.isfinite(side).any() for side in pair)]
    first, second = ([side[np.isfinite(side)] for side in sides] for sides in (zip(*both, strict=True) if both else ((), ())))

    def mean_share(drawn: list[Array]) -> Array:
        pairs = zip(drawn[: len(both)], drawn[len(both) :], strict=True)
        above = [a[..., :, None] - b[..., None, :] for a, b in pairs]
        return np.asarray(np.mean([((one > 0) + 0.5 * (one == 0)).mean((-1, -2)) for one in above], axis=0))

    runs = first + second
    if not runs:
        return Interval(None)
    value = float(mean_share(runs))
    if max(map(len, runs)) < 2:
        return Interval(value)
    random = np.random.default_rng(0)
    resamples = [row[random.integers(len(row), size=(RESAMPLES_OF_SEEDS, len(row)))] for row in runs]  # [resamples, seed]
    low, high = np.quantile(mean_share(resamples), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(value, float(low), float(high), "bootstrap")


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
