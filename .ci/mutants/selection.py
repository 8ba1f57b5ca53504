"""The rule from a source to the tests that should see a fault in it.

1. At most three test files of the layer that are named after the module (`test_subset.py`, `test_bias_suite.py` for `bias`). Then at most
   two others that import it, those with the fewest imports first. If there is none, those of the modules that import it, and so on.
2. For oracles also the laws, restricted to the nearest structures that use the module, or to the structure in the name of the function. For
   estimators also the laws, restricted to the name of the class of the fault, or to the names of the registry that use the module. At most
   two structures or three names are drawn.
   A law of the module's name is taken whole.
3. For suites and reports also the goldens of the folder, last.
"""

from __future__ import annotations

import ast
import random
import re
from functools import cache
from pathlib import Path

from mutants.imports import imported, importers, modules, users

MOST_STRUCTURES = 2
MOST_NAMES = 3
OTHER_FILES = 2
STRUCTURES = {
    "categorical": "Categorical",
    "independent": "IndependentCategoricals",
    "subset": "Subset",
    "linear_chain": "LinearChain",
    "alignment": "Alignment",
    "assignment": "Assignment",
    "spanning_tree": "SpanningTree",
    "projective_tree": "ProjectiveTree",
    "constituency": "Constituency",
    "shift_reduce": "ShiftReduce",
    "semi_markov": "SemiMarkov",
    "labelled_constituency": "LabelledConstituency",
    "edit_alignment": "EditAlignment",
    "ctc": "CTC",
    "second_order_chain": "SecondOrderChain",
}
"""The modules of oracles, and of their kernels, with the names of the cases of the laws."""


GOLDENS = {
    "suites/audit": ("audit",),
    "suites/comparison": ("comparison",),
    "suites/learning": ("page",),
    "suites/measures": ("store", "speed"),
    "suites/problems": ("truth",),
    "suites/running": ("store", "engine"),
    "suites/statistics": ("speed",),
    "suites/truth": ("truth",),
    "reports/analysis": ("page",),
    "reports/comparison": ("comparison",),
    "reports/page": ("page",),
    "reports/verbs": ("verbs", "store"),
}
"""The goldens of a folder and of the folders in it."""


def tests_of(root: Path, file: str, scope: str) -> tuple[tuple[str, ...], str]:
    """The test files for a fault in a source, as patterns, and the expression by which tests are chosen from them."""
    module = ".".join(("structgrad", *Path(file).with_suffix("").parts)).removesuffix(".__init__")
    draw = random.Random(f"tests of {file}")
    own = _own_files(root, module)
    if file.startswith("oracles/"):
        chosen, laws = _structures(root, module, scope, draw), "tests/laws/test_oracle_*.py"
    elif file.startswith("estimators/"):
        chosen, laws = _names(root, module, scope, draw), "tests/laws/test_estimator_*.py"
    else:
        goldens = [name for folder, names in GOLDENS.items() if file.startswith(f"{folder}/") for name in names]
        return (*own, *(f"tests/goldens/test_{name}.py" for name in goldens)), ""
    stems = [Path(path).stem for path in own]
    whole = [path.stem for path in sorted(root.glob(laws)) if Path(file).stem != "base" and path.stem.endswith(f"_{Path(file).stem}")]
    return (*own, laws), " or ".join([*stems, *whole, *chosen])


def _own_files(root: Path, module: str) -> tuple[str, ...]:
    """The test files of a module, or of those nearest to it among the modules that use it."""
    files = sorted((root / f"tests/{module.split('.')[1]}").rglob("test_*.py"))
    depth, found = 0, list[Path]()
    while not found and depth < 5:
        near = {name for name in users(root, module, depth) if name.split(".")[1] == module.split(".")[1]}
        found = [path for path in files if any(_is_named_after(root, path, name) for name in near)][: OTHER_FILES + 1]
        importing = [path for path in files if path not in found and near & imported(root, path)]
        found += sorted(importing, key=lambda path: len(imported(root, path)))[:OTHER_FILES]
        depth += 1
    return tuple(str(path.relative_to(root)) for path in found)


def _is_named_after(root: Path, path: Path, module: str) -> bool:
    """Whether a test file has the name of a module, in a folder of tests that it may have."""
    _, room, *folders, stem = module.split(".") if module.count(".") > 1 else (*module.split("."), "")
    name = path.stem.removeprefix("test_")
    placed = set(path.parent.relative_to(root / "tests" / room).parts) <= set(folders)
    if folders and re.fullmatch(r"oracle|cpu\w*", stem):  # the files of a structure are tested under its name
        stem = folders[-1]
    return placed and (stem in name.split("_and_") or name.startswith(f"{stem}_"))


def _structures(root: Path, module: str, scope: str, draw: random.Random) -> list[str]:
    """The structures whose oracles or kernels use a module, by the cases of the laws."""
    named = [name for name in STRUCTURES if name in {*module.split("."), scope.strip("_")}]
    depth, found = 0, named
    while not found:
        depth += 1
        near = {name.split(".")[2] for name in users(root, module, depth) if name.startswith("structgrad.oracles.")}
        found = list(STRUCTURES) if depth > len(STRUCTURES) else [name for name in STRUCTURES if name in near]
    return [STRUCTURES[name] for name in sorted(draw.sample(found, min(len(found), MOST_STRUCTURES)))]


def _names(root: Path, module: str, scope: str, draw: random.Random) -> list[str]:
    """The name of the class of a scope, or those of the classes that a module defines, or the modules that import it."""
    registered = _registry(root)
    near, found = {module}, [name for name, source in registered.items() if source == (module, scope.partition(".")[0])]
    while not found:
        found = sorted(name for name, (source, _) in registered.items() if source in near)
        following = near | {name for one in near for name in importers(root, one)}
        if following == near:
            break
        near = following
    return draw.sample(found, min(len(found), MOST_NAMES))


@cache
def _registry(root: Path) -> dict[str, tuple[str, str]]:
    """The module and the class of each name of the registry of estimators."""
    return {
        keyword.value.value: (module, node.name)
        for module, path in modules(root).items()
        if module.startswith("structgrad.estimators.")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
        for keyword in node.keywords
        if keyword.arg == "name" and isinstance(keyword.value, ast.Constant)
    }
