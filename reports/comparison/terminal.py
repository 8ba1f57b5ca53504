"""A comparison and a gate as plain lines, for a terminal or a pipe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...suites.comparison.gating import GateResult
from ...suites.comparison.large import verdicts_of
from ...suites.comparison.verdicts import MEANING, Comparison
from . import words

MOST = 20
"""Lines of one kind; the rest is counted."""

MOST_CHANGES = 200
"""Lines of a comparison of each kind."""


def comparison_lines(base: str, head: str, items: Sequence[Comparison], *, sort: str) -> Iterator[str]:
    """Counts, a line for every estimator that changed, then its other metrics, each once."""
    yield f"{head} against {base}: {words.tally(items)}"
    found = words.by_estimator(items, words.is_changed, noun="changed", most=MOST_CHANGES, by_name=sort == "name")
    if not found.lines:
        yield "nothing changed"
        return
    yield from ("", "By estimator (head / base, or difference, as a mean over instances with its 95 % interval):", *found.lines)
    yield from ("", "Their other metrics:", *found.details) if found.details else ()
    if found.left:
        yield f"and {found.left} more (--format csv lists all)"
    yield ""
    there = verdicts_of(items)
    yield from (
        f"{words.SYMBOLS[verdict]} {verdict}: {meaning}"
        for verdict, meaning in MEANING.items()
        if there[verdict] and words.is_changed(verdict)
    )


def gate_lines(result: GateResult, *, most: int = MOST) -> Iterator[str]:
    """A line for every estimator that fails or is open, its other metrics, how many of every verdict, and the outcome as the last line."""
    both = {"fails": words.findings(result, "fail", most), "open": words.findings(result, "warn", most)}
    for title, found in both.items():
        yield from (f"{title}: {line}" for line in found.lines)
    for title, found in both.items():
        yield from (f"  also {title}: {line}" for line in found.details)
        if found.left:
            yield f"  also {title}: {found.left} more (--json lists all)"
    yield f"numbers: {words.tally(result.comparisons)}"
    if result.checked:
        broken = sum(claim.broken for claim in result.claims)
        yield f"claims to be unbiased: {result.checked.total()} checked, {broken} broken"
    if result.timings:
        yield f"interleaved times: {', '.join(f'{item.cell.estimator} on {item.cell.problem} {item.verdict}' for item in result.timings)}"
    yield headline(result)


def headline(result: GateResult) -> str:
    """The outcome in one sentence."""
    checks = len(result.comparisons) + result.checked.total() + len(result.timings)
    return {
        "passed": "gate passed: nothing is worse",
        "failed": f"gate failed: {result.number('fail')} of {checks} checks fail",
        "undecided": f"gate passed, {result.number('warn')} open: neither worse nor the same is proven (--strict makes this exit code 4)",
        "nothing to compare": "gate undone: the baseline and the run have no number in common; measure the plan of the baseline, or save a "
        "new baseline of this run",
    }[result.outcome]
