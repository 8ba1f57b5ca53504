"""Problems: scores and losses."""

from __future__ import annotations

from ..base import split_loss
from ..score_folders import DATA_FOLDERS, default_data
from .items import STAGES
from .learning import TASK_PROBLEMS, TaskProblem, comes_from_task, is_task, kinds_of, task_names
from .losses import LOSSES, Offset, make_loss
from .named import (
    BUILT_IN_PROBLEMS,
    LOSS_NAMES,
    OWN_LOSS,
    PROBLEMS,
    REAL_PROBLEMS,
    InstanceFacts,
    available,
    from_file,
    instance_facts,
    load,
    prepare,
    stages_of,
    with_loss,
)
from .regimes import ENTROPY_STAGES
from .score_files import Convention, ScoreFile
from .sized import is_sized, refuse_unsized, sized_name

__all__ = [
    "BUILT_IN_PROBLEMS",
    "DATA_FOLDERS",
    "ENTROPY_STAGES",
    "LOSSES",
    "LOSS_NAMES",
    "OWN_LOSS",
    "PROBLEMS",
    "REAL_PROBLEMS",
    "STAGES",
    "TASK_PROBLEMS",
    "Convention",
    "InstanceFacts",
    "Offset",
    "ScoreFile",
    "TaskProblem",
    "available",
    "comes_from_task",
    "default_data",
    "from_file",
    "instance_facts",
    "is_sized",
    "is_task",
    "kinds_of",
    "load",
    "make_loss",
    "prepare",
    "refuse_unsized",
    "sized_name",
    "split_loss",
    "stages_of",
    "task_names",
    "with_loss",
]
