"""The command line, ``structgrad``: its verbs are in `commands`."""

from __future__ import annotations

from typing import Annotated

import typer

from .commands import audit, baseline, catalogue, compare, describe, doctor, export, gate, init, replay, report, run, status

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
        import importlib.metadata

        typer.echo(f"structgrad {importlib.metadata.version('structgrad')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")] = False,
) -> None:
    pass


app.command("list")(catalogue.list_)
app.command()(describe.describe)
app.command()(init.init)
app.command()(doctor.doctor)
app.command()(run.run)
app.command()(status.status)
app.command()(report.report)
app.command()(compare.compare)
app.command()(gate.gate)
app.add_typer(baseline.app, name="baseline")
app.command()(export.export)
app.command()(audit.audit)
app.command()(replay.replay)

if __name__ == "__main__":
    main()
