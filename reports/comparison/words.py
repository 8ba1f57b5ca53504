"""Words of a comparison: symbols, numbers, names and the order of lists."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from ...suites.base import Row
from ...suites.comparison.claims import Claim
from ...suites.comparison.gating import GateResult, reaction
from ...suites.comparison.groups import Group, Tally, grouped, tallies_of, tally_of
from ...suites.comparison.large import LargeComparison, verdicts_of
from ...suites.comparison.matching import Key
from ...suites.comparison.settings import selects
from ...suites.comparison.timing import TimeComparison
from ...suites.comparison.verdicts import MEANING, Comparison, Verdict
from ...suites.text import ZERO, change, counted, listed, plural, significant, whole

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
    return "undefined" if row.value is None else significant(0.0 if abs(row.value) < ZERO else row.value)


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


@dataclass(frozen=True)
class Findings:
    """Lines about checks that fail, stay open, or changed.

    Attributes:
        lines: one for each estimator; before them, one for what many estimators share, such as a baseline of another plan.
        details: the other metrics of these estimators, each once.
        left: how many lines there are besides.
    """

    lines: list[str]
    details: list[str]
    left: int


def findings(result: GateResult, level: Literal["fail", "warn"], most: int) -> Findings:
    """One line for every estimator with checks that fail, or stay open; then its other metrics."""
    broken = [claim for claim in result.claims if claim.broken] if level == "fail" else []
    found = by_estimator(
        result.comparisons,
        lambda verdict: reaction(verdict, result.settings) == level,
        noun="fail" if level == "fail" else "stay open",
        most=most,
        checked=result.checked,
        broken=broken,
    )
    timings = [sentence(item) for item in result.timings if reaction(item.verdict, result.settings) == level]
    lines = [*found.lines, *timings]
    return replace(found, lines=lines[:most], left=found.left + len(lines[most:]))


def by_estimator(  # noqa: PLR0913 - what is compared, and what is said of it
    items: Sequence[Comparison],
    judged: Callable[[Verdict], bool],
    *,
    noun: str,
    most: int,
    checked: Mapping[str, int] = {},
    broken: Sequence[Claim] = (),
    by_name: bool = False,
) -> Findings:
    """One line for every estimator with a number that is judged: its most telling metric, and how many of its checks are judged.

    Args:
        items: all comparisons.
        judged: the verdicts that lines are about.
        noun: what such checks do: fail, stay open.
        most: lines, and details, at most.
        checked: how many claims of each estimator were checked.
        broken: the broken ones.
        by_name: estimators in the order of their names; else those with the gravest verdicts first.
    """
    tallies = tallies_of(items)
    shared, spoken = _shared({tally: count for tally, count in tallies.items() if judged(tally.verdict)}, tallies)
    totals = Counter(checked)
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    gravity: dict[tuple[str, str], int] = defaultdict(lambda: len(MEANING))
    for tally, count in tallies.items():
        totals[tally.estimator] += count
        if judged(tally.verdict) and tally not in spoken:
            counts[tally.estimator][tally.metric] += count
            here = tally.estimator, tally.metric
            gravity[here] = min(gravity[here], list(MEANING).index(tally.verdict) // _SAME_GRAVITY)
    for claim in broken:
        counts[claim.key.estimator][CLAIM] += 1
        gravity[claim.key.estimator, CLAIM] = 0

    def telling(estimator: str) -> list[str]:
        metrics = [name for name in counts[estimator] if name != CLAIM or "relative_bias" not in counts[estimator]]
        metrics = [name for name in metrics if name != "relative_bias_squared" or "relative_bias" not in metrics]
        return sorted(metrics, key=lambda name: (gravity[estimator, name], _rank(name), -counts[estimator][name], name))

    def grave(name: str) -> tuple[int, int, str]:
        return (0, 0, name) if by_name else (gravity[name, telling(name)[0]], -counts[name].total(), name)

    order = sorted(counts, key=grave)
    shown = {name: telling(name) for name in order[:most]}
    pairs = {(name, metric) for name, metrics in shown.items() for metric in metrics[: most + 1]}
    chosen = select(items, lambda key, verdict: (key.estimator, key.metric) in pairs)
    groups = {
        (group.key.estimator, group.key.metric): group
        for group in grouped((item for item in chosen if tally_of(item) not in spoken), judged, by=lambda key: (key.estimator, key.metric))
    }

    def told(name: str, metric: str) -> str:
        if metric == CLAIM:
            return _broken_claim([claim for claim in broken if claim.key.estimator == name])
        return group_sentence(groups[name, metric])

    lines = [
        f"{told(name, metrics[0])}; {whole(counts[name].total())} of {plural(totals[name], 'check')} {noun}"
        for name, metrics in shown.items()
    ]
    details = [(name, metric) for name, metrics in shown.items() for metric in metrics[1:]]
    return Findings([*shared, *lines], [told(*detail) for detail in details[:most]], len(order[most:]) + len(details[most:]))


CLAIM = "claim to be unbiased"
_SAME_GRAVITY = 4
"""Verdicts of `MEANING` in a row that are about equally grave: proven or missing, open, better, the same."""
_TELLING = ("gain", "relative_bias", CLAIM, "absolute_bias", "orthogonal_bias", "null_bias", "relative_variance", "absolute_variance")
"""The metrics that say best what is wrong with an estimator, the best first."""


def _rank(metric: str) -> int:
    return _TELLING.index(metric) if metric in _TELLING else len(_TELLING)


def _shared(judged: Mapping[Tally, int], tallies: Mapping[Tally, int]) -> tuple[list[str], set[Tally]]:
    """Lines on many numbers at once: those of one side's plan alone, and those that cannot be compared for one reason."""
    lines, spoken = [], set[Tally]()
    for verdict, text in _OTHER_PLAN.items():
        lacking = {tally for tally in tallies if tally.verdict == verdict}
        there = {tally[:4] for tally in tallies if tally.verdict != verdict}
        # Fewer instances: every estimator at an entropy level of a problem lacks some.
        whole_levels = {tally[:3] for tally in lacking} - {cell[:3] for cell in there - {tally[:4] for tally in lacking}}
        plan = [tally for tally in lacking & set(judged) if tally[:4] not in there or tally[:3] in whole_levels]
        if plan:
            others = [tally for tally in tallies if tally.verdict != verdict]
            names = (sorted({one[place] for one in plan} - {one[place] for one in others}) for place in range(4))
            kinds = ("suites", "problems", "entropy levels", "estimators")
            only = "; ".join(f"{kind} {listed(some)}" for kind, some in zip(kinds, names, strict=True) if some) or "other instances"
            count = plural(sum(judged[one] for one in plan), "number")
            lines.append(f"{SYMBOLS[verdict]} {text.format(count, only)}")
            spoken |= set(plan)
    reasons: dict[str, list[Tally]] = defaultdict(list)
    for tally in judged:
        if tally.reason:
            reasons[tally.reason].append(tally)
    for reason, some in reasons.items():
        estimators = {tally.estimator for tally in some}
        if len(estimators) > 1 or len({tally.metric for tally in some}) > 1:
            count = plural(sum(judged[tally] for tally in some), "number")
            of = f"{len(estimators)} estimators" if len(estimators) > 1 else min(estimators)
            lines.append(f"{SYMBOLS['incomparable']} {count} of {of} cannot be compared: {reason}")
            spoken |= set(some)
    return lines, spoken


