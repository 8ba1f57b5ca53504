"""The line of an estimator that declares something, for whoever has to change it."""

from __future__ import annotations

import inspect
import os
import re
from pathlib import Path
from typing import Any

from ...estimators.base import Estimator


def to_change(estimator: Estimator[Any], name: str, code: str) -> str:
    """Where a declaration stands, and what it must be: in the class itself, or to be added where it is inherited.

    Example:
        >>> from structgrad.estimators import Reinforce
        >>> to_change(Reinforce(), "deterministic", "deterministic = True")
        'add to Reinforce, which inherits `deterministic` of Estimator: `deterministic = True`'
    """
    kind = type(estimator)
    owner = next(one for one in kind.__mro__ if name in vars(one))
    if owner is not kind:
        return f"add to {kind.__name__}, which inherits `{name}` of {owner.__name__}: `{code}`"
    return f"{_line(owner, name) or kind.__name__}: `{code}`"


def _line(owner: type, name: str) -> str:
    """The file and the line where a class declares a name; empty where its source is not there."""
    try:
        lines, start = inspect.getsourcelines(owner)
        file = Path(inspect.getsourcefile(owner) or "")
    except (OSError, TypeError):
        return ""
    pattern = re.compile(rf"\s*(async\s+)?(def\s+)?{name}\b")
    found = next((number for number, line in enumerate(lines, start) if pattern.match(line)), None)
    return "" if found is None else f"{os.path.relpath(file) if file.is_relative_to(Path.cwd()) else file.name}, line {found}"
