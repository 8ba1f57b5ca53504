"""The best estimator for each problem and entropy level, by question and budget, and why.

A budget is the time that a number of `REFERENCE` estimates take. All candidates get the same time: an estimator of cost c is averaged over
T/c estimates. Costs are the paired ratios `time_ratio`; where one of them is uncertain, calls of the oracle and evaluations of the loss are
counted instead. An answer names the best candidate, and all others that are not significantly different from it. Otherwise it says that no
estimator is clearly best, or useful.
"""

import functools
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np
import pandas as pd

from ...suites.base import REFERENCE
from ...suites.statistics.interval import Interval
from ...suites.statistics.selection import MAX_RATIO_ERROR, Worth, best, interval_of, mean_intervals
from ...suites.text import ZERO, below, listed, number, percent
from . import tables

BUDGETS = (1, 16, 256)  # numbers of estimates of `REFERENCE` whose time every candidate gets
MAIN_BUDGET = 16  # the budget that is shown if there is room for one
MOSTLY = 0.5  # share of averages over a budget that are exactly 0 above which an estimator is not recommended
FEWEST_INSTANCES = 4  # with fewer there is no interval, and no estimator is clearly best
RIVAL = "rloo"  # the estimator that others are compared with

Outcome = Literal["clear", "tied", "unclear", "useless"]
"""One best estimator; a few that are not significantly different; more than half of them, or too few instances; none with a positive ρ."""

_MOMENTS = ("relative_bias_squared", "relative_variance", "gain")
_MEANS = ("zero_gradient_rate", "loss_evaluations")
_METRICS = (*_MOMENTS, *_MEANS, "seconds_per_estimate", "time_ratio")
_ASKED = ("problem", "stage", "loss", "estimator", "instance", "metric", "value", "low", "high", "objective", "unbiased")
_ORACLE_CALLS = ("argmax", "marginals", "samples", "projections", "kbest", "relaxations", "enumerations", "listings", "completions")
_NORMAL = 1.96
_SMALLEST = 1e-12


@dataclass(frozen=True)
class Question:
    """A question about estimators."""

    name: str
    asks: str
    criterion: str
    score: Literal["rho", "squared_error", "variance_seconds"]
    values_only: bool = False  # candidates may use values of the loss only
    unbiased: bool = False  # candidates must declare themselves unbiased for the expected loss

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
    """The ranking of the candidates at one problem and entropy level, for one question and budget."""

    problem: str
    stage: str
    loss: str
    question: Question
    budget: int
    scores: dict[str, Interval]  # of every candidate, the best first, each with a 95 % interval from `FEWEST_INSTANCES` instances on
    tied: tuple[str, ...]  # the estimators that are not significantly different from the first
    why: str  # bias, variance and time of the first
    verdict: str
    instances: int
    timed: bool  # whether all get the same time; if not, as many estimates, or calls and evaluations if times are uncertain
    uncertain: tuple[str, ...]
    mostly_zero: tuple[str, ...]  # estimators whose averages are mostly 0

    @property
    def estimator(self) -> str:
        """The estimator with the best score; see ``outcome`` for whether it is clearly best."""
        return next(iter(self.scores))

    @property
    def score(self) -> Interval:
        """The best score."""
        return self.scores[self.estimator]

    @property
    def rivals(self) -> int:
        """The number of other candidates."""
        return len(self.scores) - 1

    @property
    def outcome(self) -> Outcome:
        """``useless`` if the interval of ρ holds 0, ``unclear`` without an interval or if more than half of the candidates are tied."""
        score = self.score
        least = score.value if score.low is None else score.low
        if not self.question.logarithmic and least is not None and least <= 0:
            return "useless"
        if score.low is None or (self.tied and 2 * (len(self.tied) + 1) > len(self.scores)):
            return "unclear"
        return "tied" if self.tied else "clear"


@tables.remembered
def answers(frame: pd.DataFrame, values_only: Collection[str] | None = None) -> list[Answer]:
    """Answers to all questions with eligible estimators, at all problems and entropy levels at which bias and variance were measured."""
    found = (place.answer(question, budget, values_only) for place in places(frame) for question in QUESTIONS for budget in BUDGETS)
    return [answer for answer in found if answer]


