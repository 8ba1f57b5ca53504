"""The tables of a report, and the sentences of its answers, from `reports.analysis`."""

import dataclasses
import math
import operator
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pandas as pd

from ...suites.metrics import METRICS, label_of
from ...suites.text import below, estimate, interval, listed, number, plural, whole
from ..analysis import answers, tables
from ..analysis.answers import BUDGETS, MAIN_BUDGET, QUESTIONS, Answer
from ..analysis.tables import REFERENCE_FAMILIES, Spread
from .cells import EMPTY, LEVEL, Table, TableCell, estimate_cell, spread_cell, tabulate

MAIN = ("relative_bias", "gain", "cosine", "orthogonal_bias", "relative_variance", "relative_mse", "rho")
"""The metrics of the table of a problem."""

_TIME = "seconds_per_estimate"
_DESCENT = ("regret", "steps")
_PROBLEM_NOTE = (
    "Medians over instances, with quartiles in brackets; of a single instance, its own 95 % interval. “(k of n)”: the metric exists on "
    "k of n instances only, because an estimate that is always 0 has no direction. The best of each entropy level is in bold; the exact "
    "gradient does not compete. Times are measured once per problem."
)
_COST_NOTE = (
    "Lower is better, and the best is in bold. Times are medians of forward and backward, with 95 % intervals in brackets. The backward of "
    "one loss evaluation counts as two more. A dash: not measured."
)

SCORES = {
    "rho": ("ρ", "ρ = E⟨ĝ, g⟩ / (‖g‖ √E‖ĝ‖²), from −1 to 1, higher is better: ĝ is the average over the budget, g the exact gradient."),
    "squared_error": (
        "relative MSE",
        "Relative MSE = E‖ĝ − g‖² / ‖g‖², lower is better: 0 is exact, 1 is no better than an estimate of 0.",
    ),
    "variance_seconds": ("variance × time", "Variance × time, lower is better: the time to average the noise away is proportional to it."),
}
"""The numbers by which candidates are compared, each with its label and a sentence that defines it."""

BUDGET = "time of"  # the title of the column of budgets

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


def described(metric: str, time_unit: str = "seconds") -> str:
    """The meaning of a metric: its formula, its range, which direction is better, and its unit."""
    known = METRICS[metric]
    better = {"lower": "lower is better", "higher": "higher is better"}.get(known.rule.role, "")
    unit = {"s": f"in {time_unit}", "B": "in bytes"}.get(known.unit, "")
    return "; ".join(filter(None, (known.meaning, known.range, better, unit)))


def _title(metric: str) -> str:
    return "time of one estimate (µs)" if metric == _TIME else label_of(metric).replace("_", " ")


def _hints(metrics: Iterable[str]) -> dict[str, str]:
    return {_title(metric): described(metric, "µs") for metric in metrics}


def _costs(metrics: Iterable[str]) -> dict[str, Callable[[float], float]]:
    """Functions of values that are smallest at the best, by the title of their column."""
    roles = {metric: METRICS[metric].rule.role for metric in metrics}
    found = {_title(metric): operator.neg if role == "higher" else float for metric, role in roles.items()}
    return found | ({_title("gain"): lambda value: abs(value - 1)} if "gain" in roles else {})


def claim_tables(claims: pd.DataFrame) -> list[Table]:
    """The declared and the measured bias of every estimator: a table per entropy level."""
    found = []
    for stage, part in claims.groupby("stage", sort=False, observed=True):
        problems, rows = tables.order(part, "problem"), dict[str, dict[str, Any]]()
        for row in tables.items_of(part):
            declares = f"unbiased for {row.objective}" if row.unbiased else "biased"
            first = {"estimator": row.estimator, "objective": row.objective, "declares": declares, **dict.fromkeys(problems, EMPTY)}
            cell = dataclasses.replace(_bias_cell(row, row.relative_bias), verdict=row.verdict, alarm=bool(row.contradicted))
            rows.setdefault(row.estimator, first)[row.problem] = cell
        hints = {"objective": "the objective whose gradient it estimates", "declares": "the bias that its author declares"}
        hints |= dict.fromkeys(problems, described("relative_bias"))
        note = "Median relative bias over instances with quartiles, and the worst verdict of the test for bias over instances."
        name = "claims-" + "".join(letter if letter.isalnum() else "-" for letter in str(stage))
        found.append(
            tabulate(f"Tests for bias, entropy level {stage}", [*rows.values()], hints, note=note, name=name, filters=(), pinned=True)
        )
    return found


