"""``structgrad status``: how far runs are."""

from __future__ import annotations

from typing import Annotated

import typer

from .outcome import sentences


def status(
    runs: Annotated[
        list[str] | None,
        typer.Argument(help="Folders or URLs of runs, or folders that contain runs.", metavar="RUN", show_default="./structgrad-results"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the progress of runs: cells done, failed and left, the latest errors, and the command to continue."""
    import json

    with sentences():
        from ...suites.running.remote import is_url, reading
        from . import state
        from .options import RUNS

        found = []
        for given in runs or [str(RUNS)]:
            with reading(given) as place:
                found += [state.state(folder, given if is_url(given) else folder) for folder in state.runs_below(place)]
    if as_json:
        typer.echo(json.dumps([state.as_json(one) for one in found], indent=2, ensure_ascii=False))
        return
    for one in found:
        for line in state.lines(one):
            typer.echo(line)
