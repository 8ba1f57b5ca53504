"""The verdict on every number that two runs have in common."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ..base import Row
from ..metrics import RTOL, Rule, unit_of
from ..statistics.interval import Interval
from ..statistics.testing.multiplicity import holm
from .contrasts import Contrast, Direction, Estimate, beyond, common_random_numbers, contrast, exact, log_beyond, log_ratio
from .gains import AT_GAIN, at_gain, estimates_at, known_gain
from .matching import Key, Machine, Pair, match
from .pooling import pooled
from .settings import Settings

Verdict = Literal[
    "regressed", "changed", "broken", "missing", "inconclusive", "incomparable", "improved", "fixed", "new", "equivalent", "identical"
]

SMALLEST_SHARE = 1e-6
"""Numbers further apart are compared by their difference."""

LARGEST_RATIO = 1000.0
"""A change beyond it is told as a difference: what came from rounding has no ratio that means anything."""

MEANING: dict[Verdict, str] = {
    "regressed": "worse by more than the smallest change that counts, and that is proven",
    "changed": "different, for a metric that must stay the same; proven",
    "broken": "the base has a number, and the head failed, or has NaN or infinity",
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
        change: ``head / base`` for positive numbers less than a thousandfold apart, else ``head − base``; with a 95 % interval where it is
            estimated. ``scale``: which of the two.
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
        settings: margins and level; by default those of `METRICS`.

    Example:
        >>> row = Row("c", "sparsity", "toy", "init", "", "subset[k=3]", "mlp", "ste", "ste", metric="support", value=3.0, tier="exact")
        >>> [found.verdict for found in compare([row], [replace(row, value=4.0)])]
        ['regressed']
    """
    settings = settings or Settings()
    return settle(drafts(match(*pooled(list(base), list(head)), machines), settings), settings)


@dataclass(frozen=True)
class Draft:
    """A comparison before the correction for many tests.

    Attributes:
        comparison: with the verdict that it has unless a test says more: ``equivalent`` or ``inconclusive``, or a final one.
        worse, better: p-values; None where there is nothing to test.
        at_gain: the same at the same gain, which holds where the gain is found to have changed.
    """

    comparison: Comparison
    worse: float | None = None
    better: float | None = None
    at_gain: Draft | None = None


def settle(drafts: Sequence[Draft], settings: Settings, others: Mapping[object, float] | None = None) -> list[Comparison]:
    """Verdicts of all tests together: Holm's correction over what can fail, and over what can improve.

    Where a gain is found to have changed, the errors beside it are judged again, at the same gain. That adds no false alarm to unchanged
    code: a gain that changed is one itself.

    Args:
        drafts: of all comparisons.
        settings: with the level.
        others: p-values of further tests that share the level, under keys of their own.
    """
    first = _settled_together(drafts, settings, others)
    changed = {estimates_at(found.key) for found in first if found.key.metric == "gain" and found.verdict == "changed"}
    again = {number: item.at_gain for number, item in enumerate(drafts) if item.at_gain and estimates_at(item.comparison.key) in changed}
    if again:
        second = _settled_together([again.get(number, item) for number, item in enumerate(drafts)], settings, others)
        first = [second[number] if number in again else found for number, found in enumerate(first)]
    wrong = {found.key.cell[1:] for found in first if is_wrong(found.key.metric, found.verdict)}
    return [
        replace(found, verdict="inconclusive", reason=NO_SAVING)
        if found.verdict == "improved" and is_cost(found.key.metric) and found.key.cell[1:] in wrong
        else found
        for found in first
    ]


NO_SAVING = "its gradient is wrong here, and a cheaper wrong gradient is no improvement"


def is_wrong(metric: str, verdict: Verdict) -> bool:
    """Whether a verdict says that the mean of an estimator is wrong, and was not."""
    return metric in ("gain", "relative_bias", "absolute_bias", "orthogonal_bias", "null_bias") and verdict in (
        "regressed",
        "changed",
        "broken",
    )


def is_cost(metric: str) -> bool:
    """Whether a metric counts parts, evaluations, bytes or seconds."""
    return unit_of(metric) != "1"


def _settled_together(drafts: Sequence[Draft], settings: Settings, others: Mapping[object, float] | None) -> list[Comparison]:
    failing = {number: item.worse for number, item in enumerate(drafts) if item.worse is not None}
    worse = holm({**failing, **(others or {})})
    better = holm({number: item.better for number, item in enumerate(drafts) if item.better is not None})
    return [settled(item, worse.get(number), better.get(number), settings.alpha) for number, item in enumerate(drafts)]


def settled(item: Draft, worse: float | None, better: float | None, alpha: float) -> Comparison:
    """The verdict of a draft whose p-values are adjusted."""
    found = replace(item.comparison, p_value=item.worse, p_adjusted=worse)
    if worse is not None and worse < alpha:
        return replace(found, verdict="changed" if found.rule.role == "stable" else "regressed")
    if better is not None and better < alpha and found.rule.role != "stable":
        return replace(found, verdict="improved")
    return found


def drafts(pairs: Iterable[Pair], settings: Settings, wanted: Callable[[Pair, Rule], bool] = lambda pair, rule: True) -> list[Draft]:
    """What every pair that is wanted says, knowing how the gain of its estimates changed."""
    listed = list(pairs)
    gains = {estimates_at(pair.key): pair for pair in listed if pair.key.metric == "gain" and not pair.obstacle}
    rules = [(pair, settings.rule(pair.key)) for pair in listed]
    found = [_draft(pair, rule, gains.get(estimates_at(pair.key)), settings) for pair, rule in rules if wanted(pair, rule)]
    return [item for item in found if item is not None]


