"""Grid of the benchmarks: a small part by default, all of it with ``STRUCTGRAD_ASV=full``.

asv hands a benchmark of an old commit the place of its parameters in the list, not the parameters. A list that followed the registries
would be another one there, and a number would go by another's name; so lists are written out, or read from the files beside this one.
Between commits, and between the default and the full grid, asv joins results by the parameters themselves.
"""

from __future__ import annotations

import ast
import os
from pathlib import Path

from .cases import ROOMS, SMALL

DEFAULT, FULL = "", "full"
MODE = os.environ.get("STRUCTGRAD_ASV", DEFAULT)


def registered(file: Path = ROOMS / "estimators" / "__init__.py") -> tuple[str, ...]:
    """The estimators of the registry that is written out in a file."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "ESTIMATORS" and isinstance(node.value, ast.Dict):
            return tuple(ast.literal_eval(key) for key in node.value.keys if key is not None)
    raise ValueError(f"{file} writes out no dictionary ESTIMATORS")


ESTIMATORS = registered()

HOME = "home"
"""A case of estimators: each on the first of the `HOMES` that it serves."""

HOMES = SMALL[:4]

TASKS = "clusters l2x_switch listops_frozen listops listops_parser matching fsdd ner parsing pipeline vae listops_generated".split()  # noqa: SIM905
"""What is learnt, new ones last: a task that comes must be added here."""

LEARNERS, OTHER_LEARNERS = ("rloo", "structured_attention"), ("exact", "ste", "sparsemap", "imle")

BATCH, OTHER_BATCHES = (64,), (1, 1024)
DEVICE, OTHER_DEVICES = ("cpu",), ("cuda",)


def chosen(default: tuple[str | int, ...], more: tuple[str | int, ...], mode: str = MODE) -> list[str | int]:
    """The default, and in the full grid the rest behind it.

    Raises:
        ValueError: a mode that there is not.
    """
    if mode not in (DEFAULT, FULL):
        raise ValueError(f"STRUCTGRAD_ASV is {mode!r}; expected {FULL!r}, or nothing for the default")
    return [*default, *(more if mode == FULL else ())]
