"""Words of a comparison: symbols, numbers, names and the order of lists."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeVar

from ...suites.base import Row
from ...suites.comparison.claims import Claim
from ...suites.comparison.gating import GateResult, reaction
from ...suites.comparison.groups import Group, grouped
from ...suites.comparison.large import LargeComparison, verdicts_of
from ...suites.comparison.matching import Key
from ...suites.comparison.settings import selects
from ...suites.comparison.timing import TimeComparison
from ...suites.comparison.verdicts import MEANING, Comparison, Verdict
from ...suites.text import change, counted, significant

SYMBOLS: dict[Verdict, str] = {
    "regressed": "✗",
    "changed": "≠",
    "broken": "!",
    "missing": "−",
    "inconclusive": "?",
    "incomparable": "/",
    "improved": "✓",
    "fixed": "⊕",
    "new": "+",
    "equivalent": "≈",
    "identical": "=",
}
"""A verdict is told by its symbol too, not by a colour alone."""

UNCHANGED: tuple[Verdict, ...] = ("identical", "equivalent")

Item = TypeVar("Item", Comparison, Group)


def place(key: Key) -> str:
    """Where a number belongs.

    Example:
        >>> place(Key("bias", "subset_regimes", "init", "subset_regimes-0", "mlp", "ste", "gain", "", "expected", "float64", "cpu"))
        'ste on subset_regimes-0, init'
    """
    return f"{key.estimator} on {key.instance or key.problem}, {key.stage}"


def quantity(key: Key) -> str:
    """What was measured: the metric, with its setting, and the reference where it is not the usual one."""
    details = [detail for detail in (key.setting, key.reference if key.reference not in ("", "expected") else "") if detail]
    return f"{key.metric} ({key.suite}{''.join(f', {detail}' for detail in details)})"


def values(item: Comparison) -> str:
    """Both numbers."""
    return f"{_value(item.base)} → {_value(item.head)}"


def _value(row: Row | None) -> str:
    if row is None:
        return "none"
    if row.status != "ok":
        return row.status
    return "undefined" if row.value is None else significant(row.value)


def sentence(item: Comparison | Claim | TimeComparison) -> str:
    """One line on one finding."""
    if isinstance(item, Claim):
        return f"{SYMBOLS['broken']} broken claim: {place(item.key)}: {item.reason}"
    if isinstance(item, TimeComparison):
        text = change(item.change, "ratio") or item.reason
        return f"{SYMBOLS[item.verdict]} {item.verdict}: time of {item.cell.estimator} on {item.cell.problem}, {item.cell.stage}: {text}"
    found = [change(item.change, item.scale), _evidence(item), item.reason]
    details = "; ".join(part for part in found if part)
    return f"{SYMBOLS[item.verdict]} {item.verdict}: {quantity(item.key)} of {place(item.key)}: {values(item)}" + (
        f" ({details})" if details else ""
    )


def _evidence(item: Comparison) -> str:
    return item.method if item.p_adjusted is None else f"{item.method}, adjusted p = {significant(item.p_adjusted, 2)}"


def findings(result: GateResult, level: Literal["fail", "warn"], most: int) -> tuple[list[str], int]:
    """One line for every metric that fails, or stays open, on any instance of a problem; the gravest and greatest first.

    Returns:
        The first ``most`` lines, and how many there are.
    """
    broken = [claim for claim in result.claims if claim.broken] if level == "fail" else []
    groups, count = changes(result.comparisons, "effect", most, lambda verdict: reaction(verdict, result.settings) == level)
    timings = [item for item in result.timings if reaction(item.verdict, result.settings) == level]
    claimed = list(_broken(broken, result.claims))
    return [*claimed, *map(group_sentence, groups), *map(sentence, timings)][:most], len(claimed) + count + len(timings)


def is_changed(verdict: Verdict) -> bool:
    """Whether something is to be said of a verdict."""
    return verdict not in UNCHANGED


def changes(
    items: Iterable[Comparison], by: str, most: int | None, judged: Callable[[Verdict], bool] = lambda verdict: True
) -> tuple[list[Group], int]:
    """Groups that hold anything that is judged, in the order that is asked for: the first ones, and how many there are."""
    if isinstance(items, LargeComparison):
        found, count = items.groups(judged, most if by == "effect" else None)
        return ordered(found, by)[:most], count
    groups = ordered(grouped(items, judged), by)
    return groups[:most], len(groups)


def _broken(broken: Sequence[Claim], checked: Sequence[Claim]) -> Iterable[str]:
    """One line for every claim that is broken on any instance, with the instance where it is so most."""
    instances = Counter(claim.key._replace(instance="") for claim in checked)
    for key in dict.fromkeys(claim.key._replace(instance="") for claim in broken):
        found = [claim for claim in broken if claim.key._replace(instance="") == key]
        most = max(found, key=lambda claim: claim.effect)
        share = f" on {len(found)} of {instances[key]} instances, most on {most.key.instance}" if instances[key] > 1 else ""
        yield (
            f"{SYMBOLS['broken']} broken claim: {place(key if share else most.key)}: claims to be unbiased, and is found biased{share}: "
            + (most.evidence)
        )


def group_sentence(group: Group) -> str:
    """One line on a metric over the instances of a problem, with the numbers of the instance that changed most."""
    if group.instances == 1:
        return sentence(group.most)
    found = [change(group.change, group.scale), f"{group.sharing} of {group.instances} instances"]
    details = "; ".join(part for part in (_evidence(group.most), group.reason) if part)
    numbers = f"{values(group.most)}{f' ({details})' if details else ''}"
    told = "; ".join([*filter(None, found), f"most on {group.most.key.instance}: {numbers}"])
    return f"{SYMBOLS[group.verdict]} {group.verdict}: {quantity(group.key)} of {place(group.key)}: {told}"


def tally(items: Iterable[Comparison]) -> str:
    """How many of every verdict, gravest first.

    Example:
        >>> tally([])
        'nothing to compare'
    """
    counts = verdicts_of(items)
    return counted({verdict: counts[verdict] for verdict in MEANING}) or "nothing to compare"


def ordered(items: Iterable[Item], by: str) -> list[Item]:
    """By name; or the gravest verdicts first, and the greatest effects among them."""
    if by == "name":
        return sorted(items, key=lambda item: item.key)
    gravity = {verdict: rank for rank, verdict in enumerate(MEANING)}
    return sorted(items, key=lambda item: (gravity[item.verdict], -effect(item), item.key))


def effect(item: Comparison | Group) -> float:
    """The size of a change, of whatever scale."""
    value = item.change.value
    if value is None:
        return math.inf
    if item.scale == "ratio":
        return abs(math.log(value)) if value > 0 else math.inf
    return abs(value)


def selected(items: Sequence[Comparison], *, changed: bool, estimators: Sequence[str], metrics: Sequence[str]) -> Sequence[Comparison]:
    """Those that the options of a command ask for."""
    if isinstance(items, LargeComparison):
        if not (changed or estimators or metrics):
            return items
        return items.selected(
            lambda key, verdict: (not changed or is_changed(verdict)) and _any(key.estimator, estimators) and _any(key.metric, metrics)
        )
    return [
        item
        for item in items
        if (not changed or item.verdict not in UNCHANGED) and _any(item.key.estimator, estimators) and _any(item.key.metric, metrics)
    ]


def _any(name: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(selects(pattern, name) for pattern in patterns)
