"""A comparison and a gate as plain lines, for a terminal or a pipe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...suites.comparison.gating import GateResult
from ...suites.comparison.verdicts import MEANING, Comparison
from ...suites.text import change
from . import words

MOST = 20
"""Lines of one kind; the rest is counted."""

MOST_CHANGES = 1000
"""Lines of a comparison; nobody reads more of them in a terminal."""


def comparison_lines(base: str, head: str, items: Sequence[Comparison], *, sort: str) -> Iterator[str]:
    """Counts, then changes over the instances of every problem, then single numbers that changed."""
    yield f"{head} against {base}: {words.tally(items)}"
    groups, count = words.changes(items, sort, MOST_CHANGES, words.is_changed)
    if not groups:
        yield "nothing changed"
        return
    yield ""
    yield "Over instances (geometric mean of head / base with its 95 % interval, or ± mean difference):"
    for group in groups:
        share = f"{group.sharing} of {group.instances}" if group.instances > 1 else ""
        found = (change(group.change, group.scale), share, group.reason)
        text = "; ".join(part for part in found if part)
        symbol = words.SYMBOLS[group.verdict]
        yield f"{symbol} {group.verdict}: {words.quantity(group.key)} of {words.place(group.key)}: {text}"
    if count > len(groups):
        yield f"and {count - len(groups)} more (--format csv lists all)"
    yield ""
    yield from (f"{words.SYMBOLS[verdict]} {verdict}: {MEANING[verdict]}" for verdict in dict.fromkeys(group.verdict for group in groups))


def gate_lines(result: GateResult, *, most: int = MOST) -> Iterator[str]:
    """What fails, what is open, how many of every verdict, and the outcome as the last line."""
    for title, (found, count) in (("fails", words.findings(result, "fail", most)), ("open", words.findings(result, "warn", most))):
        yield from (f"{title}: {line}" for line in found)
        if count > len(found):
            yield f"{title}: and {count - len(found)} more (--json lists all)"
    yield f"numbers: {words.tally(result.comparisons)}"
    if result.checked:
        broken = sum(claim.broken for claim in result.claims)
        yield f"claims to be unbiased: {result.checked} checked, {broken} broken"
    if result.timings:
        yield f"interleaved times: {', '.join(f'{item.cell.estimator} on {item.cell.problem} {item.verdict}' for item in result.timings)}"
    yield headline(result)


def headline(result: GateResult) -> str:
    """The outcome in one sentence."""
    return {
        "passed": "gate passed: nothing is worse",
        "failed": f"gate failed: {result.number('fail')} of {len(result.comparisons) + result.checked + len(result.timings)} checks",
        "undecided": f"gate passed, {result.number('warn')} open: neither worse nor the same is proven (--strict makes this exit code 4)",
        "nothing to compare": "gate undone: the baseline and the run have no number in common; save a new baseline of this run",
    }[result.outcome]
