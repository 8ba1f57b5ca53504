"""Audits on a terminal: the verdict and its cause first, one line per law, one per structure. A pipe gets plain lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from ..suites.text import duration, number, percent, plural, plus_minus, significant

if TYPE_CHECKING:
    from ..suites.audit import Audit, Check
    from ..suites.audit.oracles import OracleAudit

HEADLINES = {
    "right": ("RIGHT", "bold green", "no law is violated"),
    "consistent": ("CONSISTENT WITH ITS DECLARATION", "bold green", "no law is violated, and a bias is declared"),
    "wrong": ("WRONG", "bold red", "a violation is proven"),
    "misdeclared": ("MISDECLARED", "bold red", "its declarations are wrong, and no fault is found in its estimates"),
    "crashed": ("CRASHED", "bold red", "it raised an exception, and no violation is proven"),
    "undecided": ("UNDECIDED", "bold yellow", "no law is violated, and some could not be decided"),
}
"""By verdict: the word, its style, its meaning."""

MARKS = {
    "violated": ("VIOLATED", "bold red"),
    "crashed": ("RAISED", "red"),
    "undecided": ("undecided", "yellow"),
    "skipped": ("not asked", "dim"),
    "holds": ("holds", "green"),
}
"""By status: the word and its style, in the order of the screen."""

MAX_CAUSES = 4


def as_text(found: Audit | OracleAudit) -> Group:
    """One screen."""
    word, style, meaning = HEADLINES[found.verdict]
    headline, laws = Text.assemble((word, style), f"  {found.subject}: {meaning}"), _laws(found.checks)
    if hasattr(found, "comparisons"):
        above, below = _of_estimator(found)  # type: ignore[arg-type]
        return Group(headline, *above, Text(), laws, Text(), *below)
    lines = [f"looked at {event}" for event in found.events] + ([f"is no {', '.join(found.lacking)}"] if found.lacking else [])
    tests = plural(sum(check.p_value is not None for check in found.checks), "test")
    small = f"Sums over all structures in float64; {tests} of samples with an error rate of {significant(found.alpha)} together."
    return Group(headline, *(Text(line, style="dim") for line in lines), Text(), laws, Text(), Text(small, style="dim"))


def _table(*columns: tuple[str, dict[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name, options in columns:
        table.add_column(name, no_wrap=True, **options)
    return table


def _of_estimator(found: Audit) -> tuple[list[Any], list[Any]]:
    declared, rows = found.declared, found.comparisons
    bias = "unbiased" if declared["unbiased"] else "biased"
    scale = "" if declared["scale"] == 1 else f", scale {significant(declared['scale'])}"
    cost = ", ".join(f"{count} {name}" for name, count in declared.get("evaluations", {}).items())
    takes = f"; one estimate takes {cost}" if cost else ""
    above = [Text(f"declared: {bias}, of the {declared['objective']} loss{scale}{takes}", style="dim")]
    if found.verdict == "consistent" and rows:
        gain, off, cosine = (plus_minus(*value) for value in (rows[0].gain, rows[0].relative_bias, rows[0].cosine))
        where = f"({rows[0].where}, flat scores)"
        above.append(Text(f"next to the gradient of the expected loss: gain {gain}, cosine {cosine}, relative bias {off} {where}"))
    said = {"likely cause": found.causes, "seen": found.seen, "to change": found.remedies, "note": found.notes}
    above += [Text(f"{word}: {line}", style="bold") for word, lines in said.items() for line in lines[:MAX_CAUSES]]
    names = ("gain", "relative bias", "cosine", "zero", "variance / ‖g‖²")
    table = _table(("flat scores", {}), *((name, {"justify": "right"}) for name in names))
    for row in rows:
        uncertain = (plus_minus(*value) for value in (row.gain, row.relative_bias, row.cosine))
        table.add_row(row.where, *uncertain, percent(row.zero_rate), number(row.relative_variance))
    tests = "no test" if found.tests == 0 else plural(found.tests, "test")
    small = (
        f"{tests} at one error rate of {significant(found.alpha)} (Holm's correction, confirmed on fresh seeds); all other laws are exact"
    )
    small += f"\n± is half of a 95 % interval\nseed {found.seed}, {duration(found.seconds)}"
    return above, [table, Text(), Text(small, style="dim")]


def _laws(checks: Sequence[Check]) -> Table:
    """One line per law: its worst outcome, where, and the detail."""
    table = _table(*((name, {"overflow": "fold"}) for name in ("law", "", "where")), ("what", {"overflow": "ellipsis"}))
    order, rows = list(MARKS), []
    for law in dict.fromkeys(check.law for check in checks):
        each = [check for check in checks if check.law == law]
        worst = min((check.status for check in each), key=lambda status: (status == "skipped", order.index(status)))
        rows.append((law, [check for check in each if check.status == worst], len(each)))
    for law, shown, count in sorted(rows, key=lambda row: order.index(row[1][0].status)):
        word, style = MARKS[shown[0].status]
        where = shown[0].where if len(shown) == 1 else f"{shown[0].where} and {len(shown) - 1} of {count - 1} more"
        detail = shown[0].detail + (f" ({shown[0].cause})" if shown[0].status == "crashed" else "")
        table.add_row(law, Text(word, style=style), f"all {count}" if len(shown) == count > 1 else where, Text(detail))
    return table