def standings(found: Sequence[Answer]) -> pd.DataFrame:
    """The score of every candidate for every question and budget, the best first.

    Its ``standing`` is ``best``, ``tied`` (not significantly different from the best) or ``behind``.
    """
    rows = []
    for answer in found:
        standing = {**dict.fromkeys(answer.scores, "behind"), **dict.fromkeys(answer.tied, "tied"), answer.estimator: "best"}
        where, shared = (answer.problem, answer.stage, answer.question.name, answer.budget), (answer.instances, answer.outcome)
        rows += [(*where, name, one.value, one.low, one.high, *shared, standing[name]) for name, one in answer.scores.items()]
    columns = ["problem", "stage", "question", "budget", "estimator", "score", "low", "high", "instances", "outcome", "standing"]
    return pd.DataFrame(rows, columns=columns).astype({name: float for name in ("score", "low", "high") if rows})


@dataclass(frozen=True, eq=False)
class AnsweredStage:
    """The evidence at one problem and entropy level on the estimators that were measured on all of its instances."""

    problem: str
    stage: str
    loss: str
    names: list[str]
    instances: list[str]
    worth: Worth  # moments [estimators, instances]
    costs: np.ndarray  # of one estimate of each [estimators], in estimates of `REFERENCE`
    errors: np.ndarray  # relative standard errors of costs, infinite for an estimator that was timed once
    timed: bool  # whether costs are times; otherwise they are 1, or calls and evaluations if the times of some are uncertain
    uncertain: tuple[str, ...]
    declared: np.ndarray  # whether each declares itself unbiased for the expected loss
    verdicts: np.ndarray
    bounds: np.ndarray  # of biases that are neither found nor excluded, otherwise NaN
    zeros: np.ndarray  # share of estimates that are exactly 0, NaN if unknown, as are seconds
    seconds: np.ndarray
    evaluations: dict[str, float]  # of the loss by one estimate, also of estimators without moments

    @classmethod
    def of(cls, key: tuple[str, str], rows: pd.DataFrame, verdicts: Mapping[Any, str], bounds: Mapping[Any, float]) -> Self | None:
        """Collect the evidence; None without bias and variance."""
        once, rows = rows[rows["instance"] == ""].set_index("estimator"), rows[rows["instance"] != ""]
        names_at, names = pd.factorize(rows["estimator"])
        items_at, items = pd.factorize(rows["instance"])
        cube = np.full((len(_METRICS), len(names), len(items)), np.nan)
        cube[rows["metric"].cat.codes.to_numpy(), names_at, items_at] = rows["value"]
        # All candidates are compared on the same instances, without those on which no estimator has one of the moments.
        moments, means = cube[: len(_MOMENTS)], {name: pd.DataFrame(cube[_METRICS.index(name)]).mean(axis=1).to_numpy() for name in _MEANS}
        common = (~np.isnan(moments)).any(1).all(0)
        seconds, ratios = (once[once["metric"] == name] for name in ("seconds_per_estimate", "time_ratio"))
        timed = len(ratios) > 0
        chosen = np.isfinite(moments[..., common]).all((0, 2)) & common.any() & (np.isin(names, ratios.index) | (not timed))
        if not chosen.any():
            return None
        found = [str(name) for name in names[chosen]]
        evaluations = {str(name): mean for name, mean in zip(names, means["loss_evaluations"].tolist(), strict=True) if not np.isnan(mean)}
        costs, errors, uncertain = np.ones(len(found)), np.zeros(len(found)), []
        if timed:
            costs = ratios.loc[found, "value"].to_numpy()
            errors = ((ratios["high"] - ratios["low"]) / ratios["value"]).loc[found].fillna(np.inf).to_numpy() / (2 * _NORMAL)
            uncertain = [name for name, error in zip(found, errors, strict=True) if MAX_RATIO_ERROR < _NORMAL * error < np.inf]
        if uncertain:
            work, own = ([evaluations.get(name, np.nan) + oracle_calls(name) for name in some] for some in (found, [REFERENCE]))
            costs, errors = (np.array(work) / own if np.isfinite(own[0]) else np.ones(len(found))), np.zeros(len(found))
        first = rows.drop_duplicates("estimator").set_index("estimator").loc[found]
        return cls(
            *key,
            loss=str(rows["loss"].iloc[0]),
            names=found,
            instances=list(items[common]),
            worth=Worth(*moments[:, chosen][..., common]),
            costs=costs,
            errors=errors,
            timed=timed and not uncertain,
            uncertain=tuple(uncertain),
            declared=(first["unbiased"] & (first["objective"] == "expected")).to_numpy(),
            verdicts=np.array([verdicts.get((*key, name), "") for name in found]),
            bounds=np.array([bounds.get((*key, name), np.nan) for name in found]),
            zeros=means["zero_gradient_rate"][chosen],
            seconds=seconds["value"].reindex(found).to_numpy(),
            evaluations=evaluations,
        )

    def with_loss_cost(self, evaluation: float) -> Self:
        """A copy for a loss whose evaluation takes as many estimates of `REFERENCE`; the time of the measured loss is neglected."""
        own = self.evaluations.get(REFERENCE, 1.0)
        calls = np.array([self.evaluations.get(name, np.nan) for name in self.names])
        costs = (self.costs + evaluation * calls) / (1 + evaluation * own) if evaluation > 0 else self.costs
        return replace(self, costs=costs, errors=self.errors * self.costs / costs / (1 + evaluation * own))

    def refusals(self, question: Question, budget: int, values_only: Collection[str] | None) -> list[str]:
        """The reason why each estimator does not compete for an answer; empty for candidates."""
        asks = needs_values_only if values_only is None else values_only.__contains__
        shares = self._zero_shares(budget)
        reasons = {
            "it returned NaN or infinite estimates": self.verdicts == "broken",
            "it declares itself unbiased and is found biased": self.declared & (self.verdicts == "biased"),
            "it needs gradients or relaxed inputs of the loss": [question.values_only and not asks(name) for name in self.names],
            "it does not declare itself unbiased for the expected loss": question.unbiased & ~self.declared,
            "it was timed once, and the error of its time was not measured": np.isinf(self.errors),
            "{} of its averages over the budget are 0": shares > MOSTLY,
            "its number of oracle calls or loss evaluations was not measured": ~np.isfinite(self.costs),
        }
        return [
            next((reason.format(percent(share)) for reason, holds in reasons.items() if holds[position]), "")
            for position, share in enumerate(shares)
        ]

    def _zero_shares(self, budget: int) -> np.ndarray:
        """The probability that the average of all estimates that a budget buys is 0; a deterministic estimator repeats itself."""
        counts = np.where(self.worth.variance.any(1), np.fmax(budget / self.costs, 1.0), 1.0)
        return np.asarray(np.nan_to_num(self.zeros) ** counts)

    def answer(self, question: Question, budget: int, values_only: Collection[str] | None = None) -> Answer | None:
        """The answer with the time of `budget` estimates of `REFERENCE` for each candidate; None if no estimator is eligible."""
        allowed = [position for position, reason in enumerate(self.refusals(question, budget, values_only)) if not reason]
        if not allowed:
            return None
        scores, common = (found[allowed] for found in self.scores(question.score, budget))
        middle, *ends = mean_intervals(scores, common, fewest=FEWEST_INSTANCES)
        low, high = (np.where(np.isfinite(end), end, np.nan) for end in ends)
        if question.logarithmic:
            middle, low, high = (np.where(-end <= np.log(_SMALLEST), 0.0, np.exp(-end)) for end in (middle, high, low))
        else:
            low, high = np.maximum(low, -1.0), np.minimum(high, 1.0)
        names, order = [self.names[position] for position in allowed], np.argsort(-scores.mean(1), kind="stable")
        winner = allowed[order[0]]
        bias = np.sqrt(np.maximum(np.median(self.worth.bias_squared[winner]), 0))
        bound, zero = self.bounds[winner], self.zeros[winner]
        why = [
            f"bias {number(float(bias)) if bias >= ZERO else 0}" if np.isnan(bound) else below(bound),
            f"variance {number(float(np.median(self.worth.variance[winner])))}",
            *([f"0 in {percent(zero)} of estimates"] if zero > 0 else []),
            *([f"time\u00a0×\u00a0{number(float(self.costs[winner]))}"] if self.timed else []),
        ]
        return Answer(
            *(self.problem, self.stage, self.loss, question, budget),
            scores={names[at]: interval_of(middle[at], low[at], high[at]) for at in order},
            tied=tuple(names[at] for at in best(scores, common, fewest=FEWEST_INSTANCES).tied),
            why=", ".join(why),
            verdict=self.verdicts[winner],
            instances=len(self.instances),
            timed=self.timed,
            uncertain=self.uncertain,
            mostly_zero=tuple(name for name, share in zip(self.names, self._zero_shares(budget), strict=True) if share > MOSTLY),
        )

    def scores(self, score: str, budget: int) -> tuple[np.ndarray, np.ndarray]:
        """[estimators, instances], the larger the better; and the standard error of each estimator's mean that comes from its cost."""

        def at(costs: np.ndarray) -> np.ndarray:
            if score == "rho":
                return self.worth.rho(budget / costs)
            value = self.worth.squared_error(budget / costs) if score == "squared_error" else self.worth.variance * costs
            return np.asarray(-np.log(np.maximum(value, _SMALLEST)))

        errors = np.nan_to_num(self.errors, posinf=0.0)
        lower, middle, upper = (at((self.costs * np.exp(step * errors))[:, None]) for step in (1, 0, -1))
        return middle, np.nan_to_num(np.abs(upper - lower).mean(1) / 2)


