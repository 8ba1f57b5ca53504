"""``structgrad status``: the state of runs, read from their folders alone."""

import json
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from ...suites.base import FAILED
from .options import RUNS
from .outcome import sentences

ERRORS_SHOWN = 3


def status(
    runs: Annotated[
        list[str] | None,
        typer.Argument(help="Folders or URLs of runs, or folders that contain runs.", metavar="RUN", show_default="./structgrad-results"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the progress of runs: cells done, failed and left, the latest errors, and the command to continue."""
    with sentences():
        from ...suites.running.remote import is_url, reading
        from ...suites.running.store import FILE

        found = []
        for given in runs or [str(RUNS)]:
            with reading(given) as place:
                # The folder if it is a run, else the runs directly below it, the latest first.
                below = [path.parent for path in sorted(place.glob(f"*/{FILE}"), key=lambda path: -path.stat().st_mtime)]
                folders = [place] if (place / FILE).is_file() else below
                if not folders:
                    raise ValueError(f"`status` found no run in {place}; expected a run folder, or a folder that contains runs")
                found += [state(folder, given if is_url(given) else str(folder)) for folder in folders]
    text = "\n".join(line for one in found for line in _lines(one))
    typer.echo(json.dumps(found, indent=2, ensure_ascii=False) if as_json else text)


def state(folder: Path, place: str) -> dict[str, Any]:
    """The state of a run in a folder, which may be a copy of the place that is shown.

    Its status is running, killed, interrupted, broken (nothing could be written any more), stopped (by a limit or failure) or finished.
    """
    from ...suites.running.store import Store
    from ...suites.running.work import FAILED_KIND
    from .. import results

    manifest = results.manifest_of(folder)
    with Store(folder) as store:
        counts, skipped = store.counts()
        errors = [next(row for row in cell.rows if row.status in FAILED) for cell in store.failed(ERRORS_SHOWN)]
    suites: dict[str, dict[str, int]] = {}
    for (suite, kind), count in counts.items():
        name = "left" if kind is None else "failed" if kind == FAILED_KIND else "done"
        suites.setdefault(suite, {"done": 0, "failed": 0, "left": 0})[name] += count
    total = {name: sum(each[name] for each in suites.values()) for name in ("done", "failed", "left")}
    recorded = str(manifest.get("status", "killed" if total["left"] else "finished"))
    return {
        "folder": place,
        "status": "killed" if recorded == "running" and not _is_alive(manifest.get("process", {})) else recorded,
        **total,
        "skipped": skipped,
        "suites": suites,
        "errors": [f"{row.status}: {row.estimator} on {row.problem}, {row.stage}: {row.reason}" for row in errors],
        **{name: manifest.get(name) for name in ("started", "finished", "command")},
    }


def _is_alive(process: dict[str, Any]) -> bool:
    """Whether the process of a run is alive; one of another machine is taken to be."""
    if process.get("host") != platform.node():
        return bool(process)
    try:
        os.kill(int(process["id"]), 0)
    except PermissionError:  # of another user
        return True
    except (ValueError, KeyError, ProcessLookupError, OverflowError):
        return False
    return True


def _lines(found: dict[str, Any]) -> Iterator[str]:
    running = found["status"] == "running"
    since, until = found["started"], found["finished"]
    yield f"{found['folder']}: {found['status']}" + (f", since {since}" if running and since else f", {until}" if until else "")
    yield "  {done} done, {failed} failed, {left} left; {skipped} pairs skipped".format(**found)
    yield "  " + "; ".join(
        f"{name} {each['done']}/{sum(each.values())}" + f", {each['failed']} failed" * (each["failed"] > 0)
        for name, each in found["suites"].items()
    )
    yield from (f"  {error}" for error in found["errors"])
    if found["command"] and (found["left"] or found["failed"]) and not running:
        yield f"  continue with: {found['command']}"
