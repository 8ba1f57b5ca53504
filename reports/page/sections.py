"""The tables of a report, from the small tables of `reports.analysis.tables`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pandas as pd

from ...suites.metrics import METRICS, title_of
from ...suites.text import below, estimate, interval, listed, number
from ..analysis import answers, tables
from ..analysis.tables import Spread
from .cells import LEVEL, Table, TableCell, best_in_bold, plain, spread_cell, verdict_cell

_PROBLEM_NOTE = (
    "Medians over instances, with quartiles in brackets; of a single instance, its own 95 % interval. “(k of n)”: the metric exists on "
    "k of n instances only, because an estimate that is always 0 has no direction. The best of each entropy level is in bold; the exact "
    "gradient does not compete. Times are measured once per problem."
)
_MANY = 12
MAIN = ("relative_bias", "gain", "cosine", "orthogonal_bias", "relative_variance", "relative_mse", "rho")
"""The metrics of the table of a problem."""

_COST_NOTE = (
    "Lower is better, and the best is in bold. Times are medians of forward and backward, with 95 % intervals in brackets. The backward of "
    "one loss evaluation counts as two more. A dash: not measured."
)


def costs_of(metric: str) -> Callable[[float], float]:
    """A function of a metric's value that is smallest at the best."""
    if metric == "gain":
        return lambda value: abs(value - 1)
    return (lambda value: -value) if METRICS[metric].rule.role == "higher" else float


def claim_tables(frame: pd.DataFrame, claims: pd.DataFrame) -> list[Table]:
    """The declared and the measured bias of every estimator, and its error: one table of each per entropy level."""
    return [_claims_of(stage, claims) for stage in tables.order(claims, "stage")] + [
        _errors_of(stage, claims, frame) for stage in tables.order(claims, "stage")
    ]


def _claims_of(stage: str, claims: pd.DataFrame) -> Table:
    part = claims[claims["stage"] == stage]
    problems = tables.order(part, "problem")
    by_key = {(row.problem, row.estimator): row for row in tables.records(part)}
    declared = part.drop_duplicates("estimator").set_index("estimator")
    columns = [
        ("estimator", ""),
        ("objective", "the objective whose gradient it estimates"),
        ("declares", "the bias that its author declares"),
    ]
    rows = [
        [
            plain(name),
            plain(declared.loc[name, "objective"]),
            plain(declaration(bool(declared.loc[name, "unbiased"]), str(declared.loc[name, "objective"]))),
            *(_bias_cell(by_key.get((problem, name))) for problem in problems),
        ]
        for name in tables.order(part, "estimator")
    ]
    shown = tuple((problem, described("relative_bias")) for problem in problems)
    note = "Median relative bias over instances with quartiles, and the worst verdict of the test for bias over instances."
    title = f"Tests for bias, entropy level {stage}"
    return Table(title, (*columns, *shown), rows, note, f"claims-{_slug(stage)}", pinned=True)


def _errors_of(stage: str, claims: pd.DataFrame, frame: pd.DataFrame) -> Table:
    known, problems = tables.spreads(frame), tables.order(claims[claims["stage"] == stage], "problem")
    references = set(claims.loc[claims["family"].isin(tables.REFERENCE_FAMILIES), "estimator"])
    columns = (("estimator", ""), *((problem, described("relative_mse")) for problem in problems))
    rows = [
        [plain(name), *(spread_cell(known.get((problem, stage, name, "relative_mse"))) for problem in problems)]
        for name in tables.order(claims, "estimator")
    ]
    rows = [row for row in rows if any(cell.text for cell in row[1:])]
    competing = [None if row[0].text in references else stage for row in rows]
    rows = best_in_bold(rows, competing, dict.fromkeys(range(1, len(columns)), float))
    note = "Of one estimate: median over instances with quartiles. Lower is better, and the best of each problem is in bold."
    title = f"Relative mean squared error, entropy level {stage}"
    return Table(title, columns, rows, note, f"errors-{_slug(stage)}", pinned=True)


def _slug(text: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in text)


def declaration(unbiased: bool, objective: str) -> str:
    """The declared bias, in words."""
    return f"unbiased for {objective}" if unbiased else "biased"


def _bias_cell(row: Any) -> TableCell:
    if row is None:
        return TableCell("", math.nan)
    verdict = verdict_cell(row)
    bias = spread_cell(row.relative_bias) if math.isnan(row.bias_bound) else TableCell(below(row.bias_bound), row.bias_bound)
    return TableCell(bias.text, bias.key, verdict.verdict, verdict.alarm)