@tables.remembered
def places(frame: pd.DataFrame) -> list[AnsweredStage]:
    """The evidence at each problem and stage of a result table, in its order."""
    rows = tables.measured(frame)
    rows = rows.loc[~rows["family"].isin(tables.REFERENCE_FAMILIES) & rows["metric"].isin(_METRICS), list(_ASKED)]
    rows = rows.astype({"estimator": object, "instance": object}).assign(metric=rows["metric"].cat.set_categories(_METRICS))
    verdicts = {(row.problem, row.stage, row.estimator): row.verdict for row in tables.items_of(tables.verdicts(frame))}
    bounds, groups = tables.bias_bounds(frame), rows.groupby(["problem", "stage"], sort=False, observed=True)
    found = (AnsweredStage.of((str(problem), str(stage)), part, verdicts, bounds) for (problem, stage), part in groups)
    return [place for place in found if place]


@functools.cache
def needs_values_only(estimator: str) -> bool:
    """Whether an estimator needs values of the loss on structures only; False if it is not known."""
    found = known_estimator(estimator)
    return found is not None and found.evaluations().loss_gradients == 0 and not found.inside_hull


@functools.cache
def oracle_calls(estimator: str) -> float:
    """Calls of the oracle behind one estimate; NaN if the estimator is not known."""
    found = known_estimator(estimator)
    return np.nan if found is None else float(sum(getattr(found.evaluations(), name) for name in _ORACLE_CALLS))


