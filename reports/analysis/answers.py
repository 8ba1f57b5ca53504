"""The best estimator for each problem and entropy level, by question and budget, and why.

Four questions are answered for every problem and entropy level, each with a budget: the time that a number of `REINFORCE` estimates take.
All candidates get the same time: an estimator of cost c is averaged over T/c estimates. Costs are the paired ratios `time_ratio`; where one
of them is uncertain, calls of the oracle and evaluations of the loss are counted instead. The reference families compute the truth and do
not compete, and neither do estimators whose averages are mostly 0, or that a run contradicts. An answer names the best candidate, and all
others that are not significantly different from it. Otherwise it says that no estimator is clearly best, or useful.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, product
from typing import Any, Literal

import numpy as np
import pandas as pd

from ...suites.base import REFERENCE
from ...suites.statistics.budgets import MAX_RATIO_ERROR, Worth
from ...suites.statistics.interval import Interval
from ...suites.statistics.selection import Selection, best, interval_of, mean_intervals
from ...suites.text import ZERO, below, listed, number, percent
from . import tables
from .measured_places import MeasuredPlace, measured_places

BUDGETS = (1, 16, 256)
"""Numbers of estimates of `REFERENCE` whose time every candidate gets."""

MAIN_BUDGET = 16
"""The budget that is shown if there is room for one."""

MOSTLY = 0.5
"""Share of averages over a budget that are exactly 0 above which an estimator is not recommended."""

FEWEST_INSTANCES = 4
"""With fewer there is no interval, and no estimator is clearly best."""

Outcome = Literal["clear", "tied", "unclear", "useless"]
"""One best estimator; a few that are not significantly different; more than half of them, or too few instances; none with a positive ρ."""

_ASKED = ("problem", "stage", "loss", "estimator", "instance", "metric", "value", "low", "high", "objective", "unbiased")

_ORACLE_CALLS = ("argmax", "marginals", "samples", "projections", "kbest", "relaxations", "enumerations", "listings", "completions")
_NORMAL = 1.96
_SMALLEST = 1e-12


@dataclass(frozen=True)
class Question:
    """A question about estimators.

    Attributes:
        name: short name.
        asks: title for people.
        criterion: the name of the number that decides.
        values_only: whether candidates may use values of the loss only.
        unbiased: whether candidates must be unbiased for the expected loss.
        score: ``rho``, ``squared_error`` or ``variance_seconds``.
    """

    name: str
    asks: str
    criterion: str
    score: str
    values_only: bool = False
    unbiased: bool = False

    @property
    def logarithmic(self) -> bool:
        """Whether scores are logarithms of positive numbers, the smaller the better."""
        return self.score != "rho"


QUESTIONS = (
    Question("gradients", "Any estimator", "ρ, the mean over instances", "rho"),
    Question("values", "Black-box loss", "ρ, the mean over instances", "rho", values_only=True),
    Question("unbiased", "Must be unbiased", "variance × time, geometric mean", "variance_seconds", unbiased=True),
    Question("error", "Smallest error", "relative MSE, geometric mean", "squared_error"),
)


@dataclass(frozen=True)
class Answer:
    """The best estimator of one problem and entropy level for one question and budget.

    Attributes:
        loss: loss of the problem.
        estimator: the estimator with the best score; see ``outcome`` for whether it is clearly best.
        score: its ρ, relative error, or variance × seconds, with a 95 % interval from `FEWEST_INSTANCES` instances on.
        tied: estimators that are not significantly different from it, best first.
        rivals: number of other eligible estimators.
        why: its bias, variance and time.
        verdict: result of the test for bias.
        instances: number of measured instances.
        timed: whether all get the same time. If not, they get as many estimates, or calls and evaluations if times are uncertain.
        uncertain: estimators whose times are uncertain.
        mostly_zero: estimators whose averages are mostly 0.
    """

    problem: str
    stage: str
    loss: str
    question: Question
    budget: float
    estimator: str
    score: Interval
    tied: tuple[str, ...]
    rivals: int
    why: str
    verdict: str
    instances: int
    timed: bool
    uncertain: tuple[str, ...]
    mostly_zero: tuple[str, ...]

    @property
    def outcome(self) -> Outcome:
        """Whether one estimator is the best, a few are, most of them, or none."""
        return outcome(self.score, len(self.tied), self.rivals, rho=not self.question.logarithmic)


def outcome(score: Interval, tied: int, rivals: int, *, rho: bool = True) -> Outcome:
    """Whether an estimator with so many ties among its rivals is to be called the best.

    Example:
        >>> [outcome(Interval(0.5, 0.4, 0.6), tied, 11) for tied in (0, 5, 6)], outcome(Interval(0.1, -0.1, 0.3), 0, 11)
        (['clear', 'tied', 'unclear'], 'useless')
    """
    least = score.value if score.low is None else score.low
    if rho and least is not None and least <= 0:
        return "useless"
    if score.low is None:
        return "unclear"
    if not tied:
        return "clear"
    return "unclear" if 2 * (tied + 1) > rivals + 1 else "tied"


def answers(frame: pd.DataFrame, values_only: Collection[str] | None = None) -> list[Answer]:
    """Answers to all questions on all problems and entropy levels at which bias and variance were measured.

    Args:
        frame: the result table.
        values_only: the estimators for which `needs_values_only` is true, if they are known.
    """
    asks = needs_values_only if values_only is None else frozenset(values_only).__contains__
    return [answer for place in places(frame) for answer in place.answers(asks)]


def standings(frame: pd.DataFrame, values_only: Collection[str] | None = None) -> pd.DataFrame:
    """The score of every candidate for every question and budget, and how it compares with the best.

    Returns:
        One row per problem, stage, question, budget and estimator. ``score`` has the interval ``low``, ``high`` over ``instances``,
        NaN for fewer than `FEWEST_INSTANCES`. ``standing`` is ``best``, ``tied`` (not significantly different from the best) or
        ``behind``. ``outcome`` is that of the answer, see `Outcome`.
    """
    asks = needs_values_only if values_only is None else frozenset(values_only).__contains__
    parts = [part for place in places(frame) for part in place.standings(asks)]
    columns = ["problem", "stage", "question", "budget", "estimator", "score", "low", "high", "instances", "standing", "outcome"]
    return pd.DataFrame(
        {name: list(chain.from_iterable(part[name] for part in parts)) for name in columns}, dtype=None if parts else object
    )


@tables.remembered
def places(frame: pd.DataFrame) -> list[AnsweredStage]:
    """The evidence at each problem and stage of a result table, in its order."""
    rows = tables.measured(frame)
    rows = rows.loc[~rows["family"].isin(tables.REFERENCE_FAMILIES), list(_ASKED)]
    verdicts = {(str(row.problem), str(row.stage), str(row.estimator)): str(row.verdict) for row in tables.records(tables.verdicts(frame))}
    bounds = tables.bias_bounds(frame)
    known = (AnsweredStage.of(place, verdicts, bounds) for place in measured_places(rows))
    return [place for place in known if place is not None]


@dataclass(frozen=True, eq=False)
class AnsweredStage:
    """The evidence at one problem and stage on the estimators that were measured on all of its instances.

    Attributes:
        problem, stage, instances, names: the place, its instances, the estimators.
        loss: of the problem. ``worth``: moments [estimators, instances].
        costs: of one estimate of each [estimators], in estimates of `REFERENCE`. ``errors``: their relative standard errors.
        timed: whether costs are times. Otherwise they are 1, or calls and evaluations if the times of ``uncertain`` estimators are too.
        timed_once: the estimators whose time has no interval. They do not compete while others are compared at equal time.
        declared: whether each declares itself unbiased for the expected loss. ``verdicts``: of the tests for bias.
        zeros: the share of estimates that are exactly 0. ``seconds, evaluations``: of one estimate, and of the loss behind it.
    """

    problem: str
    stage: str
    loss: str
    names: list[str]
    instances: list[str]
    worth: Worth
    costs: np.ndarray
    errors: np.ndarray
    timed: bool
    uncertain: tuple[str, ...]
    timed_once: tuple[str, ...]
    declared: dict[str, bool]
    verdicts: dict[str, str]
    zeros: dict[str, float]
    seconds: dict[str, float]
    evaluations: dict[str, float]
    bounds: dict[str, float]
    _selected: dict[tuple[Any, ...], tuple[np.ndarray, np.ndarray, Selection]] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(
        cls, found: MeasuredPlace, verdicts: dict[tuple[str, str, str], str], bounds: dict[tuple[str, str, str], float]
    ) -> AnsweredStage | None:
        """Collect the evidence; None without bias and variance."""
        moments = [rows.wide() for rows in found.moments]
        # Instances on which no estimator has one of the moments, such as a gradient of 0, are left out.
        common = _common(one.items for one in moments)
        # All candidates are compared on the same instances.
        chosen = _common(one.complete(common) for one in moments) if len(common) else common
        timed = len(chosen) > 0 and bool(found.ratios)
        chosen = chosen[np.isin(chosen, list(found.ratios))] if timed else chosen
        if not len(chosen):
            return None
        worth = Worth(*(one.of(chosen, common) for one in moments))
        names, items = ([str(names[number]) for number in numbers] for names, numbers in ((found.names, chosen), (found.items, common)))
        zeros, evaluations = found.means
        costs, errors = np.array([found.ratios[name] if timed else (1.0, 0.0) for name in chosen.tolist()]).T
        timed_once = tuple(name for name, error in zip(names, errors, strict=True) if np.isinf(error))
        errors = np.where(np.isinf(errors), 0.0, errors)
        uncertain = tuple(name for name, error in zip(names, errors, strict=True) if _NORMAL * error > MAX_RATIO_ERROR)
        if uncertain:
            work = np.array([evaluations.get(name, np.nan) + oracle_calls(name) for name in names])
            own = evaluations.get(REFERENCE, np.nan) + oracle_calls(REFERENCE)
            costs, errors, timed = (work / own if np.isfinite(own) else np.ones_like(costs)), np.zeros_like(errors), False
        known = {name: verdicts.get((*found.at, name), "") for name in names}
        below_at = {name: bounds[(*found.at, name)] for name in names if (*found.at, name) in bounds}
        taken = {str(found.names[name]): value for name, value in found.seconds.items()}
        return cls(
            *found.at,
            found.loss,
            names,
            items,
            worth,
            costs,
            errors,
            timed,
            uncertain,
            timed_once if timed else (),
            found.declared,
            known,
            zeros,
            taken,
            evaluations,
            below_at,
        )

    def answers(self, values_only: Callable[[str], bool]) -> Iterator[Answer]:
        """Answers to all questions with eligible estimators, for all budgets."""
        for question in QUESTIONS:
            for budget in BUDGETS:
                allowed = self._allowed(question, values_only, budget)
                if allowed:
                    yield self._answer(question, budget, allowed)

    def standings(self, values_only: Callable[[str], bool]) -> Iterator[dict[str, list[Any]]]:
        """The rows of `standings`, as columns, a question and a budget at a time."""
        for question, budget in product(QUESTIONS, BUDGETS):
            allowed = self._allowed(question, values_only, budget)
            if not allowed:
                continue
            scores, common, chosen = self._selection(question, budget, tuple(allowed))
            standing = ["behind"] * len(allowed)
            for position in chosen.tied:
                standing[position] = "tied"
            standing[chosen.winner] = "best"
            ends = _shown(chosen.score, question)
            result = outcome(ends, len(chosen.tied), len(allowed) - 1, rho=not question.logarithmic)
            shown = _shown_ends(*mean_intervals(scores[allowed], common[allowed], fewest=FEWEST_INSTANCES), question)
            at = {"problem": self.problem, "stage": self.stage, "question": question.name, "budget": budget}
            at |= {"instances": scores.shape[1], "outcome": result}
            yield {
                **{name: [value] * len(allowed) for name, value in at.items()},
                **{name: ends.tolist() for name, ends in zip(("score", "low", "high"), shown, strict=True)},
                "estimator": [self.names[position] for position in allowed],
                "standing": standing,
            }

    def _selection(self, question: Question, budget: float, allowed: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, Selection]:
        """The scores of all with the errors of their costs, and the best of the eligible; kept for answers and standings."""
        at = (question.score, None if question.score == "variance_seconds" else budget, allowed)
        if at not in self._selected:
            scores, common = self.scores(question.score, budget)
            chosen = best(scores[list(allowed)], common[list(allowed)], fewest=FEWEST_INSTANCES)
            self._selected[at] = (scores, common, chosen)
        return self._selected[at]

    def _allowed(self, question: Question, values_only: Callable[[str], bool], budget: float) -> list[int]:
        """The positions of the eligible."""
        return [position for position in range(len(self.names)) if self._refusal(position, question, values_only, budget) is None]

    def with_loss_cost(self, evaluation: float) -> AnsweredStage:
        """A copy for a loss whose evaluation takes `evaluation` times as long as one estimate of `REFERENCE` without a loss.

        Estimators with an unknown number of evaluations do not compete. The time of the measured loss is neglected.
        """
        own = self.evaluations.get(REFERENCE, 1.0)
        calls = np.array([self.evaluations.get(name, np.nan) for name in self.names])
        costs = (self.costs + evaluation * calls) / (1 + evaluation * own) if evaluation > 0 else self.costs
        return replace(self, costs=costs, errors=self.errors * self.costs / costs / (1 + evaluation * own))

    def refusal(self, name: str, question: Question, values_only: Callable[[str], bool], budget: float) -> str | None:
        """Why an estimator does not compete for an answer; None if it does."""
        return self._refusal(self.names.index(name), question, values_only, budget)

    def _refusal(  # noqa: PLR0911 - one reason each
        self, position: int, question: Question, values_only: Callable[[str], bool], budget: float
    ) -> str | None:
        name = self.names[position]
        verdict = self.verdicts[name]
        if verdict == "broken":
            return "it returned NaN or infinite estimates"
        if verdict == "biased" and self.declared[name]:
            return "it declares itself unbiased and is found biased"
        if question.values_only and not values_only(name):
            return "it needs gradients or relaxed inputs of the loss"
        if question.unbiased and not self.declared[name]:
            return "it does not declare itself unbiased for the expected loss"
        if name in self.timed_once:
            return "it was timed once, and the error of its time was not measured"
        if self._zero_share(position, budget) > MOSTLY:
            return f"{percent(self._zero_share(position, budget))} of its averages over the budget are 0"
        return None if np.isfinite(self.costs[position]) else "its number of oracle calls or loss evaluations was not measured"

    def _zero_share(self, position: int, budget: float) -> float:
        """The probability that the average of all estimates that a budget buys is 0; a deterministic estimator repeats itself."""
        count = max(budget / float(self.costs[position]), 1.0) if self.worth.variance[position].any() else 1.0
        return float(self.zeros.get(self.names[position], 0.0) ** count)

    def answer(self, question: Question, budget: float, values_only: Callable[[str], bool]) -> Answer | None:
        """The answer with the time of `budget` estimates of `REFERENCE` for each candidate; None if no estimator is eligible."""
        allowed = self._allowed(question, values_only, budget)
        return self._answer(question, budget, allowed) if allowed else None

    def _answer(self, question: Question, budget: float, allowed: list[int]) -> Answer:
        scores, _, chosen = self._selection(question, budget, tuple(allowed))
        winner = allowed[chosen.winner]
        return Answer(
            self.problem,
            self.stage,
            self.loss,
            question,
            budget,
            self.names[winner],
            _shown(chosen.score, question),
            tuple(self.names[allowed[position]] for position in chosen.tied),
            len(allowed) - 1,
            self._why(winner),
            self.verdicts[self.names[winner]],
            scores.shape[1],
            self.timed,
            self.uncertain,
            tuple(name for position, name in enumerate(self.names) if self._zero_share(position, budget) > MOSTLY),
        )

    def order(self, question: Question, budget: float, values_only: Callable[[str], bool]) -> list[tuple[str, Interval]]:
        """All eligible estimators with their scores as people read them, best first."""
        allowed = self._allowed(question, values_only, budget)
        scores, common = self.scores(question.score, budget)
        middles, lows, highs = mean_intervals(scores[allowed], common[allowed], fewest=FEWEST_INSTANCES)
        return [
            (self.names[allowed[position]], _shown(interval_of(middles[position], lows[position], highs[position]), question))
            for position in np.argsort(-middles, kind="stable")
        ]

    def scores(self, score: str, budget: float) -> tuple[np.ndarray, np.ndarray]:
        """[estimators, instances], the larger the better; and the standard error of each estimator's mean that comes from its cost."""
        lower, middle, upper = (self._scores(score, budget, self.costs * np.exp(step * self.errors)) for step in (1, 0, -1))
        return middle, np.nan_to_num(np.abs(upper - lower).mean(1) / 2)

    def _scores(self, score: str, budget: float, costs: np.ndarray) -> np.ndarray:
        count = (budget / costs)[:, None]
        if score == "rho":
            return self.worth.rho(count)
        value = self.worth.squared_error(count) if score == "squared_error" else self.worth.variance * costs[:, None]
        return np.asarray(-np.log(np.maximum(value, _SMALLEST)))

    def _why(self, position: int) -> str:
        bias = np.sqrt(np.maximum(np.median(self.worth.bias_squared[position]), 0))
        bound = self.bounds.get(self.names[position])
        parts = [
            below(bound) if bound is not None else f"bias {number(float(bias))}" if bias >= ZERO else "bias 0",
            f"variance {number(float(np.median(self.worth.variance[position])))}",
        ]
        zero = self.zeros.get(self.names[position], 0.0)
        parts += [f"0 in {percent(zero)} of estimates"] if zero > 0 else []
        return ", ".join(parts + ([f"time\u00a0×\u00a0{number(float(self.costs[position]))}"] if self.timed else []))


