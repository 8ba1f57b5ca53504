"""``structgrad init``: the files of a first project."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .outcome import sentences


def init(
    folder: Annotated[Path, typer.Argument(help="Where.", metavar="DIR", show_default="this folder")] = Path(),
    *,
    asv: Annotated[bool, typer.Option("--asv", help="Also asv.conf.json and benchmarks for airspeed velocity.")] = False,
    gha: Annotated[bool, typer.Option("--gha", help="Also a GitHub workflow that measures and gates pull requests.")] = False,
    task: Annotated[bool, typer.Option("--task", help="Only a task of your own that works: two modules and a data set.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
) -> None:
    """Write structgrad.toml, gate.toml and an estimator of your own that works; what is there already is left alone."""
    with sentences():
        from ..upkeep.starters import start

        if task and (asv or gha):
            raise ValueError(f"`init` got both --task and {'--asv' if asv else '--gha'}; give one of them")
        try:
            started = start(folder, asv=asv, workflow=gha, task=task, force=force)
        except OSError as error:
            raise ValueError(f"`init` cannot write {error.filename or folder} ({error.strerror}); name another folder") from error
    for path in started.written:
        typer.echo(f"written: {path}")
    for path in started.kept:
        typer.echo(f"kept, it was there: {path} (--force replaces it)")
    here = "" if folder == Path() else f"cd {folder} && "
    typer.echo(f"next: {here}{'structgrad learn ./my_task.py:task --quick' if task else 'structgrad run --config structgrad.toml'}")