def _bias_cell(row: Any, spread: Spread | None, of: float = math.nan) -> TableCell:
    """A relative bias; of one that was not found, its bound."""
    return spread_cell(spread, of=of) if math.isnan(row.bias_bound) else TableCell(below(row.bias_bound), row.bias_bound)


def problem_tables(frame: pd.DataFrame, claims: pd.DataFrame) -> dict[str, Table]:
    """Every estimator and entropy level of each problem, with the main metrics: as wide as a screen."""
    known, found, metrics = tables.spreads(frame), {}, (*MAIN, _TIME)
    for problem, part in claims.groupby("problem", sort=False, observed=True):
        rows, groups = [], []
        for row in tables.items_of(part):
            spreads = {metric: known.get((str(problem), row.stage, row.estimator, metric)) for metric in metrics}
            cells = {metric: spread_cell(spread, of=row.instances) for metric, spread in spreads.items()}
            cells |= {"relative_bias": _bias_cell(row, spreads["relative_bias"], row.instances), _TIME: cost_cell(_TIME, spreads[_TIME])}
            # A verdict, with the share of instances that have it.
            share = f" {whole(row.sharing)}/{whole(row.instances)}" if row.sharing < row.instances else ""
            rank = list(tables.VERDICTS).index(row.verdict) if row.verdict else ""
            verdict = TableCell(row.verdict + share, rank, row.verdict, bool(row.contradicted))
            rows.append({"estimator": row.estimator, LEVEL: row.stage, "verdict": verdict})
            for metric, cell in cells.items():  # all but the median is in small print, which makes the column narrow
                middle, bracket, rest = cell.text.partition(" [")
                bounds, _, fewer = rest.partition("]")
                notes = tuple(filter(None, (f"[{bounds}]" if bracket else "", fewer.strip())))
                rows[-1][_title(metric)] = TableCell(middle, cell.key, notes=notes)
            groups.append(None if row.family in REFERENCE_FAMILIES else row.stage)
        looks: dict[str, Any] = {"costs": _costs(metrics), "groups": groups, "note": _PROBLEM_NOTE, "pinned": True}
        hints = {"verdict": "of the test for bias", **_hints(metrics)}
        found[str(problem)] = tabulate(f"All estimators on {problem}", rows, hints, name=f"problem-{problem}", **looks)
    return found


def cost_table(frame: pd.DataFrame) -> Table:
    """Time, memory and evaluations of the loss of every estimator, in one table."""
    table, known, metrics = tables.aggregate(frame), tables.spreads(frame), tables.COST_METRICS
    table = tables.distinct(table[table["metric"].isin(metrics)], ["problem", "stage", "estimator", "family"])
    for name in ("estimator", "stage", "problem"):
        table = table.sort_values(name, kind="stable", key=lambda words: words.map(list(words.unique()).index))
    rows, groups = [], []
    for row in tables.items_of(table):
        costs = {_title(name): cost_cell(name, known.get((*row[:3], name))) for name in metrics}
        rows.append({"estimator": row.estimator, **costs, LEVEL: row.stage, "problem": row.problem})
        groups.append(None if row.family in REFERENCE_FAMILIES else row[:2])
    chosen = [(name, title) for name, title in (("problem", "problem"), ("stage", LEVEL)) if table[name].nunique() > 1]
    filters = tuple((title, tables.order(table, name)[0]) for name, title in chosen)
    looks: dict[str, Any] = {"costs": _costs(metrics), "groups": groups, "filters": filters, "note": _COST_NOTE, "pinned": True}
    return tabulate("Cost of one estimate", rows, _hints(metrics), name="cost-table", **looks)


