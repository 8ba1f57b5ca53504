"""``structgrad export``: the rows of a run for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .outcome import sentences


def export(
    run: Annotated[Path, typer.Argument(help="The folder of a run, or its results.parquet.", metavar="RUN", show_default=False)],
    to: Annotated[str, typer.Option("--to", help="csv, parquet, or json (an object per line).", metavar="FORMAT")] = "csv",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="A file, or - for standard output.", metavar="FILE", show_default="export.FORMAT in the run's folder"
        ),
    ] = None,
) -> None:
    """Write all rows of a run as CSV, Parquet or JSON lines; of one that is not finished, those that there are."""
    with sentences():
        from .. import results
        from . import exporting

        write = exporting.writer(to)
        content = write(results.read(run)[0])
        if str(output) == "-":
            typer.get_binary_stream("stdout").write(content)
            return
        path = output or (run if run.is_dir() else run.parent) / f"export.{to}"
        try:
            results.write_whole(path, content)
        except OSError as error:
            raise ValueError(f"`export` cannot write {path} ({error.strerror}); name another file with --output") from error
    typer.echo(f"export: {path.resolve()}")
