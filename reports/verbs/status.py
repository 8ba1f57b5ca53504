"""``structgrad status``: the state of runs, read from their folders alone."""

from __future__ import annotations

import json
import platform
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ...suites.base import FAILED
from ...suites.processors import is_running
from .options import RUNS
from .outcome import sentences

_ERRORS = 3


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

        found = []
        for given in runs or [str(RUNS)]:
            with reading(given) as place:
                found += [state(folder, given if is_url(given) else folder) for folder in runs_below(place)]
    if as_json:
        typer.echo(json.dumps([_as_json(one) for one in found], indent=2, ensure_ascii=False))
        return
    for one in found:
        for line in _lines(one):
            typer.echo(line)


@dataclass(frozen=True)
class State:
    """The state of a run.

    Attributes:
        folder: its path or URL.
        status: running, killed, interrupted, broken (nothing could be written any more), stopped (by a limit or failure), finished.
        done, failed, left: numbers of cells. ``suites``: these three numbers by suite. ``skipped``: number of pairs that do not fit.
        errors: the reasons of some failed cells, the latest first.
        started, finished: times. ``command``: continues the run.
    """

    folder: Path | str
    status: str
    done: int
    failed: int
    left: int
    skipped: int
    suites: dict[str, tuple[int, int, int]]
    errors: tuple[str, ...]
    started: str | None
    finished: str | None
    command: str | None


def runs_below(folder: Path) -> list[Path]:
    """The folder if it is a run, else the runs directly below it, the latest first.

    Raises:
        ValueError: there is none.
    """
    from ...suites.running.store import FILE
    from ..results import TABLE

    def changes(run: Path) -> list[float]:
        return [path.stat().st_mtime for name in (FILE, TABLE) if (path := run / name).is_file()]

    if changes(folder):
        return [folder]
    found = {path: max(times) for path in folder.iterdir() if (times := changes(path))} if folder.is_dir() else {}
    if not found:
        raise ValueError(f"`status` found no run in {folder}; expected a run folder, or a folder that contains runs")
    return sorted(found, key=lambda path: found[path], reverse=True)


def state(folder: Path, place: Path | str | None = None) -> State:
    """The state of a run.

    Args:
        folder: of the run, or a copy of it.
        place: the path or URL that is shown.

    Raises:
        ValueError: a plan that is damaged or of another version.
    """
    from ...suites.running.store import FAILED_KIND, Store, holds_run
    from .. import results

    manifest = results.manifest_of(folder)
    counts: Mapping[tuple[str, str | None], int]
    if holds_run(folder) or not (folder / results.TABLE).is_file():
        with Store(folder) as store:
            counts, skipped = store.counts()
            errors = [_error(row) for cell in store.failed(_ERRORS) for row in [row for row in cell.rows if row.status in FAILED][:1]]
    else:
        frame, _ = results.read(folder)
        cells = frame[frame["cell"] != ""]
        failed = cells[cells["status"].isin(FAILED)]
        pairs = cells[["suite", "cell"]].drop_duplicates().assign(failed=lambda some: some["cell"].isin(failed["cell"]))
        counts = Counter((suite, FAILED_KIND if broken else "done") for suite, _, broken in pairs.itertuples(index=False))
        skipped = len(frame[(frame["cell"] == "") & (frame["status"] == "skipped")][["problem", "estimator"]].drop_duplicates())
        errors = [_error(row) for row in failed.drop_duplicates("cell").tail(_ERRORS).itertuples()]
    suites: dict[str, Counter[str]] = defaultdict(Counter)
    for (suite, kind), count in counts.items():
        suites[suite]["left" if kind is None else "failed" if kind == FAILED_KIND else "done"] += count
    total = sum(suites.values(), Counter[str]())
    return State(
        folder=place or folder,
        status=_status(manifest, total["left"]),
        done=total["done"],
        failed=total["failed"],
        left=total["left"],
        skipped=skipped,
        suites={name: (count["done"], count["failed"], count["left"]) for name, count in suites.items()},
        errors=tuple(errors),
        started=manifest.get("started"),
        finished=manifest.get("finished"),
        command=manifest.get("command"),
    )


def _error(row: Any) -> str:
    return f"{row.status}: {row.estimator} on {row.problem}, {row.stage}: {row.reason}"


def _status(manifest: dict[str, Any], left: int) -> str:
    """The status in ``run.json``; a running one without a process was killed."""
    said = str(manifest.get("status", "killed" if left else "finished"))
    return "killed" if said == "running" and not _is_alive(manifest.get("process", {})) else said


def _is_alive(process: dict[str, Any]) -> bool:
    """Whether the process of a run is alive; one of another machine is taken to be."""
    if process.get("host") != platform.node():
        return bool(process)
    try:
        return is_running(int(process["id"]))
    except (ValueError, KeyError):
        return False


def _lines(found: State) -> list[str]:
    """Lines that show a state."""
    suites = "; ".join(
        f"{name} {done}/{done + failed + left}" + f", {failed} failed" * (failed > 0) for name, (done, failed, left) in found.suites.items()
    )
    when = f", since {found.started}" if found.status == "running" and found.started else f", {found.finished}" if found.finished else ""
    return [
        f"{found.folder}: {found.status}{when}",
        f"  {found.done} done, {found.failed} failed, {found.left} left; {found.skipped} pairs skipped",
        f"  {suites}",
        *(f"  {error}" for error in found.errors),
        *([f"  continue with: {found.command}"] if found.command and (found.left or found.failed) and found.status != "running" else []),
    ]


def _as_json(found: State) -> dict[str, Any]:
    """A state as JSON."""
    suites = {name: dict(zip(("done", "failed", "left"), counts, strict=True)) for name, counts in found.suites.items()}
    return {**vars(found), "folder": str(found.folder), "suites": suites, "errors": list(found.errors)}
