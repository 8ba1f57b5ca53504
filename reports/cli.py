"""The command line, ``structgrad``: its verbs are in `commands`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from .commands import audit, baseline, catalogue, compare, describe, doctor, export, gate, init, replay, report, run, status

VERBS: dict[str, Callable[..., Any] | typer.Typer] = {
    "list": catalogue.list_,
    "describe": describe.describe,
    "init": init.init,
    "doctor": doctor.doctor,
    "run": run.run,
    "status": status.status,
    "report": report.report,
    "compare": compare.compare,
    "gate": gate.gate,
    "baseline": baseline.app,
    "export": export.export,
    "audit": audit.audit,
    "replay": replay.replay,
}
"""In the order of the help; a verb with verbs of its own is an app."""

_HELP = {"help_option_names": ["-h", "--help"]}


class _Verbs(TyperGroup):
    """Knows what its verbs are called and do, and builds the options of the one that is called: those of all would double the start."""

    def __init__(self, **settings: Any) -> None:
        lines = {name: TyperCommand(name, help=_said(verb)) for name, verb in VERBS.items()}
        super().__init__(**{**settings, "commands": lines})
        self._listing = False

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self._listing = True
        super().format_help(ctx, formatter)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return self.commands.get(cmd_name) if self._listing or cmd_name not in VERBS else _built(cmd_name)


def _said(verb: Callable[..., Any] | typer.Typer) -> str:
    return str(verb.info.help) if isinstance(verb, typer.Typer) else inspect.getdoc(verb) or ""


def _built(name: str) -> Any:
    """A verb with its options."""
    verb = VERBS[name]
    if isinstance(verb, typer.Typer):
        alone = verb
    else:
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, context_settings=_HELP)
        alone.command(name)(verb)
    command = typer.main.get_command(alone)
    command.name = name
    return command


app = typer.Typer(
    name="structgrad",
    cls=_Verbs,
    help="Measures gradient estimators through structured latent variables against the exact gradient.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings=_HELP,
)


def main() -> None:
    """The entry point of the console script."""
    app()


def _version(wanted: bool) -> None:
    if wanted:
        from .. import __version__

        typer.echo(f"structgrad {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")] = False,
) -> None:
    pass


if __name__ == "__main__":
    main()
