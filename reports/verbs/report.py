"""``structgrad report``: the page, tables and figures of a run."""

from __future__ import annotations

import fnmatch
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from .outcome import sentences

Figure = TypeVar("Figure")

FORMATS = {"html": "report.html", "md": "report.md", "csv": "report.csv", "parquet": "report.parquet"}
"""The formats of `report`, and their file names."""


def report(  # noqa: PLR0913 - one parameter per option
    results: Annotated[list[str], typer.Argument(help="Run: a folder, a results.parquet, or a URL.", metavar="RUN", show_default=False)],
    *,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Output file, or - for standard output.", metavar="FILE", show_default="next to the results"),
    ] = None,
    format_: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="html, md (for a comment), csv or parquet (medians and quartiles).",
            metavar="NAME",
            show_default="from the output file name, else html",
        ),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(
            help="Write figures for a paper (PDF, captions in TeX) to this folder; pdf means the folder `figures` next to the results.",
            metavar="DIR",
            show_default=False,
        ),
    ] = None,
    only: Annotated[
        list[str],
        typer.Option(help="With --figures: a figure name or pattern, such as 'plane-*'. Repeatable.", metavar="NAME", show_default="all"),
    ] = [],  # noqa: B006 - typer copies it
    show: Annotated[bool, typer.Option("--open", help="Open the report in the browser.")] = False,
) -> None:
    """Write the report of a run: a page, Markdown for a comment, or a table of medians and quartiles.

    With --figures alone, only the figures are written.
    """
    kind = format_ or (output.suffix.lstrip(".") if output and output.suffix else "html")
    with sentences():
        run = _single(results)
        _checked(kind, output, show=show)
        from .. import results as tables

        tables.check_output("report", output, run)
        from ...suites.running.remote import is_url, reading

        if only and figures is None:
            raise ValueError(f"`report` got --only {only[0]} without --figures; name the folder of the figures: --figures DIR")
        if is_url(run) and str(figures) == "pdf":
            raise ValueError(f"`report` got --figures pdf for {run}; name a local folder")
        with reading(run) as found:
            if figures is not None:
                _draw(found, figures, only)
            if figures is None or output is not None or format_ is not None or show:
                _write(found, kind, output, show=show, url=run if is_url(run) else "")


def _single(runs: list[str]) -> str:
    if len(runs) > 1:
        raise ValueError(
            f"`report` got {len(runs)} runs; expected one. To compare them, type structgrad compare {' '.join(map(str, runs))}"
        )
    return runs[0]


def _checked(kind: str, output: Path | None, *, show: bool) -> None:
    if kind not in FORMATS:
        from ...oracles import registry

        raise ValueError(f"`report` got the format {kind!r}; {registry.hint(kind, FORMATS)}")
    if str(output) == "-" and (kind == "parquet" or show):
        raise ValueError(f"`report` got --output - with {'--open' if show else '--format parquet'}, which needs a file; name one")


def _write(run: Path, kind: str, output: Path | None, *, show: bool, url: str) -> None:
    content = _rendered(run, kind, url)
    if str(output) == "-":
        typer.echo(content, nl=False)
        return
    # A browser opens the page after the copy of the run is gone.
    folder = Path(tempfile.mkdtemp(prefix="structgrad-")) if show and url else run if run.is_dir() else run.parent
    path = output or folder / FORMATS[kind]
    _written(content, path)
    typer.echo(f"report: {_uploaded(url, FORMATS[kind], content) if url and output is None else path.resolve()}")
    if show:
        typer.launch(path.resolve().as_uri())


def _uploaded(url: str, name: str, content: bytes) -> str:
    """Write a report next to the results, and return its URL."""
    from ...suites.running.remote import RemoteFolder

    remote = RemoteFolder(url.rpartition("/")[0] if url.endswith(".parquet") else url)
    remote.put(name, content)
    return f"{remote.url}/{name}"


def _rendered(run: Path, kind: str, url: str) -> bytes:
    from .. import page, results
    from ..analysis import tables

    frame, manifest = results.read(run)
    if kind == "parquet":
        return tables.aggregate(frame).to_parquet(index=False)
    if kind == "csv":
        return tables.aggregate(frame).to_csv(index=False).encode()
    manifest = {**manifest, "folder": url or str(run if run.is_dir() else run.parent)}
    return (page.to_html(frame, manifest) if kind == "html" else page.to_markdown(frame, manifest)).encode()


def _draw(run: Path, folder: Path, only: list[str]) -> None:
    from ...suites.processors import side_by_side
    from .. import results
    from ..page import of_gradients, paper

    frame, manifest = results.read(run)
    folder = (run if run.is_dir() else run.parent) / "figures" if str(folder) == "pdf" else folder
    figures = list(paper.planned(of_gradients(frame), manifest.get("catalogue")))
    chosen = [figure for figure in figures if not only or any(fnmatch.fnmatchcase(figure.name, pattern) for pattern in only)]
    if figures and not chosen:
        kinds = ", ".join(dict.fromkeys(f"'{figure.name.partition('-')[0]}*'" for figure in figures))
        raise ValueError(f"--only got {', '.join(only)}, which no figure of this run matches; expected names or patterns such as {kinds}")
    written = 0
    try:
        for figure in _shown(side_by_side(paper.PlannedFigure.draw, chosen, _MOST_PROCESSES, _KILLED), len(chosen)):
            written += len(figure.save(folder))
    except OSError as error:
        raise ValueError(f"`report` cannot write into {folder} ({error.strerror}); name another folder with --figures") from error
    typer.echo(
        f"figures: {written} files ({', '.join(paper.FILES)}) in {folder.resolve()}" if written else "figures: there is nothing to draw"
    )


_MOST_PROCESSES = 8
_KILLED = "a process that draws figures was killed, as where memory runs out; draw fewer with --only"


def _shown(figures: Iterable[Figure], total: int) -> Iterable[Figure]:
    """Figures as they are drawn, with a bar on a terminal, and one line elsewhere."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    if not console.is_terminal:
        typer.echo(f"drawing {total} figures", err=True)
    return track(figures, "drawing figures", total, console=console, transient=True, disable=not console.is_terminal)


def _written(content: bytes, path: Path) -> None:
    from .. import results

    try:
        results.write_whole(path, content)
    except OSError as error:
        raise ValueError(f"`report` cannot write {path} ({error.strerror}); name another file with --output") from error
