"""A recommendation: which estimator to take for a structure, a loss, a batch and an entropy level, with the evidence for it.

Estimators are ordered by the ρ of the average of the estimates of one batch. All candidates get the same time, that of one estimate of
`REFERENCE` per item of the batch; the machinery is that of `answers`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ...oracles.registry import parse
from ...suites.base import TASK, split_loss
from ...suites.running.remote import reading
from ...suites.statistics.interval import RARE, Interval
from ...suites.text import exponential, first_sentence, number, plural, significant
from .. import published, results
from .answers import AnsweredStage, Outcome, Question, needs_values_only, outcome, places

BATCH = 32
"""Default number of items of a training batch."""

STATES = ("init", "early", "final")
"""States of a model before, early in and after training."""

ALIKE = 0.1
"""Largest difference of normalised entropies that are taken as the same level."""

RUNS = Path("structgrad-results")
"""The folder of runs without `--out`."""

_PUBLISHED = "the published table"
_VALUES_ONLY = "none"
"""The extension of a black-box loss."""


@dataclass(frozen=True)
class Wish:
    """A question to a table.

    Attributes:
        oracle: a structure by name, with sizes and options or without.
        loss_gradients: whether the loss has gradients in the structure.
        unbiased: whether candidates must be unbiased.
        batch: items whose estimates are averaged.
        loss_cost: time of one evaluation of the loss, in estimates of `REFERENCE`.
        stage: ``init``, ``early``, ``final``, ``h=<number>``, or a stage of the table.
    """

    oracle: str
    loss_gradients: bool = True
    unbiased: bool = False
    batch: int = BATCH
    loss_cost: float = 0.0
    stage: str = "early"

    def __post_init__(self) -> None:
        if isinstance(self.batch, bool) or not isinstance(self.batch, int) or self.batch < 1:
            raise ValueError(f"`recommend` got the batch {self.batch!r}; expected a number of items, at least 1")
        if not 0 <= self.loss_cost < math.inf:
            raise ValueError(f"`recommend` got the loss cost {self.loss_cost!r}; expected a number of REINFORCE estimates, 0 or more")

    @property
    def question(self) -> Question:
        """The question in the form of `answers`."""
        return Question("recommended", "", "ρ, the mean over instances", "rho", not self.loss_gradients, self.unbiased)


@dataclass(frozen=True)
class Candidate:
    """The evidence on an eligible estimator.

    Attributes:
        estimator: its name.
        rho: ρ of the average over a batch, with an interval over instances.
        averaged: number of estimates in that average, in the same time as all.
        bias: relative bias, the median over instances.
        bias_bound: median of the upper ends of its 95 % intervals; None if it is exact.
        verdict: result of the test for bias, the worst over instances; empty without a test.
        variance: relative variance of one estimate, the median over instances.
        zero: share of estimates that are 0.
        seconds: time of one estimate.
        cost: time of one estimate in estimates of `REFERENCE`, with the cost of the loss.
        evaluations: evaluations of the loss by one estimate; a backward counts as two.
        replicates: the median over instances; None if all samples were enumerated.
    """

    estimator: str
    rho: Interval
    averaged: float
    bias: float | None
    bias_bound: float | None
    verdict: str
    variance: float
    zero: float | None
    seconds: float | None
    cost: float
    evaluations: float | None
    replicates: int | None


@dataclass(frozen=True)
class Recommended:
    """The answer for one loss.

    Attributes:
        problem, loss, stage: the measured case.
        meaning: the loss in words; empty if it has no name.
        values_only: whether the measured loss is a black box.
        entropy: normalised entropy, the median over instances; None if unknown.
        sizes: smallest and largest sizes, in words; empty if unknown.
        structures: smallest and largest number of structures; NaN if unknown.
        instances: number of measured instances.
        timed: whether all got the same time. If not, they got as many estimates, or calls and evaluations if times are ``uncertain``.
        uncertain: estimators whose times are uncertain.
        outcome: whether there is a best estimator.
        best: the recommended estimator, subject to ``outcome``.
        why: the reason to prefer it to its ties; may be empty.
        tied: estimators that are not significantly different from it, best first.
        rivals: number of other eligible estimators.
        order: all eligible estimators, by ρ.
        left_out: the estimators that do not compete, with the reason.
    """

    problem: str
    loss: str
    meaning: str
    values_only: bool
    stage: str
    entropy: float | None
    sizes: str
    structures: tuple[float, float]
    instances: int
    timed: bool
    uncertain: tuple[str, ...]
    outcome: Outcome
    best: Candidate
    why: str
    tied: tuple[Candidate, ...]
    rivals: int
    order: tuple[Candidate, ...]
    left_out: dict[str, str]

    def decided_by(self, others: Sequence[Recommended]) -> Recommended:
        """A copy that names the tie that is clearly best on other scores of the structure, if there is one."""
        names = [one.estimator for one in self.tied]
        other = next((one for one in others if one.outcome == "clear" and one.best.estimator in [self.best.estimator, *names]), None)
        if self.outcome not in ("tied", "unclear") or other is None:
            return self
        ties = (self.best, *self.tied)
        best = next(one for one in ties if one.estimator == other.best.estimator)
        instances = plural(other.instances, "instance")
        why = (
            f"{len(ties)} estimators are tied; of these, {best.estimator} is clearly best on {other.problem} ({other.stage}, {instances})."
        )
        if (best.rho.value or 0.0) < (self.best.rho.value or 0.0):
            why += (
                f" On {self.problem}, its ρ {number(best.rho.value)} is lower than the {number(self.best.rho.value)} of "
                f"{self.best.estimator}, but not significantly."
            )
        return replace(self, best=best, tied=tuple(one for one in ties if one is not best), why=why, outcome="tied")


@dataclass(frozen=True)
class Recommendation:
    """Answers to a wish.

    Attributes:
        wish: the question.
        answers: one for each measured loss that fits.
        elsewhere: answers on other scores of the structure, with the same losses, at that stage or the nearest entropy.
        notes: differences between the question and the measured cases, in sentences.
        source: name of the table.
        about: manifest of its run.
        predictors: correlations of such an order with the accuracy of trained models, see `published.predictors`.
    """

    wish: Wish
    answers: tuple[Recommended, ...]
    elsewhere: tuple[Recommended, ...]
    notes: tuple[str, ...]
    source: str
    about: results.Manifest
    predictors: dict[str, Any]


def recommend(  # noqa: PLR0913 - the fields of a question
    oracle: str,
    *,
    loss_gradients: bool = True,
    unbiased: bool = False,
    batch: int = BATCH,
    loss_cost: float = 0.0,
    stage: str = "early",
    run: Path | str | None = None,
) -> Recommendation:
    """The best estimator for a structure, all that are not significantly different from it, and the evidence.

    Args:
        oracle: a structure by name, such as ``spanning_tree``. With sizes, such as ``subset[n=20,k=5]``, the measured problem with the
            nearest number of structures is used.
        loss_gradients: whether the loss has gradients in the structure. If not, only estimators that need no gradient of the loss
            compete, on a black-box loss.
        unbiased: whether candidates must declare themselves unbiased, and not be found biased.
        batch: items whose estimates are averaged. Each candidate gets the time of `batch` estimates of `REFERENCE`.
        loss_cost: time of one evaluation of the loss, in estimates of `REFERENCE`.
        stage: the entropy level: ``init``, ``early``, ``final`` (before, early in and after training), or ``h=<number>``.
        run: the folder of your own run; None for the published table.

    Raises:
        FileNotFoundError: no such run.
        ValueError: wrong input, or a structure, loss or level that was not measured, with the command that measures it.

    Example:
        >>> found = recommend("subset", loss_gradients=False, stage="h=0.95")
        >>> [answer.loss for answer in found.answers], needs_values_only(found.answers[0].best.estimator)
        (['black_box'], True)
    """
    wish = Wish(oracle, loss_gradients, unbiased, batch, loss_cost, stage)
    if run is None:
        return _Table(*published.load(), _PUBLISHED).recommendation(wish)
    with reading(run) as found:
        return _Table(*results.read(found), str(run)).recommendation(wish)


@dataclass(frozen=True, eq=False)
class _Table:
    """A table from which questions are answered."""

    frame: pd.DataFrame
    about: results.Manifest
    source: str

    def recommendation(self, wish: Wish) -> Recommendation:
        rows = everything = self._asked(wish)
        rows, notes = self._of_structure(rows, wish)
        # Rows of all losses, because times are measured with one of them.
        known = self._places(rows)
        if not known:
            raise ValueError(f"{self.source} holds no bias and variance of {wish.oracle}; {self._command(rows, wish)} measures them")
        fitting, more = self._of_loss(known, rows, wish)
        nearest, still_more = self._of_state(fitting, rows, wish)
        answers, empty = self._answers(nearest, wish)
        notes = list(dict.fromkeys([*notes, *more, *still_more, *empty]))
        # Other scores of the same structure, again with all losses.
        others = everything[(_heads(everything) == _heads(rows).iloc[0]) & ~everything["problem"].isin(rows["problem"])]
        known = self._places(others) if len(others) else []
        elsewhere = {answer.problem: list(self._elsewhere(known, answer, wish)) for answer in answers}
        decided = tuple(answer.decided_by(elsewhere[answer.problem]) for answer in answers)
        both = tuple(other for found in elsewhere.values() for other in found)
        return Recommendation(wish, decided, both, tuple(notes), self.source, self.about, published.predictors())

    def _asked(self, wish: Wish) -> pd.DataFrame:
        """The eligible rows: those of the structure if it was measured, else all."""
        problems = self.frame["problem"]
        tasks = [name for name in problems.cat.categories if name.startswith(TASK)]
        kept = (self.frame["status"] == "ok") & ~problems.isin(tasks)
        own = kept & (_heads(self.frame) == parse(wish.oracle)[0])
        return self.frame[own if own.any() else kept]

    def _places(self, rows: pd.DataFrame) -> list[_Place]:
        sizes = self.about.get("catalogue", {}).get("sizes", {})
        found = []
        for place in places(rows):
            here = (rows["problem"] == place.problem) & (rows["stage"] == place.stage) & (rows["instance"] != "")
            found.append(_Place(place, rows[here & rows["instance"].isin(place.instances)], sizes.get(place.problem, "")))
        return found

    def _of_structure(self, rows: pd.DataFrame, wish: Wish) -> tuple[pd.DataFrame, list[str]]:
        """The rows of the measured scores nearest to the given structure, with all losses."""
        from ...oracles import AVAILABLE_ORACLES
        from ...oracles.registry import unknown

        head, options = parse(wish.oracle)
        heads = _heads(rows)
        measured = list(dict.fromkeys(heads))
        if head not in measured:
            if head not in AVAILABLE_ORACLES:
                raise ValueError(f"--oracle {unknown(head, dict.fromkeys([*AVAILABLE_ORACLES, *measured]), 'structure')}")
            raise ValueError(self._absent(rows, head, wish))
        rows = rows[heads == head]
        scores = rows["problem"].astype(object).map(lambda problem: split_loss(problem)[0])
        counts = rows["log_count"].astype(float).groupby(scores, sort=False).median()
        exact = rows.loc[rows["oracle"] == wish.oracle, "problem"]
        if not options or len(exact):
            names = scores[exact.index if len(exact) else scores.index]
            instances = rows.groupby(scores, sort=False)["instance"].nunique()
            # Scores of a model at that stage count more than random ones of a similar entropy, even if there are fewer.
            there = set(scores[rows["stage"] == wish.stage])
            chosen = max(dict.fromkeys(names), key=lambda name: (name in there, int(instances[name])))
            return rows[scores == chosen], []
        wanted = _log_count(wish.oracle)
        chosen = min(counts.index, key=lambda name: abs(counts[name] - wanted))
        note = f"{wish.oracle} has {exponential(wanted)} structures; the nearest that was measured is {chosen}"
        return rows[scores == chosen], [] if chosen == wish.oracle else [f"{note}; {self._command(rows, wish, wish.oracle)} measures it."]

    def _absent(self, rows: pd.DataFrame, head: str, wish: Wish) -> str:
        """The error for a structure that was not measured, with the one of the nearest number of structures."""
        problem, wanted = _built_in(head)
        counts = rows["log_count"].astype(float).groupby(_heads(rows), sort=False).median()
        near = "" if wanted is None or counts.empty else min(counts.index, key=lambda name: abs(counts[name] - wanted))
        nearest = f"; the nearest in the number of structures is --oracle {near}" if near else ""
        return f"{self.source} holds no {head}{nearest}; {self._command(rows, wish, problem)} measures it, then name that folder with --run"

    def _command(self, rows: pd.DataFrame, wish: Wish, problem: str | None = None) -> str:
        """The command that measures a problem, by default that of the rows, at the given stage."""
        name = problem or (split_loss(str(rows["problem"].iloc[0]))[0] if len(rows) else wish.oracle)
        builtin = " --builtin" if problem or (len(rows) and str(rows["source"].iloc[0]) == "built-in") else ""
        return f"`structgrad run bias sparsity wall_clock --preset standard{builtin} -p '{name}' --stage {wish.stage} --out recommend-run`"

    def _of_loss(self, known: list[_Place], rows: pd.DataFrame, wish: Wish) -> tuple[list[_Place], list[str]]:
        """The places with a loss of the given kind."""
        fitting = [place for place in known if place.values_only != wish.loss_gradients]
        if fitting:
            return fitting, []
        losses = ", ".join(dict.fromkeys(place.loss for place in known))
        if wish.loss_gradients:
            raise ValueError(
                f"{self.source} holds {wish.oracle} with losses that give values only ({losses}); expected --loss-gradients no, or "
                f"{self._command(rows, wish)}"
            )
        return known, [f"No loss that gives values only was measured: those that need values alone are compared on {losses}."]

    def _of_state(self, known: list[_Place], rows: pd.DataFrame, wish: Wish) -> tuple[list[_Place], list[str]]:
        """The place of each problem at the given stage, or at the nearest measured one."""
        problems = {place.answered.problem: [one for one in known if one.answered.problem == place.answered.problem] for place in known}
        nearest, notes = [], []
        for places_ in problems.values():
            here = [place for place in places_ if place.answered.stage == wish.stage]
            if not here and wish.stage == Wish.stage and len(places_) == 1 and places_[0].from_file:
                here = places_
            if not here:
                wanted = _entropy_of(wish.stage, places_, self.source)
                apart = {place: abs(place.entropy - wanted) for place in places_ if place.entropy is not None}
                if not apart:
                    stages = ", ".join(place.answered.stage for place in places_)
                    raise ValueError(f"--stage got {wish.stage!r}, and no entropies were measured; expected one of {stages}")
                here = [min(apart, key=lambda place: apart[place])]
                asked = f"{wish.stage}, which is h={number(wanted, 2)} of {wish.oracle}," if wish.stage in STATES else wish.stage
                # No command measures another entropy level of the scores of a user's file.
                more = "" if here[0].answered.stage == "file" else f"; {self._command(rows, wish)} measures it"
                notes.append(f"{asked} was not measured; the nearest is {here[0].answered.stage}{more}.")
            nearest += here
        # Relaxations are exact if a loss is linear between structures, so it comes last.
        return sorted(nearest, key=lambda place: place.extension == "linear"), notes

    def _elsewhere(self, known: list[_Place], answer: Recommended, wish: Wish) -> Iterator[Recommended]:
        """Answers on other scores of the structure with the same loss, at that stage or the nearest of a similar entropy."""
        alike = [(place.apart(wish.stage, answer), place) for place in known if place.loss == answer.loss]
        for problem in dict.fromkeys(place.answered.problem for _, place in alike):
            apart, near = min((one for one in alike if one[1].answered.problem == problem), key=lambda one: one[0])
            found = near.answer(wish, self._values_only()) if apart <= ALIKE else None
            if found:
                yield found

    def _values_only(self) -> Callable[[str], bool]:
        asks = self.about.get("catalogue", {}).get("values_only")
        return needs_values_only if asks is None else asks.__contains__

    def _answers(self, nearest: list[_Place], wish: Wish) -> tuple[list[Recommended], list[str]]:
        values_only = self._values_only()
        found = [(place, place.answer(wish, values_only)) for place in nearest]
        missing = [
            f"No estimator is eligible with the loss {place.loss}: {place.reasons(wish, values_only)}."
            for place, answer in found
            if not answer
        ]
        answers = [answer for _, answer in found if answer]
        if not answers:
            raise ValueError(f"{self.source} holds no eligible estimator for {wish.oracle}: {' '.join(missing)}")
        return answers, missing


@dataclass(frozen=True, eq=False)
class _Place:
    """A problem at a stage, with its rows and its sizes in words."""

    answered: AnsweredStage
    rows: pd.DataFrame
    sizes: str

    @property
    def loss(self) -> str:
        return str(self.rows["loss"].iloc[0])

    @property
    def from_file(self) -> bool:
        return str(self.rows["source"].iloc[0]) != "built-in"

    @property
    def extension(self) -> str:
        return str(self.rows["extension"].iloc[0])

    @property
    def values_only(self) -> bool:
        return self.extension == _VALUES_ONLY

    @property
    def entropy(self) -> float | None:
        known = self.rows["normalised_entropy"].astype(float).dropna()
        return float(known.median()) if len(known) else None

    def apart(self, stage: str, answer: Recommended) -> float:
        """Difference in entropy from an answer; 0 at the same stage."""
        if self.answered.stage == stage:
            return 0.0
        return math.inf if self.entropy is None or answer.entropy is None else abs(self.entropy - answer.entropy)

    def reasons(self, wish: Wish, values_only: Callable[[str], bool]) -> str:
        return "; ".join(f"{name}: {reason}" for name, reason in self._left_out(self._priced(wish), wish, values_only))

    def answer(self, wish: Wish, values_only: Callable[[str], bool]) -> Recommended | None:
        priced = self._priced(wish)
        found = priced.answer(wish.question, wish.batch, values_only)
        if found is None:
            return None
        counts = np.exp(self.rows["log_count"].astype(float).dropna())
        order = {name: self._evidence(name, rho, priced, wish) for name, rho in priced.order(wish.question, wish.batch, values_only)}
        return Recommended(
            problem=priced.problem,
            loss=self.loss,
            meaning=_meaning(self.loss),
            values_only=self.values_only,
            stage=priced.stage,
            entropy=self.entropy,
            sizes=self.sizes,
            structures=(float(counts.min()), float(counts.max())) if len(counts) else (math.nan, math.nan),
            instances=len(priced.instances),
            timed=priced.timed,
            uncertain=priced.uncertain,
            outcome=outcome(found.score, len(found.tied), found.rivals),
            best=order[found.estimator],
            why="",
            tied=tuple(order[name] for name in found.tied),
            rivals=found.rivals,
            order=tuple(order.values()),
            left_out=dict(self._left_out(priced, wish, values_only)),
        )

    def _priced(self, wish: Wish) -> AnsweredStage:
        if wish.loss_cost > 0 and not self.answered.timed:
            raise ValueError(
                f"--loss-cost got {significant(wish.loss_cost)}, and {self.answered.problem} has no times; measure the suite wall_clock too"
            )
        return self.answered.with_loss_cost(wish.loss_cost)

    def _left_out(self, priced: AnsweredStage, wish: Wish, values_only: Callable[[str], bool]) -> Iterator[tuple[str, str]]:
        for name in priced.names:
            reason = priced.refusal(name, wish.question, values_only, wish.batch)
            if reason is not None:
                yield name, reason
        reasons = self.rows["reason"].astype(object) if "reason" in self.rows else pd.Series("", self.rows.index)
        rare = self.rows[(self.rows["metric"] == "relative_variance") & reasons.str.startswith(RARE)]
        yield from ((name, "its variance is not resolved") for name in rare["estimator"].unique() if name not in priced.names)

    def _evidence(self, name: str, rho: Interval, priced: AnsweredStage, wish: Wish) -> Candidate:
        position = priced.names.index(name)
        own = self.rows[self.rows["estimator"] == name]
        sampled = own.loc[(own["metric"] == "relative_variance") & own["replicates"].notna(), "replicates"]
        cost = float(priced.costs[position])
        return Candidate(
            estimator=name,
            rho=rho,
            averaged=wish.batch / cost,
            bias=_median(own, "value"),
            bias_bound=_median(own, "high"),
            verdict=priced.verdicts[name],
            variance=float(np.median(priced.worth.variance[position])),
            zero=priced.zeros.get(name),
            seconds=priced.seconds.get(name),
            cost=cost,
            evaluations=priced.evaluations.get(name),
            replicates=int(sampled.median()) if len(sampled) else None,
        )


def newest_run(oracle: str, folder: Path = RUNS) -> Path | None:
    """The latest finished run on your own score files with this structure; None if there is none.

    Args:
        oracle: its name, or the name with the options of the run, such as ``subset[k=3]``.
        folder: folder of the runs.
    """
    found = []
    for path in folder.glob(f"*/{results.MANIFEST}"):
        manifest = results.manifest_of(path.parent)
        plan = manifest.get("plan") or {}
        own = str((plan.get("file") or {}).get("oracle", ""))
        if manifest.get("status") == "finished" and "bias" in plan.get("suites", ()) and oracle in (own, own.partition("[")[0]):
            found.append((str(manifest.get("finished")), path.parent))
    return max(found)[1] if found else None


def _heads(rows: pd.DataFrame) -> pd.Series[Any]:
    """The structure of each row without sizes and options."""
    return rows["oracle"].map(lambda name: str(name).partition("[")[0]).astype(object)


def _median(rows: pd.DataFrame, column: str) -> float | None:
    """The median of a column of the relative bias over instances; None if it is unknown."""
    own = (rows["metric"] == "relative_bias") & rows["reference"].isin(["", "expected"]) & (rows["setting"] == "")
    values = rows.loc[own, column].astype(float).dropna()
    return float(values.median()) if len(values) else None


def _entropy_of(stage: str, known: Sequence[_Place], source: str) -> float:
    """The normalised entropy that a stage means for a structure.

    Raises:
        ValueError: it means none.
    """
    from ...suites.problems.items import number_of
    from ...suites.problems.regimes import USUAL_ENTROPIES, peaked_like

    given = number_of(stage, "h", 1)
    if given is not None:
        return given
    if stage not in STATES:
        stages = ", ".join(place.answered.stage for place in known)
        raise ValueError(f"--stage got {stage!r}; expected init, early, final, h=<number> with 0 < number < 1, or of {source}: {stages}")
    like = peaked_like(str(known[0].rows["oracle"].iloc[0]).partition("[")[0])
    return (USUAL_ENTROPIES if like is None else like.entropies)[STATES.index(stage)]


def _log_count(oracle: str) -> float:
    """The logarithm of the number of structures of an oracle with sizes."""
    from ...suites.problems.sized import sized_structure

    found, event = sized_structure(oracle)
    return math.log(found.count(event))


def _built_in(head: str) -> tuple[str, float | None]:
    """The built-in problem of a structure, and the logarithm of the number of structures of its first item."""
    from ...suites.problems.regimes import REGIMES

    for name, regime in REGIMES.items():
        if regime.oracle.name == head:
            return name, math.log(regime.oracle.count(regime.events[0]))
    return f"{head}[n=...]", None


def _meaning(loss: str) -> str:
    """The first sentence on a loss, without code marks; empty if it has no name."""
    from ...suites.problems import LOSSES

    return first_sentence(LOSSES[loss]).replace("`", "") if loss in LOSSES else ""
