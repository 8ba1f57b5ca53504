"""``structgrad replay``: measure a stored cell again."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...suites.text import duration, plural, significant
from .outcome import BAD_INPUT, OK, REGRESSED, sentences

if TYPE_CHECKING:
    from ...suites.running.planning.plan import Plan
    from ...suites.running.replay_cell import ReplayedCell
    from ...suites.running.work import Cell

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
            lines = [f"  {one.identity[:12]}  {one.label}" for one in found[:_SHOWN]]
            rest = [f"  and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
            typer.echo(f"error: `replay` got {cell!r}, which matches {len(found)} cells; name one of them, or use --all", err=True)
            typer.echo("\n".join(lines + rest), err=True)
            raise typer.Exit(BAD_INPUT)
        if pdb:
            _debug(plan, found[0])
            raise typer.Exit(OK)
        records = []
        for one in found:
            records.append(_record(replay_cell.replay_cell(folder, plan, one)))
            if not as_json:
                _say(records[-1])
        if as_json:
            typer.echo(json.dumps(records, indent=2, default=str, ensure_ascii=False))
    raise typer.Exit(REGRESSED if any(record["differs"] for record in records) else OK)


def _record(result: ReplayedCell) -> dict[str, Any]:
    """The result as JSON values; times and memory, which never repeat, may move in a cell that measures them."""
    moved = [one for one in result.differences if not result.is_timed or one.column in ("row", "status", "reason", "error_type")]
    return {
        "cell": result.cell.identity,
        "label": result.cell.label,
        "identical": not result.differences,
        "differs": bool(moved),
        "rows": result.rows,
        "differences": [{**vars(one), "row": list(one.row)} for one in result.differences],
        "traceback": result.traceback,
        "seconds": result.seconds,
    }


def _say(found: dict[str, Any]) -> None:
    differences = found["differences"]
    verdict = "bit-identical" if found["identical"] else "the same but for times and bytes, which never repeat"
    if found["differs"]:
        verdict = f"differs in {plural(len({tuple(one['row']) for one in differences}), 'row')}"
    typer.echo(f"{found['cell'][:12]}  {found['label']}: {verdict} ({found['rows']} rows, {duration(found['seconds'])})")
    for one in differences[:_SHOWN]:
        distance = "" if one["relative"] is None else f", off by {significant(one['relative'], 2)}"
        stored, measured = (text if len(text) <= 40 else f"{text[:37]}..." for text in (str(one["stored"]), str(one["measured"])))
        typer.echo(f"  {' '.join(filter(None, one['row']))} {one['column']}: stored {stored}, measured {measured}{distance}")
    if len(differences) > _SHOWN:
        typer.echo(f"  and {len(differences) - _SHOWN} more")
    if found["traceback"]:
        typer.echo(found["traceback"].rstrip())


def _debug(plan: Plan, cell: Cell) -> None:
    """Open the debugger at the place of the exception, if there is one."""
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
