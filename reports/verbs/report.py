"""``structgrad report``: what people read of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .outcome import sentences

FORMATS = {"html": "report.html", "md": "report.md", "csv": "report.csv", "parquet": "report.parquet"}
"""What `report` can write, and under which name."""


def report(
    results: Annotated[list[str], typer.Argument(help="Run: a folder, a results.parquet, or a URL.", metavar="RUN", show_default=False)],
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
        from ...suites.running.remote.objects import is_url
        from ...suites.running.remote.snapshot import reading

        if is_url(run) and str(figures) == "pdf":
            raise ValueError(f"`report` got --figures pdf for {run}; name a local folder")
        with reading(run) as found:
            if figures is not None:
                _draw(found, figures)
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
    is_large = _is_large(run)
    if is_large and kind == "html":
        path = _large_page(run, output, url)
        if show:
            typer.launch(path.resolve().as_uri())
        return
    content = _rendered_large(run, kind) if is_large else _rendered(run, kind, url)
    if str(output) == "-":
        typer.echo(content, nl=False)
        return
    path = output or (run if run.is_dir() else run.parent) / FORMATS[kind]
    _written(content, path)
    typer.echo(f"report: {_uploaded(url, FORMATS[kind], content) if url and output is None else path.resolve()}")
    if show:
        typer.launch(path.resolve().as_uri())


def _is_large(run: Path) -> bool:
    """Whether a table has so many rows that it is read some structures at a time; one of a run that trains is read at once."""
    from .. import results
    from ..analysis import loading
    from ..page import large

    return results.length(run) >= loading.LARGE and not large.trains(results.opened(run)[0])


def _large_page(run: Path, output: Path | None, url: str) -> Path:
    from .. import results
    from ..page import large

    folder = run if run.is_dir() else run.parent
    if str(output) == "-" or (url and output is None):
        beside = "--output -" if str(output) == "-" else url
        rows = results.length(run)
        raise ValueError(f"`report` got {beside} for {rows} rows, whose page needs a folder next to it; name a local file with --output")
    path = output or folder / FORMATS["html"]
    try:
        pages = large.write(run, url or str(folder), path)
    except OSError as error:
        raise ValueError(f"`report` cannot write {path} ({error.strerror}); name another file with --output") from error
    typer.echo(f"report: {path.resolve()}, with a page for each structure in {pages.resolve()}")
    return path


def _rendered_large(run: Path, kind: str) -> bytes:
    from ..page import large
    from ..page.markdown import markdown_of

    found = large.gather(run)
    if kind == "md":
        return markdown_of(found.report()).encode()
    import pyarrow as pa

    medians = pa.concat_tables(found.medians, promote_options="permissive").to_pandas()
    return bytes(medians.to_parquet(index=False)) if kind == "parquet" else medians.to_csv(index=False).encode()


def _uploaded(url: str, name: str, content: bytes) -> str:
    """Where it lies beside the results."""
    from ...suites.running.remote.objects import ObjectStore

    remote = ObjectStore(url.rpartition("/")[0] if url.endswith(".parquet") else url)
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
