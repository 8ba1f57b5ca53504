"""``structgrad replay``: measure a stored cell again."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import Annotated, Any

import typer

from ...suites.text import duration, plural, significant
from .outcome import BAD_INPUT, OK, REGRESSED, sentences

_SHOWN = 12


def replay(
    cell: Annotated[
        str,
        typer.Argument(
            help="Start of a cell id, or a part or glob of 'suite problem stage estimator'.", metavar="CELL", show_default=False
        ),
    ],
    *,
    run: Annotated[str, typer.Option("--run", "-r", help="Folder or URL of the run.", metavar="DIR", show_default=False)],
    every: Annotated[bool, typer.Option("--all", help="Replay all matching cells. Without --all, exactly one must match.")] = False,
    pdb: Annotated[bool, typer.Option("--pdb", help="Open the debugger if the cell fails.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure a cell of a run again in this process, and compare the numbers with the stored ones.

    Numbers depend only on the plan, so they are bit-identical unless the code or a library changed them. Times and memory may differ.

    Exit codes: 0 identical, 1 different, 2 unknown cell or bad input.
    """
    with sentences(), ExitStack() as stack:
        from ...suites.running import replay_cell
        from ...suites.running.remote import reading
        from .run import launch

        launch.pin_threads()
        folder = stack.enter_context(reading(run))
        plan = replay_cell.plan_of_run(folder)
        found = replay_cell.find_cells(replay_cell.cells_of(folder), cell)
        if len(found) > 1 and not every:
            _too_many(cell, found)
        if pdb:
            _debug(plan, found[0])
            raise typer.Exit(OK)
        results = []
        for one in found:
            results.append(replay_cell.replay_cell(folder, plan, one))
            if not as_json:
                _say(results[-1])
        if as_json:
            typer.echo(json.dumps([_record(result) for result in results], indent=2, default=str, ensure_ascii=False))
    raise typer.Exit(REGRESSED if any(_moved(result) for result in results) else OK)


def _too_many(pattern: str, found: list[Any]) -> None:
    lines = [f"  {cell.identity[:12]}  {cell.label}" for cell in found[:_SHOWN]]
    rest = [f"  and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
    typer.echo(f"error: `replay` got {pattern!r}, which matches {len(found)} cells; name one of them, or use --all", err=True)
    typer.echo("\n".join(lines + rest), err=True)
    raise typer.Exit(BAD_INPUT)


def _moved(result: Any) -> bool:
    """Whether anything differs that is no matter of time and memory."""
    return bool(result.differences) and not (result.is_timed and all(_is_number(one) for one in result.differences))


def _is_number(difference: Any) -> bool:
    return difference.column not in ("row", "status", "reason", "error_type")


def _say(result: Any) -> None:
    typer.echo(f"{result.cell.identity[:12]}  {result.cell.label}: {_verdict(result)} ({result.rows} rows, {duration(result.seconds)})")
    for one in result.differences[:_SHOWN]:
        row = " ".join(part for part in one.row if part)
        distance = "" if one.relative is None else f", off by {significant(one.relative, 2)}"
        typer.echo(f"  {row} {one.column}: stored {_short(one.stored)}, measured {_short(one.measured)}{distance}")
    if len(result.differences) > _SHOWN:
        typer.echo(f"  and {len(result.differences) - _SHOWN} more")
    if result.traceback:
        typer.echo(result.traceback.rstrip())


def _verdict(result: Any) -> str:
    if not result.differences:
        return "bit-identical"
    if not _moved(result):
        return "the same but for times and bytes, which never repeat"
    rows = len({one.row for one in result.differences})
    return f"differs in {plural(rows, 'row')}"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _record(result: Any) -> dict[str, Any]:
    differences = [{**vars(one), "row": list(one.row)} for one in result.differences]
    return {
        "cell": result.cell.identity,
        "label": result.cell.label,
        "identical": not result.differences,
        "differs": _moved(result),
        "rows": result.rows,
        "differences": differences,
        "traceback": result.traceback,
        "seconds": result.seconds,
    }


def _debug(plan: Any, cell: Any) -> None:
    """The debugger at the place of the exception; a line where there is none."""
    import pdb
    import sys
    import traceback

    from ...suites.running.replay_cell import raise_live

    try:
        raise_live(plan, cell)
    except Exception:  # the estimators may be anybody's
        traceback.print_exc()
        pdb.post_mortem(sys.exc_info()[2])
    else:
        typer.echo(f"{cell.label}: no error was raised")
