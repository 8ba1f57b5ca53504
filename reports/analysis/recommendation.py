"""A recommendation: the best estimator for a structure, a loss, a batch and an entropy level, with the evidence, as `answers` finds it."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ...oracles import AVAILABLE_ORACLES
from ...oracles.registry import parse, unknown
from ...suites.base import TASK, split_loss
from ...suites.problems import LOSSES, STAGES, with_loss
from ...suites.problems.regimes import REGIMES, USUAL_ENTROPIES, number_of, peaked_like
from ...suites.problems.sized import sized_structure
from ...suites.running.remote import reading
from ...suites.statistics.interval import RARE, Interval
from ...suites.text import exponential, first_sentence, number, significant
from .. import published, results
from .answers import Answer, AnsweredStage, Outcome, Question, known_estimator, needs_values_only, places

RUNS = Path("structgrad-results")  # the folder of runs without `--out`


@dataclass(frozen=True)
class Wish:
    """A question to a table; its fields are the arguments of `recommend`."""

    oracle: str
    loss_gradients: bool
    unbiased: bool
    batch: int
    loss_cost: float
    stage: str
    loss: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.batch, bool) or not isinstance(self.batch, int) or self.batch < 1:
            raise ValueError(f"`recommend` got the batch {self.batch!r}; expected a number of items, at least 1")
        if not 0 <= self.loss_cost < math.inf:
            raise ValueError(f"`recommend` got the loss cost {self.loss_cost!r}; expected a number of REINFORCE estimates, 0 or more")


@dataclass(frozen=True)
class Candidate:
    """The evidence on an eligible estimator; bias, variance and replicates are medians over instances."""

    estimator: str
    rho: Interval  # of the average over a batch
    averaged: float  # number of estimates in that average
    bias: float | None
    bias_bound: float | None  # upper end of the 95 % interval of the relative bias; None if it is exact
    verdict: str
    variance: float  # of one estimate, relative
    zero: float | None  # share of estimates that are 0
    seconds: float | None
    cost: float  # time of one estimate in estimates of `REFERENCE`, with the cost of the loss
    evaluations: float | None  # of the loss by one estimate; a backward counts as two
    replicates: int | None  # None if all samples were enumerated


@dataclass(frozen=True)
class Recommended:
    """The answer for one loss."""

    problem: str
    loss: str
    meaning: str  # the loss in words
    values_only: bool  # whether the loss is a black box
    stage: str
    entropy: float | None  # normalised, the median over instances
    sizes: str
    structures: tuple[float, float]  # their smallest and largest number
    instances: int
    timed: bool
    uncertain: tuple[str, ...]
    outcome: Outcome
    best: Candidate  # subject to the outcome, see `Answer`
    tied: tuple[Candidate, ...]
    rivals: int
    order: tuple[Candidate, ...]  # all eligible estimators, by ρ
    left_out: dict[str, str]  # the estimators that do not compete, with the reason


@dataclass(frozen=True)
class Recommendation:
    """Answers to a wish, one for each measured loss that fits, from a table and the manifest of its run."""

    wish: Wish
    answers: tuple[Recommended, ...]
    notes: tuple[str, ...]  # differences between the question and the measured cases, in sentences
    source: str
    about: results.Manifest
    predictors: dict[str, Any]  # of `published.predictors`


def recommend(  # noqa: PLR0913 - the fields of a question
    oracle: str,
    *,
    loss: str | None = None,
    loss_gradients: bool | None = None,
    unbiased: bool = False,
    batch: int = 32,
    loss_cost: float = 0.0,
    stage: str = "early",
    run: Path | str | None = None,
) -> Recommendation:
    """The best estimator for a structure, all that are not significantly different from it, and the evidence.

    Args:
        oracle: a structure by name, such as ``spanning_tree``. With sizes, such as ``subset[n=20,k=5]``, the measured problem with the
            nearest number of structures is used.
        loss: your own, such as ``./mine.py:loss``, or a measured one. Rows of other losses count only if it was not measured.
        loss_gradients: whether the loss has gradients in the structure. If not, only estimators that need no gradient of the loss
            compete, on a black-box loss. None is that of ``loss``, or True.
        unbiased: whether candidates must declare themselves unbiased, and not be found biased.
        batch: items whose estimates are averaged. Each candidate gets the time of `batch` estimates of `REFERENCE`.
        loss_cost: time of one evaluation of the loss, in estimates of `REFERENCE`.
        stage: the entropy level: ``init``, ``early``, ``final`` (before, early in and after training), or ``h=<number>``.
        run: the folder of your own run; None for the published table.

    Raises:
        FileNotFoundError: no such run.
        ValueError: wrong input, or a structure, loss or level that was not measured, with the command that measures it.
    """
    if loss_gradients is None:
        from ...suites.truth.loss_checks import has_gradients

        loss_gradients = loss is None or has_gradients(loss, oracle)
    wish = Wish(oracle, loss_gradients, unbiased, batch, loss_cost, stage, loss)
    if run is None:
        return _Search(wish, *published.load(), "the published table").recommendation()
    with reading(run) as found:
        return _Search(wish, *results.read(found), str(run)).recommendation()


@dataclass(frozen=True, eq=False)
class _Case:
    """A problem at an entropy level, with its rows and its normalised entropy."""

    place: AnsweredStage
    rows: pd.DataFrame
    extension: str
    entropy: float | None


@dataclass(frozen=True, eq=False)
class _Search:
    wish: Wish
    frame: pd.DataFrame
    about: results.Manifest
    source: str

    def recommendation(self) -> Recommendation:
        wish, notes = self.wish, list[str]()
        rows = self._of_structure(notes)
        # Rows of all losses, because times are measured with one of them.
        known = []
        for place in places(rows):
            here = rows[(rows["problem"] == place.problem) & (rows["stage"] == place.stage) & rows["instance"].isin(place.instances)]
            entropy = _known(here["normalised_entropy"].astype(float).median())
            known.append(_Case(place, here, str(here["extension"].iloc[0]), entropy))
        if not known:
            raise ValueError(f"{self.source} holds no bias and variance of {wish.oracle}; {self._command(rows)} measures them")
        asked = (Question("recommended", "", "", "rho", not wish.loss_gradients, wish.unbiased), wish.batch)
        catalogue, found, missing = self.about.get("catalogue", {}), [], []
        same = [case for case in known if case.place.loss == wish.loss]
        if wish.loss and not same:
            with_loss(wish.oracle, wish.loss)  # refuses an unknown name
            notes.append(f"The loss {wish.loss} was not measured; losses of its kind were. {self._command(rows)} measures it.")
        known = same or known
        fitting = [case for case in known if (case.extension == "none") != wish.loss_gradients]
        losses = ", ".join(dict.fromkeys(case.place.loss for case in known))
        if not fitting and wish.loss_gradients:
            raise ValueError(
                f"{self.source} holds {wish.oracle} with losses that give values only ({losses}); expected --loss-gradients no, or "
                f"{self._command(rows)}"
            )
        if not fitting:
            notes.append(f"No loss that gives values only was measured: those that need values alone are compared on {losses}.")
        for case in self._of_level(fitting or known, rows, notes):
            if wish.loss_cost > 0 and not case.place.timed:
                raise ValueError(
                    f"--loss-cost got {significant(wish.loss_cost)}, and {case.place.problem} has no times relative to REINFORCE; "
                    "measure the suite wall_clock too"
                )
            place = case.place.with_loss_cost(wish.loss_cost)
            reasons = zip(place.names, place.refusals(*asked, catalogue.get("values_only")), strict=True)
            rare = case.rows[(case.rows["metric"] == "relative_variance") & case.rows["reason"].astype(object).str.startswith(RARE)]
            left_out = {name: reason for name, reason in reasons if reason}
            left_out |= {name: "its variance is not resolved" for name in rare["estimator"] if name not in place.names}
            answer = place.answer(*asked, catalogue.get("values_only"))
            if answer is None:
                missing.append(f"No estimator is eligible with the loss {place.loss}: {'; '.join(map(': '.join, left_out.items()))}.")
            else:
                found.append(self._recommended(case, place, answer, left_out, catalogue.get("sizes", {}).get(place.problem, "")))
        if not found:
            raise ValueError(f"{self.source} holds no eligible estimator for {wish.oracle}: {' '.join(missing)}")
        notes = list(dict.fromkeys([*notes, *missing]))
        return Recommendation(wish, tuple(found), tuple(notes), self.source, self.about, self._of_training(found))

    def _of_training(self, answers: list[Recommended]) -> dict[str, Any]:
        """The facts of training, with the five best of the estimators that the wish allows; with gradients, on losses that have them."""
        wish, facts = self.wish, published.predictors()
        biased = {name for one in answers for name, why in one.left_out.items() if why.endswith("found biased")}

        def allowed(name: str) -> bool:
            made = known_estimator(name)
            unbiased = made is not None and made.unbiased and made.objective == "expected" and name not in biased
            return (unbiased or not wish.unbiased) and (wish.loss_gradients or needs_values_only(name))

        for one in facts["trained"].values():
            fits = not wish.loss_gradients or one["kind"] != "black_box"
            one["best"] = [pair for pair in one["best"] if fits and allowed(pair[0])][:5]
        return facts

    def _of_structure(self, notes: list[str]) -> pd.DataFrame:
        """The rows of the measured scores nearest to the given structure, with all losses; and a note if it is another one."""
        problems = self.frame["problem"]
        tasks = [name for name in problems.cat.categories if name.startswith(TASK)]
        rows: pd.DataFrame = self.frame[(self.frame["status"] == "ok") & ~problems.isin(tasks)]
        head, options = parse(self.wish.oracle)
        heads = rows["oracle"].map(lambda name: str(name).partition("[")[0]).astype(object)
        if head not in (measured := dict.fromkeys(heads)):
            if head not in AVAILABLE_ORACLES:
                raise ValueError(f"--oracle {unknown(head, dict.fromkeys([*AVAILABLE_ORACLES, *measured]), 'structure')}")
            name, regime = next(((name, one) for name, one in REGIMES.items() if one.oracle.name == head), (f"{head}[n=...]", None))
            hint = ""
            if regime is not None and measured:
                near = _nearest(rows, heads, math.log(regime.oracle.count(regime.events[0])))
                hint = f"; the nearest in the number of structures is --oracle {near}"
            raise ValueError(
                f"{self.source} holds no {head}{hint}; {self._command(rows, name)} measures it, then name that folder with --run"
            )
        rows = rows[heads == head]
        scores = rows["problem"].astype(object).map(lambda problem: split_loss(problem)[0])
        exact = rows["oracle"] == self.wish.oracle
        if not options or exact.any():
            instances = rows.groupby(scores, sort=False)["instance"].nunique()
            # Scores of a model at that level count more than random ones of a similar entropy, even if there are fewer.
            there = set(scores[rows["stage"] == self.wish.stage])
            names = scores[exact] if exact.any() else scores
            chosen = str(max(dict.fromkeys(names), key=lambda name: (name in there, int(instances[name]))))
            return rows[scores == chosen]
        sized, event = sized_structure(self.wish.oracle)
        wanted = math.log(sized.count(event))
        chosen, asked = _nearest(rows, scores, wanted), self.wish.oracle
        if chosen != asked:
            notes.append(
                f"{asked} has {exponential(wanted)} structures; the nearest that was measured is {chosen}; "
                f"{self._command(rows, asked)} measures it."
            )
        return rows[scores == chosen]

    def _command(self, rows: pd.DataFrame, problem: str | None = None) -> str:
        """The command that measures a problem, by default that of the rows, at the given entropy level."""
        name = problem or (split_loss(str(rows["problem"].iloc[0]))[0] if len(rows) else self.wish.oracle)
        builtin = " --builtin" if problem or (len(rows) and str(rows["source"].iloc[0]) == "built-in") else ""
        stage = self.wish.stage
        loss = f" --loss {self.wish.loss}" if self.wish.loss else ""
        return f"`structgrad run bias sparsity wall_clock --preset standard{builtin} -p '{name}'{loss} --stage {stage} --out recommend-run`"

    def _of_level(self, known: list[_Case], rows: pd.DataFrame, notes: list[str]) -> list[_Case]:
        """The case of each problem at the given entropy level, or at the nearest measured one."""
        nearest, stage = [], self.wish.stage
        for problem in dict.fromkeys(case.place.problem for case in known):
            cases = [case for case in known if case.place.problem == problem]
            here = next((case for case in cases if case.place.stage == stage), None)
            if here is None and stage == "early" and len(cases) == 1 and str(cases[0].rows["source"].iloc[0]) != "built-in":
                (here,) = cases
            if here is None:
                stages, wanted = ", ".join(case.place.stage for case in cases), number_of(stage, "h", 1)
                if wanted is None and stage not in STAGES:
                    allowed = f"init, early, final, h=<number> with 0 < number < 1, or of {self.source}: {stages}"
                    raise ValueError(f"--stage got {stage!r}; expected {allowed}")
                if wanted is None:
                    like = peaked_like(parse(self.wish.oracle)[0])
                    wanted = (USUAL_ENTROPIES if like is None else like.entropies)[STAGES.index(stage)]
                apart = {case: abs(case.entropy - wanted) for case in cases if case.entropy is not None}
                if not apart:
                    raise ValueError(f"--stage got {stage!r}, and no entropies were measured; expected one of {stages}")
                here = min(apart, key=lambda case: apart[case])
                asked = f"{stage}, which is h={number(wanted, 2)} of {self.wish.oracle}," if stage in STAGES else stage
                # No command measures another entropy level of the scores of a user's file.
                more = "" if here.place.stage == "file" else f"; {self._command(rows)} measures it"
                notes.append(f"{asked} was not measured; the nearest is {here.place.stage}{more}.")
            nearest.append(here)
        # Relaxations are exact if a loss is linear between structures, so it comes last.
        return sorted(nearest, key=lambda case: case.extension == "linear")

    def _recommended(self, case: _Case, place: AnsweredStage, found: Answer, left_out: dict[str, str], sizes: str) -> Recommended:
        counts = np.exp(case.rows["log_count"].astype(float).dropna())
        order = {name: self._candidate(case, place, name, rho) for name, rho in found.scores.items()}
        return Recommended(
            **{name: getattr(found, name) for name in ("problem", "loss", "stage", "instances", "timed", "uncertain", "outcome", "rivals")},
            meaning=first_sentence(LOSSES[place.loss]).replace("`", "") if place.loss in LOSSES else "",
            values_only=case.extension == "none",
            entropy=case.entropy,
            sizes=sizes,
            structures=(float(counts.min()), float(counts.max())) if len(counts) else (math.nan, math.nan),
            best=order[found.estimator],
            tied=tuple(order[name] for name in found.tied),
            order=tuple(order.values()),
            left_out=left_out,
        )

    def _candidate(self, case: _Case, place: AnsweredStage, name: str, rho: Interval) -> Candidate:
        position, own = place.names.index(name), case.rows[case.rows["estimator"] == name]
        biases = own[(own["metric"] == "relative_bias") & own["reference"].isin(["", "expected"]) & (own["setting"] == "")]
        bias, bound = (_known(biases[column].astype(float).median()) for column in ("value", "high"))
        replicates = own.loc[own["metric"] == "relative_variance", "replicates"].dropna()
        return Candidate(
            estimator=name,
            rho=rho,
            averaged=self.wish.batch / float(place.costs[position]),
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


def _nearest(rows: pd.DataFrame, groups: pd.Series, wanted: float) -> str:
    """The group whose logarithm of the number of structures is nearest."""
    return str((rows["log_count"].groupby(groups, sort=False).median().astype(float) - wanted).abs().idxmin())


def newest_run(oracle: str, folder: Path = RUNS) -> Path | None:
    """The latest finished run on your own score files with this structure, with or without the options of the run; None if none is."""
    found = []
    for path in folder.glob(f"*/{results.MANIFEST}"):
        manifest = results.manifest_of(path.parent)
        plan = manifest.get("plan") or {}
        own = str((plan.get("file") or {}).get("oracle", ""))
        if manifest.get("status") == "finished" and "bias" in plan.get("suites", ()) and oracle in (own, own.partition("[")[0]):
            found.append((str(manifest.get("finished")), path.parent))
    return max(found)[1] if found else None
