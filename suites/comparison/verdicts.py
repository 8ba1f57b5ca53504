"""The verdict on every number that two runs have in common."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ..base import Row
from ..statistics.interval import Interval
from ..statistics.multiplicity import holm
from .contrasts import Contrast, Direction, Estimate, beyond, common_random_numbers, contrast, exact, log_beyond, log_ratio
from .matching import Key, Machine, Pair, match
from .roles import RTOL, Rule
from .settings import Settings

Verdict = Literal[
    "regressed", "changed", "broken", "missing", "inconclusive", "incomparable", "improved", "fixed", "new", "equivalent", "identical"
]

SMALLEST_SHARE = 1e-6
"""Numbers further apart are compared by their difference."""

MEANING: dict[Verdict, str] = {
    "regressed": "worse by more than the smallest change that counts, and that is proven",
    "changed": "not what it was, where any change is suspicious; proven",
    "broken": "the base has a number, and the head has a failure or something that is no number",
    "missing": "the base has a number, and the head has none",
    "inconclusive": "neither a change nor its absence is proven",
    "incomparable": "the two do not measure the same, and the reason says why",
    "improved": "better by more than the smallest change that counts, and that is proven",
    "fixed": "the base has a failure, and the head has a number",
    "new": "only the head has it",
    "equivalent": "a change that matters is ruled out",
    "identical": "the same up to rounding",
}
"""The verdicts, gravest first."""


@dataclass(frozen=True)
class Comparison:
    """A pair with its verdict.

    Attributes:
        key, base, head: as in `Pair`.
        rule: by which it was compared.
        verdict: a key of `MEANING`. ``reason``: in one sentence, where it needs one.
        change: ``head / base`` for positive numbers, else ``head − base``; with a 95 % interval where it is estimated.
        scale: which of the two.
        method: ``exact``, ``paired`` or ``independent``; empty where nothing was compared.
        p_value: that it is worse (or, of what must stay, that it changed). ``p_adjusted``: over all comparisons.
    """

    key: Key
    base: Row | None
    head: Row | None
    rule: Rule
    verdict: Verdict
    reason: str = ""
    change: Interval = Interval(None)
    scale: Literal["ratio", "difference"] = "ratio"
    method: Literal["", "exact", "paired", "independent"] = ""
    p_value: float | None = None
    p_adjusted: float | None = None


def compare(
    base: Iterable[Row], head: Iterable[Row], machines: tuple[Machine, Machine] = ({}, {}), settings: Settings | None = None
) -> list[Comparison]:
    """Compare all numbers of two runs; p-values are adjusted over all of them.

    Args:
        base: rows of the run that is compared with.
        head: rows of the other run.
        machines: their environments.
        settings: margins and level; by default those of `RULES`.

    Example:
        >>> row = Row("c", "sparsity", "toy", "init", "", "subset[k=3]", "mlp", "ste", "ste", metric="support", value=3.0, tier="exact")
        >>> [found.verdict for found in compare([row], [replace(row, value=4.0)])]
        ['regressed']
    """
    settings = settings or Settings()
    drafts = [draft(pair, settings.rule(pair.key), settings) for pair in match(list(base), list(head), machines)]
    return settle([found for found in drafts if found is not None], settings)


@dataclass(frozen=True)
class Draft:
    """A comparison before the correction for many tests.

    Attributes:
        comparison: with the verdict that it has unless a test says more: ``equivalent`` or ``inconclusive``, or a final one.
        worse, better: p-values; None where there is nothing to test.
    """

    comparison: Comparison
    worse: float | None = None
    better: float | None = None


def settle(drafts: Sequence[Draft], settings: Settings, others: Mapping[object, float] | None = None) -> list[Comparison]:
    """Verdicts of all tests together: Holm's correction over what can fail, and over what can improve.

    Args:
        drafts: of all comparisons.
        settings: with the level.
        others: p-values of further tests that share the level, under keys of their own.
    """
    failing = {number: item.worse for number, item in enumerate(drafts) if item.worse is not None}
    worse = holm({**failing, **(others or {})})
    better = holm({number: item.better for number, item in enumerate(drafts) if item.better is not None})
    return [_settled(item, worse.get(number), better.get(number), settings.alpha) for number, item in enumerate(drafts)]


def _settled(item: Draft, worse: float | None, better: float | None, alpha: float) -> Comparison:
    found = replace(item.comparison, p_value=item.worse, p_adjusted=worse)
    if worse is not None and worse < alpha:
        return replace(found, verdict="changed" if found.rule.role == "stable" else "regressed")
    if better is not None and better < alpha and found.rule.role != "stable":
        return replace(found, verdict="improved")
    return found


def draft(pair: Pair, rule: Rule, settings: Settings) -> Draft | None:
    """What one pair says by itself; None for a sampled number that another metric speaks for."""
    known = Comparison(pair.key, pair.base, pair.head, rule, "inconclusive")
    absent = _absent(pair)
    if absent is not None:
        return Draft(replace(known, verdict=absent[0], reason=absent[1]))
    base, head = pair.base, pair.head
    if base is None or head is None or (base.value is None and head.value is None):
        return None
    if pair.obstacle:
        return Draft(replace(known, verdict="incomparable", reason=pair.obstacle))
    if exact(base) and exact(head):
        return Draft(_compared_exactly(known, float(base.value or 0), float(head.value or 0)))
    if rule.scale == "exact":
        return None
    return _tested(known, settings.alpha)


def _absent(pair: Pair) -> tuple[Verdict, str] | None:
    """The verdict where a side has no number; None where both have one, or neither needs one."""
    base, head = pair.base, pair.head
    if head is None:
        return None if base is None else _lost(base, pair.failure)
    if base is None:
        return ("new", "") if head.status == "ok" else ("incomparable", f"failed, and the base does not have it: {head.reason}")
    if head.status != "ok":
        return ("broken", head.reason) if base.status == "ok" else ("incomparable", f"failed in both: {head.reason}")
    if base.status != "ok":
        return "fixed", f"it was: {base.reason}"
    return _undefined(base, head)


def _lost(base: Row, failure: Row | None) -> tuple[Verdict, str] | None:
    """Where the head has no such row."""
    if base.status != "ok":
        return "incomparable", f"failed in the base: {base.reason}"
    if base.value is None:
        return None
    return ("missing", "the head has no such number") if failure is None else ("broken", failure.reason)


def _undefined(base: Row, head: Row) -> tuple[Verdict, str] | None:
    """Where a metric, such as a signal-to-noise ratio without noise, is defined on one side only."""
    if (base.value is None) == (head.value is None):
        return None
    return ("broken", "the metric is not defined any more") if head.value is None else ("new", "the metric was not defined in the base")


def _compared_exactly(known: Comparison, base: float, head: float) -> Comparison:
    """Exact numbers: the same up to rounding, or better, or worse; bytes and the like have a margin."""
    positive = base > 0 and head > 0
    found = replace(
        known, method="exact", scale="ratio" if positive else "difference", change=Interval(head / base if positive else head - base)
    )
    if math.isclose(base, head, rel_tol=RTOL, abs_tol=known.rule.tolerance):
        return replace(found, verdict="identical")
    if known.rule.needs and abs(head - base) <= known.rule.minimum_change * abs(base) + known.rule.floor:
        return replace(found, verdict="equivalent")
    if known.rule.role == "stable":
        return replace(found, verdict="changed")
    return replace(found, verdict="regressed" if (head > base) == (known.rule.role == "lower") else "improved")


def _tested(known: Comparison, alpha: float) -> Draft:
    """Sampled numbers: one-sided tests against the margins."""
    if known.base is None or known.head is None:
        raise AssertionError("a pair without a side has no test")
    base, head = Estimate.of(known.base), Estimate.of(known.head)
    if base is None or head is None:
        return Draft(replace(known, reason="the error of one of them is not known"))
    paired = common_random_numbers(known.base, known.head)
    ratio = known.rule.scale == "ratio" and _comparable_logarithms(base, head)
    found = replace(known, scale="ratio" if ratio else "difference", method="paired" if paired else "independent")
    if _same(base, head):
        return Draft(replace(found, verdict="identical", change=Interval(1.0 if ratio else 0.0)))
    sides = _Sides(base, head, known.rule, paired=paired, ratio=ratio)
    worse, better, harmless = sides.tests()
    verdict: Verdict = "equivalent" if harmless < alpha else "inconclusive"
    return Draft(replace(found, verdict=verdict, change=sides.change()), worse, better)


def _comparable_logarithms(base: Estimate, head: Estimate) -> bool:
    """Whether all numbers behind both sides are positive, and none is the rounding of a 0.

    Where what carries the variance is rare, a run, or a run without one of its batches, may have seen nothing of it. The logarithm of what
    is left is noise that looks precise; the difference has an error that knows how rare it was.
    """
    numbers = [value for side in (base, head) for value in (side.value, *side.batches)]
    return min(numbers) > SMALLEST_SHARE * max(numbers)


def _same(base: Estimate, head: Estimate) -> bool:
    """Whether every number behind both sides agrees up to rounding."""
    pairs = zip((base.value, base.error, *base.batches), (head.value, head.error, *head.batches), strict=False)
    return len(base.batches) == len(head.batches) and all(math.isclose(b, h, rel_tol=RTOL, abs_tol=1e-12) for b, h in pairs)


@dataclass(frozen=True)
class _Sides:
    """Two estimates and the rule between them."""

    base: Estimate
    head: Estimate
    rule: Rule
    paired: bool
    ratio: bool

    def tests(self) -> tuple[float, float | None, float]:
        """p-values that it is worse, better, and not worse by more than the margin of equivalence."""
        up, down = self._change(1), self._change(-1)
        if self.rule.role == "stable":
            return min(1.0, 2 * min(up, down)), None, max(self._harmless(1), self._harmless(-1))
        worse: Direction = 1 if self.rule.role == "lower" else -1
        return (up, down, self._harmless(worse)) if worse == 1 else (down, up, self._harmless(worse))

    def change(self) -> Interval:
        """The ratio or the difference with its interval."""
        found = self._contrast(log_ratio if self.ratio else lambda base, head: head - base)
        values = (found.estimate, *found.bounds())
        value, low, high = (_exponential(number) if self.ratio else number for number in values)
        return Interval(value, low, high, "jackknife" if self.base.batches or self.head.batches else "t")

    def _change(self, sign: Direction) -> float:
        rule = self.rule
        return self._contrast(self._beyond(sign, rule.minimum_change, rule.floor)).p_above()

    def _harmless(self, sign: Direction) -> float:
        inside = self._contrast(self._beyond(sign, self.rule.equivalence, self.rule.ceiling))
        return replace(inside, estimate=-inside.estimate).p_above()

    def _beyond(self, sign: Direction, relative: float, absolute: float) -> Callable[[float, float], float]:
        return log_beyond(sign, relative) if self.ratio and absolute == 0 else beyond(sign, relative, absolute)

    def _contrast(self, statistic: Callable[[float, float], float]) -> Contrast:
        return contrast(statistic, self.base, self.head, paired=self.paired)


def _exponential(number: float) -> float:
    """``eˣ``, infinite where that is no float."""
    return math.exp(number) if number < 700 else math.inf
