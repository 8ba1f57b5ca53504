"""``structgrad export``: the rows of a run for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .outcome import sentences


def export(
    run: Annotated[str, typer.Argument(help="Run: a folder, a results.parquet, or a URL.", metavar="RUN", show_default=False)],
    to: Annotated[str, typer.Option("--to", help="csv, parquet, or jsonl (one JSON object per line).", metavar="FORMAT")] = "csv",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Output file, or - for standard output.",
            metavar="FILE",
            show_default="export.FORMAT in the run's folder, or here for a URL",
        ),
    ] = None,
) -> None:
    """Write all rows of a run as CSV, Parquet or JSON lines. An unfinished run exports its finished rows."""
    with sentences():
        from ...suites.running.remote import is_url, reading
        from .. import results
        from . import exporting

        write = exporting.writer(to)
        results.check_output("export", output, run)
        with reading(run) as found:
            content = write(results.read(found)[0])
        if str(output) == "-":
            typer.get_binary_stream("stdout").write(content)
            return
        folder = Path() if is_url(run) else Path(run) if Path(run).is_dir() else Path(run).parent
        path = output or folder / f"export.{to}"
        try:
            results.write_whole(path, content)
        except OSError as error:
            raise ValueError(f"`export` cannot write {path} ({error.strerror}); name another file with --output") from error
    typer.echo(f"export: {path.resolve()}")
