"""A recommendation: which estimator to take for a structure, a loss, a batch and an entropy level, with the evidence for it.

Estimators are ordered by the ρ of the average of the estimates of one batch. All candidates get the same time, that of one estimate of
`REFERENCE` per item of the batch; the machinery is that of `answers`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
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
from .answers import AnsweredStage, Outcome, Question, places

BATCH = 32
"""Default number of items of a training batch."""

STATES = ("init", "early", "final")
"""States of a model before, early in and after training."""

ALIKE = 0.1
"""Largest difference of normalised entropies that are taken as the same level."""

RUNS = Path("structgrad-results")
"""The folder of runs without `--out`."""

_VALUES_ONLY = "none"
"""The extension of a black-box loss."""


@dataclass(frozen=True)
class Wish:
    """A question to a table; its fields are the arguments of `recommend`."""

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
        >>> [answer.loss for answer in found.answers]
        ['black_box']
    """
    wish = Wish(oracle, loss_gradients, unbiased, batch, loss_cost, stage)
    if run is None:
        return _Search(wish, *published.load(), "the published table").recommendation()
    with reading(run) as found:
        return _Search(wish, *results.read(found), str(run)).recommendation()


@dataclass(frozen=True, eq=False)
class _Search:
    """The search for an answer to a wish in a table."""

    wish: Wish
    frame: pd.DataFrame
    about: results.Manifest
    source: str

    def recommendation(self) -> Recommendation:
        problems = self.frame["problem"]
        tasks = [name for name in problems.cat.categories if name.startswith(TASK)]
        kept = (self.frame["status"] == "ok") & ~problems.isin(tasks)
        own = kept & (_heads(self.frame) == parse(self.wish.oracle)[0])
        measured = self.frame[own if own.any() else kept]
        rows, notes = self._of_structure(measured)
        # Rows of all losses, because times are measured with one of them.
        known = self._cases(rows)
        if not known:
            raise ValueError(f"{self.source} holds no bias and variance of {self.wish.oracle}; {self._command(rows)} measures them")
        nearest = self._of_level(self._of_loss(known, rows, notes), rows, notes)
        found = [(case, self._answer(case)) for case in nearest]
        missing = [
            f"No estimator is eligible with the loss {case.place.loss}: {'; '.join(map(': '.join, self._left_out(case).items()))}."
            for case, one in found
            if one is None
        ]
        answers = [one for _, one in found if one is not None]
        if not answers:
            raise ValueError(f"{self.source} holds no eligible estimator for {self.wish.oracle}: {' '.join(missing)}")
        # Other scores of the same structure, again with all losses.
        others = measured[(_heads(measured) == _heads(rows).iloc[0]) & ~problems[measured.index].isin(rows["problem"])]
        elsewhere = self._elsewhere(self._cases(others) if len(others) else [], answers)
        return Recommendation(
            wish=self.wish,
            answers=tuple(one.decided_by(elsewhere[one.problem]) for one in answers),
            elsewhere=tuple(other for some in elsewhere.values() for other in some),
            notes=tuple(dict.fromkeys([*notes, *missing])),
            source=self.source,
            about=self.about,
            predictors=published.predictors(),
        )

    def _of_structure(self, rows: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
        """The rows of the measured scores nearest to the given structure, with all losses; and a note if it is another one."""
        from ...oracles import AVAILABLE_ORACLES
        from ...oracles.registry import unknown
        from ...suites.problems.sized import sized_structure

        asked = self.wish.oracle
        head, options = parse(asked)
        heads = _heads(rows)
        measured = dict.fromkeys(heads)
        if head not in measured:
            if head not in AVAILABLE_ORACLES:
                raise ValueError(f"--oracle {unknown(head, dict.fromkeys([*AVAILABLE_ORACLES, *measured]), 'structure')}")
            problem, wanted = _built_in(head)
            near = "" if wanted is None else _nearest(rows["log_count"].groupby(heads, sort=False), wanted)
            hint = f"; the nearest in the number of structures is --oracle {near}" if near else ""
            command = self._command(rows, problem)
            raise ValueError(f"{self.source} holds no {head}{hint}; {command} measures it, then name that folder with --run")
        rows = rows[heads == head]
        scores = rows["problem"].astype(object).map(lambda problem: split_loss(problem)[0])
        exact = rows["oracle"] == asked
        if not options or exact.any():
            instances = rows.groupby(scores, sort=False)["instance"].nunique()
            # Scores of a model at that level count more than random ones of a similar entropy, even if there are fewer.
            there = set(scores[rows["stage"] == self.wish.stage])
            names = scores[exact] if exact.any() else scores
            chosen = max(dict.fromkeys(names), key=lambda name: (name in there, int(instances[name])))
            return rows[scores == chosen], []
        sized, event = sized_structure(asked)
        wanted = math.log(sized.count(event))
        chosen = _nearest(rows["log_count"].groupby(scores, sort=False), wanted)
        note = f"{asked} has {exponential(wanted)} structures; the nearest that was measured is {chosen}"
        note += f"; {self._command(rows, asked)} measures it."
        return rows[scores == chosen], [] if chosen == asked else [note]

    def _cases(self, rows: pd.DataFrame) -> list[_Case]:
        """The problems and entropy levels at which bias and variance were measured."""
        sizes = self.about.get("catalogue", {}).get("sizes", {})
        found = []
        for place in places(rows):
            here = (rows["problem"] == place.problem) & (rows["stage"] == place.stage) & rows["instance"].isin(place.instances)
            entropies = rows.loc[here, "normalised_entropy"].astype(float).dropna()
            entropy = float(entropies.median()) if len(entropies) else None
            found.append(_Case(place, rows[here], sizes.get(place.problem, ""), str(rows.loc[here, "extension"].iloc[0]), entropy))
        return found

    def _command(self, rows: pd.DataFrame, problem: str | None = None) -> str:
        """The command that measures a problem, by default that of the rows, at the given entropy level."""
        name = problem or (split_loss(str(rows["problem"].iloc[0]))[0] if len(rows) else self.wish.oracle)
        builtin = " --builtin" if problem or (len(rows) and str(rows["source"].iloc[0]) == "built-in") else ""
        stage = self.wish.stage
        return f"`structgrad run bias sparsity wall_clock --preset standard{builtin} -p '{name}' --stage {stage} --out recommend-run`"

    def _of_loss(self, known: list[_Case], rows: pd.DataFrame, notes: list[str]) -> list[_Case]:
        """The cases with a loss of the given kind."""
        fitting = [case for case in known if case.values_only != self.wish.loss_gradients]
        losses = ", ".join(dict.fromkeys(case.place.loss for case in known))
        if not fitting and self.wish.loss_gradients:
            raise ValueError(
                f"{self.source} holds {self.wish.oracle} with losses that give values only ({losses}); expected --loss-gradients no, or "
                f"{self._command(rows)}"
            )
        if not fitting:
            notes.append(f"No loss that gives values only was measured: those that need values alone are compared on {losses}.")
        return fitting or known

    def _of_level(self, known: list[_Case], rows: pd.DataFrame, notes: list[str]) -> list[_Case]:
        """The case of each problem at the given entropy level, or at the nearest measured one."""
        nearest, stage = [], self.wish.stage
        for problem in dict.fromkeys(case.place.problem for case in known):
            cases = [case for case in known if case.place.problem == problem]
            here = next((case for case in cases if case.place.stage == stage), None)
            if here is None and stage == Wish.stage and len(cases) == 1 and str(cases[0].rows["source"].iloc[0]) != "built-in":
                (here,) = cases
            if here is None:
                stages = ", ".join(case.place.stage for case in cases)
                wanted = self._entropy(cases, stages)
                apart = {case: abs(case.entropy - wanted) for case in cases if case.entropy is not None}
                if not apart:
                    raise ValueError(f"--stage got {stage!r}, and no entropies were measured; expected one of {stages}")
                here = min(apart, key=lambda case: apart[case])
                asked = f"{stage}, which is h={number(wanted, 2)} of {self.wish.oracle}," if stage in STATES else stage
                # No command measures another entropy level of the scores of a user's file.
                more = "" if here.place.stage == "file" else f"; {self._command(rows)} measures it"
                notes.append(f"{asked} was not measured; the nearest is {here.place.stage}{more}.")
            nearest.append(here)
        # Relaxations are exact if a loss is linear between structures, so it comes last.
        return sorted(nearest, key=lambda case: case.extension == "linear")

    def _entropy(self, cases: list[_Case], stages: str) -> float:
        """The normalised entropy of the given level for a structure."""
        from ...suites.problems.items import number_of
        from ...suites.problems.regimes import USUAL_ENTROPIES, peaked_like

        stage = self.wish.stage
        given = number_of(stage, "h", 1)
        if given is not None:
            return given
        if stage not in STATES:
            allowed = f"init, early, final, h=<number> with 0 < number < 1, or of {self.source}: {stages}"
            raise ValueError(f"--stage got {stage!r}; expected {allowed}")
        like = peaked_like(str(_heads(cases[0].rows).iloc[0]))
        return (USUAL_ENTROPIES if like is None else like.entropies)[STATES.index(stage)]

    def _elsewhere(self, known: list[_Case], answers: list[Recommended]) -> dict[str, list[Recommended]]:
        """Answers on other scores of the structure with the same loss, at that level or the nearest of a similar entropy."""
        found: dict[str, list[Recommended]] = {one.problem: [] for one in answers}
        for one in answers:
            alike = [(case.distance(self.wish.stage, one.entropy), case) for case in known if case.place.loss == one.loss]
            for problem in dict.fromkeys(case.place.problem for _, case in alike):
                distance, near = min((pair for pair in alike if pair[1].place.problem == problem), key=lambda pair: pair[0])
                other = self._answer(near) if distance <= ALIKE else None
                found[one.problem] += [other] if other else []
        return found

    def _priced(self, case: _Case) -> AnsweredStage:
        cost = self.wish.loss_cost
        if cost > 0 and not case.place.timed:
            raise ValueError(
                f"--loss-cost got {significant(cost)}, and {case.place.problem} has no times relative to REINFORCE; "
                "measure the suite wall_clock too"
            )
        return case.place.with_loss_cost(cost)

    def _left_out(self, case: _Case) -> dict[str, str]:
        """The estimators that do not compete, with the reason."""
        place, rows = self._priced(case), case.rows
        reasons = zip(place.names, place.refusals(self.wish.question, self.wish.batch, self._values_only), strict=True)
        rare = rows[(rows["metric"] == "relative_variance") & rows["reason"].astype(object).str.startswith(RARE)]
        unresolved = {name: "its variance is not resolved" for name in rare["estimator"] if name not in place.names}
        return {name: reason for name, reason in reasons if reason} | unresolved

    @property
    def _values_only(self) -> Collection[str] | None:
        found: Collection[str] | None = self.about.get("catalogue", {}).get("values_only")
        return found

    def _answer(self, case: _Case) -> Recommended | None:
        from ...suites.problems import LOSSES

        place = self._priced(case)
        found = place.answer(self.wish.question, self.wish.batch, self._values_only)
        if found is None:
            return None
        counts = np.exp(case.rows["log_count"].astype(float).dropna())
        order = {name: case.candidate(name, rho, place, self.wish.batch) for name, rho in found.scores.items()}
        return Recommended(
            problem=place.problem,
            loss=case.place.loss,
            meaning=first_sentence(LOSSES[case.place.loss]).replace("`", "") if case.place.loss in LOSSES else "",
            values_only=case.values_only,
            stage=place.stage,
            entropy=case.entropy,
            sizes=case.sizes,
            structures=(float(counts.min()), float(counts.max())) if len(counts) else (math.nan, math.nan),
            instances=len(place.instances),
            timed=place.timed,
            uncertain=place.uncertain,
            outcome=found.outcome,
            best=order[found.estimator],
            why="",
            tied=tuple(order[name] for name in found.tied),
            rivals=found.rivals,
            order=tuple(order.values()),
            left_out=self._left_out(case),
        )


@dataclass(frozen=True, eq=False)
class _Case:
    """A problem at an entropy level, with its rows, its sizes in words, and its normalised entropy."""

    place: AnsweredStage
    rows: pd.DataFrame
    sizes: str
    extension: str
    entropy: float | None

    @property
    def values_only(self) -> bool:
        return self.extension == _VALUES_ONLY

    def distance(self, stage: str, entropy: float | None) -> float:
        """Difference in entropy; 0 at the same level."""
        known = math.inf if self.entropy is None or entropy is None else abs(self.entropy - entropy)
        return 0.0 if self.place.stage == stage else known

    def candidate(self, name: str, rho: Interval, place: AnsweredStage, batch: int) -> Candidate:
        position, own = place.names.index(name), self.rows[self.rows["estimator"] == name]
        biases = own[(own["metric"] == "relative_bias") & own["reference"].isin(["", "expected"]) & (own["setting"] == "")]
        bias, bound = (_known(biases[column].astype(float).median()) for column in ("value", "high"))
        replicates = own.loc[own["metric"] == "relative_variance", "replicates"].dropna()
        return Candidate(
            estimator=name,
            rho=rho,
            averaged=batch / float(place.costs[position]),
            bias=bias,
            bias_bound=bound,
            verdict=str(place.verdicts[position]),
            variance=float(np.median(place.worth.variance[position])),
            zero=_known(place.zeros[position]),
            seconds=_known(place.seconds[position]),
            cost=float(place.costs[position]),
            evaluations=place.evaluations.get(name),
            replicates=int(replicates.median()) if len(replicates) else None,
        )


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


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


def _nearest(log_counts: Any, wanted: float) -> str:
    """The group whose number of structures is nearest; empty without any."""
    medians = log_counts.median().astype(float)
    return "" if medians.empty else str((medians - wanted).abs().idxmin())


def _built_in(head: str) -> tuple[str, float | None]:
    """The built-in problem of a structure, and the logarithm of the number of structures of its first item."""
    from ...suites.problems.regimes import REGIMES

    for name, regime in REGIMES.items():
        if regime.oracle.name == head:
            return name, math.log(regime.oracle.count(regime.events[0]))
    return f"{head}[n=...]", None
