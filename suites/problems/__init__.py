"""Problems: scores and losses."""

from ..base import split_loss
from ..trust import default_data
from .losses import LOSSES, Offset, make_loss

from .named import (  # isort: skip
    BUILT_IN_PROBLEMS, LOSS_NAMES, OWN_LOSS, PROBLEMS, REAL_PROBLEMS, TaskProblem, available, comes_from_task, from_file, is_code,
    is_task, kinds_of, learner_of, load, stages_of, task_names, with_loss,
)  # fmt: skip
from .regimes import ENTROPY_STAGES, STAGES
from .sized import is_sized, refuse_unsized, sized_name

__all__ = [
    "BUILT_IN_PROBLEMS", "ENTROPY_STAGES", "LOSSES", "LOSS_NAMES", "OWN_LOSS", "PROBLEMS", "REAL_PROBLEMS", "STAGES", "Offset",
    "TaskProblem", "available", "comes_from_task", "default_data", "from_file", "is_code", "is_sized", "is_task", "kinds_of",
    "learner_of", "load", "make_loss", "refuse_unsized", "sized_name", "split_loss", "stages_of", "task_names", "with_loss",
]  # fmt: skip
