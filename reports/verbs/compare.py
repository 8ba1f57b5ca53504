"""``structgrad compare`` and ``structgrad gate``: runs number by number, and whether one may take the place of a baseline."""

import os
from pathlib import Path
from typing import Annotated

import typer

from .baseline import HERE, Folder
from .outcome import NOTHING_TO_COMPARE, OK, REGRESSED, UNDECIDED, fail, sentences, write_output


def compare(  # noqa: PLR0913 - one parameter per option
    base: Annotated[
        str,
        typer.Argument(
            help="Base of the comparison: a run folder, its table, a baseline, or published (the table of the package).", metavar="BASE"
        ),
    ],
    heads: Annotated[list[str], typer.Argument(help="Runs to compare with the base.", metavar="RUN")],
    *,
    only: Annotated[str, typer.Option(help="all, or changed (without identical and equivalent numbers).", metavar="WHICH")] = "all",
    estimator: Annotated[list[str] | None, typer.Option("--estimator", "-e", help="Name or glob. Repeatable.", metavar="NAME")] = None,
    metric: Annotated[list[str] | None, typer.Option("--metric", "-m", help="Name or glob. Repeatable.", metavar="NAME")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with margins and level, as for gate.", metavar="FILE")] = None,
    kind: Annotated[
        str | None,
        typer.Option("--format", help="text, md, json or csv.", metavar="NAME", show_default="from the output file name, else text"),
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Output file instead of standard output.", metavar="FILE")] = None,
    folder: Folder = HERE,
) -> None:
    """Compare runs: list improved, worse and inconclusive numbers. The exit code is 0 for every result.

    Numbers with the same seeds are compared batch by batch, other sampled numbers with the errors of both sides, and exact numbers exactly.
    To get a verdict as exit code, use gate.
    """
    with sentences():
        from ...suites.comparison import compare as compare_tables
        from ...suites.comparison.pairs import COLUMNS
        from ...suites.comparison.settings import load_settings, selects
        from .. import published, results
        from ..analysis.loading import comparable, load
        from ..comparison import CHANGED, COMPARISONS, ordered

        suffix = output.suffix[1:] if output else ""
        kind = kind or ("text" if suffix in ("", "txt") else suffix)
        for flag, value, known in (("format", kind, COMPARISONS), ("only", only, ("all", "changed"))):
            if value not in known:
                from ...oracles.registry import hint

                raise ValueError(f"--{flag} got {value!r}; {hint(value, known)}")
        settings = load_settings(config)
        results.check_output("compare", output, base, *heads)
        columns = None if published.NAME in (base, *heads) else COLUMNS
        before, found = load(base, folder, columns), []
        for name in heads:
            head = load(name, folder, columns)
            items = compare_tables(*comparable(before, head), (before.machine, head.machine), settings)
            for column, patterns in (("estimator", estimator or ()), ("metric", metric or ())):
                names = [one for one in items[column].unique() if any(selects(pattern, one) for pattern in patterns)]
                items = items[items[column].isin(names)] if patterns else items
            found.append((name, ordered(items[items["verdict"].isin(CHANGED)] if only == "changed" else items)))
        text = COMPARISONS[kind](base, found)
        if output is None:
            typer.echo(text, nl=False)
        else:
            write_output("compare", output, text.encode(), "comparison")


def gate(  # noqa: PLR0913 - one parameter per option
    run: Annotated[str, typer.Argument(help="Run to test: its folder or its table.", metavar="RUN")],
    *,
    baseline: Annotated[str, typer.Option("--baseline", "-b", help="Baseline: a name, its file, or another run.", metavar="BASE")],
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="TOML file with level, margins and reactions.", metavar="FILE")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 4 if any number is inconclusive or incomparable.")] = False,
    github: Annotated[bool, typer.Option("--github", help="Annotate the GitHub job and add to its summary.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    folder: Folder = HERE,
) -> None:
    """Fail if a number is significantly worse than in a baseline, a declared property is violated, or a number is missing.

    Exact numbers are compared exactly. Sampled numbers are tested with one family-wise error rate. Times are not compared: they
    differ between days and machines.

    Exit codes: 0 passed, 1 failed, 2 bad input, 4 inconclusive under --strict, 5 no number in common with the baseline.
    """
    with sentences():
        from ...suites.comparison import gate as decide
        from ...suites.comparison.pairs import COLUMNS
        from ...suites.comparison.settings import load_settings
        from ...suites.running.store import OtherSchemaError
        from .. import comparison
        from ..analysis.loading import load

        settings = load_settings(config)
        head = load(run, folder, COLUMNS)
        try:
            base = load(baseline, folder, COLUMNS)
        except OtherSchemaError as error:
            fail(f"no comparable baseline: {error}", NOTHING_TO_COMPARE)
        if base.is_published:
            more = f"expected a baseline or a run (`structgrad compare` accepts {baseline})"
            raise ValueError(f"--baseline got {baseline}, whose numbers are rounded; {more}")
        result = decide(base.frame, head.frame, (base.machine, head.machine), settings)
        undecided = UNDECIDED if strict else OK
        code = {"passed": OK, "failed": REGRESSED, "undecided": undecided, "nothing to compare": NOTHING_TO_COMPARE}[result.outcome]
        for override in result.idle:
            typer.echo(f"warning: {override} matches no compared number", err=True)
        typer.echo(comparison.gate_json(result, code) if as_json else comparison.gate_text(result), nl=False)
        if github:
            for kind, level in zip(("error", "warning"), comparison.LEVELS, strict=True):
                for line in comparison.gate_findings(result, level, 10)[0]:  # GitHub keeps ten annotations of each kind
                    text = line.replace("%", "%25").replace("\r", "").replace("\n", "%0A")
                    typer.echo(f"::{kind} title=structgrad gate::{text}")
            if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
                with Path(summary).open("a", encoding="utf-8") as file:
                    file.write(comparison.gate_markdown(result))
    raise typer.Exit(code)