def known_estimator(name: str) -> Any:
    """An estimator of a module that is loaded already, or None: names are those of any table."""
    from ...estimators import make_estimator
    from ...estimators.base import Estimator
    from ...oracles.registry import importing_nothing

    with suppress(ValueError), importing_nothing(Estimator):
        return make_estimator(name)
    return None


def is_own(estimator: str) -> bool:
    """Whether an estimator comes from a file or module of the user's, such as ./mine.py:Mine[k=2], or has a name of their choice."""
    from ...estimators import CONTENDERS

    return estimator.partition("[")[0] not in CONTENDERS


def against_rival(frame: pd.DataFrame) -> tuple[str, list[tuple[AnsweredStage, str, Interval]]]:
    """The name of `RIVAL` in the table, if it was measured, and its differences in ρ to the user's own estimators where both were.

    They are means of pairs by instance, at the time of `MAIN_BUDGET` estimates, with 95 % intervals from `FEWEST_INSTANCES` instances on.
    """
    base = next((name for name in tables.order(frame, "estimator") if name.partition("[")[0] == RIVAL), "")
    found = []
    for place in places(frame):
        timed = {name: at for at, name in enumerate(place.names) if np.isfinite(place.errors[at])}
        own = {name: at for name, at in timed.items() if name != base and is_own(name)}
        if own and base in timed:
            scores, common = place.scores("rho", MAIN_BUDGET)
            mine, other = list(own.values()), timed[base]
            errors = np.hypot(common[mine], common[other])
            ends = zip(*mean_intervals(scores[mine] - scores[other], errors, fewest=FEWEST_INSTANCES), strict=True)
            found += [(place, name, interval_of(*end)) for name, end in zip(own, ends, strict=True)]
    return base, found


def sign_of(change: Interval) -> int:
    """1 if the interval of a difference lies above 0, −1 if it lies below, 0 otherwise."""
    return 0 if change.low is None or change.high is None else int(change.low > 0) - int(change.high < 0)


def uncertain_times(names: Sequence[str]) -> str:
    """Why budgets are not of time, in a sentence."""
    noun, verb = ("time", "is") if len(names) == 1 else ("times", "are")
    return (
        f"The {noun} of {listed(names)} {verb} not known to ± {percent(MAX_RATIO_ERROR)}, "
        "so all get the same number of oracle calls and loss evaluations."
    )
