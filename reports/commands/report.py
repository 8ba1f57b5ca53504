"""``structgrad report``: what people read of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .outcome import sentences

FORMATS = {"html": "report.html", "md": "report.md", "csv": "report.csv"}
"""What `report` can write, and under which name."""


def report(
    results: Annotated[Path, typer.Argument(help="The folder of a run, or its results.parquet.", metavar="RUN", show_default=False)],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="A file, or - for standard output.", metavar="FILE", show_default="beside the results"),
    ] = None,
    format_: Annotated[
        str | None,
        typer.Option("--format", help="html, md or csv.", metavar="NAME", show_default="by the name of the output, else html"),
    ] = None,
) -> None:
    """Write the report of a finished run: a page, Markdown for a comment, or medians and quartiles as CSV."""
    kind = format_ or (output.suffix.lstrip(".") if output and output.suffix else "html")
    with sentences():
        if kind not in FORMATS:
            from ...oracles import registry

            raise ValueError(f"`report` got the format {kind!r}; {registry.hint(kind, FORMATS)}")
        text = _rendered(results, kind)
        if str(output) == "-":
            typer.echo(text, nl=False)
        else:
            _written(text, output or (results if results.is_dir() else results.parent) / FORMATS[kind])


def _rendered(run: Path, kind: str) -> str:
    from .. import html, results, tables

    frame, manifest = results.read(run)
    if kind == "csv":
        return tables.aggregate(frame).to_csv(index=False)
    return html.to_html(frame, manifest) if kind == "html" else html.to_markdown(frame, manifest)


def _written(text: str, path: Path) -> None:
    from .. import results

    try:
        results.write_whole(path, text.encode())
    except OSError as error:
        raise ValueError(f"`report` cannot write {path} ({error.strerror}); name another file with --output") from error
    typer.echo(f"report: {path.resolve()}")