def problem_table(problem: str, claims: pd.DataFrame, known: dict[tuple[str, str, str, str], Spread]) -> Table:
    """Every estimator and entropy level of a problem, with the main metrics: as wide as a screen.

    Args:
        problem: its name.
        claims: its rows of `tables.claims`.
        known: see `tables.spreads`.
    """
    columns = (
        ("estimator", ""),
        (LEVEL, ""),
        ("verdict", "of the test for bias"),
        *map(_column, MAIN),
        _column("seconds_per_estimate"),
    )
    records = list(tables.records(claims))
    rows = [
        [
            plain(row.estimator),
            plain(row.stage),
            verdict_cell(row),
            *(_stacked(row, name, known.get((problem, row.stage, row.estimator, name))) for name in MAIN),
            _split(_cost_cell("seconds_per_estimate", known.get((problem, row.stage, row.estimator, "seconds_per_estimate")))),
        ]
        for row in records
    ]
    groups = [None if row.family in tables.REFERENCE_FAMILIES else row.stage for row in records]
    rows = best_in_bold(rows, groups, {3 + place: costs_of(name) for place, name in enumerate((*MAIN, "seconds_per_estimate"))})
    return Table(f"All estimators on {problem}", columns, rows, _PROBLEM_NOTE, f"problem-{problem}", _choices(columns, rows), pinned=True)


def _stacked(row: Any, metric: str, spread: Spread | None) -> TableCell:
    """A spread with its quartiles below it, which makes the column narrow; of a bias that was not found, its bound."""
    if metric == "relative_bias" and not math.isnan(row.bias_bound):
        return TableCell(below(row.bias_bound), row.bias_bound)
    return _split(spread_cell(spread, of=row.instances))


def _split(cell: TableCell) -> TableCell:
    """The cell with everything but its median in small print below."""
    middle, bracket, rest = cell.text.partition(" [")
    bounds, _, fewer = rest.partition("]")
    return TableCell(middle, cell.key, notes=tuple(filter(None, (f"[{bounds}]" if bracket else "", fewer.strip()))))


def cost_table(frame: pd.DataFrame) -> Table:
    """Time, memory and evaluations of the loss of every estimator, in one table."""
    costs, known = tables.costs(frame), tables.spreads(frame)
    references = set(frame.loc[frame["family"].isin(tables.REFERENCE_FAMILIES), "estimator"])
    keys = [(row.problem, row.stage, row.estimator) for row in tables.records(costs)]
    rows = [
        [plain(key[2]), *(_cost_cell(name, known.get((*key, name))) for name in tables.COST_METRICS), *map(plain, key[1::-1])]
        for key in keys
    ]
    groups = [None if key[2] in references else key[:2] for key in keys]
    rows = best_in_bold(rows, groups, {1 + place: costs_of(name) for place, name in enumerate(tables.COST_METRICS)})
    columns = (("estimator", ""), *map(_column, tables.COST_METRICS), (LEVEL, ""), ("problem", ""))
    titles = {"problem": "problem", "stage": LEVEL}
    chosen = [(title, tables.order(costs, name)[0]) for name, title in titles.items() if costs[name].nunique() > 1]
    return Table("Cost of one estimate", columns, rows, _COST_NOTE, "cost-table", tuple(chosen), pinned=True)


