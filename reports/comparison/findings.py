"""Sentences on comparisons: a line for each estimator with its most telling metric, then a line for each other metric."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pandas as pd

from ...suites.comparison import MEANING, GateResult
from ...suites.comparison.gating import reaction_to
from ...suites.comparison.pairs import identities, items_of
from ...suites.comparison.timing import TimeComparison
from ...suites.statistics.interval import Interval
from ...suites.text import ZERO, change, counted, listed, plural, significant, whole
from .groups import grouped

SYMBOLS = dict(zip(MEANING, "✗≠!−?/✓⊕+≈=", strict=True))
"""Symbols of the verdicts, which do not depend on colours."""

CLAIM = "claim to be unbiased"
_TELLING = ("gain", "relative_bias", CLAIM, "absolute_bias", "orthogonal_bias", "null_bias", "relative_variance", "absolute_variance")
"""Metrics that say best what is wrong with an estimator, the best first."""

_SAME_GRAVITY = 4
"""Verdicts of `MEANING` in a row that are about equally grave: proven or missing, open, better, the same."""

_TALLY = ["suite", "problem", "stage", "estimator", "metric", "verdict", "why"]

_OTHER_PLAN = {
    "missing": "another plan: the run lacks {} of the baseline ({}); measure them too, or save a new baseline of this run",
    "new": "another plan: the baseline lacks {} of the run ({})",
}


@dataclass(frozen=True)
class Findings:
    """Lines about checks that fail, stay open, or changed.

    Attributes:
        lines: one for each estimator; before them, one for each fact that many estimators share, such as a baseline of another plan.
        details: the other metrics of these estimators.
        left: the number of lines that are left out.
    """

    lines: list[str]
    details: list[str]
    left: int


def place(item: Any) -> str:
    """Where a number was measured: estimator, instance, entropy level."""
    return f"{item.estimator} on {_instance(item)}"


def quantity(item: Any) -> str:
    """The metric with its suite, its setting, and the reference unless it is the usual one."""
    details = [detail for detail in (item.setting, item.reference if item.reference not in ("", "expected") else "") if detail]
    return f"{item.metric} ({', '.join([item.suite, *details])})"


def change_text(item: Any) -> str:
    """The change with its interval; empty without one."""
    value, low, high = (None if np.isnan(number) else float(number) for number in (item.change, item.low, item.high))
    return change(Interval(value, low, high), item.scale)


def sentence(item: Any) -> str:
    """One line on a comparison of numbers or of times, or on a broken claim."""
    if hasattr(item, "evidence"):
        return f"{SYMBOLS['broken']} broken claim: {place(item)}: {item.reason}"
    if isinstance(item, TimeComparison):
        text = change(item.change, "ratio") or item.reason
        return f"{SYMBOLS[item.verdict]} {item.verdict}: time of {item.cell.estimator} on {item.cell.problem}, {item.cell.stage}: {text}"
    details = "; ".join(filter(None, [change_text(item), _evidence(item), item.reason]))
    text = f"{SYMBOLS[item.verdict]} {item.verdict}: {quantity(item)} of {place(item)}: {_values(item)}"
    return f"{text} ({details})" if details else text


def tally(items: pd.DataFrame) -> str:
    """The number of comparisons of each verdict, gravest first."""
    counts = items["verdict"].value_counts()
    return counted({verdict: int(counts.get(verdict, 0)) for verdict in MEANING}) or "nothing to compare"


def gate_findings(result: GateResult, level: Literal["fail", "warn"], most: int) -> Findings:
    """One line for each estimator with checks that fail, or stay open; then its other metrics."""
    judged = [verdict for verdict in MEANING if reaction_to(verdict, result.settings) == level]
    broken = result.claims[result.claims["broken"] & (level == "fail")]
    noun = "fail" if level == "fail" else "stay open"
    found = by_estimator(result.comparisons, judged, noun, most, checked=Counter(result.claims["estimator"]), broken=broken)
    lines = [*found.lines, *(sentence(item) for item in result.timings if item.verdict in judged)]
    return replace(found, lines=lines[:most], left=found.left + len(lines[most:]))


def by_estimator(  # noqa: PLR0913 - the comparisons, and what is said of them
    items: pd.DataFrame,
    judged: Collection[str],
    noun: str,
    most: int,
    *,
    checked: Mapping[str, int] = {},
    broken: pd.DataFrame | None = None,
    by_name: bool = False,
) -> Findings:
    """One line for each estimator with a verdict of some kinds: its most telling metric, and the number of its checks of these kinds.

    Args:
        items: all comparisons.
        judged: the verdicts to report.
        noun: the verb for such checks: fail, stay open.
        most: the largest number of lines, and of details.
        checked: the number of claims of each estimator.
        broken: the claims that are broken.
        by_name: sort estimators by name; else those with the gravest verdicts come first.
    """
    items = items.assign(why=items["reason"].astype(object).where(items["verdict"].eq("incomparable"), ""))
    ids = identities(items, _TALLY) if len(items) else np.zeros(0, int)
    tallies = {
        tuple(key): int(number)
        for key, number in zip(items.drop_duplicates(_TALLY)[_TALLY].to_numpy(object), np.bincount(ids), strict=True)
    }
    shared, spoken = _shared({key: number for key, number in tallies.items() if key[5] in judged}, tallies)
    totals, counts = Counter(checked), defaultdict[str, Counter[str]](Counter)
    gravity: dict[tuple[str, str], int] = defaultdict(lambda: len(MEANING))
    for key, number in tallies.items():
        *_, estimator, metric, verdict, _ = key
        totals[estimator] += number
        if verdict in judged and key not in spoken:
            counts[estimator][metric] += number
            gravity[estimator, metric] = min(gravity[estimator, metric], list(MEANING).index(verdict) // _SAME_GRAVITY)
    for estimator in [] if broken is None else broken["estimator"]:
        counts[estimator][CLAIM] += 1
        gravity[estimator, CLAIM] = 0

    def telling(estimator: str) -> list[str]:
        metrics = [name for name in counts[estimator] if name != CLAIM or "relative_bias" not in counts[estimator]]
        metrics = [name for name in metrics if name != "relative_bias_squared" or "relative_bias" not in metrics]
        rank = {name: _TELLING.index(name) if name in _TELLING else len(_TELLING) for name in metrics}
        return sorted(metrics, key=lambda name: (gravity[estimator, name], rank[name], -counts[estimator][name], name))

    order = sorted(counts, key=lambda name: name if by_name else (gravity[name, telling(name)[0]], -counts[name].total(), name))
    shown = {name: telling(name) for name in order[:most]}
    said = np.array([key in spoken for key in tallies], bool)[ids]
    chosen = items[items["estimator"].isin(list(shown)) & ~said]
    groups = {(group.estimator, group.metric): group for group in items_of(grouped(chosen, judged, ["estimator", "metric"]))}

    def line(name: str, metric: str) -> str:
        if metric == CLAIM and broken is not None:
            return _broken_claims(broken[broken["estimator"] == name])
        return _group_sentence(groups[name, metric], chosen.loc[groups[name, metric].labels])

    lines = [
        f"{line(name, metrics[0])}; {whole(counts[name].total())} of {plural(totals[name], 'check')} {noun}"
        for name, metrics in shown.items()
    ]
    details = [(name, metric) for name, metrics in shown.items() for metric in metrics[1:]]
    return Findings([*shared, *lines], [line(*detail) for detail in details[:most]], len(order[most:]) + len(details[most:]))


_Tally = tuple[str, ...]


def _shared(judged: Mapping[_Tally, int], tallies: Mapping[_Tally, int]) -> tuple[list[str], set[_Tally]]:
    """Lines on many numbers at once: those that only one run has, and those that cannot be compared for one reason."""
    lines, spoken = [], set[_Tally]()
    for verdict, text in _OTHER_PLAN.items():
        lacking = {key for key in tallies if key[5] == verdict}
        others = [key for key in tallies if key[5] != verdict]
        there = {key[:4] for key in others}
        # Fewer instances: every estimator at an entropy level of a problem lacks some.
        whole_levels = {key[:3] for key in lacking} - {cell[:3] for cell in there - {key[:4] for key in lacking}}
        plan = [key for key in lacking & set(judged) if key[:4] not in there or key[:3] in whole_levels]
        if plan:
            names = (sorted({key[column] for key in plan} - {key[column] for key in others}) for column in range(4))
            kinds = ("suites", "problems", "entropy levels", "estimators")
            only = "; ".join(f"{kind} {listed(some)}" for kind, some in zip(kinds, names, strict=True) if some) or "other instances"
            lines.append(f"{SYMBOLS[verdict]} {text.format(plural(sum(judged[key] for key in plan), 'number'), only)}")
            spoken |= set(plan)
    reasons = defaultdict[str, list[_Tally]](list)
    for key in judged:
        if key[6]:
            reasons[key[6]].append(key)
    for reason, some in reasons.items():
        estimators = {key[3] for key in some}
        if len(estimators) > 1 or len({key[4] for key in some}) > 1:
            count = plural(sum(judged[key] for key in some), "number")
            of = f"{len(estimators)} estimators" if len(estimators) > 1 else min(estimators)
            lines.append(f"{SYMBOLS['incomparable']} {count} of {of} cannot be compared: {reason}")
            spoken |= set(some)
    return lines, spoken


def _group_sentence(group: Any, items: pd.DataFrame) -> str:
    """One line on a metric of an estimator over all its problems."""
    sharing = items[items["verdict"] == group.verdict]
    most = next(items_of(items.loc[[group.most]]))
    where = _on(sharing, items)
    evidence = "; ".join(filter(None, (group.verdict, _evidence(most), most.reason)))
    if not np.isnan(group.change) and len({_values(item, 3) for item in items_of(sharing)}) == 1:
        text = f"{group.metric} {_values(most)}{where}"
    else:
        share = f" ({group.sharing} of {group.instances} instances)" if group.sharing < group.instances else ""
        text = f"{' '.join(filter(None, (group.metric, change_text(group))))}{where}{share}"
        text += f", most on {_instance(most)}: {_values(most)}" if not np.isnan(most.change) and group.instances > 1 else ""
    return f"{SYMBOLS[group.verdict]} {group.estimator}: {text} ({evidence})"


def _broken_claims(broken: pd.DataFrame) -> str:
    """One line on all broken claims of an estimator."""
    most = next(items_of(broken.loc[[broken["effect"].idxmax()]]))
    text = f"claims to be unbiased, and is biased{_on(broken, broken)}, most on {_instance(most)}: {most.evidence}"
    return f"{SYMBOLS['broken']} {most.estimator}: {text}"


def _on(some: pd.DataFrame, everything: pd.DataFrame) -> str:
    """The problems, and the entropy levels unless these are all."""
    problems, levels = set(some["problem"]), set(some["stage"])
    count = everything["problem"].nunique()
    share = f"all {count} problems" if len(problems) == count else f"{len(problems)} of {count} problems"
    at = f" at {listed(sorted(levels))}" if levels != set(everything["stage"]) else ""
    return f" on {share if count > 1 else min(problems)}{at}"


def _instance(item: Any) -> str:
    return f"{item.instance or item.problem}, {item.stage}"


def _evidence(item: Any) -> str:
    return str(item.method) if np.isnan(item.p_adjusted) else f"{item.method}, adjusted p = {significant(item.p_adjusted, 2)}"


def _values(item: Any, digits: int = 4) -> str:
    """Both numbers."""
    shown = []
    for value, status in ((item.base, item.base_status), (item.head, item.head_status)):
        number = "undefined" if np.isnan(value) else significant(0.0 if abs(value) < ZERO else value, digits)
        shown.append("none" if not status else number if status == "ok" else status)
    return " → ".join(shown)
