"""Grid of the benchmarks: a small part by default, all of it with ``STRUCTGRAD_ASV=full``.

asv hands a benchmark of an old commit the place of its parameters in the list, not the parameters. A list that followed the registries
would be another one there, and a number would go by another's name; so lists are written out, or read from the files beside this one.
Between commits, and between the default and the full grid, asv joins results by the parameters themselves.
"""

from __future__ import annotations

import ast
import os
from pathlib import Path

DEFAULT, FULL = "", "full"
MODE = os.environ.get("STRUCTGRAD_ASV", DEFAULT)

_ROOMS = Path(__file__).parents[2]
"""Beside this file: asv reads both of today, whatever the commit is that it measures."""


def registered(file: Path = _ROOMS / "estimators" / "__init__.py") -> tuple[str, ...]:
    """The estimators of the registry that is written out in a file."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "ESTIMATORS" and isinstance(node.value, ast.Dict):
            return tuple(ast.literal_eval(key) for key in node.value.keys if key is not None)
    raise ValueError(f"{file} writes out no dictionary ESTIMATORS")


ESTIMATORS = registered()

Cases = dict[str, tuple[str, tuple[int, ...]]]

_SMALL: Cases = {
    "subset 10/5": ("subset[k=5]", (10,)),
    "categories 10x2": ("categories", (10, 2)),
    "linear_chain 5x3": ("linear_chain", (5, 3, 3)),
    "policy 5": ("shift_reduce[normalization=local]", (6, 6, 2)),
    "categorical 10": ("categorical", (10,)),
    "alignment 5x5": ("alignment", (5, 5)),
    "constituency 6": ("constituency", (6, 6)),
    "projective_tree 5": ("projective_tree", (6, 6)),
    "spanning_tree 5": ("spanning_tree", (6, 6)),
    "assignment 5": ("assignment", (5, 5)),
    "shift_reduce 5": ("shift_reduce", (6, 6, 2)),
}
_MIDDLE: Cases = {
    "categorical 1000": ("categorical", (1000,)),
    "categories 32x16": ("categories", (32, 16)),
    "subset 20/5": ("subset[k=5]", (20,)),
    "linear_chain 32x16": ("linear_chain", (32, 16, 16)),
    "alignment 32x32": ("alignment", (32, 32)),
    "constituency 10": ("constituency", (10, 10)),
    "projective_tree 10": ("projective_tree", (11, 11)),
    "spanning_tree 10": ("spanning_tree", (11, 11)),
    "assignment 8": ("assignment", (8, 8)),
    "shift_reduce 20": ("shift_reduce", (21, 21, 2)),
}
_LARGE: Cases = {
    "policy 20": ("shift_reduce[normalization=local]", (21, 21, 2)),
    "subset 1000/10": ("subset[k=10]", (1000,)),
    "linear_chain 128x32": ("linear_chain", (128, 32, 32)),
    "alignment 128x128": ("alignment", (128, 128)),
    "constituency 40": ("constituency", (40, 40)),
    "projective_tree 40": ("projective_tree", (41, 41)),
    "spanning_tree 40": ("spanning_tree", (41, 41)),
    "assignment 64": ("assignment", (64, 64)),
}


def declared(folder: Path = _ROOMS / "oracles" / "derived") -> tuple[Cases, Cases]:
    """Small and middle cases of the oracles that state their derivations: what their files say here, not those of the commit.

    The numbers are sizes, of which a commit makes the shape. A file without ``Examples(small=..., usual=...)`` has no case.
    """
    small, middle = Cases(), Cases()
    for path in sorted(folder.glob("[!_]*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Examples":
                said = {word.arg: ast.literal_eval(word.value) for word in node.keywords}
                for cases, size in ((small, said["small"][0]), (middle, said["usual"])) if {"small", "usual"} <= said.keys() else ():
                    cases[f"{path.stem} {'x'.join(map(str, size))}"] = (path.stem, size)
    return small, middle


_DECLARED_SMALL, _DECLARED_MIDDLE = declared()
SIZED = _DECLARED_SMALL.keys() | _DECLARED_MIDDLE.keys()
"""Cases of a size, not of a shape."""

CASES = _SMALL | _DECLARED_SMALL | _MIDDLE | _DECLARED_MIDDLE | _LARGE
"""An oracle with options, and the shape of one score tensor, or its size where the case is `SIZED`; small, middle and large."""

HOMES = tuple(CASES)[:4]
"""Where estimators are measured by default: each on the first that it serves."""

SMALL, MIDDLE, LARGE = (*_SMALL, *_DECLARED_SMALL), (*_MIDDLE, *_DECLARED_MIDDLE), tuple(_LARGE)
ONE_OF_EACH = MIDDLE
"""Where the operations of oracles are timed by default."""

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
