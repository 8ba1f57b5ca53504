"""The command line, ``structgrad``: its verbs are in `commands`."""

from __future__ import annotations

import importlib.metadata
from typing import Annotated

import typer

from .commands import catalogue, report, run

app = typer.Typer(
    name="structgrad",
    help="Measures gradient estimators through structured latent variables against the exact gradient.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """The entry point of the console script."""
    app()


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"structgrad {importlib.metadata.version('structgrad')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")] = False,
) -> None:
    pass


app.command("list")(catalogue.list_)
app.command()(run.run)
app.command()(report.report)

if __name__ == "__main__":
    main()
