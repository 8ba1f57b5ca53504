"""Folders of real score files and of the data of tasks."""

from __future__ import annotations

import os
from pathlib import Path

DATA_VARIABLE = "STRUCTGRAD_DATA"

DATA_FOLDERS: tuple[str, ...] = (f"${DATA_VARIABLE}", "./data/scores", "../shared/data/scores")
"""Folders that are searched for real score files, in this order."""


def default_data() -> str | None:
    """The first of `DATA_FOLDERS` that exists; None if none does.

    Raises:
        ValueError: the environment variable names no folder; the next one would hold other scores.
    """
    chosen = os.environ.get(DATA_VARIABLE)
    if chosen and not Path(chosen).is_dir():
        raise ValueError(f"{DATA_VARIABLE} is {chosen!r}, which is no folder; set it to the folder of the score files, or unset it")
    folders = [chosen or "" if folder == f"${DATA_VARIABLE}" else folder for folder in DATA_FOLDERS]
    return next((folder for folder in folders if folder and Path(folder).is_dir()), None)


TASK_VARIABLE = "STRUCTGRAD_TASK_DATA"

TASK_FOLDERS: tuple[str, ...] = (f"${TASK_VARIABLE}", "./data", "../shared/data")
"""Folders that are searched for the data of tasks. Each kind has its own subfolder, such as ``listops``."""


def task_file(name: str) -> Path | None:
    """A file of a task's data, such as ``listops/train_4000.tsv``, in the first of `TASK_FOLDERS` that holds it; None if none does."""
    chosen = os.environ.get(TASK_VARIABLE)
    folders = [chosen or "" if folder == f"${TASK_VARIABLE}" else folder for folder in TASK_FOLDERS]
    found = (Path(folder) / name for folder in folders if folder)
    return next((path for path in found if path.is_file()), None)
