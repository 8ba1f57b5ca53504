"""The tables of a report, from the small tables of `reports.analysis.tables`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import Any

import pandas as pd

from ...suites.metrics import METRICS, title_of
from ...suites.text import below, interval, listed, number
from ..analysis import answers, tables
from ..analysis.tables import REFERENCE_FAMILIES, Spread
from .cells import EMPTY, LEVEL, Table, TableCell, estimate_cell, spread_cell, tabulate, verdict_cell

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


def _title(metric: str) -> str:
    return "time of one estimate (µs)" if metric == _TIME else title_of(metric).replace("_", " ")


def _hints(metrics: Iterable[str]) -> dict[str, str]:
    return {_title(metric): described(metric, "µs") for metric in metrics}


def _costs(metrics: Iterable[str]) -> dict[str, Callable[[float], float]]:
    """Functions of values that are smallest at the best, by the title of their column."""

    def cost_of(metric: str) -> Callable[[float], float]:
        if metric == "gain":
            return lambda value: abs(value - 1)
        return (lambda value: -value) if METRICS[metric].rule.role == "higher" else float

    return {_title(metric): cost_of(metric) for metric in metrics}


def claim_tables(claims: pd.DataFrame) -> list[Table]:
    """The declared and the measured bias of every estimator: a table per entropy level."""
    found = []
    for stage, part in claims.groupby("stage", sort=False, observed=True):
        problems, by_key = tables.order(part, "problem"), {(row.problem, row.estimator): row for row in tables.records(part)}
        rows = []
        for row in tables.records(part.drop_duplicates("estimator")):
            declares = f"unbiased for {row.objective}" if row.unbiased else "biased"
            rows.append({"estimator": row.estimator, "objective": row.objective, "declares": declares, **dict.fromkeys(problems, EMPTY)})
            for one in (by_key[problem, row.estimator] for problem in problems if (problem, row.estimator) in by_key):
                bias = _bias_cell(one, one.relative_bias)
                rows[-1][one.problem] = dataclasses.replace(bias, verdict=one.verdict, alarm=bool(one.contradicted))
        hints = {"objective": "the objective whose gradient it estimates", "declares": "the bias that its author declares"}
        hints |= dict.fromkeys(problems, described("relative_bias"))
        note = "Median relative bias over instances with quartiles, and the worst verdict of the test for bias over instances."
        name = "claims-" + "".join(letter if letter.isalnum() else "-" for letter in str(stage))
        found.append(tabulate(f"Tests for bias, entropy level {stage}", rows, hints, note=note, name=name, filters=(), pinned=True))
    return found


def _bias_cell(row: Any, spread: Spread | None, of: float = math.nan) -> TableCell:
    """A relative bias; of one that was not found, its bound."""
    return spread_cell(spread, of=of) if math.isnan(row.bias_bound) else TableCell(below(row.bias_bound), row.bias_bound)


def problem_tables(frame: pd.DataFrame, claims: pd.DataFrame) -> dict[str, Table]:
    """Every estimator and entropy level of each problem, with the main metrics: as wide as a screen."""
    known, found, metrics = tables.spreads(frame), {}, (*MAIN, _TIME)
    for problem, part in claims.groupby("problem", sort=False, observed=True):
        rows, groups = [], []
        for row in tables.records(part):
            spreads = {metric: known.get((str(problem), row.stage, row.estimator, metric)) for metric in metrics}
            cells = {metric: spread_cell(spread, of=row.instances) for metric, spread in spreads.items()}
            cells |= {"relative_bias": _bias_cell(row, spreads["relative_bias"], row.instances), _TIME: cost_cell(_TIME, spreads[_TIME])}
            rows.append({"estimator": row.estimator, LEVEL: row.stage, "verdict": verdict_cell(row)})
            rows[-1] |= {_title(metric): _narrow(cell) for metric, cell in cells.items()}
            groups.append(None if row.family in REFERENCE_FAMILIES else row.stage)
        looks: dict[str, Any] = {"costs": _costs(metrics), "groups": groups, "note": _PROBLEM_NOTE, "pinned": True}
        hints = {"verdict": "of the test for bias", **_hints(metrics)}
        found[str(problem)] = tabulate(f"All estimators on {problem}", rows, hints, name=f"problem-{problem}", **looks)
    return found


def _narrow(cell: TableCell) -> TableCell:
    """The cell with everything but its median in small print below, which makes the column narrow."""
    middle, bracket, rest = cell.text.partition(" [")
    bounds, _, fewer = rest.partition("]")
    return TableCell(middle, cell.key, notes=tuple(filter(None, (f"[{bounds}]" if bracket else "", fewer.strip()))))


def cost_table(frame: pd.DataFrame) -> Table:
    """Time, memory and evaluations of the loss of every estimator, in one table."""
    table, known, metrics = tables.aggregate(frame), tables.spreads(frame), tables.COST_METRICS
    table = tables.distinct(table[table["metric"].isin(metrics)], ["problem", "stage", "estimator", "family"])
    for name in ("estimator", "stage", "problem"):
        table = table.sort_values(name, kind="stable", key=lambda words: words.map(list(words.unique()).index))
    rows, groups = [], []
    for row in tables.records(table):
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
        spreads = {title_of(name): spread_cell(known.get((row.problem, row.stage, row.estimator, name))) for name in metrics}
        return {"problem": row.problem, LEVEL: row.stage, "estimator": row.estimator, **more, **spreads}

    sparse = [
        medians(row, tables.SPARSITY_METRICS, structures=TableCell(number(row.structures), row.structures))
        for row in tables.records(tables.sparsity(frame))
    ]
    names = [name for name in ("time_exponent", "memory_exponent") if (exponents["metric"] == name).any()]
    fitted: dict[tuple[str, str, str], dict[str, TableCell | str]] = {}
    for row in tables.records(exponents[(exponents["suite"] == "scaling") & exponents["metric"].isin(names)]):
        key = (row.problem, row.estimator, row.setting.removeprefix("axis="))
        line = dict(zip(("problem", "estimator", "axis"), key, strict=True))
        fitted.setdefault(key, {**line, **dict.fromkeys(names, EMPTY)})[row.metric] = TableCell(
            interval(row.value, row.low, row.high), row.value
        )
    descents = tables.distinct(rows[rows["metric"].isin(_DESCENT)], ["problem", "stage", "estimator"])
    hints = {title_of(name): described(name) for name in (*tables.SPARSITY_METRICS, *names, *_DESCENT)}
    hints |= {"structures": "how many structures there are", "axis": "what grows"}
    found = (
        ("Sparsity", sparse, "Median over instances with quartiles."),
        ("Exponents", [*fitted.values()], "1 is linear, 2 quadratic; with 95 % intervals."),
        ("Descent", [medians(row, _DESCENT) for row in tables.records(descents)], "Regret of training for the same loss evaluations."),
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
        f"in {signs.count(-1)}; the others are not significantly different. ρ is compared at equal time, that of {answers.MAIN_BUDGET} "
        "estimates of REINFORCE. The other columns are medians of one estimate. Yours is in bold where it is at least as good."
    )
    hints = {difference: "mean over instances, paired, with a 95 % interval; above 0: yours is better", **_hints(metrics)}
    title = f"{listed(names)} compared with {base}" if names else ""
    return tabulate(title, rows, hints, note=note, name="comparison-table", pinned=True)
