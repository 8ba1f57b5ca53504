"""The tables of a report, from the small tables of `reports.analysis.tables`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pandas as pd

from ...suites.metrics import METRICS, title_of
from ...suites.text import below, interval, listed, number
from ..analysis import answers, tables
from ..analysis.tables import REFERENCE_FAMILIES, Spread
from .cells import EMPTY, LEVEL, Table, TableCell, estimate_cell, spread_cell, tabulate, verdict_cell

MAIN = ("relative_bias", "gain", "cosine", "orthogonal_bias", "relative_variance", "relative_mse", "rho")
"""The metrics of the table of a problem."""

Spreads = Mapping[tuple[str, str, str, str], Spread]
"""See `tables.spreads`."""

_PROBLEM_NOTE = (
    "Medians over instances, with quartiles in brackets; of a single instance, its own 95 % interval. “(k of n)”: the metric exists on "
    "k of n instances only, because an estimate that is always 0 has no direction. The best of each entropy level is in bold; the exact "
    "gradient does not compete. Times are measured once per problem."
)
_COST_NOTE = (
    "Lower is better, and the best is in bold. Times are medians of forward and backward, with 95 % intervals in brackets. The backward of "
    "one loss evaluation counts as two more. A dash: not measured."
)
_COMPARED = ("gain", "cosine", "relative_bias", "relative_variance", "rho", "seconds_per_estimate")


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
    return "time of one estimate (µs)" if metric == "seconds_per_estimate" else title_of(metric).replace("_", " ")


def _hints(metrics: Iterable[str]) -> dict[str, str]:
    return {_title(metric): described(metric, "µs") for metric in metrics}


def _costs(metrics: Iterable[str]) -> dict[str, Callable[[float], float]]:
    """Functions of values that are smallest at the best, by the title of their column."""
    by_role = {"higher": lambda value: -value, "lower": float}
    return {
        _title(metric): (lambda value: abs(value - 1)) if metric == "gain" else by_role.get(METRICS[metric].rule.role, float)
        for metric in metrics
    }


def claim_tables(frame: pd.DataFrame, claims: pd.DataFrame) -> list[Table]:
    """The declared and the measured bias of every estimator, and its error: one table of each per entropy level with rows."""
    stages = tables.order(claims, "stage")
    found = [_claims_of(stage, claims) for stage in stages] + [_errors_of(stage, claims, tables.spreads(frame)) for stage in stages]
    return [table for table in found if table.rows]


def _claims_of(stage: str, claims: pd.DataFrame) -> Table:
    part = claims[claims["stage"] == stage]
    problems, by_key = tables.order(part, "problem"), {(row.problem, row.estimator): row for row in tables.records(part)}
    rows = [
        {
            "estimator": row.estimator,
            "objective": row.objective,
            "declares": f"unbiased for {row.objective}" if row.unbiased else "biased",
            **{problem: _bias_cell(by_key.get((problem, row.estimator))) for problem in problems},
        }
        for row in tables.records(part.drop_duplicates("estimator"))
    ]
    hints = {"objective": "the objective whose gradient it estimates", "declares": "the bias that its author declares"}
    hints |= dict.fromkeys(problems, described("relative_bias"))
    note = "Median relative bias over instances with quartiles, and the worst verdict of the test for bias over instances."
    title = f"Tests for bias, entropy level {stage}"
    return tabulate(title, rows, hints, note=note, name=f"claims-{_slug(stage)}", filters=(), pinned=True)


def _errors_of(stage: str, claims: pd.DataFrame, known: Spreads) -> Table:
    problems = tables.order(claims[claims["stage"] == stage], "problem")
    rows, groups = [], []
    for row in tables.records(claims.drop_duplicates("estimator")):
        found = {problem: known.get((problem, stage, row.estimator, "relative_mse")) for problem in problems}
        if any(found.values()):
            rows.append({"estimator": row.estimator, **{problem: spread_cell(spread) for problem, spread in found.items()}})
            groups.append(None if row.family in REFERENCE_FAMILIES else stage)
    note = "Of one estimate: median over instances with quartiles. Lower is better, and the best of each problem is in bold."
    return tabulate(
        f"Relative mean squared error, entropy level {stage}",
        rows,
        dict.fromkeys(problems, described("relative_mse")),
        costs=dict.fromkeys(problems, float),
        groups=groups,
        note=note,
        name=f"errors-{_slug(stage)}",
        filters=(),
        pinned=True,
    )


def _slug(text: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in text)


def _bias_cell(row: Any) -> TableCell:
    if row is None:
        return EMPTY
    verdict = verdict_cell(row)
    return dataclasses.replace(_bounded(row, row.relative_bias), verdict=verdict.verdict, alarm=verdict.alarm)


def _bounded(row: Any, spread: Spread | None, of: float = math.nan) -> TableCell:
    """A relative bias; of one that was not found, its bound."""
    return spread_cell(spread, of=of) if math.isnan(row.bias_bound) else TableCell(below(row.bias_bound), row.bias_bound)


def problem_table(problem: str, claims: pd.DataFrame, known: Spreads) -> Table:
    """Every estimator and entropy level of a problem, with the main metrics: as wide as a screen.

    Args:
        problem: its name.
        claims: its rows of `tables.claims`.
        known: see `tables.spreads`.
    """
    metrics, records = (*MAIN, "seconds_per_estimate"), list(tables.records(claims))

    def cell(row: Any, metric: str) -> TableCell:
        spread = known.get((problem, row.stage, row.estimator, metric))
        if metric == "seconds_per_estimate":
            return _split(_cost_cell(metric, spread))
        return _split(_bounded(row, spread, row.instances) if metric == "relative_bias" else spread_cell(spread, of=row.instances))

    return tabulate(
        f"All estimators on {problem}",
        [
            {
                "estimator": row.estimator,
                LEVEL: row.stage,
                "verdict": verdict_cell(row),
                **{_title(name): cell(row, name) for name in metrics},
            }
            for row in records
        ],
        {"verdict": "of the test for bias", **_hints(metrics)},
        costs=_costs(metrics),
        groups=[None if row.family in REFERENCE_FAMILIES else row.stage for row in records],
        note=_PROBLEM_NOTE,
        name=f"problem-{problem}",
        pinned=True,
    )


def _split(cell: TableCell) -> TableCell:
    """The cell with everything but its median in small print below, which makes the column narrow."""
    middle, bracket, rest = cell.text.partition(" [")
    bounds, _, fewer = rest.partition("]")
    return TableCell(middle, cell.key, notes=tuple(filter(None, (f"[{bounds}]" if bracket else "", fewer.strip()))))


def cost_table(frame: pd.DataFrame) -> Table:
    """Time, memory and evaluations of the loss of every estimator, in one table."""
    table, known = tables.aggregate(frame), tables.spreads(frame)
    table = tables.distinct(table[table["metric"].isin(tables.COST_METRICS)], ["problem", "stage", "estimator", "family"])
    for name in ("estimator", "stage", "problem"):
        table = table.sort_values(name, kind="stable", key=lambda words: words.map(list(words.unique()).index))
    chosen = [(name, title) for name, title in (("problem", "problem"), ("stage", LEVEL)) if table[name].nunique() > 1]
    return tabulate(
        "Cost of one estimate",
        [
            {
                "estimator": row.estimator,
                **{_title(name): _cost_cell(name, known.get((*row[:3], name))) for name in tables.COST_METRICS},
                LEVEL: row.stage,
                "problem": row.problem,
            }
            for row in tables.records(table)
        ],
        _hints(tables.COST_METRICS),
        costs=_costs(tables.COST_METRICS),
        groups=[None if row.family in REFERENCE_FAMILIES else row[:2] for row in tables.records(table)],
        filters=tuple((title, tables.order(table, name)[0]) for name, title in chosen),
        note=_COST_NOTE,
        name="cost-table",
        pinned=True,
    )


def _cost_cell(metric: str, spread: Spread | None) -> TableCell:
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
    """Fitted exponents of time, memory and variance, with their intervals."""
    rows = tables.swept(frame)
    rows = rows[(rows["suite"] == "scaling") & rows["metric"].str.endswith("_exponent")]
    names = [name for name in ("time_exponent", "memory_exponent", "variance_exponent") if (rows["metric"] == name).any()]
    found: dict[tuple[str, ...], dict[str, TableCell | str]] = {}
    for row in tables.records(rows):
        at = (row.problem, row.estimator, row.setting.removeprefix("axis="))
        known = found.setdefault(at, {**dict(zip(("problem", "estimator", "axis"), at, strict=True)), **dict.fromkeys(names, EMPTY)})
        known[row.metric] = TableCell(interval(row.value, row.low, row.high), row.value)
    hints = {"axis": "what grows", **{name: described(name) for name in names}}
    return tabulate("Exponents", list(found.values()), hints, note="1 is linear, 2 quadratic; with 95 % intervals.", name="exponents")


def _descent(frame: pd.DataFrame) -> Table:
    """Regret after training, and decrease by steps of equal size: medians over instances with quartiles."""
    swept, rows = tables.swept(frame), tables.measured(frame)
    regrets = rows[(rows["suite"] == "descent") & rows["metric"].isin(["regret", "steps"])].assign(column=lambda part: part["metric"])
    # Of the steps there is a column for each setting.
    steps = swept[(swept["suite"] == "descent") & (swept["metric"] == "kl_decrease")].assign(column=lambda part: part["setting"])
    both = pd.concat([regrets, steps], ignore_index=True)
    hints = {name: described(name if name in METRICS else "kl_decrease") for name in dict.fromkeys(both["column"])}
    found: dict[tuple[str, ...], dict[str, TableCell | str]] = {}
    for key, part in both.groupby(["problem", "stage", "estimator", "column"], sort=False):
        *at, name = map(str, key)
        keys = dict(zip(("problem", LEVEL, "estimator"), at, strict=True))
        lower, median, upper = part["value"].quantile([0.25, 0.5, 0.75])
        spread = Spread(median, lower, upper, part["low"].iloc[0], part["high"].iloc[0], len(part))
        found.setdefault(tuple(at), {**keys, **dict.fromkeys(hints, EMPTY)})[name] = spread_cell(spread)
    note = "Regret of training for the same loss evaluations; decrease by a step of a KL divergence, relative to the exact."
    return tabulate("Descent", list(found.values()), hints, note=note, name="descent")


def comparison_table(frame: pd.DataFrame) -> Table:
    """Estimators of the user's own files and modules next to `rloo`, by problem and entropy level; empty where either was not measured."""
    base, compared = answers.against_rival(frame)
    known, rows, costs = tables.spreads(frame), [], _costs(_COMPARED)
    difference = f"difference in ρ to {base}"
    names = list(dict.fromkeys(name for _, name, _ in compared))
    for place, name, change in compared:
        row: dict[str, TableCell | str] = {"problem": place.problem, LEVEL: place.stage, difference: estimate_cell(change)}
        row = {"estimator": name, **row} if len(names) > 1 else row
        for metric in _COMPARED:
            both = [known.get((place.problem, place.stage, one, metric)) for one in (name, base)]
            cells = [_cost_cell(metric, one) if metric == "seconds_per_estimate" else spread_cell(one) for one in both]
            title = _title(metric)
            own = tabulate("", [{title: cell} for cell in cells], {}, costs={title: costs[title]}, groups=[0, 0]).rows[0][0]
            row[title] = dataclasses.replace(own, notes=(f"{base} {cells[1].text}",))
        rows.append(row)
    signs = [answers.sign_of(change) for _, _, change in compared]
    note = (
        f"Yours has a higher ρ than {base} in {signs.count(1)} of {len(rows)} pairs of problem and entropy level, and a lower one "
        f"in {signs.count(-1)}; the others are not significantly different. ρ is compared at equal time, that of {answers.MAIN_BUDGET} "
        "estimates of REINFORCE. The other columns are medians of one estimate. Yours is in bold where it is at least as good."
    )
    hints = {difference: "mean over instances, paired, with a 95 % interval; above 0: yours is better", **_hints(_COMPARED)}
    title = f"{listed(names)} compared with {base}" if names else ""
    return tabulate(title, rows, hints, note=note, name="comparison-table", pinned=True)
