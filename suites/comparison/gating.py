"""The gate: does anything keep this run from taking the place of the baseline?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from ..base import Row
from ..statistics.testing.multiplicity import holm
from .claims import Claim, claims, decided, p_values
from .large import Blocks, LargeComparison, gate_large, verdicts_of
from .learning import alike
from .matching import Machine, match
from .pooling import pooled
from .settings import Reaction, Settings
from .timing import TimeComparison
from .verdicts import Comparison, Verdict, drafts, settle

Outcome = Literal["passed", "failed", "undecided", "nothing to compare"]

SEEN: tuple[Verdict, ...] = ("new", "fixed", "improved", "equivalent", "identical")
"""Verdicts that a gate lets through."""


@dataclass(frozen=True)
class GateResult:
    """What a gate found.

    Attributes:
        comparisons: of all numbers that it looks at. ``claims``: of all estimators that claim to be unbiased; of a large run those alone
            that are of an estimator that breaks one. ``checked``: how many claims each estimator has.
        timings: of the interleaved timing, where there was one.
        settings: by which it decided.
    """

    comparisons: Sequence[Comparison]
    claims: list[Claim]
    timings: list[TimeComparison]
    settings: Settings
    checked: Counter[str]

    def number(self, level: Reaction) -> int:
        """How many checks fail, or stay open."""
        counts = verdicts_of(self.comparisons)
        found = sum(count for verdict, count in counts.items() if reaction(verdict, self.settings) == level)
        found += sum(reaction(item.verdict, self.settings) == level for item in self.timings)
        return found + (sum(claim.broken for claim in self.claims) if level == "fail" else 0)

    @property
    def failures(self) -> list[Comparison | Claim | TimeComparison]:
        """What is proven wrong, or must not be missing."""
        found: list[Comparison | Claim | TimeComparison] = [claim for claim in self.claims if claim.broken]
        found += [item for item in self.comparisons if reaction(item.verdict, self.settings) == "fail"]
        return found + [item for item in self.timings if reaction(item.verdict, self.settings) == "fail"]

    @property
    def warnings(self) -> list[Comparison | TimeComparison]:
        """What is neither proven wrong nor right."""
        found: list[Comparison | TimeComparison] = [*self.comparisons, *self.timings]
        return [item for item in found if reaction(item.verdict, self.settings) == "warn"]

    @property
    def idle(self) -> list[str]:
        """Overrides that matched no number: a pattern with a slip changes nothing, and would not be missed."""
        return [
            f"[[gate.override]] number {number} ({', '.join(f'{name} = {pattern!r}' for name, pattern in override.patterns.items())})"
            for number, override in enumerate(self.settings.overrides, start=1)
            if not override.met
        ]

    @property
    def outcome(self) -> Outcome:
        """A proven fault weighs more than a missing baseline, and that more than an open question."""
        if any(claim.broken for claim in self.claims):
            return "failed"
        if not _has_common_numbers(self.comparisons):
            return "failed" if verdicts_of(self.comparisons)["broken"] else "nothing to compare"
        if self.number("fail"):
            return "failed"
        return "undecided" if self.number("warn") else "passed"


def _has_common_numbers(items: Sequence[Comparison]) -> bool:
    if isinstance(items, LargeComparison):
        return items.has_common_numbers()
    return any(item.base is not None and item.head is not None and item.verdict != "incomparable" for item in items)


def reaction(verdict: Verdict, settings: Settings) -> Reaction | Literal["pass"]:
    """What a verdict leads to."""
    if verdict in SEEN:
        return "pass"
    chosen = {
        "missing": settings.on_missing,
        "changed": settings.on_changed,
        "inconclusive": settings.on_inconclusive,
        "incomparable": settings.on_incomparable,
    }
    return chosen.get(verdict, "fail")


def gate(
    base: Iterable[Row],
    head: Iterable[Row],
    machines: tuple[Machine, Machine] = ({}, {}),
    settings: Settings | None = None,
    timings: Sequence[TimeComparison] = (),
) -> GateResult:
    """Compare what a gate looks at, and check every claim; one Holm correction covers all tests of both.

    Args:
        base: rows of the baseline.
        head: rows of the run.
        machines: their environments.
        settings: level, margins, reactions.
        timings: of `compare_times`, which keeps its own level.

    Example:
        >>> from dataclasses import replace
        >>> row = Row("c", "bias", "toy", "init", "", "subset[k=3]", "mlp", "rloo", "rloo", metric="gain", value=1.0, tier="exact")
        >>> gate([row], [row]).outcome, gate([row], [replace(row, value=0.98)]).outcome, gate([row], []).outcome
        ('passed', 'failed', 'nothing to compare')
    """
    settings, rows = settings or Settings(), list(head)
    found = drafts(match(*pooled(list(base), rows), machines), settings, lambda pair, rule: rule.gated or not pair.key.metric)
    checked = claims(rows, settings)
    absolute = p_values(checked)
    comparisons = settle(found, settings, absolute)
    everything = holm({**{number: item.worse for number, item in enumerate(found) if item.worse is not None}, **absolute})
    counted = Counter(claim.key.estimator for claim in checked)
    return GateResult([*comparisons, *alike(rows)], decided(checked, everything, settings), list(timings), settings, counted)


def gate_tables(
    blocks: Blocks, machines: tuple[Machine, Machine] = ({}, {}), settings: Settings | None = None, timings: Sequence[TimeComparison] = ()
) -> GateResult:
    """`gate` of two large runs, block by block."""
    settings = settings or Settings()
    comparisons, broken, checked = gate_large(blocks, machines, settings)
    return GateResult(comparisons, broken, list(timings), settings, checked)
