"""The answers as sentences and as a table."""

from __future__ import annotations

from dataclasses import dataclass

from ...suites.text import estimate, listed, number, plural
from ..analysis import answers
from ..analysis.answers import BUDGETS, MAIN_BUDGET, QUESTIONS, Answer
from .cells import Table, TableCell, plain


@dataclass(frozen=True)
class Score:
    """What candidates are compared by: what stands in front of its number, and what it says, in a sentence."""

    name: str
    label: str
    meaning: str


SCORES = {
    score.name: score
    for score in (
        Score("rho", "ρ", "ρ is what a step along the estimate gains of what one along the exact gradient would: 1 is as good, 0 useless."),
        Score(
            "squared_error",
            "relative MSE",
            "The relative MSE is the mean squared error over the squared gradient: 0 is exact, 1 no better than not to move.",
        ),
        Score(
            "variance_seconds",
            "variance × time",
            "Variance × time is how long it takes to average the noise away: half of it, half as long.",
        ),
    )
}


def unit(score: str, *, timed: bool) -> str:
    """What stands behind the number of a score.

    Example:
        >>> unit("rho", timed=True), unit("variance_seconds", timed=True)
        ('', ' × the time of REINFORCE')
    """
    return " × the time of REINFORCE" if score == "variance_seconds" and timed else ""


def budget_label(budget: float) -> str:
    """What a candidate may spend.

    Example:
        >>> budget_label(1), budget_label(16)
        ('1 estimate', '16 estimates')
    """
    return f"{number(budget)} estimate{'' if budget == 1 else 's'}"


def minute(found: list[Answer]) -> list[tuple[str, str]]:
    """The whole answer in a sentence per question: who leads in how many cases, and who instead with another budget."""
    sentences = []
    for question in QUESTIONS:
        tallies = {budget: answers.winners(found, question.name, budget) for budget in BUDGETS}
        if tallies[MAIN_BUDGET]:
            sentences.append((question.asks, _sentence(tallies, budgeted=question.score != "variance_seconds")))
    return sentences


def _sentence(tallies: dict[int, list[tuple[str, int, int, int]]], *, budgeted: bool) -> str:
    leader = max(tallies[MAIN_BUDGET], key=lambda row: (row[1], row[2]))
    name, wins, maybe, places = leader
    parts = [f"{name}: best in {wins} of {plural(places, 'case')}, and {_unbeaten(maybe, places)}."]
    rivals = [row[0] for row in tallies[MAIN_BUDGET] if row[2] == places and row[0] != name]
    if rivals and maybe == places:
        parts.append(f"In no case significantly worse either: {listed(rivals)}.")
    others = {budget: max(tallies[budget], key=lambda row: (row[1], row[2])) for budget in BUDGETS if budgeted and budget != MAIN_BUDGET}
    parts += [
        f"With the time of {budget_label(budget)}: {row[0]} ({row[1]} of {places})." for budget, row in others.items() if row[0] != name
    ]
    return " ".join(parts)


def _unbeaten(maybe: int, places: int) -> str:
    return "in none significantly worse than the best" if maybe == places else f"significantly worse than the best in {places - maybe}"


def price(found: list[Answer]) -> str:
    """What every candidate may spend, in the sentences of `minute`."""
    if all(answer.timed for answer in found):
        return f"with the time that {MAIN_BUDGET} estimates of REINFORCE take"
    return f"with {MAIN_BUDGET} estimates each (no times were taken, or none of REINFORCE)"


def answer_table(found: list[Answer]) -> Table:
    """One row per place and budget, one column per question."""
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
        ("stage", ""),
        (BUDGET, "what every candidate may spend: the time that so many estimates of reinforce take"),
        *((question.asks, question.criterion) for question in asked),
    )
    chosen = ((("problem", ""),) if len({row[0].text for row in rows}) > 1 else ()) + (
        (("stage", ""),) if len({row[1].text for row in rows}) > 1 else ()
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
    "ρ is what a step along an estimate is worth beside one along the exact gradient, of the same length: 1 is as good, 0 is useless. "
    "Every candidate gets the same time, that of some estimates of reinforce, and averages as many of its own as that allows; “time × "
    "2” is one that takes twice as long as reinforce. Unbiased ones are judged by variance × time, which no budget changes. In brackets"
    " the 95 % interval over instances. “Or” names all that cannot be told from the first: paired by instance, with an error rate of 5 "
    "% for the whole list. The exact gradient does not compete."
)
_UNTIMED = " Where no times were taken, or none of reinforce, every candidate averages the same number of estimates instead."
_FEW_INSTANCES = " With so few instances many cannot be told apart; more instances shorten the lists."
_MANY = 12


def answer_cell(answer: Answer | None) -> TableCell:
    """The winner with its score, why, and who may be as good."""
    if answer is None:
        return TableCell("–")
    shown = f"{SCORES[answer.question.score].label} {estimate(answer.score)}{unit(answer.question.score, timed=answer.timed)}"
    proof = f"; {answer.verdict}" if answer.question.unbiased and answer.verdict else ""
    rivals = f"or {listed(answer.tied)}" if answer.tied else "ahead of all others" if answer.rivals else "no other candidate"
    return TableCell(answer.estimator, answer.estimator, notes=(shown, answer.why + proof, rivals))
