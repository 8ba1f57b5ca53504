"""State of a run: read from its folder alone, while it goes on, after it was killed, and when it is done."""

from __future__ import annotations

import platform
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ...suites.base import FAILED
from ...suites.processors import is_running
from ...suites.running import store
from ...suites.running.parts.journal import DONE, FAILED_KIND, NONFINITE, number_of
from ...suites.running.work import Cell
from .. import results

_ERRORS = 3
_KINDS = {None: "left", DONE: "done", NONFINITE: "done", FAILED_KIND: "failed"}


@dataclass(frozen=True)
class State:
    """A run.

    Attributes:
        folder: where it lies, a path or a URL.
        status: running, killed, interrupted, broken (nothing could be written any more), stopped (as it was told to), finished.
        done, failed, left: cells. ``suites``: the same three numbers by suite. ``skipped``: pairs that do not fit.
        errors: the reasons of some cells that failed, the latest first. ``damaged``: files of cells that cannot be read.
        started, finished: times. ``command``: that goes on with it.
    """

    folder: Path | str
    status: str
    done: int
    failed: int
    left: int
    skipped: int
    suites: dict[str, tuple[int, int, int]]
    errors: tuple[str, ...]
    damaged: int
    started: str | None
    finished: str | None
    command: str | None


def runs_below(folder: Path) -> list[Path]:
    """The runs of a folder: itself, where it is one, else those right below, the latest first.

    Raises:
        ValueError: there is none.
    """
    if (folder / store.PLAN).is_file():
        return [folder]
    found = [path.parent for path in folder.glob(f"*/{store.PLAN}")] if folder.is_dir() else []
    if not found:
        raise ValueError(f"`status` found no run in {folder}; expected a run folder, or a folder that contains runs")
    return sorted(found, key=lambda path: (path / store.PLAN).stat().st_mtime, reverse=True)


def state(folder: Path, place: Path | str | None = None) -> State:
    """The state of a run, whose folder may be a copy of what lies at a place.

    Raises:
        ValueError: a plan that is damaged or of a newer version.
    """
    manifest, (cells, skipped) = results.manifest_of(folder), store.glance(folder)
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    there, damaged = store.seen(folder)
    for suite, identity in cells:
        counts[suite][_KINDS[there.get(identity)]] += 1
    total = sum(counts.values(), Counter())
    failed = [cell for cell in store.planned(folder).cells if there.get(cell.identity) == FAILED_KIND] if total["failed"] else []
    return State(
        folder=place or folder,
        status=_status(manifest, total["left"]),
        done=total["done"],
        failed=total["failed"],
        left=total["left"],
        skipped=skipped,
        suites={name: (count["done"], count["failed"], count["left"]) for name, count in counts.items()},
        errors=tuple(map(partial(_error, folder), sorted(failed, key=partial(_when, folder), reverse=True)[:_ERRORS])),
        damaged=len(damaged),
        started=manifest.get("started"),
        finished=manifest.get("finished"),
        command=manifest.get("command"),
    )


def _when(folder: Path, cell: Cell) -> float:
    """A time that grows with that when a cell was finished; of one in a part, whose files are older, the number of that."""
    try:
        return store.cell_path(folder, cell).stat().st_mtime
    except FileNotFoundError:
        return float(number_of(store.index(folder).owner.get(cell.identity, "")))


def _error(folder: Path, cell: Cell) -> str:
    """What went wrong first in a cell that failed."""
    content = store.stored(folder, cell)
    for row in content["rows"] if content is not None else ():
        if row.status in FAILED:
            return f"{row.status}: {row.estimator} on {row.problem}, {row.stage}: {row.reason}"
    return f"failed: {cell.label}"


def _status(manifest: dict[str, Any], left: int) -> str:
    """What ``run.json`` says; one that runs without a process was killed."""
    said = str(manifest.get("status", "killed" if left else "finished"))
    return "killed" if said == "running" and not _is_alive(manifest.get("process", {})) else said


def _is_alive(process: dict[str, Any]) -> bool:
    """Whether the process of a run is there; of another machine's nobody here can tell, and its word is taken."""
    if process.get("host") != platform.node():
        return bool(process)
    try:
        return is_running(int(process["id"]))
    except (ValueError, KeyError):
        return False


def lines(found: State) -> list[str]:
    """A state for people."""
    suites = "; ".join(
        f"{name} {done}/{done + failed + left}" + f", {failed} failed" * (failed > 0) for name, (done, failed, left) in found.suites.items()
    )
    when = f", since {found.started}" if found.status == "running" and found.started else f", {found.finished}" if found.finished else ""
    return [
        f"{found.folder}: {found.status}{when}",
        f"  {found.done} done, {found.failed} failed, {found.left} left; {found.skipped} pairs skipped",
        f"  {suites}",
        *(f"  {error}" for error in found.errors),
        *([f"  {found.damaged} damaged cell files; these cells will be measured again"] if found.damaged else []),
        *([f"  continue with: {found.command}"] if found.command and (found.left or found.failed) and found.status != "running" else []),
    ]


def _suite(name: str, done: int, failed: int, left: int) -> str:
    return f"{name} {done}/{done + failed + left}" + (f", {failed} failed" if failed else "")


def as_json(found: State) -> dict[str, Any]:
    """A state for programs."""
    suites = {name: dict(zip(("done", "failed", "left"), counts, strict=True)) for name, counts in found.suites.items()}
    return {**vars(found), "folder": str(found.folder), "suites": suites, "errors": list(found.errors)}
