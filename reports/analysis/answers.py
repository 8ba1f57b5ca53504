"""The question that a report answers first: which estimator, for which structure and stage, and why.

Four questions are asked at every place (problem and stage), each for a budget, the time that a number of `REINFORCE` estimates take. All
candidates get the same time: an estimator of cost c is averaged over T/c estimates. The reference families compute the truth and do not
compete, nor does who mostly estimates 0: a step of 0 makes no error where the gradient is small, and teaches nothing. An answer names the
best candidate, and all others that the instances cannot tell from it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, product
from typing import Any

import numpy as np
import pandas as pd

from ...suites.base import REFERENCE
from ...suites.statistics.budgets import Worth
from ...suites.statistics.interval import Interval
from ...suites.statistics.selection import Selection, best, mean_interval, mean_intervals
from ...suites.text import ZERO, below, number, percent
from . import tables
from .measured_places import MeasuredPlace, measured_places

BUDGETS = (1, 16, 256)
"""Numbers of estimates of `REFERENCE` whose time every candidate gets."""

MAIN_BUDGET = 16
"""What is shown where there is room for one."""

MOSTLY = 0.5
"""Share of estimates that are exactly 0 from which on an estimator is not recommended."""

_ASKED = ("problem", "stage", "estimator", "instance", "metric", "value", "low", "high", "objective", "unbiased")

_SMALLEST = 1e-12


@dataclass(frozen=True)
class Question:
    """What is asked.

    Attributes:
        name: short. ``asks``: as a sentence; ``criterion``: what the number is.
        values_only: whether candidates may ask for values of the loss only.
        unbiased: whether only those compete that declare themselves unbiased for the expected loss, and are not found biased.
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
    Question("gradients", "Loss gives gradients", "ρ, the mean over instances", "rho"),
    Question("values", "Loss gives values only", "ρ, the mean over instances", "rho", values_only=True),
    Question("unbiased", "Must be unbiased", "variance × time, geometric mean", "variance_seconds", unbiased=True),
    Question("error", "Smallest error", "relative MSE, geometric mean", "squared_error"),
)


@dataclass(frozen=True)
class Answer:
    """The best estimator at one place for one question and budget.

    Attributes:
        estimator: the winner. ``score``: its ρ, relative error, or variance × seconds, with an interval over instances.
        tied: those that cannot be told from it, best first. ``rivals``: how many it was compared with.
        why: its bias, variance and time.
        verdict: of the test for bias. ``instances``: how many were measured. ``timed``: whether budgets are of time, or else of estimates.
    """

    problem: str
    stage: str
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


def answers(frame: pd.DataFrame, values_only: Collection[str] | None = None) -> list[Answer]:
    """All questions at all places; none where too little was measured.

    Args:
        frame: the result table.
        values_only: the estimators that `needs_values_only` is true of, where that is known already.
    """
    asks = needs_values_only if values_only is None else frozenset(values_only).__contains__
    return [answer for place in places(frame) for answer in place.answers(asks)]


def standings(frame: pd.DataFrame, values_only: Collection[str] | None = None) -> pd.DataFrame:
    """The score of every candidate for every question and budget, and how it stands beside the best.

    Returns:
        One row per problem, stage, question, budget and estimator: ``score`` with its interval ``low``, ``high`` over ``instances``;
        ``standing``: ``best``, ``tied`` (it cannot be told from the best) or ``behind``.
    """
    asks = needs_values_only if values_only is None else frozenset(values_only).__contains__
    parts = [part for place in places(frame) for part in place.standings(asks)]
    columns = ["problem", "stage", "question", "budget", "estimator", "score", "low", "high", "instances", "standing"]
    return pd.DataFrame(
        {name: list(chain.from_iterable(part[name] for part in parts)) for name in columns}, dtype=None if parts else object
    )


@tables.remembered
def places(frame: pd.DataFrame) -> list[AnsweredStage]:
    """What is known at each problem and stage of a result table, in its order."""
    rows = tables.measured(frame)
    rows = rows.loc[~rows["family"].isin(tables.REFERENCE_FAMILIES), list(_ASKED)]
    verdicts = {(str(row.problem), str(row.stage), str(row.estimator)): str(row.verdict) for row in tables.records(tables.verdicts(frame))}
    bounds = tables.bias_bounds(frame)
    known = (AnsweredStage.of(place, verdicts, bounds) for place in measured_places(rows))
    return [place for place in known if place is not None]


