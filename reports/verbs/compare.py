"""``structgrad compare``: two runs or more, number by number."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from .outcome import sentences

FORMATS = ("text", "md", "html", "json", "csv")


def compare(  # noqa: PLR0913 - one parameter per option
    base: Annotated[
        str,
        typer.Argument(
            help="Base of the comparison: a run folder, its table, a baseline, or published (the table of the package).",
            metavar="BASE",
        ),
    ],
    heads: Annotated[list[str] | None, typer.Argument(help="Runs to compare with the base.", metavar="RUN", show_default=False)] = None,
    *,
    with_: Annotated[
        str | None,
        typer.Option("--with", help="Base of the comparison, instead of the first argument.", metavar="BASE", show_default=False),
    ] = None,
    sort: Annotated[str, typer.Option(help="effect (largest first) or name.", metavar="KEY")] = "effect",
    only: Annotated[str, typer.Option(help="all, or changed (without identical and equivalent numbers).", metavar="WHICH")] = "all",
    estimator: Annotated[list[str], typer.Option("--estimator", "-e", help="Name or glob. Repeatable.", metavar="NAME")] = [],  # noqa: B006
    metric: Annotated[list[str], typer.Option("--metric", "-m", help="Name or glob. Repeatable.", metavar="NAME")] = [],  # noqa: B006
    config: Annotated[Path | None, typer.Option(help="TOML file with margins and level, as for gate.", metavar="FILE")] = None,
    format_: Annotated[
        str | None,
        typer.Option("--format", help="text, md, html, json or csv.", metavar="NAME", show_default="from the output file name, else text"),
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Output file instead of standard output.", metavar="FILE")] = None,
    baselines: Annotated[Path, typer.Option("--dir", help="Folder with the baselines.", metavar="DIR")] = Path("baselines"),
) -> None:
    """Compare runs: list improved, worse and inconclusive numbers. The exit code is 0 for every result.

    Numbers with the same seeds are compared batch by batch, other sampled numbers with the errors of both sides, and exact numbers exactly.
    To get a verdict as exit code, use gate.
    """
    with sentences():
        suffix = output.suffix[1:] if output and output.suffix[1:] in FORMATS else "text"
        kind = format_ or suffix
        _check(kind, FORMATS, "--format")
        _check(sort, ("effect", "name"), "--sort")
        _check(only, ("all", "changed"), "--only")
        from ...suites.comparison import compare as compare_tables
        from ...suites.comparison.pairs import COLUMNS
        from ...suites.comparison.settings import load_settings, selects
        from .. import published, results
        from ..analysis.loading import comparable, load
        from ..comparison import formats
        from ..comparison.groups import CHANGED, ordered

        settings = load_settings(config)
        base, others = (base, heads or []) if with_ is None else (with_, [base, *(heads or [])])
        if not others:
            raise ValueError(f"`compare` got only {base}; expected a second run, or a base with --with BASE")
        results.check_output("compare", output, base, *others)
        columns = None if published.NAME in (base, *others) else COLUMNS
        before, found = load(base, baselines, columns), []
        for name in others:
            head = load(name, baselines, columns)
            items = compare_tables(*comparable(before, head), (before.machine, head.machine), settings)
            for column, patterns in (("estimator", estimator), ("metric", metric)):
                names = [one for one in items[column].unique() if any(selects(pattern, one) for pattern in patterns)]
                items = items[items[column].isin(names)] if patterns else items
            found.append((name, ordered(items[items["verdict"].isin(CHANGED)] if only == "changed" else items, sort)))
        if kind == "html":
            from ..page import vega

            text = formats.comparison_page(base, found, sort, vega.packed)
        else:
            writers = {"text": formats.comparison_text, "md": formats.comparison_markdown}
            writers |= {"json": formats.comparison_json, "csv": formats.comparison_csv}
            text = writers[kind](base, found, sort)
        if output is None:
            typer.echo(text, nl=False)
            return
        results.write_whole(output, text.encode())
        typer.echo(f"comparison: {output.resolve()}")


def _check(value: str, known: Sequence[str], option: str) -> None:
    if value not in known:
        from ...oracles.registry import hint

        raise ValueError(f"{option} got {value!r}; {hint(value, known)}")
