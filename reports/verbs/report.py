"""``structgrad report``: the page, tables and figures of a run."""

from __future__ import annotations

import fnmatch
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer

from .options import option
from .outcome import sentences

if TYPE_CHECKING:
    import pandas as pd

    from ..results import Manifest

Figure = TypeVar("Figure")

FORMATS = {"html": "report.html", "md": "report.md", "csv": "report.csv", "parquet": "report.parquet"}
"""The formats of `report`, and their file names."""

_MOST_PROCESSES = 8
_KILLED = "a process that draws figures was killed, as where memory runs out; draw fewer with --only"


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """Options of `report`."""

    results: tuple[str, ...] = option(MISSING, None, "RUN", shown=False)
    """Run: a folder, a results.parquet, or a URL."""
    output: Path | None = option(None, "Options", "FILE", "--output", "-o", shown="next to the results")
    """Output file, or - for standard output."""
    format: str | None = option(None, "Options", "NAME", shown="from the output file name, else html")
    """html, md (for a comment), csv or parquet (medians and quartiles)."""
    figures: Path | None = option(None, "Options", "DIR", shown=False)
    """Write figures for a paper (PDF, captions in TeX) to this folder; pdf means the folder `figures` next to the results."""
    only: tuple[str, ...] = option((), "Options", "NAME", shown="all")
    """With --figures: a figure name or pattern, such as 'plane-*'. Repeatable."""
    open: bool = option(False, "Options", None)
    """Open the report in the browser."""


def report(options: ReportOptions) -> None:
    """Write the report of a run: a page, Markdown for a comment, or a table of medians and quartiles.

    With --figures alone, only the figures are written.
    """
    output, figures, only = options.output, options.figures, options.only
    kind = options.format or (output.suffix.lstrip(".") if output and output.suffix else "html")
    with sentences():
        from ...suites.running.remote import is_url, reading
        from .. import results

        run, *others = options.results
        if others:
            given = " ".join(options.results)
            raise ValueError(f"`report` got {len(options.results)} runs; expected one. To compare them, type structgrad compare {given}")
        if kind not in FORMATS:
            from ...oracles.registry import hint

            raise ValueError(f"`report` got the format {kind!r}; {hint(kind, FORMATS)}")
        if str(output) == "-" and (kind == "parquet" or options.open):
            flag = "--open" if options.open else "--format parquet"
            raise ValueError(f"`report` got --output - with {flag}, which needs a file; name one")
        results.check_output("report", output, run)
        if only and figures is None:
            raise ValueError(f"`report` got --only {only[0]} without --figures; name the folder of the figures: --figures DIR")
        if is_url(run) and str(figures) == "pdf":
            raise ValueError(f"`report` got --figures pdf for {run}; name a local folder")
        with reading(run) as found:
            folder = found if found.is_dir() else found.parent
            frame, manifest = results.read(found)
            if figures is not None:
                _draw(frame, manifest, folder / "figures" if str(figures) == "pdf" else figures, only)
            if figures is not None and output is None and options.format is None and not options.open:
                return
            content = _rendered(frame, {**manifest, "folder": run if is_url(run) else str(folder)}, kind)
            if str(output) == "-":
                typer.echo(content, nl=False)
                return
            # A browser opens the page after the copy of the run is gone.
            folder = Path(tempfile.mkdtemp(prefix="structgrad-")) if options.open and is_url(run) else folder
            path = output or folder / FORMATS[kind]
            results.write_output("report", path, content)
            typer.echo(f"report: {_uploaded(run, FORMATS[kind], content) if is_url(run) and output is None else path.resolve()}")
            if options.open:
                typer.launch(path.resolve().as_uri())


def _uploaded(url: str, name: str, content: bytes) -> str:
    """Write a report next to the results, and return its URL."""
    from ...suites.running.remote import RemoteFolder

    remote = RemoteFolder(url.rpartition("/")[0] if url.endswith(".parquet") else url)
    remote.put(name, content)
    return f"{remote.url}/{name}"


def _rendered(frame: pd.DataFrame, manifest: Manifest, kind: str) -> bytes:
    from .. import page
    from ..analysis import tables

    if kind == "parquet":
        return tables.aggregate(frame).to_parquet(index=False)
    if kind == "csv":
        return tables.aggregate(frame).to_csv(index=False).encode()
    return (page.to_html if kind == "html" else page.to_markdown)(frame, manifest).encode()


def _draw(frame: pd.DataFrame, manifest: Manifest, folder: Path, only: Sequence[str]) -> None:
    from ...suites.processors import side_by_side
    from .. import results
    from ..page import of_gradients, paper

    figures = list(paper.planned(of_gradients(frame), manifest.get("catalogue")))
    chosen = [figure for figure in figures if not only or any(fnmatch.fnmatchcase(figure.name, pattern) for pattern in only)]
    if figures and not chosen:
        kinds = ", ".join(dict.fromkeys(f"'{figure.name.partition('-')[0]}*'" for figure in figures))
        raise ValueError(f"--only got {', '.join(only)}, which no figure of this run matches; expected names or patterns such as {kinds}")
    written = 0
    try:
        for figure in _shown(side_by_side(paper.PlannedFigure.draw, chosen, _MOST_PROCESSES, _KILLED), len(chosen)):
            for name, content in figure.items():
                results.write_whole(folder / name, content)
            written += len(figure)
    except OSError as error:
        raise ValueError(f"`report` cannot write into {folder} ({error.strerror}); name another folder with --figures") from error
    typer.echo(
        f"figures: {written} files ({', '.join(paper.FILES)}) in {folder.resolve()}" if written else "figures: there is nothing to draw"
    )


def _shown(figures: Iterable[Figure], total: int) -> Iterable[Figure]:
    """Figures as they are drawn, with a bar on a terminal, and one line elsewhere."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    if not console.is_terminal:
        typer.echo(f"drawing {total} figures", err=True)
    return track(figures, "drawing figures", total, console=console, transient=True, disable=not console.is_terminal)