@dataclass(frozen=True, eq=False)
class AnsweredStage:
    """What is known at one place of the estimators that are known on all of its instances.

    Attributes:
        problem, stage, instances, names: the place, its instances, the estimators.
        worth: moments [estimators, instances].
        costs: of one estimate of each [estimators], in estimates of `REFERENCE`; 1 where no times were taken, which ``timed`` says.
        declared: who declares itself unbiased for the expected loss. ``verdicts``: of the tests for bias.
        zeros: the share of estimates that are exactly 0. ``seconds, evaluations``: of one estimate, and of the loss behind it.
    """

    problem: str
    stage: str
    names: list[str]
    instances: list[str]
    worth: Worth
    costs: np.ndarray
    timed: bool
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
        """None where nothing is known of bias and variance."""
        moments = [rows.wide() for rows in found.moments]
        # An instance on which nobody has one of them, such as a gradient of 0, is none to compare on.
        common = _common(one.items for one in moments)
        # An answer compares nobody on other instances than the rest.
        chosen = _common(one.complete(common) for one in moments) if len(common) else common
        reference = int(found.names.get_indexer(pd.Index([REFERENCE]))[0])
        timed = len(chosen) > 0 and reference in found.seconds
        chosen = chosen[np.isin(chosen, list(found.seconds))] if timed else chosen
        if not len(chosen):
            return None
        arrays = [one.of(chosen, common) for one in moments]
        worth = Worth(*(value for value, _ in arrays), *(np.nan_to_num(error) for _, error in arrays))
        costs = np.array([found.seconds[name] / found.seconds[reference] if timed else 1.0 for name in chosen.tolist()])
        names, items = ([str(names[number]) for number in numbers] for names, numbers in ((found.names, chosen), (found.items, common)))
        known = {name: verdicts.get((*found.at, name), "") for name in names}
        below_at = {name: bounds[(*found.at, name)] for name in names if (*found.at, name) in bounds}
        taken = {str(found.names[name]): float(value) for name, value in found.seconds.items()}
        zeros, evaluations = found.means
        return cls(*found.at, names, items, worth, costs, timed, found.declared, known, zeros, taken, evaluations, below_at)

    def answers(self, values_only: Callable[[str], bool]) -> Iterator[Answer]:
        """To all questions that anybody may compete for, with all budgets."""
        for question in QUESTIONS:
            allowed = self._allowed(question, values_only)
            yield from (self._answer(question, budget, allowed) for budget in BUDGETS if allowed)

    def standings(self, values_only: Callable[[str], bool]) -> Iterator[dict[str, list[Any]]]:
        """The rows of `standings`, as columns, a question and a budget at a time."""
        allowed_for = [(question, self._allowed(question, values_only)) for question in QUESTIONS]
        for (question, allowed), budget in product(allowed_for, BUDGETS):
            if not allowed:
                continue
            scores, errors, chosen = self._selection(question, budget, tuple(allowed))
            standing = ["behind"] * len(allowed)
            for position in chosen.tied:
                standing[position] = "tied"
            standing[chosen.winner] = "best"
            shown = _shown_ends(*mean_intervals(scores[allowed], errors[allowed]), question)
            at = {"problem": self.problem, "stage": self.stage, "question": question.name, "budget": budget, "instances": scores.shape[1]}
            yield {
                **{name: [value] * len(allowed) for name, value in at.items()},
                **{name: ends.tolist() for name, ends in zip(("score", "low", "high"), shown, strict=True)},
                "estimator": [self.names[position] for position in allowed],
                "standing": standing,
            }

    def _selection(self, question: Question, budget: float, allowed: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, Selection]:
        """The scores of all with their errors, and the best of those that may compete; asked for twice, for answers and for standings."""
        at = (question.score, None if question.score == "variance_seconds" else budget, allowed)
        if at not in self._selected:
            scores, errors = self.scores(question.score, budget)
            self._selected[at] = (scores, errors, best(scores[list(allowed)], errors[list(allowed)]))
        return self._selected[at]

    def _allowed(self, question: Question, values_only: Callable[[str], bool]) -> list[int]:
        """The positions of those that may compete."""
        return [position for position in range(len(self.names)) if self._refusal(position, question, values_only) is None]

    def with_loss_cost(self, evaluation: float) -> AnsweredStage:
        """The same with a loss of which one evaluation takes so many times as long as one estimate of `REFERENCE` without a loss.

        Of whom the number of evaluations is not known, none competes. The loss that was measured counts as none, for it takes little of an
        estimate.
        """
        own = self.evaluations.get(REFERENCE, 1.0)
        calls = np.array([self.evaluations.get(name, np.nan) for name in self.names])
        costs = (self.costs + evaluation * calls) / (1 + evaluation * own) if evaluation > 0 else self.costs
        return replace(self, costs=costs)

    def refusal(self, name: str, question: Question, values_only: Callable[[str], bool]) -> str | None:
        """Why an estimator does not compete for an answer; None where it does."""
        return self._refusal(self.names.index(name), question, values_only)

    def _refusal(self, position: int, question: Question, values_only: Callable[[str], bool]) -> str | None:
        name = self.names[position]
        if question.values_only and not values_only(name):
            return "it needs more of the loss than its values on structures"
        if question.unbiased and not self.declared[name]:
            return "it does not declare itself unbiased for the expected loss"
        if question.unbiased and self.verdicts[name] == "biased":
            return "it is found biased"
        zero = self.zeros.get(name, 0.0)
        if zero > MOSTLY:
            return f"{percent(zero)} of its estimates are 0"
        return None if np.isfinite(self.costs[position]) else "how often it evaluates the loss was not measured"

    def answer(self, question: Question, budget: float, values_only: Callable[[str], bool]) -> Answer | None:
        """With the time of so many estimates of `REFERENCE` for each candidate; None where nobody may compete."""
        allowed = self._allowed(question, values_only)
        return self._answer(question, budget, allowed) if allowed else None

    def _answer(self, question: Question, budget: float, allowed: list[int]) -> Answer:
        scores, _, chosen = self._selection(question, budget, tuple(allowed))
        winner = allowed[chosen.winner]
        return Answer(
            self.problem,
            self.stage,
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
        )

    def score(self, name: str, question: Question, budget: float) -> Interval:
        """The mean over instances of what an estimator is judged by, as people read it."""
        scores, errors = self.scores(question.score, budget)
        position = self.names.index(name)
        return _shown(mean_interval(scores[position], errors[position]), question)

    def scores(self, score: str, budget: float) -> tuple[np.ndarray, np.ndarray]:
        """[estimators, instances], the larger the better, and their standard errors."""
        count = (budget / self.costs)[:, None]
        if score == "rho":
            return self.worth.rho(count)
        if score == "squared_error":
            value, error = self.worth.squared_error(count)
        else:
            value, error = self.worth.variance * self.costs[:, None], self.worth.variance_error * self.costs[:, None]
        positive = np.maximum(value, _SMALLEST)
        return -np.log(positive), error / positive

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
    """What is in all of them, in the order of the first."""
    first, *others = several
    for other in others:
        first = first[np.isin(first, other)]
    return first


