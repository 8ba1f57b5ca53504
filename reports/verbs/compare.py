"""``structgrad compare``: two runs or more, number by number."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .outcome import sentences

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...suites.comparison import Comparison, Settings

FORMATS = ("text", "md", "html", "json", "csv")
_SUFFIXES = {".md": "md", ".html": "html", ".json": "json", ".csv": "csv"}


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
        kind = _format(format_, output)
        _check(sort, ("effect", "name"), "--sort")
        _check(only, ("all", "changed"), "--only")
        from ...suites.comparison import LargeComparison
        from .. import results
        from ..comparison import words
        from ..comparison.configuration import settings_of

        settings = settings_of(config)
        base, others = (base, heads or []) if with_ is None else (with_, [base, *(heads or [])])
        if not others:
            raise ValueError(f"`compare` got only {base}; expected a second run, or a base with --with BASE")
        results.check_output("compare", output, base, *others)
        found = []
        for name in others:
            items = _compared(base, name, baselines, settings)
            chosen = words.selected(items, changed=only == "changed", estimators=estimator, metrics=metric)
            found.append((name, chosen if isinstance(chosen, LargeComparison) else words.ordered(chosen, sort)))
        text = _rendered(kind, base, found, sort)
        if output is None:
            typer.echo(text, nl=False)
            return
        results.write_whole(output, text.encode())
        typer.echo(f"comparison: {output.resolve()}")


def _compared(base: str, head: str, folder: Path, settings: Settings) -> Sequence[Comparison]:
    """Number by number; of large runs some problems at a time."""
    from ...suites.comparison import compare as compare_rows
    from ...suites.comparison import compare_large
    from ...suites.comparison.large import is_gated
    from ..analysis.loading import blocks, comparable, load, opened

    large = opened((base, head), folder)
    if large is not None:
        one, other = large
        asked = is_gated if "baseline" in one.manifest else bool
        return compare_large(blocks(one, other), (one.machine, other.machine), settings, asked=asked)
    first, second = load(base, folder), load(head, folder)
    old, new = comparable(first, second)
    return compare_rows(old, new, (first.machine, second.machine), settings)


def _format(given: str | None, output: Path | None) -> str:
    kind = given or _SUFFIXES.get(output.suffix if output else "", "text")
    _check(kind, FORMATS, "--format")
    return kind


def _check(value: str, known: Sequence[str], option: str) -> None:
    if value not in known:
        from ...oracles.registry import hint

        raise ValueError(f"{option} got {value!r}; {hint(value, known)}")


def _rendered(kind: str, base: str, found: Sequence[tuple[str, Sequence[Comparison]]], sort: str) -> str:
    from ..comparison import markdown, page, records, terminal

    if kind == "json":
        return records.comparison_json(base, found)
    if kind == "csv":
        return records.comparison_csv(base, found)
    if kind == "md":
        return markdown.comparison_page(base, found, sort=sort)
    if kind == "html":
        return page.comparison_page(base, found, sort=sort)
    blocks = ["\n".join(terminal.comparison_lines(base, head, items, sort=sort)) for head, items in found]
    return "\n\n".join(blocks) + "\nexit code 0, whatever changed; `structgrad gate` decides\n"
