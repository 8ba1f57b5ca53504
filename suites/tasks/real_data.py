"""Real data of tasks: paths of files, and the loss of labels."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from ..score_folders import TASK_FOLDERS, TASK_VARIABLE, task_file


def absence(task: str, *files: str) -> str | None:
    """Why a task cannot be run because a file is missing, as one sentence; None if it can."""
    missing = [name for name in files if task_file(name) is None]
    if not missing:
        return None
    return (
        f"`{task}` needs the file {missing[0]}, which is in none of {', '.join(TASK_FOLDERS)}; "
        f"set {TASK_VARIABLE} to the folder that holds {missing[0].partition('/')[0]}/"
    )


def present(task: str, name: str) -> Path:
    """The path of a file that a task reads.

    Raises:
        ValueError: it is not there.
    """
    path = task_file(name)
    if path is None:
        raise ValueError(absence(task, name))
    return path


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """``[..., *labels, C]`` -> ``[..., *labels]``: minus the log-probability of every label."""
    return -logits.log_softmax(-1).gather(-1, labels.expand(logits.shape[:-1]).unsqueeze(-1)).squeeze(-1)
