"""``structgrad init``: the files of a first project."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .outcome import sentences

NEXT = "structgrad run --config structgrad.toml"
NEXT_TASK = "structgrad learn ./my_task.py:task --quick"
NEXT_ORACLE = "structgrad audit --oracle ./my_structure.py:Spread"


def init(  # noqa: PLR0913 - one parameter per option
    folder: Annotated[Path, typer.Argument(help="Target folder.", metavar="DIR", show_default="this folder")] = Path(),
    *,
    asv: Annotated[bool, typer.Option("--asv", help="Also write asv.conf.json and benchmarks for airspeed velocity.")] = False,
    gha: Annotated[bool, typer.Option("--gha", help="Also write a GitHub workflow that measures and gates pull requests.")] = False,
    task: Annotated[bool, typer.Option("--task", help="Write only an example task: two modules and a data set.")] = False,
    oracle: Annotated[bool, typer.Option("--oracle", help="Write only an example structure: its derivation rules, in one file.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
) -> None:
    """Write structgrad.toml, gate.toml and an example estimator. Existing files are kept."""
    with sentences():
        from .starters import start

        alone = [flag for flag, given in {"--task": task, "--oracle": oracle}.items() if given]
        others = [flag for flag, given in {"--asv": asv, "--gha": gha}.items() if given]
        if len(alone) > 1 or (alone and others):
            first, second = [*alone, *others][:2]
            raise ValueError(f"`init` got both {first} and {second}; give one of them")
        try:
            started = start(folder, asv=asv, workflow=gha, task=task, oracle=oracle, force=force)
        except OSError as error:
            raise ValueError(f"`init` cannot write {error.filename or folder} ({error.strerror}); name another folder") from error
    for path in started.written:
        typer.echo(f"written: {path}")
    for path in started.kept:
        typer.echo(f"kept (already exists; --force replaces it): {path}")
    here = "" if folder == Path() else f"cd {folder} && "
    typer.echo(f"next: {here}{NEXT_TASK if task else NEXT_ORACLE if oracle else NEXT}")
