"""The command line, ``structgrad``: its verbs are in `VERBS`."""

import errno
import inspect
import io
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any, NoReturn, get_type_hints

import typer
from typer.core import TyperGroup

from .verbs import audit, baseline, catalogue, compare, describe, doctor, export, init, options, recommend, report, status
from .verbs.outcome import BAD_INPUT, OK, fail
from .verbs.run import command as run, merge

VERBS: dict[str, Callable[..., Any] | typer.Typer] = {
    "list": catalogue.list_,
    "describe": describe.describe,
    "init": init.init,
    "doctor": doctor.doctor,
    "run": run.run,
    "learn": run.learn,
    "recommend": recommend.recommend,
    "status": status.status,
    "merge": merge.merge,
    "report": report.report,
    "compare": compare.compare,
    "gate": compare.gate,
    "baseline": baseline.app,
    "export": export.export,
    "audit": audit.audit,
}
"""In the order of the help: functions of a dataclass of options, or of typer's parameters, and an app for a verb with verbs of its own."""

_UsageError: Any = typer.BadParameter.__mro__[1]
"""Base of typer's errors for words that it does not understand: of click, or of its own copy of click."""


class _Verbs(TyperGroup):
    """The verbs; wrong words of a call end with one sentence."""

    def main(self, args: Any = None, prog_name: Any = None, *, standalone_mode: bool = True, **settings: Any) -> Any:  # type: ignore[override]
        """Run a verb; words that mean nothing end with one sentence, as any wrong input does."""
        words = list(sys.argv[1:] if args is None else args)
        try:
            code = super().main(args, prog_name, standalone_mode=False, **settings)
        except _UsageError as error:
            if not standalone_mode:
                raise
            if type(error).__name__ == "NoArgsIsHelpError":
                error.show()
                sys.exit(BAD_INPUT)
            flags = getattr(getattr(error, "param", None), "opts", ())
            pairs = [(word.partition("="), after) for word, after in zip(words, [*words[1:], ""], strict=True)]
            given = [value if equals else after for (flag, equals, value), after in pairs if flag in flags][-1:]
            message = " ".join(error.format_message().split()).rstrip(".")
            path = error.ctx.command_path if error.ctx is not None else "structgrad"
            typer.echo(f"error: {f'got {given[0]!r}: ' if any(given) else ''}{message}; see `{path} --help`", err=True)
            sys.exit(BAD_INPUT)
        if not standalone_mode:
            return code
        sys.exit(code if isinstance(code, int) else OK)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for word in (*args, os.getcwd()):
            try:
                word.encode()  # names of files may be any bytes, and tables, pages and commands are text
            except UnicodeEncodeError:
                name = word.encode(errors="surrogateescape")
                fail(f"got the path {name!r}, whose name is not UTF-8; rename it, or use a symbolic link")
        if args[:1] == ["--version"] and args[1:]:
            fail(f"--version got {args[1]!r}; expected nothing after it")
        return list(super().parse_args(ctx, args))

    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)  # typer puts a verb with verbs of its own last


app = typer.Typer(
    name="structgrad",
    cls=_Verbs,
    help="Compare gradient estimators through discrete latent structures by bias, variance and time, and test your own.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _name, _verb in VERBS.items():
    if isinstance(_verb, typer.Typer):
        app.add_typer(_verb, name=_name)
    else:
        _text = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.getdoc(_verb) or "")  # one line per paragraph
        _kind = get_type_hints(_verb).get("options")
        app.command(_name, help=_text)(options.takes(_kind, _verb) if _kind else _verb)


def main() -> None:
    """Run the command line: the entry point of the console script."""
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
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for the rest of the output
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