_OTHER_PLAN: dict[Verdict, str] = {
    "missing": "another plan: the run lacks {} of the baseline ({}); measure them too, or save a new baseline of this run",
    "new": "another plan: the baseline lacks {} of the run ({})",
}


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


def _broken_claim(broken: Sequence[Claim]) -> str:
    """On all claims of an estimator that are broken."""
    most = max(broken, key=lambda claim: claim.effect)
    where = _on({(claim.key.problem, claim.key.stage) for claim in broken})
    told = f"claims to be unbiased, and is biased{where}, most on {_instance(most.key)}: {most.evidence}"
    return f"{SYMBOLS['broken']} {most.key.estimator}: {told}"


def _on(places: Set[tuple[str, str]], everywhere: Set[tuple[str, str]] = frozenset()) -> str:
    """Problems, and entropy levels where these are not all."""
    problems, levels = ({place[number] for place in places} for number in (0, 1))
    of, all_levels = ({place[number] for place in everywhere or places} for number in (0, 1))
    share = f"all {len(of)} problems" if problems == of else f"{len(problems)} of {len(of)} problems"
    return f" on {share if len(of) > 1 else min(problems)}" + (f" at {listed(sorted(levels))}" if levels != all_levels else "")


def _instance(key: Key) -> str:
    return f"{key.instance or key.problem}, {key.stage}"


def group_sentence(group: Group) -> str:
    """One line on a metric of an estimator over all its problems."""
    key, most = group.key, group.most
    where, evidence = _on(group.places, group.everywhere), "; ".join(filter(None, (group.verdict, _evidence(most), group.reason)))
    if group.same and group.change.value is not None:
        told = f"{key.metric} {values(most)}{where}"
    else:
        share = f" ({group.sharing} of {group.instances} instances)" if group.sharing < group.instances else ""
        told = f"{' '.join(filter(None, (key.metric, change(group.change, group.scale))))}{where}{share}"
        told += f", most on {_instance(most.key)}: {values(most)}" if most.change.value is not None and group.instances > 1 else ""
    return f"{SYMBOLS[group.verdict]} {key.estimator}: {told} ({evidence})"


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
    if not (changed or estimators or metrics):
        return items
    return select(
        items, lambda key, verdict: (not changed or is_changed(verdict)) and _any(key.estimator, estimators) and _any(key.metric, metrics)
    )


def select(items: Sequence[Comparison], wanted: Callable[[Key, Verdict], bool]) -> Sequence[Comparison]:
    """Those whose estimator, metric and verdict are wanted."""
    return items.selected(wanted) if isinstance(items, LargeComparison) else [item for item in items if wanted(item.key, item.verdict)]


def _any(name: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(selects(pattern, name) for pattern in patterns)
