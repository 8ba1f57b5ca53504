"""Parameters of the benchmarks: a structure with its options, at a size that people use, and the estimators and tasks.

By default a small part of the grid is measured, and all of it with ``STRUCTGRAD_ASV=full``. asv passes the positions of parameters to the
benchmarks of a measured commit, whose registries may differ. So lists are written out, or read from today's files.
"""

import ast
import os
from pathlib import Path

Cases = dict[str, tuple[str, tuple[int, ...]]]

ROOMS = Path(__file__).parents[2]  # the folder of the package of this file: asv reads today's version of both for every measured commit

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
SIZED = _DECLARED_SMALL.keys() | _DECLARED_MIDDLE.keys()  # cases of a size, not of a shape

CASES = _SMALL | _DECLARED_SMALL | _MIDDLE | _DECLARED_MIDDLE | _BETWEEN | _LARGE
"""An oracle with options, and the shape of one score tensor, or its size if the case is `SIZED`."""

SMALL, MIDDLE, LARGE = (*_SMALL, *_DECLARED_SMALL), (*_MIDDLE, *_DECLARED_MIDDLE), tuple(_LARGE)
"""The cases of asv: by default the middle ones, in the full grid all three."""

BETWEEN = tuple(_BETWEEN)  # cases that only `tests/benchmarks` times

_CLASSES = {  # by class the name that it declares, in today's files
    node.name: ast.literal_eval(word.value)
    for path in sorted((ROOMS / "estimators").glob("*.py"))
    for node in ast.parse(path.read_text(encoding="utf-8")).body
    if isinstance(node, ast.ClassDef)
    for word in node.keywords
    if word.arg == "name"
}
_REGISTRY = ast.parse((ROOMS / "estimators" / "__init__.py").read_text(encoding="utf-8"))
_FAMILIES = next(line for line in _REGISTRY.body if isinstance(line, ast.AnnAssign) and ast.unparse(line.target) == "_FAMILIES")
ESTIMATORS: tuple[str, ...] = tuple(_CLASSES[node.id] for node in ast.walk(_FAMILIES) if isinstance(node, ast.Name) and node.id in _CLASSES)
HOME = "home"  # a case of estimators: each on the first of the `HOMES` that it supports

HOMES = SMALL[:4]

TASKS = (  # noqa: SIM905
    "clusters l2x_switch listops_frozen listops listops_parser matching fsdd ner parsing pipeline vae listops_generated "
    "paths paths_squared ranking ranking_gain ranking_pairs budget budget_sum budget_coverage "
    "tags tags_frozen tags_elbo segments segments_pretrained transcripts warping "
    "heads influence influence_squared algebra algebra_soft gates gates_frozen vae_bits clusters_pretrained"
).split()
"""The trained tasks; add new ones at the end."""

LEARNERS, OTHER_LEARNERS = ("rloo", "structured_attention"), ("exact", "ste", "sparsemap", "imle")

BATCH, OTHER_BATCHES = (64,), (1, 1024)
DEVICE, OTHER_DEVICES = ("cpu",), ("cuda",)


MODE = os.environ.get("STRUCTGRAD_ASV", "")


def chosen(default: tuple[str | int, ...], more: tuple[str | int, ...], mode: str = MODE) -> list[str | int]:
    """The default, and the rest after it in the full grid."""
    if mode not in ("", "full"):
        raise ValueError(f"STRUCTGRAD_ASV is {mode!r}; expected 'full', or nothing for the default")
    return [*default, *(more if mode else ())]
