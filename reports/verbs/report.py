"""``structgrad report``: what people read of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .outcome import sentences

FORMATS = {"html": "report.html", "md": "report.md", "csv": "report.csv", "parquet": "report.parquet"}
"""What `report` can write, and under which name."""


def report(
    results: Annotated[list[Path], typer.Argument(help="The folder of a run, or its results.parquet.", metavar="RUN", show_default=False)],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="A file, or - for standard output.", metavar="FILE", show_default="beside the results"),
    ] = None,
    format_: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="html, md (for a comment), csv or parquet (medians and quartiles).",
            metavar="NAME",
            show_default="by the name of the output, else html",
        ),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(
            help="Write figures for a paper, PDF with captions in TeX, and all as SVG and PNG; pdf is the folder `figures` of the run.",
            metavar="DIR",
            show_default=False,
        ),
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Show the report in the browser.")] = False,
) -> None:
    """Write the report of a run: a page, Markdown for a comment, or medians and quartiles as a table.

    With --figures alone, only the figures are written.
    """
    kind = format_ or (output.suffix.lstrip(".") if output and output.suffix else "html")
    with sentences():
        run = _single(results)
        _checked(kind, output, show=show)
        if figures is not None:
            _draw(run, figures)
        if figures is None or output is not None or format_ is not None or show:
            _write(run, kind, output, show=show)


def _single(runs: list[Path]) -> Path:
    if len(runs) > 1:
        raise ValueError(
            f"`report` got {len(runs)} runs; expected one. To set them side by side: structgrad compare {' '.join(map(str, runs))}"
        )
    return runs[0]


def _checked(kind: str, output: Path | None, *, show: bool) -> None:
    if kind not in FORMATS:
        from ...oracles import registry

        raise ValueError(f"`report` got the format {kind!r}; {registry.hint(kind, FORMATS)}")
    if str(output) == "-" and (kind == "parquet" or show):
        raise ValueError(f"`report` got --output - with {'--open' if show else '--format parquet'}, which takes a file; name one")


def _write(run: Path, kind: str, output: Path | None, *, show: bool) -> None:
    content = _rendered(run, kind)
    if str(output) == "-":
        typer.echo(content, nl=False)
        return
    path = output or (run if run.is_dir() else run.parent) / FORMATS[kind]
    _written(content, path)
    typer.echo(f"report: {path.resolve()}")
    if show:
        typer.launch(path.resolve().as_uri())


def _rendered(run: Path, kind: str) -> bytes:
    from .. import page, results
    from ..analysis import tables

    frame, manifest = results.read(run)
    if kind == "parquet":
        return tables.aggregate(frame).to_parquet(index=False)
    if kind == "csv":
        return tables.aggregate(frame).to_csv(index=False).encode()
    manifest = {**manifest, "folder": str(run if run.is_dir() else run.parent)}
    return (page.to_html(frame, manifest) if kind == "html" else page.to_markdown(frame, manifest)).encode()


def _draw(run: Path, folder: Path) -> None:
    from .. import results
    from ..page import of_gradients
    from ..page.drawing import paper

    frame, manifest = results.read(run)
    folder = (run if run.is_dir() else run.parent) / "figures" if str(folder) == "pdf" else folder
    try:
        written = [path for drawing in paper.draw(of_gradients(frame), manifest.get("catalogue")) for path in drawing.save(folder)]
    except OSError as error:
        raise ValueError(f"`report` cannot write into {folder} ({error.strerror}); name another folder with --figures") from error
    typer.echo(
        f"figures: {len(written)} files ({', '.join(paper.FILES)}) in {folder.resolve()}"
        if written
        else "figures: there is nothing to draw"
    )


def _written(content: bytes, path: Path) -> None:
    from .. import results

    try:
        results.write_whole(path, content)
    except OSError as error:
        raise ValueError(f"`report` cannot write {path} ({error.strerror}); name another file with --output") from error