def _draft(pair: Pair, rule: Rule, gain: Pair | None, settings: Settings) -> Draft | None:
    """None for a sampled number that another metric speaks for."""
    known = Comparison(pair.key, pair.base, pair.head, rule, "inconclusive")
    absent = _absent(pair)
    if absent is not None:
        return Draft(replace(known, verdict=absent[0], reason=absent[1]))
    base, head = pair.base, pair.head
    if base is None or head is None or (base.value is None and head.value is None):
        return None
    if pair.obstacle:
        return Draft(replace(known, verdict="incomparable", reason=pair.obstacle))
    if rule.scale == "exact" and not (exact(base) and exact(head)):
        return None
    found = _between(known, Estimate.of(base), Estimate.of(head), settings)
    return found if gain is None or rule.role == "stable" or pair.key.metric not in AT_GAIN else _told_by_gain(found, known, gain, settings)


def _between(known: Comparison, base: Estimate | None, head: Estimate | None, settings: Settings) -> Draft:
    """Two numbers without another thought."""
    if base is None or head is None:
        return Draft(replace(known, reason="; ".join(filter(None, (known.reason, "the error of one of them is not known")))))
    if known.base is not None and known.head is not None and exact(known.base) and exact(known.head):
        return Draft(_compared_exactly(known, base.value, head.value))
    return _tested(known, base, head, settings.alpha)


def _told_by_gain(found: Draft, known: Comparison, gain: Pair, settings: Settings) -> Draft:
    """An error that shrinks with the estimate: better only where it is so at the same gain too, and that alone where the gain changed."""
    if known.base is None or known.head is None or gain.base is None or gain.head is None:
        return found
    sure = [known_gain(row) for row in (gain.base, gain.head)]
    if not any(sure):
        return found
    values = [math.nan if row.value is None else row.value for row in (gain.base, gain.head)]
    was, now = ("missing" if math.isnan(value) else f"{value:.4g}" for value in values)
    told = replace(known, reason=f"at the same gain, which was {was} and is {now}")
    if not all(sure):
        same = Draft(replace(told, reason=f"the gain was {was} and is {now}: errors cannot be compared at the same gain"))
    else:
        same = _between(told, at_gain(known.base, gain.base), at_gain(known.head, gain.head), settings)
    if exact(gain.base) and exact(gain.head):
        return found if math.isclose(*values, rel_tol=RTOL, abs_tol=settings.rule(gain.key).tolerance) else same
    better = None if found.better is None or same.better is None else max(found.better, same.better)
    return replace(found, better=better, at_gain=same)


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
    if head.value is not None:
        return "new", "the metric was not defined in the base"
    return ("inconclusive", head.reason) if head.reason else ("broken", "the metric is not defined any more")


def _compared_exactly(known: Comparison, base: float, head: float) -> Comparison:
    """Exact numbers: the same up to rounding, or better, or worse; bytes and the like have a margin."""
    ratio = _is_ratio(base, head)
    found = replace(known, method="exact", scale="ratio" if ratio else "difference", change=Interval(head / base if ratio else head - base))
    if math.isclose(base, head, rel_tol=RTOL, abs_tol=known.rule.tolerance):
        return replace(found, verdict="identical")
    if known.rule.needs and abs(head - base) <= known.rule.minimum_change * abs(base) + known.rule.floor:
        return replace(found, verdict="equivalent")
    if known.rule.role == "stable":
        return replace(found, verdict="changed")
    return replace(found, verdict="regressed" if (head > base) == (known.rule.role == "lower") else "improved")


def _is_ratio(base: float, head: float) -> bool:
    """Whether a ratio tells how two numbers differ."""
    return base > 0 and head > 0 and max(base, head) < LARGEST_RATIO * min(base, head)


def _tested(known: Comparison, base: Estimate, head: Estimate, alpha: float) -> Draft:
    """Sampled numbers: one-sided tests against the margins."""
    if known.base is None or known.head is None:
        raise AssertionError("a pair without a side has no test")
    # A batch that is not finite leaves a side without batches.
    paired = common_random_numbers(known.base, known.head) and bool(base.batches and head.batches)
    ratio = known.rule.scale == "ratio" and _comparable_logarithms(base, head)
    told = ratio and _is_ratio(base.value, head.value)
    found = replace(known, scale="ratio" if told else "difference", method="paired" if paired else "independent")
    if _same(base, head):
        return Draft(replace(found, verdict="identical", change=Interval(1.0 if told else 0.0)))
    sides = _Sides(base, head, known.rule, paired=paired, ratio=ratio)
    worse, better, harmless = sides.tests()
    verdict: Verdict = "equivalent" if harmless < alpha else "inconclusive"
    return Draft(replace(found, verdict=verdict, change=sides.change(ratio=told)), worse, better)


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

    def change(self, *, ratio: bool) -> Interval:
        """The ratio or the difference with its interval."""
        found = self._contrast(log_ratio if ratio else lambda base, head: head - base)
        values = (found.estimate, *found.bounds())
        value, low, high = (_exponential(number) if ratio else number for number in values)
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
