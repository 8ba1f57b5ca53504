"""Grid of the benchmarks: a small part by default, all of it with ``STRUCTGRAD_ASV=full``.

asv passes the positions of parameters to a benchmark of an old commit, not the parameters. Lists from the registries of that commit would
differ, and numbers would get wrong names. So lists are written out, or read from the files next to this one. Between commits, and between
the default and the full grid, asv joins results by the parameters themselves.
"""

from __future__ import annotations

import ast
import os

from .cases import ROOMS, SMALL

MODE = os.environ.get("STRUCTGRAD_ASV", "")


_REGISTRY = ast.parse((ROOMS / "estimators" / "__init__.py").read_text(encoding="utf-8"))
ESTIMATORS: tuple[str, ...] = tuple(
    ast.literal_eval(key)
    for node in _REGISTRY.body
    if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "ESTIMATORS" and isinstance(node.value, ast.Dict)
    for key in filter(None, node.value.keys)
)
"""The estimators of the registry that is written out in today's file."""

HOME = "home"
"""A case of estimators: each on the first of the `HOMES` that it supports."""

HOMES = SMALL[:4]

TASKS = "clusters l2x_switch listops_frozen listops listops_parser matching fsdd ner parsing pipeline vae listops_generated".split()  # noqa: SIM905
"""The trained tasks; add new ones at the end."""

LEARNERS, OTHER_LEARNERS = ("rloo", "structured_attention"), ("exact", "ste", "sparsemap", "imle")

BATCH, OTHER_BATCHES = (64,), (1, 1024)
DEVICE, OTHER_DEVICES = ("cpu",), ("cuda",)


def chosen(default: tuple[str | int, ...], more: tuple[str | int, ...], mode: str = MODE) -> list[str | int]:
    """The default, and the rest after it in the full grid.

    Raises:
        ValueError: an unknown mode.
    """
    if mode not in ("", "full"):
        raise ValueError(f"STRUCTGRAD_ASV is {mode!r}; expected 'full', or nothing for the default")
    return [*default, *(more if mode else ())]