def _common(several: Iterable[np.ndarray]) -> np.ndarray:
    """The numbers that all arrays contain, in the order of the first."""
    first, *others = several
    for other in others:
        first = first[np.isin(first, other)]
    return first


@functools.cache
def needs_values_only(estimator: str) -> bool:
    """Whether an estimator needs values of the loss on structures only; False if it is not known.

    Example:
        >>> needs_values_only("reinforce"), needs_values_only("ste"), needs_values_only("of_no_module")
        (True, False, False)
    """
    found = _estimator(estimator)
    return found is not None and found.evaluations().loss_gradients == 0 and not found.inside_hull


@functools.cache
def oracle_calls(estimator: str) -> float:
    """Calls of the oracle behind one estimate; NaN if the estimator is not known.

    Example:
        >>> oracle_calls("reinforce"), oracle_calls("perturb_and_map"), oracle_calls("of_no_module")
        (2.0, 1.0, nan)
    """
    found = _estimator(estimator)
    return np.nan if found is None else float(sum(getattr(found.evaluations(), name) for name in _ORACLE_CALLS))


def _estimator(name: str) -> Any:
    """An estimator of a module that is loaded already, or None: names are those of any table."""
    from ...estimators import make_estimator
    from ...estimators.base import Estimator
    from ...oracles.registry import importing_nothing

    try:
        with importing_nothing(Estimator):
            return make_estimator(name)
    except ValueError:
        return None


