"""Benchmark cases by name: a structure with its options, at a size that people use. asv and `tests/benchmarks` share this table.

It imports no oracle: asv reads today's file for every measured commit, and an old commit may lack some of these oracles.
"""

from __future__ import annotations

import ast
from pathlib import Path

Cases = dict[str, tuple[str, tuple[int, ...]]]

ROOMS = Path(__file__).parents[2]
"""The folder of the package of this file: asv reads today's version of both for every measured commit."""

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
    "tied_chain 5x3": ("tied_chain", (8, 3)),
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
    "tied_chain 32x16": ("tied_chain", (48, 16)),
}
_LARGE: Cases = {
    "policy 20": ("shift_reduce[normalization=local]", (21, 21, 2)),
    "subset 1000/10": ("subset[k=10]", (1000,)),
    "linear_chain 128x32": ("linear_chain", (128, 32, 32)),
    "tied_chain 128x32": ("tied_chain", (160, 32)),
    "alignment 128x128": ("alignment", (128, 128)),
    "constituency 40": ("constituency", (40, 40)),
    "projective_tree 40": ("projective_tree", (41, 41)),
    "spanning_tree 40": ("spanning_tree", (41, 41)),
    "assignment 64": ("assignment", (64, 64)),
}
_BETWEEN: Cases = {
    "constituency 20": ("constituency", (20, 20)),
    "projective_tree 20": ("projective_tree", (21, 21)),
    "spanning_tree 20": ("spanning_tree", (21, 21)),
    "assignment 16": ("assignment", (16, 16)),
}
_HUGE: Cases = {
    "alignment 512x512": ("alignment", (512, 512)),
    "assignment 1000": ("assignment", (1000, 1000)),
}


def declared(folder: Path = ROOMS / "oracles" / "derived") -> tuple[Cases, Cases]:
    """Small and middle cases of the oracles that state their derivations, from today's files.

    The numbers are sizes, from which a commit makes the shape. A file without ``Examples(small=..., usual=...)`` has no case.
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

CASES = _SMALL | _DECLARED_SMALL | _MIDDLE | _DECLARED_MIDDLE | _BETWEEN | _LARGE | _HUGE
"""An oracle with options, and the shape of one score tensor, or its size if the case is `SIZED`."""

SMALL, MIDDLE, LARGE = (*_SMALL, *_DECLARED_SMALL), (*_MIDDLE, *_DECLARED_MIDDLE), tuple(_LARGE)
"""The cases of asv: by default the middle ones, in the full grid all three."""

BETWEEN, HUGE = tuple(_BETWEEN), tuple(_HUGE)
"""Cases that `tests/benchmarks` times too, and the largest ones, for devices."""
