"""The command line, ``structgrad``: its verbs are in `commands`."""

from __future__ import annotations

import errno
import inspect
import io
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from .verbs import audit, baseline, compare, export, gate, init, learn, replay, report, status
from .verbs.describe import command as describe
from .verbs.describe import list_command
from .verbs.doctor import command as doctor
from .verbs.outcome import BAD_INPUT, OK, fail
from .verbs.recommend import command as recommend
from .verbs.run import command as run
from .verbs.run import merge

VERBS: dict[str, Callable[..., Any] | typer.Typer] = {
    "list": list_command.list_,
    "describe": describe.describe,
    "init": init.init,
    "doctor": doctor.doctor,
    "run": run.run,
    "learn": learn.learn,
    "recommend": recommend.recommend,
    "status": status.status,
    "merge": merge.merge,
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

    def main(self, args: Any = None, prog_name: Any = None, *, standalone_mode: bool = True, **settings: Any) -> Any:  # type: ignore[override]
        """As that of every group, with one line for words that mean nothing, like all that is wrong with an input."""
        words = list(sys.argv[1:] if args is None else args)
        try:
            code = super().main(args, prog_name, standalone_mode=False, **settings)
        except _UsageError as error:
            if not standalone_mode:
                raise
            _tell(error, words)
            sys.exit(BAD_INPUT)
        if not standalone_mode:
            return code
        sys.exit(code if isinstance(code, int) else OK)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _check_text([*args, os.getcwd()])
        if args[:1] == ["--version"] and args[1:]:
            fail(f"--version got {args[1]!r}; expected nothing after it")
        found: list[str] = super().parse_args(ctx, args)
        return found

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self._listing = True
        super().format_help(ctx, formatter)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return self.commands.get(cmd_name) if self._listing or cmd_name not in VERBS else _built(cmd_name)


_UsageError: Any = typer.BadParameter.__mro__[1]
"""What typer raises for words that it does not understand: of click, or of its own copy of click."""


def _tell(error: Any, words: list[str]) -> None:
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return
    path = error.ctx.command_path if error.ctx is not None else "structgrad"
    said = " ".join(error.format_message().split()).rstrip(".")
    given = _given(getattr(getattr(error, "param", None), "opts", ()), words)
    typer.echo(f"error: {f'got {given!r}: ' if given else ''}{said}; see `{path} --help`", err=True)


def _given(spellings: Sequence[str], words: list[str]) -> str:
    """The last value of an option; empty where it has none."""
    pairs = zip(words, [*words[1:], ""], strict=True)
    values = [word.partition("=")[2] if "=" in word else after for word, after in pairs if word.partition("=")[0] in spellings]
    return values[-1] if values else ""


def _check_text(words: Iterable[str]) -> None:
    """Names of files may be any bytes; those that are no text cannot be written to tables, pages and commands."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            fail(f"got the path {word.encode(errors='surrogateescape')!r}, whose name is not UTF-8; rename it, or use a symbolic link")


def _said(verb: Callable[..., Any] | typer.Typer) -> str:
    return str(verb.info.help) if isinstance(verb, typer.Typer) else inspect.getdoc(verb) or ""


def _built(name: str) -> Any:
    """A verb with its options."""
    verb = VERBS[name]
    if isinstance(verb, typer.Typer):
        alone = verb
    else:
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, context_settings=_HELP)
        alone.command(name, help=re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.getdoc(verb) or ""))(verb)  # one line per paragraph
    command = typer.main.get_command(alone)
    command.name = name
    return command


app = typer.Typer(
    name="structgrad",
    cls=_Verbs,
    help="Compare gradient estimators through discrete latent structures by bias, variance and time, and test your own.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings=_HELP,
)


def main() -> None:
    """The entry point of the console script."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - for the rest of the process
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a console of another encoding loses a character, and no command its output
    try:
        app()
    except OSError as error:
        _unwritten(error)
    finally:
        try:
            sys.stdout.flush()
        except OSError as error:
            _unwritten(error)


def _unwritten(error: OSError) -> NoReturn:
    """Exit with one sentence if the output cannot be written, such as to a full disk; silently if its reader has left."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what is left of it
    if error.errno != errno.EPIPE:
        with suppress(OSError):
            sys.stderr.write(f"error: cannot write to standard output ({error.strerror})\n")
    sys.exit(BAD_INPUT)


def _version(wanted: bool) -> None:
    if wanted:
        from .. import __version__

        typer.echo(f"structgrad {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")] = False,
) -> None:
    pass


if __name__ == "__main__":
    main()
