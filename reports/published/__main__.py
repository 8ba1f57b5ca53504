"""``python -m structgrad.reports.published RUN [RUN ...]``: the published table, made of finished runs."""

from pathlib import Path
from typing import Annotated

import typer

from . import FOLDER, write


def main(runs: Annotated[list[Path], typer.Argument(metavar="RUN")], to: Path = FOLDER) -> None:
    """Write the published table, and the facts about its runs, from the folders of finished runs to a folder."""
    try:
        path = write(*runs, folder=to)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
    typer.echo(f"published: {path.stat().st_size} bytes in {path}")


if __name__ == "__main__":
    typer.run(main)
