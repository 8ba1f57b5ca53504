"""Rules of the project that no other tool checks: places of files, names of files and classes."""

import ast
import inspect
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from structgrad.oracles import ORACLES

ROOT = Path(__file__).parents[1]
ROOMS = ("oracles", "estimators", "suites", "reports")

STRUCTURES = ("subset", "shift_reduce", "assignment", "spanning_tree")
"""Those with a folder, because they have kernels besides the oracle."""

OPERATIONS = {"_argmax", "_log_partition", "_sample", "_value", "_kbest", "_rank", "_unrank"}

STATED_TWICE = {"subset"}
"""Oracles that state derivations and also their own operations: the best subset has the largest scores. To be
shortened, never to be made longer."""

FORMATTER = "suites/text.py"

FORMATTED_ELSEWHERE = ("reports/page/paper.py", "reports/page/charts.py")
"""Folders whose labels and coordinates have digits of their own. To be shortened, never to be made longer."""

OF_DIGITS = re.compile(r"[,%eEfFgGn]$|\.\d+$")
"""How a specification of a format ends that chooses digits; one that only aligns does not."""


CEILINGS = {"oracles": 15_468, "estimators": 7_398, "suites": 17_000, "reports": 6_496, "tests": 27_316}
"""Lines of Python in each room. Lower a ceiling in the commit that makes room. To raise one takes a decision record (33)."""


@cache
def sources() -> dict[str, ast.Module]:
    return {
        str(path.relative_to(ROOT)): ast.parse(path.read_text())
        for room in ROOMS
        for path in sorted((ROOT / room).rglob("*.py"))
        if "__pycache__" not in path.parts
    }


def imported(file: str) -> set[str]:
    """The files of the rooms that a file imports, relatively as they all do."""
    known, found = sources(), set()
    for node in ast.walk(known[file]):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = Path(file).parents[node.level - 1].joinpath(*(node.module or "").split("."))
            for place in (base, *(base / alias.name for alias in node.names)):
                found |= {name for name in (f"{place}.py", f"{place}/__init__.py") if name in known}
    return found


def has_kernels(file: str) -> bool:
    """Whether a file holds kernels of a structure."""
    parts = Path(file).with_suffix("").parts
    name = parts[2] if parts[0] == "oracles" and len(parts) > 2 and parts[1] not in ("kernels", "derivations") else ""
    return name == "cpu" or name.startswith("cpu_")


@pytest.mark.parametrize("room", CEILINGS)
def test_a_room_keeps_below_its_ceiling(room: str) -> None:
    files = [path for path in (ROOT / room).rglob("*.py") if "__pycache__" not in path.parts]
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)
    assert lines <= CEILINGS[room], f"{room} has {lines} lines of Python; expected at most {CEILINGS[room]}: delete some"


def test_the_files_of_a_structure_lie_in_its_folder() -> None:
    """R1. That folders do not import each other is a contract of import-linter."""
    for structure in STRUCTURES:
        assert (ROOT / "oracles" / structure / "oracle.py").is_file(), structure
    strays = [
        file for file in sources() if has_kernels(file) and Path(file).parts[1] not in (*STRUCTURES, "active_set", "simplex", "softmax")
    ]
    assert not strays


def test_kernels_come_by_the_dispatch_alone() -> None:
    """R1. The executor of derivations is compiled as kernels are, and may be made of their steps."""
    found = defaultdict(set)
    for file in sources():
        if not has_kernels(file) and not file.startswith("oracles/derivations/cpu"):
            found[file] |= {name for name in imported(file) if has_kernels(name)}
    assert not {file: names for file, names in found.items() if names}


def test_an_oracle_states_its_derivations_or_its_operations() -> None:
    """R2: nothing is stated twice."""
    generic = ("structgrad.oracles.capabilities", "structgrad.oracles.derivations")
    twice = {}
    for name, kind in ORACLES.items():
        own = {attribute: value for one in kind.__mro__ if not one.__module__.startswith(generic) for attribute, value in vars(one).items()}
        # What hands on to the generic operation, say with uniforms in another order, states nothing.
        stated = {name for name, value in own.items() if name not in OPERATIONS or f"super().{name}(" not in inspect.getsource(value)}
        operations = stated & OPERATIONS
        assert operations or "derivations" in stated, f"{name} states neither"
        if operations and "derivations" in stated:
            twice[name] = operations
    assert set(twice) == STATED_TWICE, twice


def chosen_digits(tree: ast.Module) -> list[int]:
    """The lines that choose the digits of a value: in an f-string, by `format`, or by %."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FormattedValue) and node.format_spec is not None:
            # A width or a precision may be a variable.
            parts = node.format_spec.values if isinstance(node.format_spec, ast.JoinedStr) else []
            spelled = "".join(part.value if isinstance(part, ast.Constant) else "0" for part in parts)
            found += [node.lineno] * bool(OF_DIGITS.search(spelled))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found += [node.lineno] * bool(re.search(r"\{\w*:[^{}]*[,%eEfFgGn]\}|%[-+ 0#]*\d*(\.\d+)?[eEfFgG]\b", node.value))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "format":
            found.append(node.lineno)
    return found


def test_values_get_their_digits_in_one_place() -> None:
    """R4: one formatter, and no second one of the same name."""
    known = sources()
    formatters = {node.name for node in known[FORMATTER].body if isinstance(node, ast.FunctionDef)}
    wrong = {}
    for file, tree in known.items():
        if not file.startswith("reports/") or file == FORMATTER or file.startswith(FORMATTED_ELSEWHERE):
            continue
        doubled = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.strip("_") in formatters]
        if doubled or chosen_digits(tree):
            wrong[file] = (doubled, chosen_digits(tree))
    assert formatters
    assert not wrong


def test_the_first_line_of_a_module_is_a_term() -> None:
    """R7."""
    for file, tree in sources().items():
        first = (ast.get_docstring(tree) or "").partition("\n")[0]
        assert first, f"{file} says nothing"
        assert not first.startswith(("What ", "How ")), first
        assert len(f'"""{first}') <= 140, first
