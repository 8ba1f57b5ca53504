"""``structgrad report``: the page, tables and figures of a run."""

import fnmatch
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from .options import option
from .outcome import sentences, write_output

if TYPE_CHECKING:
    import pandas as pd

    from ..results import Manifest

FORMATS = ("html", "md", "csv", "parquet")


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """Options of `report`."""

    run: str = option(MISSING, None, "RUN", shown=False)
    """Run: a folder, a results.parquet, or a URL."""
    output: Path | None = option(None, "Options", "FILE", "--output", "-o", shown="next to the results")
    """Output file, or - for standard output."""
    format: str | None = option(None, "Options", "NAME", shown="from the output file name, else html")
    """html, md (for a comment), csv or parquet (medians and quartiles)."""
    figures: Path | None = option(None, "Options", "DIR", shown=False)
    """Write figures for a paper (PDF, captions in TeX) to this folder; pdf means the folder `figures` next to the results."""
    only: tuple[str, ...] = option((), "Options", "NAME", shown="all")
    """With --figures: a figure name or pattern, such as 'plane*'. Repeatable."""


def report(options: ReportOptions) -> None:
    """Write the report of a run: a page, Markdown for a comment, or a table of medians and quartiles.

    With --figures alone, only the figures are written.
    """
    run, output, figures = options.run, options.output, options.figures
    kind = options.format or (output.suffix.lstrip(".") if output and output.suffix else "html")
    with sentences():
        from ...suites.running.remote import RemoteFolder, is_url, reading
        from .. import page, results
        from ..analysis import tables

        if kind not in FORMATS:
            from ...oracles.registry import hint

            raise ValueError(f"`report` got the format {kind!r}; {hint(kind, FORMATS)}")
        if str(output) == "-" and kind == "parquet":
            raise ValueError("`report` got --output - with --format parquet, which needs a file; name one")
        results.check_output("report", output, run)
        if options.only and figures is None:
            raise ValueError(f"`report` got --only {options.only[0]} without --figures; name the folder of the figures: --figures DIR")
        if is_url(run) and str(figures) == "pdf":
            raise ValueError(f"`report` got --figures pdf for {run}; name a local folder")
        with reading(run) as found:
            folder = found if found.is_dir() else found.parent
            frame, manifest = results.read(found)
        if figures is not None:
            _draw(frame, manifest, folder / "figures" if str(figures) == "pdf" else figures, options.only)
            if output is None and options.format is None:
                return
        if kind in ("csv", "parquet"):
            table = tables.aggregate(frame)
            content = table.to_parquet(index=False) if kind == "parquet" else table.to_csv(index=False).encode()
        else:
            render = page.to_html if kind == "html" else page.to_markdown
            content = render(frame, {**manifest, "folder": run if is_url(run) else str(folder)}).encode()
        if is_url(run) and output is None:
            remote = RemoteFolder(run.rpartition("/")[0] if run.endswith(".parquet") else run)
            remote.put(f"report.{kind}", content)
            typer.echo(f"report: {remote.url}/report.{kind}")
        else:
            write_output("report", output or folder / f"report.{kind}", content)


def _draw(frame: "pd.DataFrame", manifest: "Manifest", folder: Path, only: tuple[str, ...]) -> None:
    from rich.console import Console
    from rich.progress import track

    from .. import results
    from ..page import of_gradients, paper

    figures = list(paper.planned(of_gradients(frame), manifest.get("catalogue")))
    if not figures:
        typer.echo("figures: there is nothing to draw")
        return
    chosen = [figure for figure in figures if not only or any(fnmatch.fnmatchcase(figure.name, pattern) for pattern in only)]
    if not chosen:
        names = ", ".join(figure.name for figure in figures[:4])
        raise ValueError(f"--only got {', '.join(only)}, which no figure of this run matches; expected names or patterns such as {names}")
    console = Console(stderr=True)
    if not console.is_terminal:
        typer.echo(f"drawing {len(chosen)} figures", err=True)
    try:
        for figure in track(chosen, "drawing figures", console=console, transient=True, disable=not console.is_terminal):
            for name, content in figure.draw().items():
                results.write_whole(folder / name, content)
    except OSError as error:
        raise ValueError(f"`report` cannot write into {folder} ({error.strerror}); name another folder with --figures") from error
    typer.echo(f"figures: {len(chosen) * len(paper.FILES)} files ({', '.join(paper.FILES)}) in {folder.resolve()}")
