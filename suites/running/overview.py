"""Overviews of a run for notebooks: per problem and stage a table of its estimators, with intervals and small pictures.

It shows what was measured in the order of the plan, and draws no conclusion from it; the page of ``structgrad report`` does.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from ..base import Row
from ..fragments import FragmentTable, IntervalAxis, curve, fragment, metric_heading, shortened, small
from ..metrics import unit_of
from ..statistics.aggregates import Measured, aggregate
from ..statistics.interval import Interval
from ..statistics.selection import student_mean
from ..text import estimate, exponential, number, plural

SHOWN = (
    "relative_bias",
    "relative_variance",
    "rho",
    "absolute_variance",
    "parameter_bias",
    "parameter_variance",
    "parameter_rho",
    "accuracy",
    "structure_accuracy",
    "step_time",
    "time_ratio",
    "peak_memory",
    "support",
    "kl_decrease",
    "time_exponent",
)
"""What an overview may show, in its order; of a suite with none of these, whatever it finds first."""

MOST = 4
"""Columns of metrics."""

CURVE = "curve_accuracy"

FEWEST = 3
"""Instances from which on a median has an interval by the bootstrap."""

Place = tuple[str, str]


def overview(rows: Sequence[Row], sizes: Mapping[Place, str]) -> str:
    """The fragment.

    Args:
        rows: of a run.
        sizes: of the items of a problem at a stage, where they are known.
    """
    places: dict[Place, list[Row]] = defaultdict(list)
    for row in rows:
        places[row.problem, row.stage].append(row)
    tables = (_table(place, found, sizes.get(place, "")) for place, found in places.items() if any(map(_usable, found)))
    return fragment(_title(rows), _facts(rows), tables, _notes(rows))


def _usable(row: Row) -> bool:
    return row.status == "ok" and row.value is not None and row.metric != ""


def _title(rows: Sequence[Row]) -> str:
    suites = ", ".join(dict.fromkeys(row.suite for row in rows if row.suite and row.cell))
    return f"<b>Run</b> of {shortened(suites)}" if suites else "<b>Run</b>, nothing measured"


def _facts(rows: Sequence[Row]) -> list[str]:
    problems, estimators = len({(row.problem, row.stage) for row in rows}), len({row.estimator for row in rows})
    counted = [plural(problems, "problem"), plural(estimators, "estimator")]
    seeds = sorted({row.seed for row in rows})
    return [*counted, *([f"seed {', '.join(map(str, seeds))}"] if seeds else []), f"{len(rows)} rows in .frame"]


def _notes(rows: Sequence[Row]) -> list[str]:
    """What is not there, and the first reasons why."""
    counts = Counter(row.status for row in rows if row.status != "ok")
    if not counts:
        return []
    reasons = dict.fromkeys(f"{row.estimator}: {row.reason}" for row in rows if row.status != "ok" and row.reason)
    return [f"Without a value: {', '.join(f'{number} {status}' for status, number in counts.items())}.", *list(reasons)[:3]]


# One problem at one stage.


def _table(place: Place, rows: Sequence[Row], size: str) -> FragmentTable:
    """A line per estimator, a column per metric on an axis that the estimators share."""
    usable = [row for row in rows if _usable(row)]
    plain = [row for row in usable if row.setting == ""]
    columns = [_Column.of(metric, plain) for metric in _chosen(plain)]
    curves = [row for row in usable if row.metric == CURVE]
    names = list(dict.fromkeys(row.estimator for row in usable if row.estimator))
    drawn = _curves(curves) if curves else {}
    heading = ["estimator", *(one.heading() for one in columns), *([_curve_heading(curves)] if curves else []), *_verdict_heading(plain)]
    lines = [
        [
            shortened(name),
            *(one.entry(name) for one in columns),
            *([drawn.get(name, "")] if curves else []),
            *([_verdicts(plain, name)] if _verdict_heading(plain) else []),
        ]
        for name in names
    ]
    return FragmentTable(_caption(place, rows, size), heading, lines)


def _caption(place: Place, rows: Sequence[Row], size: str) -> str:
    problem, stage = place
    first = next((row for row in rows if row.cell), rows[0])
    stage_text = f", stage {shortened(stage)}" if stage else ""
    facts = [
        f"{first.oracle}",
        f"loss {first.loss}",
        *([size] if size else []),
        *_counts(rows),
        *_replicates(rows),
        *_bounds(rows),
    ]
    return f"<b>{shortened(problem)}</b>{stage_text} {small(' · '.join(facts))}"


def _counts(rows: Sequence[Row]) -> list[str]:
    """Numbers of structures, from the least to the most, and of instances."""
    logs = [row.log_count for row in rows if row.log_count is not None]
    ends = list(dict.fromkeys(exponential(end) for end in (min(logs), max(logs)))) if logs else []
    items = len({row.instance for row in rows if row.instance})
    what = "seed" if any(row.metric == "accuracy" for row in rows) else "instance"
    return [*([" to ".join(ends) + " structures"] if ends else []), *([plural(items, what)] if items else [])]


def _replicates(rows: Sequence[Row]) -> list[str]:
    """How many independent estimates there are behind a number."""
    found = sorted({row.replicates for row in rows if row.replicates is not None and row.setting == ""})
    exact = ["exact where possible"] if any(row.tier == "exact" and row.metric == "relative_bias" for row in rows) else []
    return [*([f"{' to '.join(map(str, dict.fromkeys((found[0], found[-1]))))} replicates"] if found else []), *exact]


def _bounds(rows: Sequence[Row]) -> list[str]:
    """Floor and ceiling of the accuracy of a task, as means over seeds."""
    found = {
        name: [row.value for row in rows if row.metric == f"{name}_accuracy" and row.value is not None] for name in ("floor", "ceiling")
    }
    return [f"{name} of accuracy {number(sum(values) / len(values))}" for name, values in found.items() if values]


def _chosen(rows: Iterable[Row]) -> list[str]:
    there = dict.fromkeys(row.metric for row in rows)
    return ([metric for metric in SHOWN if metric in there] or [metric for metric in there if metric != CURVE])[:MOST]


class _Column:
    """A metric over estimators: of each the mean over seeds, or the median over instances, on one axis."""

    def __init__(self, metric: str, found: Mapping[str, Interval], about: str) -> None:
        self.metric, self.found, self.about = metric, found, about
        self.axis = IntervalAxis.of(metric, found.values())

    @classmethod
    def of(cls, metric: str, rows: Iterable[Row]) -> _Column:
        by_estimator: dict[str, list[Row]] = defaultdict(list)
        for row in _once([row for row in rows if row.metric == metric]):
            by_estimator[row.estimator].append(row)
        most = max(map(len, by_estimator.values()))
        learnt = any(row.suite == "learning" for found in by_estimator.values() for row in found)
        return cls(metric, {name: _summary(found, learnt=learnt) for name, found in by_estimator.items()}, _about(most, learnt=learnt))

    def heading(self) -> str:
        return f"{metric_heading(self.metric)} {small(f'[{unit_of(self.metric)}]')}<br>{small(self.about)}{self.axis.heading()}"

    def entry(self, name: str) -> str:
        if name not in self.found:
            return "–"
        return f"{estimate(self.found[name])}{self.axis.mark(self.found[name])}"


def _once(rows: Sequence[Row]) -> Iterator[Row]:
    """One row per estimator and instance: of the first suite that has it, compared with the expected loss before any other objective."""
    seen = set()
    for row in sorted(rows, key=lambda row: row.reference not in ("", "expected")):
        if (row.estimator, row.instance) not in seen:
            seen.add((row.estimator, row.instance))
            yield row


def _summary(rows: Sequence[Row], *, learnt: bool) -> Interval:
    values = [row.value for row in rows]
    if len(rows) == 1:
        return Interval(rows[0].value, rows[0].low, rows[0].high, rows[0].interval)
    if learnt:
        return student_mean(np.array(values, dtype=float))
    if len(rows) < FEWEST:
        known = [value for value in values if value is not None]
        return Interval(float(np.median(known)), min(known), max(known), "range")
    found = aggregate(Measured.of(values, [row.low for row in rows], [row.high for row in rows])).median
    if found.value is None or found.low is None or found.high is None:
        return found
    # Resamples add every instance's own error, and leave the range of what can be: a norm is not negative.
    least, most = min(_ends(rows, "low")), max(_ends(rows, "high"))
    return Interval(found.value, max(found.low, least), min(found.high, most), found.method)


def _ends(rows: Sequence[Row], name: str) -> list[float]:
    """The bounds of all rows, and values of those that have none."""
    return [row.value if (end := getattr(row, name)) is None else end for row in rows if row.value is not None]


def _about(count: int, *, learnt: bool) -> str:
    """What a number is, and what stands in brackets."""
    if count == 1:
        return "one value [95 %]"
    if learnt:
        return f"mean of {count} [95 %]"
    return f"median of {count} [95 %]" if count >= FEWEST else f"median of {count} [range]"


def _verdict_heading(rows: Sequence[Row]) -> list[str]:
    return [f"verdict on bias<br>{small('instances of each')}"] if any(row.verdict and row.suite == "bias" for row in rows) else []


def _verdicts(rows: Sequence[Row], name: str) -> str:
    """The verdicts on the bias of an estimator, with how many instances have each."""
    found = Counter(row.verdict for row in rows if row.estimator == name and row.verdict and row.suite == "bias")
    return "<br>".join(f"{verdict} {times}" for verdict, times in found.items())


# Curves of learning.


def _curve_heading(rows: Sequence[Row]) -> str:
    axis, widest = _curve_axis(rows), max(row.size or 0.0 for row in rows)
    return (
        f"accuracy {small('[1]')} by step<br>{small('mean, range over seeds')}<br>"
        f"{small(f'{number(axis.first)} to {number(axis.last)} over {widest:.0f} steps')}"
    )


def _curve_axis(rows: Sequence[Row]) -> IntervalAxis:
    return IntervalAxis.of("accuracy", (Interval(row.value) for row in rows))


def _curves(rows: Sequence[Row]) -> dict[str, str]:
    """The mean over seeds at every step, and the range around it, by estimator."""
    axis, widest = _curve_axis(rows), max(row.size or 0.0 for row in rows)
    points: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row.value is not None and not math.isnan(row.value):
            points[row.estimator][row.size or 0.0].append(row.value)
    return {name: curve([(x, _ranged(found[x])) for x in sorted(found)], widest, axis) for name, found in points.items()}


def _ranged(values: Sequence[float]) -> Interval:
    return Interval(sum(values) / len(values), min(values), max(values), "range")