def _shown(score: Interval, question: Question) -> Interval:
    """The score as people read it."""
    value, low, high = (np.array([np.nan if end is None else end]) for end in (score.value, score.low, score.high))
    value, low, high = _shown_ends(value, low, high, question)
    return interval_of(value[0], low[0], high[0])


def _shown_ends(value: np.ndarray, low: np.ndarray, high: np.ndarray, question: Question) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values and the ends of their intervals as people read them; NaN for ends that are not known."""
    low, high = (np.where(np.isfinite(end), end, np.nan) for end in (low, high))
    if question.logarithmic:
        first, second, third = (np.where(-end <= np.log(_SMALLEST), 0.0, np.exp(-end)) for end in (value, high, low))
        return first, second, third
    return value, np.maximum(low, -1.0), np.minimum(high, 1.0)


RIVAL = "rloo"
"""The estimator that the user's own are compared with."""


def is_own(estimator: str) -> bool:
    """Whether an estimator comes from a file or module of the user's.

    Example:
        >>> is_own("./mine.py:Mine[k=2]"), is_own("rloo")
        (True, False)
    """
    return ":" in estimator.partition("[")[0]


def against_rival(frame: pd.DataFrame) -> tuple[str, list[tuple[AnsweredStage, str, Interval]]]:
    """The differences in ρ between the user's own estimators and `RIVAL`, paired by instance, at the time of `MAIN_BUDGET` estimates.

    Returns:
        The name of the rival in the table, empty if it was not measured. A tuple per own estimator, problem and entropy level where both
        were measured: the place, the estimator, and the mean difference with its 95 % interval from `FEWEST_INSTANCES` instances on.
    """
    base = next((name for name in tables.order(frame, "estimator") if name.partition("[")[0] == RIVAL), "")
    found = []
    for place in places(frame):
        own = [name for name in place.names if name != base and is_own(name) and name not in place.timed_once]
        if not own or base not in place.names or base in place.timed_once:
            continue
        scores, common = place.scores("rho", MAIN_BUDGET)
        mine, other = [place.names.index(name) for name in own], place.names.index(base)
        errors = np.hypot(common[mine], common[other])
        ends = zip(*mean_intervals(scores[mine] - scores[other], errors, fewest=FEWEST_INSTANCES), strict=True)
        found += [(place, name, interval_of(*end)) for name, end in zip(own, ends, strict=True)]
    return base, found


