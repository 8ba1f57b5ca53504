"""``structgrad audit``: test an estimator or an oracle, and show the verdict and its cause, one line per law, one per structure."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Group
from rich.table import Column, Table
from rich.text import Text

from ...suites.text import duration, number, percent, plural, plus_minus, significant
from .options import option
from .outcome import sentences

if TYPE_CHECKING:
    from ...suites.audit import Audit, Check
    from ...suites.audit.oracles import OracleAudit

HEADLINES = {
    "right": ("RIGHT", "bold green", "no law is violated"),
    "consistent": ("CONSISTENT WITH ITS DECLARATION", "bold green", "no law is violated, and a bias is declared"),
    "wrong": ("WRONG", "bold red", "a violation is proven"),
    "misdeclared": ("MISDECLARED", "bold red", "its declarations are wrong, and no fault is found in its estimates"),
    "crashed": ("CRASHED", "bold red", "it raised an exception, and no violation is proven"),
    "undecided": ("UNDECIDED", "bold yellow", "no law is violated, and some could not be decided"),
}
"""Verdicts: the word, its style, its meaning."""

MARKS = {
    "violated": ("VIOLATED", "bold red"),
    "crashed": ("RAISED", "red"),
    "undecided": ("undecided", "yellow"),
    "skipped": ("not asked", "dim"),
    "holds": ("holds", "green"),
}
"""Statuses: the word and its style, in the order of the screen."""

MAX_CAUSES = 4

_TABLE_STYLE: dict[str, Any] = {"box": None, "padding": (0, 2, 0, 0), "header_style": "dim"}

_FUNCTION = "Declared properties, if ESTIMATOR is a function"


@dataclass(frozen=True, kw_only=True)
class AuditOptions:
    """Options of `audit`."""

    estimator: str | None = option(None, None, "[ESTIMATOR]", shown=False)
    """module:Name, ./file.py:Name or a registered name, with options in brackets: './mine.py:Mine[num_samples=2]'."""
    objective: str | None = option(None, _FUNCTION, "NAME", shown="expected")
    """Objective of the estimator: expected, perturbed, relaxed, sparse or argmax."""
    unbiased: bool | None = option(None, _FUNCTION, None, "--unbiased/--biased", shown="unbiased")
    """Declare the estimator unbiased or biased."""
    scale: float | None = option(None, _FUNCTION, "NUMBER", shown="1")
    """Declared ratio of the mean estimate to the gradient."""
    mean_of: str | None = option(None, "Options", "ESTIMATOR", shown=False)
    """Estimator that must have the same mean, such as st_gumbel."""
    name: str | None = option(None, "Options", "NAME", shown=False)
    """Name of ESTIMATOR in the result."""
    loss: str | None = option(None, "Options", "FILE:NAME", shown=False)
    """Your own loss for the tests: a function of structures, module:loss or ./my.py:loss."""
    oracle: tuple[str, ...] = option((), "Options", "NAME", "--oracle", "-o", shown="all supported structures")
    """Structure for the tests, such as './mine.py:Mine[n=4]'. Without ESTIMATOR, this structure itself is tested. Repeatable."""
    alpha: float = option(1e-3, "Options", "NUMBER")
    """Error rate of the whole audit: the probability that a correct estimator fails."""
    seed: int = option(0, "Options", "N")
    """Random seed."""
    time: float = option(60.0, "Options", "SECONDS", min=0)
    """No new test starts after this many seconds."""
    quick: bool = option(False, "Options", None)
    """Fewer structures and replicates; for an oracle, one event and few scores."""
    strict: bool = option(False, "Options", None)
    """Exit with 4 if a test is undecided."""
    json: bool = option(False, "Options", None)
    """Print JSON."""


def audit(options: AuditOptions) -> None:
    """Test an estimator on small structures: shapes, randomness, batching, and whether its mean equals the exact gradient.

    ESTIMATOR is an estimator, its class, a function (loss, oracle, scores, generator) that returns estimates or a surrogate, or a layer
    from scores to structures.

    With --oracle NAME and no ESTIMATOR, test every operation of the oracle against an enumeration of all structures.

    Exit codes: 0 no violation, 1 a violation (of the estimates or of the declared properties), 2 bad input, 3 the estimator raised,
    4 undecided under --strict.
    """
    with sentences():
        claims: dict[str, Any] = {name: getattr(options, name) for name in ("objective", "unbiased", "scale", "mean_of", "loss", "name")}
        if options.estimator is None and not options.oracle:
            raise ValueError("got neither ESTIMATOR nor --oracle NAME; expected one to test, such as: structgrad audit rloo")
        if options.estimator is None and any(given is not None for given in claims.values()):
            raise ValueError(
                "got --objective, --unbiased, --scale, --mean-of, --loss or --name without an ESTIMATOR; add one, such as rloo"
            )
        from ...suites.audit import audit as audit_estimator
        from ...suites.audit.oracles import audit_oracle
        from .. import terminal
        from ..comparison import json_text
        from .run import launch

        launch.pin_threads()
        limits: dict[str, Any] = {"alpha": options.alpha, "seed": options.seed, "quick": options.quick, "seconds": options.time}
        found: list[Any] = [audit_oracle(name, **limits) for name in options.oracle] if options.estimator is None else []
        if options.estimator is not None:
            found.append(audit_estimator(options.estimator, structures=options.oracle, **claims, **limits))
        if options.json:
            records = []
            for one in found:
                records.append({"verdict": one.verdict, "exit_code": one.exit_code(strict=options.strict)})
                records[-1] |= {name: getattr(one, name) for name in ("causes", "remedies") if hasattr(one, name)} | asdict(one)
            typer.echo(json_text(records[0] if options.estimator else records, indent=2), nl=False)
        else:
            for one in found:
                terminal.console().print(as_text(one))
    raise typer.Exit(max((one.exit_code(strict=options.strict) for one in found), key=[0, 4, 3, 1].index))


def as_text(found: "Audit | OracleAudit") -> Group:
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


def _of_estimator(found: "Audit") -> tuple[list[Any], list[Any]]:
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
    explanations = {"likely cause": found.causes, "seen": found.seen, "to change": found.remedies, "note": found.notes}
    above += [Text(f"{word}: {line}", style="bold") for word, lines in explanations.items() for line in lines[:MAX_CAUSES]]
    names = ("gain", "relative bias", "cosine", "zero", "variance / ‖g‖²")
    table = Table(Column("flat scores", no_wrap=True), *(Column(name, justify="right", no_wrap=True) for name in names), **_TABLE_STYLE)
    for row in rows:
        uncertain = (plus_minus(*value) for value in (row.gain, row.relative_bias, row.cosine))
        table.add_row(row.where, *uncertain, percent(row.zero_rate), number(row.relative_variance))
    tests = "no test" if found.tests == 0 else plural(found.tests, "test")
    small = (
        f"{tests} at one error rate of {significant(found.alpha)} (Holm's correction, confirmed on fresh seeds); all other laws are exact"
    )
    small += f"\n± is half of a 95 % interval\nseed {found.seed}, {duration(found.seconds)}"
    return above, [table, Text(), Text(small, style="dim")]


def _laws(checks: "Sequence[Check]") -> Table:
    """One line per law: its worst outcome, where, and the detail."""
    folded = (Column(name, overflow="fold", no_wrap=True) for name in ("law", "", "where"))
    table = Table(*folded, Column("what", no_wrap=True), **_TABLE_STYLE)
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