def cost_cell(metric: str, spread: Spread | None) -> TableCell:
    """A time in µs, a memory in bytes, or a count, with its interval."""
    if spread is None or math.isnan(spread.median):
        return TableCell("–", math.nan)
    if METRICS[metric].unit == "B":
        factor, unit = next((pair for pair in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")) if spread.median >= pair[0]), (1.0, "B"))
        return TableCell(f"{number(spread.median / factor)} {unit}", spread.median)
    factor = 1e6 if METRICS[metric].unit == "s" else 1.0
    return TableCell(interval(factor * spread.median, factor * spread.low, factor * spread.high), spread.median)


def further_tables(frame: pd.DataFrame) -> list[Table]:
    """Sparsity, fitted exponents, and descent, if they were measured."""
    known, rows, exponents = tables.spreads(frame), tables.measured(frame), tables.swept(frame)

    def medians(row: Any, metrics: Iterable[str], **more: TableCell) -> dict[str, TableCell | str]:
        spreads = {label_of(name): spread_cell(known.get((row.problem, row.stage, row.estimator, name))) for name in metrics}
        return {"problem": row.problem, LEVEL: row.stage, "estimator": row.estimator, **more, **spreads}

    sparse = [
        medians(row, tables.SPARSITY_METRICS, structures=TableCell(number(row.structures), row.structures))
        for row in tables.items_of(tables.sparsity(frame))
    ]
    names = [name for name in ("time_exponent", "memory_exponent") if (exponents["metric"] == name).any()]
    fitted: dict[tuple[str, ...], dict[str, TableCell | str]] = {}
    for row in tables.items_of(exponents[(exponents["suite"] == "scaling") & exponents["metric"].isin(names)]):
        line = {"problem": row.problem, "estimator": row.estimator, "axis": row.setting.removeprefix("axis=")}
        cells = fitted.setdefault(tuple(line.values()), {**line, **dict.fromkeys(names, EMPTY)})
        cells[row.metric] = TableCell(interval(row.value, row.low, row.high), row.value)
    descents = tables.distinct(rows[rows["metric"].isin(_DESCENT)], ["problem", "stage", "estimator"])
    hints = {label_of(name): described(name) for name in (*tables.SPARSITY_METRICS, *names, *_DESCENT)}
    hints |= {"structures": "how many structures there are", "axis": "what grows"}
    found = (
        ("Sparsity", sparse, "Median over instances with quartiles."),
        ("Exponents", [*fitted.values()], "1 is linear, 2 quadratic; with 95 % intervals."),
        ("Descent", [medians(row, _DESCENT) for row in tables.items_of(descents)], "Regret of training for the same loss evaluations."),
    )
    return [tabulate(title, some, hints, note=note, name=title.lower()) for title, some, note in found if some]


def comparison_table(frame: pd.DataFrame) -> Table:
    """Estimators of the user's own files and modules next to `rloo`, by problem and entropy level; empty where either was not measured."""
    base, compared = answers.against_rival(frame)
    metrics = ("gain", "cosine", "relative_bias", "relative_variance", "rho", _TIME)
    known, rows, costs, difference = tables.spreads(frame), [], _costs(metrics), f"difference in ρ to {base}"
    names = list(dict.fromkeys(name for _, name, _ in compared))
    for place, name, change in compared:
        row: dict[str, TableCell | str] = {"estimator": name} if len(names) > 1 else {}
        row |= {"problem": place.problem, LEVEL: place.stage, difference: estimate_cell(change)}
        for metric in metrics:
            both = [known.get((place.problem, place.stage, one, metric)) for one in (name, base)]
            own, other = (cost_cell(metric, one) if metric == _TIME else spread_cell(one) for one in both)
            cost = costs[_title(metric)]
            least = own.is_number and (not other.is_number or cost(float(own.key)) <= cost(float(other.key)) + 1e-9)
            row[_title(metric)] = dataclasses.replace(own, notes=(f"{base} {other.text}",), best=least)
        rows.append(row)
    signs = [answers.sign_of(change) for _, _, change in compared]
    note = (
        f"Yours has a higher ρ than {base} in {signs.count(1)} of {len(rows)} pairs of problem and entropy level, and a lower one "
        f"in {signs.count(-1)}; the others are not significantly different. ρ is compared at equal time, that of {MAIN_BUDGET} "
        "estimates of REINFORCE. The other columns are medians of one estimate. Yours is in bold where it is at least as good."
    )
    hints = {difference: "mean over instances, paired, with a 95 % interval; above 0: yours is better", **_hints(metrics)}
    title = f"{listed(names)} compared with {base}" if names else ""
    return tabulate(title, rows, hints, note=note, name="comparison-table", pinned=True)


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
    if not any(answer.uncertain for answer in found):
        return f"with {MAIN_BUDGET} estimates each (no times relative to REINFORCE were taken)"
    return f"with the time of {MAIN_BUDGET} estimates of REINFORCE, or as many oracle calls and loss evaluations where times are uncertain"


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