def _cost_cell(metric: str, spread: Spread | None) -> TableCell:
    if spread is None or math.isnan(spread.median):
        return TableCell("–", math.nan)
    if METRICS[metric].unit == "B":
        factor, unit = next((pair for pair in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")) if spread.median >= pair[0]), (1.0, "B"))
        return TableCell(f"{number(spread.median / factor)} {unit}", spread.median)
    factor = 1e6 if METRICS[metric].unit == "s" else 1.0
    return TableCell(interval(factor * spread.median, factor * spread.low, factor * spread.high), spread.median)


def _column(metric: str) -> tuple[str, str]:
    """The title and the explanation of the column of a metric; times are in µs."""
    title = "time of one estimate (µs)" if metric == "seconds_per_estimate" else title_of(metric).replace("_", " ")
    return title, described(metric, "µs")


def described(metric: str, time_unit: str = "seconds") -> str:
    """The meaning of a metric: its formula, its range, which direction is better, and its unit.

    Example:
        >>> described("cosine")
        '⟨E ĝ, g⟩ / (‖E ĝ‖ ‖g‖), corrected for the noise of the mean; −1 to 1; higher is better'
    """
    known = METRICS[metric]
    better = {"lower": "lower is better", "higher": "higher is better"}.get(known.rule.role, "")
    unit = {"s": f"in {time_unit}", "B": "in bytes"}.get(known.unit, "")
    return "; ".join(filter(None, (known.meaning, known.range, better, unit)))


def sparsity_table(table: pd.DataFrame) -> Table:
    """The numbers of structures and parts that an estimate depends on."""
    metrics = tuple((title_of(name), described(name)) for name in tables.SPARSITY_METRICS)
    columns = (("problem", ""), (LEVEL, ""), ("estimator", ""), ("structures", "how many structures there are"), *metrics)
    rows = [
        [
            *(plain(getattr(row, name)) for name in ("problem", "stage", "estimator")),
            TableCell(number(row.structures), row.structures),
            *(spread_cell(getattr(row, name)) for name in tables.SPARSITY_METRICS),
        ]
        for row in tables.records(table)
    ]
    return Table("Sparsity", columns, rows, "Median over instances with quartiles.", "sparsity", _choices(columns, rows))


def exponent_table(frame: pd.DataFrame) -> Table:
    """Fitted exponents of time, memory and variance, with their intervals."""
    rows = tables.swept(frame)
    rows = rows[(rows["suite"] == "scaling") & rows["metric"].str.endswith("_exponent")]
    rows = rows.assign(axis=rows["setting"].str.removeprefix("axis="))
    metrics = [name for name in ("time_exponent", "memory_exponent", "variance_exponent") if (rows["metric"] == name).any()]
    found = {(row.problem, row.estimator, row.axis, row.metric): row for row in tables.records(rows)}
    places = list(dict.fromkeys(key[:3] for key in found))
    columns = (("problem", ""), ("estimator", ""), ("axis", "what grows"), *((name, described(name)) for name in metrics))
    body = [[*map(plain, place), *(_number_cell(found.get((*place, name))) for name in metrics)] for place in places]
    return Table("Exponents", columns, body, "1 is linear, 2 quadratic; with 95 % intervals.", "exponents", _choices(columns, body))


def descent_table(frame: pd.DataFrame) -> Table:
    """Regret after training, and decrease by steps of equal size: medians over instances with quartiles."""
    swept, rows = tables.swept(frame), tables.measured(frame)
    regrets = rows[(rows["suite"] == "descent") & rows["metric"].isin(["regret", "steps"])].assign(column=lambda part: part["metric"])
    steps = swept[(swept["suite"] == "descent") & (swept["metric"] == "kl_decrease")].assign(column=lambda part: part["setting"])
    both = pd.concat([regrets, steps], ignore_index=True)
    names = list(dict.fromkeys(both["column"]))
    spreads = {key: _spread(part) for key, part in both.groupby(["problem", "stage", "estimator", "column"], sort=False)}
    places = list(dict.fromkeys(key[:3] for key in spreads))
    # Of the steps there is a column for each setting.
    hints = {name: described(name if name in METRICS else "kl_decrease") for name in names}
    columns = (("problem", ""), (LEVEL, ""), ("estimator", ""), *hints.items())
    body = [[*map(plain, place), *(spread_cell(spreads.get((*place, name))) for name in names)] for place in places]
    note = "Regret of training for the same loss evaluations; decrease by a step of a KL divergence, relative to the exact."
    return Table("Descent", columns, body, note, "descent", _choices(columns, body))


def _spread(part: pd.DataFrame) -> Spread:
    lower, median, upper = (float(value) for value in part["value"].quantile([0.25, 0.5, 0.75]))
    return Spread(median, lower, upper, float(part["low"].iloc[0]), float(part["high"].iloc[0]), len(part))


def _number_cell(row: Any) -> TableCell:
    return TableCell("", math.nan) if row is None else TableCell(interval(row.value, row.low, row.high), row.value)


def comparison_table(frame: pd.DataFrame) -> Table:
    """Estimators of the user's own files and modules next to `rloo`, by problem and entropy level; empty where either was not measured."""
    base, compared = answers.against_rival(frame)
    known, rows = tables.spreads(frame), []
    for place, name, change in compared:
        rows.append([plain(name), plain(place.problem), plain(place.stage), TableCell(estimate(change), float(change.value or 0.0))])
        for metric in _COMPARED:
            both = [known.get((place.problem, place.stage, one, metric)) for one in (name, base)]
            cells = [_cost_cell(metric, one) if metric == "seconds_per_estimate" else spread_cell(one) for one in both]
            ((cell,), _) = best_in_bold([[cell] for cell in cells], [0, 0], {0: costs_of(metric)})
            rows[-1].append(dataclasses.replace(cell, notes=(f"{base} {cells[1].text}",)))
    signs = [answers.sign_of(change) for _, _, change in compared]
    difference = (f"difference in ρ to {base}", "mean over instances, paired, with a 95 % interval; above 0: yours is better")
    note = (
        f"Yours has a higher ρ than {base} in {signs.count(1)} of {len(rows)} pairs of problem and entropy level, and a lower one "
        f"in {signs.count(-1)}; the others are not significantly different. ρ is compared at equal time, that of {answers.MAIN_BUDGET} "
        "estimates of REINFORCE. The other columns are medians of one estimate. Yours is in bold where it is at least as good."
    )
    columns = (("estimator", ""), ("problem", ""), (LEVEL, ""), difference, *map(_column, _COMPARED))
    own = list(dict.fromkeys(row[0].text for row in rows))
    if len(own) == 1:
        columns, rows = columns[1:], [row[1:] for row in rows]
    return Table(
        f"{listed(own)} compared with {base}" if own else "", columns, rows, note, "comparison-table", _choices(columns, rows), pinned=True
    )


_COMPARED = ("gain", "cosine", "relative_bias", "relative_variance", "rho", "seconds_per_estimate")


def _choices(columns: Any, rows: list[list[TableCell]]) -> tuple[tuple[str, str], ...]:
    """Columns of a long table that the page offers to choose from: those of words, with more than one."""
    offered = ("problem", LEVEL, "estimator", "verdict", "axis")
    titles = [title for title, _ in columns]
    if len(rows) <= _MANY:
        return ()
    return tuple((name, "") for name in offered if name in titles and len({row[titles.index(name)].text for row in rows}) > 1)
