"""The answers as sentences and as a table."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ...suites.text import estimate, listed, number, plural
from ..analysis import answers
from ..analysis.answers import BUDGETS, MAIN_BUDGET, QUESTIONS, Answer
from .cells import LEVEL, Table, TableCell, plain


@dataclass(frozen=True)
class Score:
    """A number by which candidates are compared, with its label and a sentence that defines it."""

    name: str
    label: str
    meaning: str


SCORES = {
    score.name: score
    for score in (
        Score(
            "rho",
            "ρ",
            "ρ = E⟨ĝ, g⟩ / (‖g‖ √E‖ĝ‖²), from −1 to 1, higher is better: ĝ is the average over the budget, g the exact gradient.",
        ),
        Score(
            "squared_error",
            "relative MSE",
            "Relative MSE = E‖ĝ − g‖² / ‖g‖², lower is better: 0 is exact, 1 is no better than an estimate of 0.",
        ),
        Score(
            "variance_seconds",
            "variance × time",
            "Variance × time, lower is better: the time to average the noise away is proportional to it.",
        ),
    )
}


def unit(score: str, *, timed: bool) -> str:
    """Unit that follows the number of a score.

    Example:
        >>> unit("rho", timed=True), unit("variance_seconds", timed=True)
        ('', ' × the time of REINFORCE')
    """
    return " × the time of REINFORCE" if score == "variance_seconds" and timed else ""


def budget_label(budget: float) -> str:
    """Text of a budget: the estimates whose time each candidate may use.

    Example:
        >>> budget_label(1), budget_label(16)
        ('1 estimate', '16 estimates')
    """
    return f"{number(budget)} estimate{'' if budget == 1 else 's'}"


def minute(found: list[Answer]) -> list[tuple[str, str]]:
    """Each loss with a sentence on its best estimators by ρ, over all problems and entropy levels."""
    by_loss: dict[str, list[Answer]] = {}
    for answer in found:
        by_loss.setdefault(answer.loss, []).append(answer)
    return [(f"Loss {loss}" if loss else "ρ", _sentence(some)) for loss, some in by_loss.items() if _main(some)]


def _main(found: list[Answer]) -> list[Answer]:
    return [answer for answer in found if answer.question.name == QUESTIONS[0].name and answer.budget == MAIN_BUDGET]


def _sentence(found: list[Answer]) -> str:
    """The estimator that is best most often, where none is, and another leader with another budget."""
    outcomes, leaders = Counter(answer.outcome for answer in _main(found)), {}
    cells = outcomes.total()
    for budget in (MAIN_BUDGET, *BUDGETS):
        rows = answers.winners(found, QUESTIONS[0].name, budget)
        leaders[budget] = rows[0] if rows else ("", 0, 0, cells)
    name, wins, named, _ = leaders[MAIN_BUDGET]
    of = plural(cells, "cell")
    parts = [f"{name} is best in {wins} of {of}{f', and tied with the best in {named - wins}' if named > wins else ''}."] if wins else []
    if outcomes["unclear"]:
        parts.append(f"No estimator is clearly best in {outcomes['unclear']} of {of}.")
    if outcomes["useless"]:
        parts.append(f"No estimator is useful in {outcomes['useless']} of {of}.")
    others = {budget: row for budget, row in leaders.items() if row[0] not in ("", name)}
    return " ".join([*parts, *(f"With the time of {budget_label(budget)}: {row[0]}, in {row[1]}." for budget, row in others.items())])


def price(found: list[Answer]) -> str:
    """The budget of every candidate, in the sentences of `minute`."""
    if all(answer.timed for answer in found):
        return f"with the time that {MAIN_BUDGET} estimates of REINFORCE take"
    if any(answer.uncertain for answer in found):
        return (
            f"with the time of {MAIN_BUDGET} estimates of REINFORCE, or as many oracle calls and loss evaluations where times are uncertain"
        )
    return f"with {MAIN_BUDGET} estimates each (no times were taken, or none of REINFORCE)"


def answer_table(found: list[Answer]) -> Table:
    """One row per problem, entropy level and budget, one column per question."""
    by_place: dict[tuple[str, str, float], dict[str, Answer]] = {}
    for answer in found:
        by_place.setdefault((answer.problem, answer.stage, answer.budget), {})[answer.question.name] = answer
    asked = [question for question in QUESTIONS if any(question.name in row for row in by_place.values())]
    ordered = sorted(by_place, key=lambda place: BUDGETS.index(place[2]) if place[2] != MAIN_BUDGET else -1)
    rows = [
        [
            plain(problem),
            plain(stage),
            TableCell(budget_label(budget), budget),
            *(answer_cell(by_place[problem, stage, budget].get(question.name)) for question in asked),
        ]
        for problem, stage, budget in ordered
    ]
    columns = (
        ("problem", ""),
        (LEVEL, "normalised entropy h of the distribution over structures, or the stage of training"),
        (BUDGET, "the time that every candidate may spend: that of so many estimates of REINFORCE"),
        *((question.asks, question.criterion) for question in asked),
    )
    chosen = ((("problem", ""),) if len({row[0].text for row in rows}) > 1 else ()) + (
        ((LEVEL, ""),) if len({row[1].text for row in rows}) > 1 else ()
    )
    return Table(
        "Which estimator, where",
        columns,
        rows,
        CRITERIA
        + ("" if all(answer.timed for answer in found) else _UNTIMED)
        + (_FEW_INSTANCES if found and min(answer.instances for answer in found) < _MANY else ""),
        "answer-table",
        (*chosen, (BUDGET, budget_label(MAIN_BUDGET))),
        pinned=True,
    )


BUDGET = "time of"
"""The title of the column of budgets."""

CRITERIA = (
    f"{SCORES['rho'].meaning} Every candidate gets the same time, that of some estimates of REINFORCE, and averages as many of its own as "
    "it allows. “Time × 2” takes twice as long as REINFORCE. Unbiased estimators are compared by variance × time, for any budget. "
    f"Brackets are 95 % intervals over instances, from {answers.FEWEST_INSTANCES} instances on. “Or” names the estimators that are not "
    "significantly different from the first. They are paired by instance, with an error rate of 5 % for the whole list. The exact gradient "
    "does not compete, and neither do estimators that were timed only once."
)
_UNTIMED = " If no times were taken, or none of REINFORCE, every candidate averages the same number of estimates."
_FEW_INSTANCES = " More instances shorten the lists of ties."
_MANY = 12


def answer_cell(answer: Answer | None) -> TableCell:
    """The best estimator with its score, why, and its ties; or that there is none."""
    if answer is None:
        return TableCell("–")
    shown = f"{SCORES[answer.question.score].label} {estimate(answer.score)}{unit(answer.question.score, timed=answer.timed)}"
    if answer.outcome in ("unclear", "useless"):
        text, why = HEADLINES[answer.outcome]
        others = f", {listed(answer.tied)}" if answer.outcome == "unclear" else ""
        return TableCell(text, text, notes=(f"{why} ({plural(answer.instances, 'instance')}): {answer.estimator} ({shown}){others}",))
    proof = f"; {answer.verdict}" if answer.question.unbiased and answer.verdict else ""
    rivals = f"or {listed(answer.tied)}" if answer.tied else "significantly better than all others" if answer.rivals else _alone(answer)
    notes = (shown, answer.why + proof, rivals, *([answers.uncertain_times(answer.uncertain)] if answer.uncertain else []))
    return TableCell(answer.estimator, answer.estimator, notes=notes)


HEADLINES = {
    "unclear": ("none clearly best", "no estimator is clearly best here"),
    "useless": ("none useful", "no estimator is useful here: the interval of the best ρ holds 0"),
}
"""The text of a cell without a best estimator, and its sentence, by `Answer.outcome`."""


def _alone(answer: Answer) -> str:
    """Why it has no rivals."""
    return (
        f"the only eligible one: averages of {listed(answer.mostly_zero)} are mostly 0" if answer.mostly_zero else "the only eligible one"
    )
