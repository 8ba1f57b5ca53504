"""Audits of oracles on a terminal: the verdict first, one line per law."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from ...suites.text import plural, setting
from .terminal import laws_table, plain_values

if TYPE_CHECKING:
    from ...suites.audit.oracles import OracleAudit

HEADLINES = {
    "right": ("RIGHT", "bold green", "no law is violated"),
    "wrong": ("WRONG", "bold red", "a violation is proven"),
    "crashed": ("CRASHED", "bold red", "it raised an exception"),
    "undecided": ("UNDECIDED", "bold yellow", "no law is violated, and some were not asked for want of time"),
}
"""By verdict: the word, its style, what it means."""


def as_text(found: OracleAudit) -> Group:
    """One screen."""
    word, style, meaning = HEADLINES[found.verdict]
    lines = [
        Text.assemble((word, style), f"  {found.subject}: {meaning}"),
        *(Text(f"looked at {event}", style="dim") for event in found.events),
    ]
    if found.lacking:
        lines.append(Text(f"has no {', '.join(found.lacking)}", style="dim"))
    tests = sum(check.p_value is not None for check in found.checks)
    small = (
        f"Sums over all structures in float64; {plural(tests, 'test')} of samples with an error rate of {setting(found.alpha)} together."
    )
    return Group(*lines, Text(), laws_table(found.checks), Text(), Text(small, style="dim"))


def as_record(found: OracleAudit, *, strict: bool = False) -> dict[str, Any]:
    """For a program: strict JSON values."""
    record = {"verdict": found.verdict, "exit_code": found.exit_code(strict=strict)} | dataclasses.asdict(found)
    plain: dict[str, Any] = plain_values(record)
    return plain
