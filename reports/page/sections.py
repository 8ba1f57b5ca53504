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
        rows = [
            {
                "estimator": row.estimator,
                "objective": row.objective,
                "declares": f"unbiased for {row.objective}" if row.unbiased else "biased",
                **{problem: _claim_cell(by_key.get((problem, row.estimator))) for problem in problems},
            }
            for row in tables.records(part.drop_duplicates("estimator"))
        ]
        hints = {"objective": "the objective whose gradient it estimates", "declares": "the bias that its author declares"}
        hints |= dict.fromkeys(problems, described("relative_bias"))
        note = "Median relative bias over instances with quartiles, and the worst verdict of the test for bias over instances."
        name = "claims-" + "".join(letter if letter.isalnum() else "-" for letter in str(stage))
        found.append(tabulate(f"Tests for bias, entropy level {stage}", rows, hints, note=note, name=name, filters=(), pinned=True))
    return found


def _claim_cell(row: Any) -> TableCell:
    if row is None:
        return EMPTY
    verdict = verdict_cell(row)
    return dataclasses.replace(_bias_cell(row, row.relative_bias), verdict=verdict.verdict, alarm=verdict.alarm)


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
    return [table for table in (_sparsity(frame), _exponents(frame), _descent(frame)) if table.rows]


def _sparsity(frame: pd.DataFrame) -> Table:
    """The numbers of structures and parts that an estimate depends on."""
    rows = [
        {
            **{"problem": row.problem, LEVEL: row.stage, "estimator": row.estimator},
            "structures": TableCell(number(row.structures), row.structures),
            **{title_of(name): spread_cell(getattr(row, name)) for name in tables.SPARSITY_METRICS},
        }
        for row in tables.records(tables.sparsity(frame))
    ]
    hints = {"structures": "how many structures there are", **{title_of(name): described(name) for name in tables.SPARSITY_METRICS}}
    return tabulate("Sparsity", rows, hints, note="Median over instances with quartiles.", name="sparsity")


def _exponents(frame: pd.DataFrame) -> Table:
    """Fitted exponents of time and memory, with their intervals."""
    rows = tables.swept(frame)
    names = [name for name in ("time_exponent", "memory_exponent") if (rows["metric"] == name).any()]
    rows = rows[(rows["suite"] == "scaling") & rows["metric"].isin(names)]
    found = [
        (
            row.problem,
            row.estimator,
            row.setting.removeprefix("axis="),
            row.metric,
            TableCell(interval(row.value, row.low, row.high), row.value),
        )
        for row in tables.records(rows)
    ]
    hints = {"axis": "what grows", **{name: described(name) for name in names}}
    note = "1 is linear, 2 quadratic; with 95 % intervals."
    return tabulate("Exponents", _wide(found, ["problem", "estimator", "axis"], names), hints, note=note, name="exponents")


def _descent(frame: pd.DataFrame) -> Table:
    """Regret after training, and its steps: medians over instances with quartiles."""
    names, rows = ["regret", "steps"], tables.measured(frame).rename(columns={"stage": LEVEL})
    rows = rows[(rows["suite"] == "descent") & rows["metric"].isin(names)]
    keys = ["problem", LEVEL, "estimator"]
    found = []
    for key, part in rows.groupby([*keys, "metric"], sort=False, observed=True):
        lower, median, upper = part["value"].quantile([0.25, 0.5, 0.75])
        spread = Spread(median, lower, upper, part["low"].iloc[0], part["high"].iloc[0], len(part))
        found.append((*key, spread_cell(spread)))
    note = "Regret of training for the same loss evaluations."
    return tabulate("Descent", _wide(found, keys, names), {name: described(name) for name in names}, note=note, name="descent")


def _wide(cells: Iterable[tuple[Any, ...]], keys: list[str], names: list[str]) -> list[dict[str, Any]]:
    """One mapping per combination of keys, from tuples of the keys, a column and its cell."""
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for *key, column, cell in cells:
        found.setdefault(tuple(key), {**dict(zip(keys, map(str, key), strict=True)), **dict.fromkeys(names, EMPTY)})[str(column)] = cell
    return list(found.values())


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
