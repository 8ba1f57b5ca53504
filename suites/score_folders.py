"""Folders of real score files and of the data of tasks."""

from __future__ import annotations

import os
from pathlib import Path

DATA_VARIABLE = "STRUCTGRAD_DATA"
DATA_FOLDERS = ("./data/scores", "../shared/data/scores")  # folders that are searched for real score files if the variable is not set

TASK_VARIABLE = "STRUCTGRAD_TASK_DATA"
TASK_FOLDERS = (f"${TASK_VARIABLE}", "./data", "../shared/data")
"""Folders that are searched for the data of tasks. Each kind has its own subfolder, such as ``listops``."""


def default_data() -> str | None:
    """The folder of the variable, or the first of `DATA_FOLDERS` that exists; None if none does."""
    chosen = os.environ.get(DATA_VARIABLE)
    if chosen and not Path(chosen).is_dir():
        raise ValueError(f"{DATA_VARIABLE} is {chosen!r}, which is no folder; set it to the folder of the score files, or unset it")
    return chosen or next((folder for folder in DATA_FOLDERS if Path(folder).is_dir()), None)


def task_file(name: str) -> Path | None:
    """A file of a task's data, such as ``listops/train_4000.tsv``, in the first of `TASK_FOLDERS` that holds it; None if none does."""
    folders = (os.environ.get(TASK_VARIABLE), *TASK_FOLDERS[1:])
    return next((path for folder in folders if folder and (path := Path(folder) / name).is_file()), None)