@functools.cache
def needs_values_only(estimator: str) -> bool:
    """Whether an estimator asks a loss for its values on structures, and for nothing else; False of one that is not known.

    Example:
        >>> needs_values_only("reinforce"), needs_values_only("ste"), needs_values_only("of_nobody")
        (True, False, False)
    """
    from ...estimators import make_estimator
    from ...estimators.base import Estimator
    from ...oracles.registry import importing_nothing

    try:
        with importing_nothing(Estimator):
            found = make_estimator(estimator)
    except ValueError:
        return False
    return found.evaluations().loss_gradients == 0 and not found.inside_hull


def _shown(score: Interval, question: Question) -> Interval:
    """The score as people read it."""
    value, low, high = score.value, score.low, score.high
    if value is None or low is None or high is None:
        return score
    shown = _shown_ends(np.array([value]), np.array([low]), np.array([high]), question)
    return Interval(float(shown[0][0]), float(shown[1][0]), float(shown[2][0]), "t")


def _shown_ends(value: np.ndarray, low: np.ndarray, high: np.ndarray, question: Question) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values and the ends of their intervals as people read them."""
    if question.logarithmic:
        first, second, third = (np.where(-end <= np.log(_SMALLEST), 0.0, np.exp(-end)) for end in (value, high, low))
        return first, second, third
    return value, np.maximum(low, -1.0), np.minimum(high, 1.0)


def winners(found: list[Answer], question: str, budget: int) -> list[tuple[str, int, int, int]]:
    """Who wins how often at a budget: (estimator, places where it is the best, places where it may be, places), by the second of them."""
    asked = [answer for answer in found if answer.question.name == question and answer.budget == budget]
    names = dict.fromkeys(name for answer in asked for name in (answer.estimator, *answer.tied))
    counted = [
        (
            name,
            sum(name == answer.estimator for answer in asked),
            sum(name in (answer.estimator, *answer.tied) for answer in asked),
            len(asked),
        )
        for name in names
    ]
    return sorted(counted, key=lambda row: (-row[2], -row[1]))
