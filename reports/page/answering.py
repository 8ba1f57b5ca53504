"""The answers as sentences and as a table."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ...suites.text import estimate, listed, plural
from ..analysis import answers
from ..analysis.answers import BUDGETS, MAIN_BUDGET, QUESTIONS, Answer
from .cells import LEVEL, Table, TableCell, tabulate

SCORES = {
    "rho": ("ρ", "ρ = E⟨ĝ, g⟩ / (‖g‖ √E‖ĝ‖²), from −1 to 1, higher is better: ĝ is the average over the budget, g the exact gradient."),
    "squared_error": (
        "relative MSE",
        "Relative MSE = E‖ĝ − g‖² / ‖g‖², lower is better: 0 is exact, 1 is no better than an estimate of 0.",
    ),
    "variance_seconds": ("variance × time", "Variance × time, lower is better: the time to average the noise away is proportional to it."),
}
"""The numbers by which candidates are compared, each with its label and a sentence that defines it."""

BUDGET = "time of"
"""The title of the column of budgets."""

HEADLINES = {
    "unclear": ("none clearly best", "no estimator is clearly best here"),
    "useless": ("none useful", "no estimator is useful here: the interval of the best ρ holds 0"),
}
"""The text of a cell without a best estimator, and its sentence, by `Answer.outcome`."""

CRITERIA = (
    f"{SCORES['rho'][1]} Every candidate gets the same time, that of some estimates of REINFORCE, and averages as many of its own as "
    "it allows. “Time × 2” takes twice as long as REINFORCE. Unbiased estimators are compared by variance × time, for any budget. "
    f"Brackets are 95 % intervals over instances, from {answers.FEWEST_INSTANCES} instances on. “Or” names the estimators that are not "
    "significantly different from the first. They are paired by instance, with an error rate of 5 % for the whole list. The exact gradient "
    "does not compete, and neither do estimators that were timed only once."
)


def unit(score: str, *, timed: bool) -> str:
    """Unit that follows the number of a score."""
    return " × the time of REINFORCE" if score == "variance_seconds" and timed else ""


def minute(found: list[Answer]) -> list[tuple[str, str]]:
    """Each loss with a sentence on its best estimators by ρ, over all problems and entropy levels."""
    asked = [answer for answer in found if answer.question.name == QUESTIONS[0].name]
    losses = dict.fromkeys(answer.loss for answer in asked if answer.budget == MAIN_BUDGET)
    return [(f"Loss {loss}" if loss else "ρ", _sentence([answer for answer in asked if answer.loss == loss])) for loss in losses]


def _sentence(found: list[Answer]) -> str:
    """The estimator that is best most often, where none is, and another leader with another budget."""
    outcomes = Counter(answer.outcome for answer in found if answer.budget == MAIN_BUDGET)
    leaders = {}
    for budget in (MAIN_BUDGET, *BUDGETS):
        best = [(one.estimator, *one.tied) for one in found if one.budget == budget and one.outcome in ("clear", "tied")]
        wins, named = Counter(names[0] for names in best), Counter(name for names in best for name in names)
        leaders[budget] = max(((name, wins[name], named[name]) for name in named), key=lambda row: row[1:], default=("", 0, 0))
    (name, first, often), of = leaders[MAIN_BUDGET], plural(outcomes.total(), "cell")
    parts = (
        [f"{name} is best in {first} of {of}{f', and tied with the best in {often - first}' if often > first else ''}."] if first else []
    )
    none = {"clearly best": outcomes["unclear"], "useful": outcomes["useless"]}
    parts += [f"No estimator is {word} in {count} of {of}." for word, count in none.items() if count]
    others = {budget: row for budget, row in leaders.items() if row[0] not in ("", name)}
    return " ".join([*parts, *(f"With the time of {plural(budget, 'estimate')}: {row[0]}, in {row[1]}." for budget, row in others.items())])


def price(found: list[Answer]) -> str:
    """The budget of every candidate, in the sentences of `minute`."""
    if all(answer.timed for answer in found):
        return f"with the time that {MAIN_BUDGET} estimates of REINFORCE take"
    if any(answer.uncertain for answer in found):
        return (
            f"with the time of {MAIN_BUDGET} estimates of REINFORCE, or as many oracle calls and loss evaluations where times are uncertain"
        )
    return f"with {MAIN_BUDGET} estimates each (no times relative to REINFORCE were taken)"


def answer_table(found: list[Answer]) -> Table:
    """One row per problem, entropy level and budget, one column per question."""
    asked = [question for question in QUESTIONS if any(answer.question.name == question.name for answer in found)]
    rows: dict[tuple[str, str, int], dict[str, Any]] = {}
    for answer in sorted(found, key=lambda answer: (answer.budget != MAIN_BUDGET, answer.budget)):
        first = {"problem": answer.problem, LEVEL: answer.stage, BUDGET: TableCell(plural(answer.budget, "estimate"), answer.budget)}
        blank = {**first, **{question.asks: TableCell("–") for question in asked}}
        rows.setdefault((answer.problem, answer.stage, answer.budget), blank)[answer.question.asks] = answer_cell(answer)
    hints = {
        LEVEL: "normalised entropy h of the distribution over structures, or the stage of training",
        BUDGET: "the time that every candidate may spend: that of so many estimates of REINFORCE",
        **{question.asks: question.criterion for question in asked},
    }
    timed, few = all(answer.timed for answer in found), any(answer.instances < 12 for answer in found)
    note = CRITERIA + ("" if timed else " Without times relative to REINFORCE, every candidate averages the same number of estimates.")
    note += " More instances shorten the lists of ties." if few else ""
    several = tuple((name, "") for name in ("problem", LEVEL) if len({row[name] for row in rows.values()}) > 1)
    filters = (*several, (BUDGET, plural(MAIN_BUDGET, "estimate")))
    return tabulate("Which estimator, where", list(rows.values()), hints, note=note, name="answer-table", filters=filters, pinned=True)


def answer_cell(answer: Answer) -> TableCell:
    """The best estimator with its score, why, and its ties; or that there is none."""
    shown = f"{SCORES[answer.question.score][0]} {estimate(answer.score)}{unit(answer.question.score, timed=answer.timed)}"
    if answer.outcome in HEADLINES:
        text, why = HEADLINES[answer.outcome]
        others = f", {listed(answer.tied)}" if answer.outcome == "unclear" else ""
        return TableCell(text, text, notes=(f"{why} ({plural(answer.instances, 'instance')}): {answer.estimator} ({shown}){others}",))
    proof = f"; {answer.verdict}" if answer.question.unbiased and answer.verdict else ""
    alone = "the only eligible one" + (f": averages of {listed(answer.mostly_zero)} are mostly 0" if answer.mostly_zero else "")
    rivals = f"or {listed(answer.tied)}" if answer.tied else "significantly better than all others" if answer.rivals else alone
    notes = (shown, answer.why + proof, rivals, *([answers.uncertain_times(answer.uncertain)] if answer.uncertain else []))
    return TableCell(answer.estimator, answer.estimator, notes=notes)
