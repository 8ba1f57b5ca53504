"""A run that is asked for again when all of it is measured: what it said is said again, and nothing is planned, drawn or written.

What was said lies in the folder of the run. It counts only where the same was asked for, with the same code and scores, and where no
file of the run was touched since; classes of one's own are always looked at again, for they may have changed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ....suites.processors import processors
from ....suites.running import store
from ....suites.running.parts import journal
from ....suites.running.parts.journal import DONE
from ....suites.running.remote.objects import is_url
from ....suites.running.work import Grid
from ....suites.score_folders import default_data
from ... import results
from ...terminal import Told
from . import stamps

FILE = "told.json"
RUNS = Path("structgrad-results")
"""Where runs lie that were not told where to."""

_PARTS = (store.CELLS, journal.FOLDER, store.PLAN, results.TABLE, results.MANIFEST, results.PAGE)
_SPOKEN = ("quiet", "verbose", "as_json")
_AFRESH = ("file", "plugin", "rerun", "fresh", "dry_run")


def request(options: Mapping[str, Any]) -> str | None:
    """A hash of all that a run depends on, from the options of the command; None where more than that may have changed."""
    problems = (name.removeprefix("task:").removeprefix("learnt:") for name in options["problem"])
    own = any(":" in name for name in (*options["estimator"], *problems, options["oracle"] or ""))
    if own or stamps.plugins() or options["device"] != "cpu" or any(options[name] for name in _AFRESH):
        return None
    data = options["data"] or (None if options["builtin"] else default_data())
    asked = {name: value for name, value in options.items() if name not in _SPOKEN}
    scores = stamps.of_folder(Path(data), ".") if data else ""
    return stamps.of_lines([json.dumps(asked, sort_keys=True, default=str), os.getcwd(), str(processors()), scores, stamps.of_code()])


def recalled(asked: str, out: str | None) -> Told | None:
    """What the finished run of a request said; None where there is none, or where its files have changed, or may have under a URL."""
    if is_url(out):
        return None
    for folder in [Path(out)] if out else [path.parent for path in RUNS.glob(f"*/{FILE}")]:
        try:
            found = json.loads((folder / FILE).read_text(encoding="utf-8"))
            if found["asked"] == asked and found["files"] == stamps.of_folder(folder, *_PARTS):
                store.check_writable(folder)
                told: Told = found["told"]
                return told
        except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
            continue
    return None


def told_by(command: str, folder: Path, work: Grid) -> Told | None:
    """What the finished run of a command said, where its plan has the same cells now and its files are as they were; else None.

    It serves classes of one's own too, for the cells have been planned again.
    """
    try:
        found = json.loads((folder / FILE).read_text(encoding="utf-8"))
        there = store.kinds(folder) if found["command"] == command else {}
        whole = all(there.get(cell.identity) == DONE for cell in work.cells)
        if whole and work.cells and found["skips"] == len(work.skips) and found["files"] == stamps.of_folder(folder, *_PARTS):
            told: Told = found["told"]
            return told
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return None
    return None


def remember(asked: str | None, command: str, folder: Path, work: Grid, told: Told) -> None:
    """Keep what a finished run said; without a request it is told again when the plan was looked at."""
    content = {"asked": asked, "command": command, "skips": len(work.skips), "files": stamps.of_folder(folder, *_PARTS), "told": told}
    results.write_whole(folder / FILE, json.dumps(content, ensure_ascii=False).encode())
