"""Exit codes of a command, and one sentence for each error."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import typer

OK, REGRESSED, BAD_INPUT, SOME_FAILED, UNDECIDED, NOTHING_TO_COMPARE, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130
"""Exit codes: all well; a proven regression or a broken claim; unknown names and bad input; some cells failed; inconclusive where that is
not allowed; no comparable baseline; Ctrl-C."""

# Words in torch's errors for sizes that are too large.
_TOO_LARGE = ("allocate memory", "not enough memory", "out of memory", "overflow", "invalid for input of size")


def fail(message: object, code: int = BAD_INPUT) -> NoReturn:
    """End with one sentence on standard error."""
    from ...suites.trust import visible

    typer.echo(f"error: {visible(str(message))}", err=True)
    raise typer.Exit(code)


def write_output(verb: str, path: Path, content: bytes, title: str = "") -> None:
    """Write the output of a verb and print its path after a title; print the output itself if the path is -."""
    from ...suites.trust import write_whole

    if str(path) == "-":
        typer.get_binary_stream("stdout").write(content)
        return
    try:
        write_whole(path, content)
    except OSError as error:
        raise ValueError(f"`{verb}` cannot write {path} ({error.strerror}); name another file with --output") from error
    typer.echo(f"{title or verb}: {path.resolve()}")


def code_of(counts: Mapping[str, int] | None) -> int:
    """The exit code of a run with these counts of cells by status."""
    counts = counts or {}
    return REGRESSED if counts.get("broken") else SOME_FAILED if counts.get("failed") else OK


@contextmanager
def sentences() -> Iterator[None]:
    """End bad input with one sentence and exit code 2, an interruption with 130; warnings of this package are sentences too."""
    ordinary = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if category.__module__.partition(".")[0] == __package__.partition(".")[0]:
            typer.echo(f"warning: {message}", err=True)
        else:
            ordinary(message, category, *place, **more)

    warnings.showwarning = show
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        from ...oracles.sources import own_fault

        text = " ".join(str(error).split())
        too_large = any(words in text.lower() for words in _TOO_LARGE)
        if own := own_fault(error):
            fail(f"`{own[0]}` raised {f'{type(error).__name__}: {text}'.rstrip(': .')}, in {own[1]}; correct it first")
        if isinstance(error, OSError):
            fail(f"{error.filename}: {error.strerror}" if error.strerror and error.filename else error)
        if isinstance(error, ValueError):
            fail(error)
        if isinstance(error, MemoryError | OverflowError) or (isinstance(error, RuntimeError) and too_large):
            fail(f"got sizes that exceed the memory ({text}); choose smaller ones")
        raise
    finally:
        warnings.showwarning = ordinary
