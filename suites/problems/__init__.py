"""Where scores and losses come from."""

from __future__ import annotations

from .losses import LOSSES, make_loss
from .named import DATA_FOLDERS, PROBLEMS, STAGES, available, default_data, from_file, load
from .score_files import Convention, ScoreFile

__all__ = [
    "DATA_FOLDERS",
    "LOSSES",
    "PROBLEMS",
    "STAGES",
    "Convention",
    "ScoreFile",
    "available",
    "default_data",
    "from_file",
    "load",
    "make_loss",
]
