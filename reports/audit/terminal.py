"""Audits on a terminal: the verdict and its cause first, one line per law, one per structure. A pipe gets plain lines."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from ...suites.text import duration, number, percent, plural, plus_minus, setting

if TYPE_CHECKING:
    from ...suites.audit import Audit, Check, FlatComparison

HEADLINES = {
    "right": ("RIGHT", "bold green", "no law is violated"),
    "consistent": ("CONSISTENT WITH ITS DECLARATION", "bold green", "no law is violated, and a bias is declared"),
    "wrong": ("WRONG", "bold red", "a violation is proven"),
    "misdeclared": ("MISDECLARED", "bold red", "what it says of itself is wrong, and no fault is found in its estimates"),
    "crashed": ("CRASHED", "bold red", "it raised an exception, and nothing else speaks against it"),
    "undecided": ("UNDECIDED", "bold yellow", "no law is violated, and some could not be decided"),
}
"""By verdict: the word, its style, what it means."""

MARKS = {
    "violated": ("VIOLATED", "bold red"),
    "crashed": ("RAISED", "red"),
    "undecided": ("undecided", "yellow"),
    "skipped": ("not asked", "dim"),
    "holds": ("holds", "green"),
}
"""By status: the word and its style, in the order of the screen."""

CAUSES_SHOWN = 4


def as_text(found: Audit) -> Group:
    """One screen."""
    return Group(
        *_headline(found), Text(), laws_table(found.checks), Text(), _comparisons(found), Text(), Text(_small_print(found), style="dim")
    )


def _headline(found: Audit) -> Iterator[Text]:
    word, style, meaning = HEADLINES[found.verdict]
    yield Text.assemble((word, style), f"  {found.subject}: {meaning}")
    yield Text(f"declared: {_declared(found.declared)}", style="dim")
    if found.verdict == "consistent" and found.comparisons:
        row = found.comparisons[0]
        gain, bias, cosine = (plus_minus(*value) for value in (row.gain, row.relative_bias, row.cosine))
        yield Text(
            f"next to the gradient of the expected loss: gain {gain}, cosine {cosine}, relative bias {bias} ({row.where}, flat scores)"
        )
    told = {
        "likely cause": found.causes,
        "seen": found.seen,
        "possible cause": found.possible,
        "to change": found.remedies,
        "note": found.notes,
    }
    for word, lines in told.items():
        for line in lines[:CAUSES_SHOWN]:
            yield Text(f"{word}: {line}", style="bold")


def _declared(declared: dict[str, Any]) -> str:
    bias = "unbiased" if declared["unbiased"] else "biased"
    scale = "" if declared["scale"] == 1 else f", scale {setting(declared['scale'])}"
    cost = ", ".join(f"{count} {name}" for name, count in declared.get("evaluations", {}).items())
    return f"{bias}, of the {declared['objective']} loss{scale}" + (f"; one estimate takes {cost}" if cost else "")


def laws_table(checks: Sequence[Check]) -> Table:
    """One line per law: the worst that came out, where, and what."""
    from ...suites.audit.result import worst

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("law", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("where", no_wrap=True)
    table.add_column("what", no_wrap=True, overflow="ellipsis")
    laws = {law: [check for check in checks if check.law == law] for law in dict.fromkeys(check.law for check in checks)}
    for law, each in sorted(laws.items(), key=lambda item: list(MARKS).index(worst(item[1]))):
        status = worst(each)
        shown = [check for check in each if check.status == status]
        word, style = MARKS[status]
        table.add_row(law, Text(word, style=style), _where(shown, each), Text(_what(shown)))
    return table


def _what(shown: list[Check]) -> str:
    """Of what can be measured, the least certain; a crash says where it was raised."""
    check = shown[0]
    return f"{check.detail} ({check.cause})" if check.status == "crashed" and check.cause else check.detail


def _where(shown: list[Check], checks: list[Check]) -> str:
    if len(shown) == len(checks) and len(checks) > 1:
        return f"all {len(checks)}"
    return shown[0].where if len(shown) == 1 else f"{shown[0].where} and {len(shown) - 1} of {len(checks) - 1} more"


def _comparisons(found: Audit) -> Table:
    """One line per structure."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("flat scores", no_wrap=True)
    for name in ("gain", "relative bias", "cosine", "zero", "variance / ‖g‖²", "/ REINFORCE's", "/ leave-one-out's"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in found.comparisons:
        table.add_row(row.where, *_numbers(row))
    return table


def _numbers(row: FlatComparison) -> tuple[str, ...]:
    uncertain = (plus_minus(*found) for found in (row.gain, row.relative_bias, row.cosine))
    ratios = (number(value) for value in (row.relative_variance, row.to_reinforce, row.to_leave_one_out))
    return *uncertain, percent(row.zero_rate), *ratios


def _small_print(found: Audit) -> str:
    tests = "no test" if found.tests == 0 else plural(found.tests, "test")
    cost = (
        ""
        if found.losses is None
        else f"ratios of variances: at equal gain, for {setting(found.losses)} losses (a gradient counts as two); "
    )
    return (
        f"{tests} at one error rate of {setting(found.alpha)} (Holm's correction, confirmed on fresh seeds); all other laws are exact\n"
        f"{cost}± is half of a 95 % interval\nseed {found.seed}, {duration(found.seconds)}"
    )


def as_record(found: Audit, *, strict: bool = False) -> dict[str, Any]:
    """For a program: strict JSON values, what is infinite as text."""
    record: dict[str, Any] = {"verdict": found.verdict, "exit_code": found.exit_code(strict=strict)}
    record |= {"causes": list(found.causes), "remedies": list(found.remedies)}
    plain: dict[str, Any] = plain_values(record | dataclasses.asdict(found))
    return plain


def plain_values(value: Any) -> Any:
    """What JSON can hold: lists for tuples, text for what is infinite."""
    if isinstance(value, dict):
        return {key: plain_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_values(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