def sign_of(change: Interval) -> int:
    """1 if the interval of a difference lies above 0, −1 if it lies below, 0 otherwise.

    Example:
        >>> sign_of(Interval(0.2, 0.1, 0.3)), sign_of(Interval(0.2, -0.1, 0.5)), sign_of(Interval(0.2))
        (1, 0, 0)
    """
    return 0 if change.low is None or change.high is None else int(change.low > 0) - int(change.high < 0)


def uncertain_times(names: Sequence[str]) -> str:
    """Why budgets are not of time, in a sentence."""
    noun = "time" if len(names) == 1 else "times"
    verb = "is" if len(names) == 1 else "are"
    return (
        f"The {noun} of {listed(names)} {verb} not known to ± {percent(MAX_RATIO_ERROR)}, "
        "so all get the same number of oracle calls and loss evaluations."
    )


def winners(found: list[Answer], question: str, budget: int) -> list[tuple[str, int, int, int]]:
    """Wins of estimators at a budget: (estimator, cells it is named in as the best, alone or tied, all cells), most wins first.

    A cell is a problem at an entropy level. Where no estimator is clearly best, or useful, none wins.
    """
    asked = [answer for answer in found if answer.question.name == question and answer.budget == budget]
    named = [(answer.estimator, *answer.tied) for answer in asked if answer.outcome in ("clear", "tied")]
    names = dict.fromkeys(name for cell in named for name in cell)
    counted = [(name, sum(name == cell[0] for cell in named), sum(name in cell for cell in named), len(asked)) for name in names]
    return sorted(counted, key=lambda row: (-row[1], -row[2]))
