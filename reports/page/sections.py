"""The tables of a report, from the small tables of `reports.analysis.tables`."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pandas as pd

from ...suites.metrics import METRICS, title_of
from ...suites.text import below, interval, number
from ..analysis import tables
from ..analysis.tables import Spread
from .cells import Table, TableCell, plain, spread_cell, verdict_cell

_PROBLEM_NOTE = (
    "Median over instances with quartiles; of a single instance, its own 95 % interval. (k of n): the metric exists on k instances only, "
    "as a gradient that is always 0 has no direction. Times and memory: once per problem."
)
_MANY = 12
_MAIN = ("relative_bias", "relative_variance", "relative_mse", "rho")
_COSTS = {
    name: (title, METRICS[name].meaning)
    for name, title in zip(tables.COST_METRICS, ("time", "time / REINFORCE’s", "memory", "loss evaluations"), strict=True)
}
_BRIEF = ("seconds_per_estimate", "peak_memory", "loss_evaluations")
_COST_NOTE = (
    "Time and evaluations of the loss are those of one estimate, memory is that of a batch of 32. The backward of one evaluation counts as "
    "two more. A dash: not measured."
)


def claim_tables(frame: pd.DataFrame, claims: pd.DataFrame) -> list[Table]:
    """What every estimator declares, and the verdict at every problem: one table per stage."""
    return [_claims_of(stage, claims) for stage in tables.order(claims, "stage")] + [
        _errors_of(stage, claims, frame) for stage in tables.order(claims, "stage")
    ]


def _claims_of(stage: str, claims: pd.DataFrame) -> Table:
    part = claims[claims["stage"] == stage]
    problems = tables.order(part, "problem")
    by_key = {(row.problem, row.estimator): row for row in tables.records(part)}
    declared = part.drop_duplicates("estimator").set_index("estimator")
    columns = [("estimator", ""), ("objective", "the objective whose gradient it estimates"), ("declares", "what it says about its bias")]
    rows = [
        [
            plain(name),
            plain(declared.loc[name, "objective"]),
            plain(declaration(bool(declared.loc[name, "unbiased"]), str(declared.loc[name, "objective"]))),
            *(_bias_cell(by_key.get((problem, name))) for problem in problems),
        ]
        for name in tables.order(part, "estimator")
    ]
    shown = tuple((problem, METRICS["relative_bias"].meaning) for problem in problems)
    note = "The worst verdict over instances, and the median relative bias with quartiles."
    return Table(f"Claims and verdicts, {stage}", (*columns, *shown), rows, note, f"claims-{_slug(stage)}", pinned=True)


def _errors_of(stage: str, claims: pd.DataFrame, frame: pd.DataFrame) -> Table:
    known, problems = tables.spreads(frame), tables.order(claims[claims["stage"] == stage], "problem")
    columns = (("estimator", ""), *((problem, METRICS["relative_mse"].meaning) for problem in problems))
    rows = [
        [plain(name), *(spread_cell(known.get((problem, stage, name, "relative_mse"))) for problem in problems)]
        for name in tables.order(claims, "estimator")
    ]
    rows = [row for row in rows if any(cell.text for cell in row[1:])]
    note = "Of one estimate. Median over instances with quartiles."
    return Table(f"Relative mean squared error, {stage}", columns, rows, note, f"errors-{_slug(stage)}", pinned=True)


def _slug(text: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in text)


def declaration(unbiased: bool, objective: str) -> str:
    """What an estimator says about itself, in words."""
    return f"unbiased for {objective}" if unbiased else "biased"


def _bias_cell(row: Any) -> TableCell:
    if row is None:
        return TableCell("", math.nan)
    verdict = verdict_cell(row)
    bias = spread_cell(row.relative_bias) if math.isnan(row.bias_bound) else TableCell(below(row.bias_bound), row.bias_bound)
    return TableCell(bias.text, bias.key, verdict.verdict, verdict.alarm)


def problem_table(problem: str, claims: pd.DataFrame, costs: pd.DataFrame) -> Table:
    """Every estimator and state of a problem, with the main metrics: as wide as a screen, what is costs included.

    Args:
        problem: its name.
        claims: its rows of `tables.claims`.
        costs: what `tables.costs` says.
    """
    by_key = {(row.problem, row.stage, row.estimator): row for row in tables.records(costs)}
    metrics = tuple((title_of(name), METRICS[name].meaning) for name in _MAIN)
    columns = (
        ("estimator", ""),
        ("stage", ""),
        ("verdict", "of the test for bias; and what it declares about its bias"),
        *metrics,
        *(_COSTS[name] for name in _BRIEF),
    )
    rows = [
        [
            plain(row.estimator),
            plain(row.stage),
            dataclasses.replace(verdict_cell(row), notes=(f"declares {declaration(row.unbiased, row.objective)}",)),
            *(_stacked(row, name) for name in _MAIN),
            *_cost_cells(by_key.get((problem, row.stage, row.estimator)), _BRIEF),
        ]
        for row in tables.records(claims)
    ]
    return Table(f"All estimators on {problem}", columns, rows, _PROBLEM_NOTE, f"problem-{problem}", _choices(columns, rows), pinned=True)


def _stacked(row: Any, metric: str) -> TableCell:
    """A spread with its quartiles below it, which makes the column narrow; of a bias that was not found, its bound."""
    spread = getattr(row, metric)
    if metric == "relative_bias" and not math.isnan(row.bias_bound):
        return TableCell(below(row.bias_bound), row.bias_bound)
    whole = spread_cell(spread, of=row.instances)
    middle, bracket, rest = whole.text.partition(" [")
    bounds, _, fewer = rest.partition("]")
    notes = (*((f"[{bounds}]",) if bracket else ()), *((fewer.strip(),) if fewer else ()))
    return TableCell(middle, whole.key, notes=notes)


def cost_table(costs: pd.DataFrame) -> Table:
    """Time, memory and evaluations of the loss of every estimator, in one table."""
    places = ["problem", "stage", "estimator"]
    rows = [[*(plain(getattr(row, name)) for name in reversed(places)), *_cost_cells(row, tuple(_COSTS))] for row in tables.records(costs)]
    columns = (*((name, "") for name in reversed(places)), *_COSTS.values())
    chosen = [(name, tables.order(costs, name)[0]) for name in places[:2] if costs[name].nunique() > 1]
    return Table("Cost of one estimate", columns, rows, _COST_NOTE, "cost-table", tuple(chosen), pinned=True)


def _cost_cells(row: Any, metrics: tuple[str, ...]) -> list[TableCell]:
    values = [math.nan if row is None else float(getattr(row, name)) for name in metrics]
    return [TableCell(_cost(name, value), value) for name, value in zip(metrics, values, strict=True)]


def _cost(metric: str, value: float) -> str:
    if math.isnan(value):
        return "–"
    return quantity(value, METRICS[metric].unit) if METRICS[metric].unit in ("s", "B") else number(value)


def quantity(value: float, unit: str) -> str:
    """Seconds or bytes with three digits, in a unit that suits them.

    Example:
        >>> quantity(1.52e-5, "s"), quantity(97792.0, "B"), quantity(0.0, "B")
        ('15.2 µs', '97.8 kB', '0 B')
    """
    prefixes = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, "")) if unit == "B" else ((1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))
    factor, prefix = next((pair for pair in prefixes if abs(value) >= pair[0]), (1.0, ""))
    return f"{number(value / factor)} {prefix}{unit}"


def sparsity_table(table: pd.DataFrame) -> Table:
    """How many structures and parts are touched."""
    metrics = tuple((title_of(name), METRICS[name].meaning) for name in tables.SPARSITY_METRICS)
    columns = (("problem", ""), ("stage", ""), ("estimator", ""), ("structures", "how many structures there are"), *metrics)
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
    """How time, memory and variance grow: fitted exponents with their intervals."""
    rows = tables.swept(frame)
    rows = rows[(rows["suite"] == "scaling") & rows["metric"].str.endswith("_exponent")]
    rows = rows.assign(axis=rows["setting"].str.removeprefix("axis="))
    metrics = [name for name in ("time_exponent", "memory_exponent", "variance_exponent") if (rows["metric"] == name).any()]
    found = {(row.problem, row.estimator, row.axis, row.metric): row for row in tables.records(rows)}
    places = list(dict.fromkeys(key[:3] for key in found))
    columns = (("problem", ""), ("estimator", ""), ("axis", "what grows"), *((name, METRICS[name].meaning) for name in metrics))
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
    hints = {name: METRICS[name if name in METRICS else "kl_decrease"].meaning for name in names}
    columns = (("problem", ""), ("stage", ""), ("estimator", ""), *hints.items())
    body = [[*map(plain, place), *(spread_cell(spreads.get((*place, name))) for name in names)] for place in places]
    note = "Regret of training for the same loss evaluations; decrease by a step of a KL divergence, relative to the exact."
    return Table("Descent", columns, body, note, "descent", _choices(columns, body))


def _spread(part: pd.DataFrame) -> Spread:
    lower, median, upper = (float(value) for value in part["value"].quantile([0.25, 0.5, 0.75]))
    return Spread(median, lower, upper, float(part["low"].iloc[0]), float(part["high"].iloc[0]), len(part))


def _number_cell(row: Any) -> TableCell:
    return TableCell("", math.nan) if row is None else TableCell(interval(row.value, row.low, row.high), row.value)


def _choices(columns: Any, rows: list[list[TableCell]]) -> tuple[tuple[str, str], ...]:
    """Columns of a long table that the page offers to choose from: those of words, with more than one."""
    offered = ("problem", "stage", "estimator", "verdict", "axis")
    titles = [title for title, _ in columns]
    if len(rows) <= _MANY:
        return ()
    return tuple((name, "") for name in offered if name in titles and len({row[titles.index(name)].text for row in rows}) > 1)
