"""The faults of `.ci/mutations.py`: results of the operators, and places of stored faults in changed sources."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]

SOURCE = '''
"""A module: x < 1."""

from __future__ import annotations

__all__ = ["bounded"]


def bounded(x: int | None, limit: int = 5, strict: bool = True) -> float | None:
    """At most the limit, x < 1."""
    if x is None and not strict:
        return None
    if x < 0:
        raise ValueError(f"got {x - 1}")
    größe = min(x, limit) * -2
    größe += 1
    values[0] = where(x >= 1, größe, x)
    return -x if größe == x else größe


class Other:
    def twice(self, x):
        return x + 1

    def again(self, x):
        return x + 1
'''


@pytest.fixture
def mutants(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    monkeypatch.syspath_prepend(str(ROOT / ".ci"))
    return SimpleNamespace(**{name: importlib.import_module(f"mutants.{name}") for name in ("operators", "places", "selection", "trying")})


def changes(mutants: SimpleNamespace, operator: str) -> set[tuple[str, str]]:
    """Changes of an operator: spans and their replacements."""
    found = [site for site in mutants.operators.sites(SOURCE) if site.operator == operator]
    assert all(mutants.operators.differs(SOURCE, mutants.operators.mutated(SOURCE, site)) for site in found)
    return {(SOURCE.encode()[site.start : site.end].decode(), site.after) for site in found}


@pytest.mark.parametrize(
    ("operator", "expected"),
    [
        ("comparison", {("is", "is not"), ("<", "<="), (">=", ">"), ("==", "!=")}),
        ("arithmetic", {("*", "/"), ("+=", "-="), ("+", "-")}),
        ("connective", {("and", "or")}),
        ("negation", {("not strict", "(strict)"), ("-2", "(2)"), ("-x", "(x)")}),
        ("default", {("5", "6"), ("5", "4"), ("True", "False")}),
        ("function", {("min", "max")}),
        ("choice", {("größe, x", "x, größe"), ("-x if größe == x else größe", "größe if größe == x else -x")}),
    ],
)
def test_operators_change_what_they_are_for(operator: str, expected: set[tuple[str, str]], mutants: SimpleNamespace) -> None:
    assert changes(mutants, operator) == expected


def test_constants_and_conditions_change_both_ways(mutants: SimpleNamespace) -> None:
    assert {("0", "1"), ("0", "-1"), ("2", "3"), ("1", "2")} <= changes(mutants, "constant")
    assert {("x < 0", "True"), ("x < 0", "False")} <= changes(mutants, "condition")


def test_what_is_dropped_leaves_no_name_unknown(mutants: SimpleNamespace) -> None:
    dropped = {before for before, after in changes(mutants, "statement") if after == "pass"}
    assert dropped == {"return None", 'raise ValueError(f"got {x - 1}")', "größe += 1", "values[0] = where(x >= 1, größe, x)"}


def stored(mutants: SimpleNamespace, site: Any) -> Any:
    return mutants.places.mutation(SOURCE, site, mutants.places.Origin("room", "room/toy.py", ("tests/test_toy.py",), ""))


def test_a_stored_fault_finds_its_place_again(mutants: SimpleNamespace) -> None:
    moved = "import math\n" + SOURCE.replace("class Other:", "LIMIT = 3\n\n\nclass Other:")
    for site in mutants.operators.sites(SOURCE):
        mutation = mutants.places.Mutation.of(stored(mutants, site).stored())
        assert mutation.applied(SOURCE) == mutants.operators.mutated(SOURCE, site)
        start, _ = mutation.place(moved)
        assert mutants.places.scope_at(moved, start) == site.scope
        assert moved.count("\n", 0, len(moved.encode()[:start].decode())) == mutation.line + (3 if "Other" in site.scope else 0)


def test_a_place_that_is_gone_is_not_guessed(mutants: SimpleNamespace) -> None:
    twins = [site for site in mutants.operators.sites(SOURCE) if site.scope == "Other.again" and site.operator == "arithmetic"]
    mutation = stored(mutants, twins[0])
    assert mutation.place(SOURCE.replace("again", "anew").replace("twice", "two")) is None
    assert mutation.place(SOURCE.replace("x + 1", "1 + x")) is None


TREE = {
    "oracles/subset/oracle.py": "from ..numerics import mask\n",
    "oracles/numerics.py": "",
    "estimators/__init__.py": "from .blackbox import Blackbox\n",
    "estimators/blackbox.py": 'from .base import Estimator\n\nclass Blackbox(Estimator, name="blackbox"): ...\n',
    "estimators/base.py": "",
    "suites/bias.py": "",
    "tests/oracles/test_subset.py": "",
    "tests/estimators/test_registry.py": "from structgrad.estimators import Blackbox\n",
    "tests/suites/test_bias_suite.py": "",
    "tests/suites/test_truth.py": "from structgrad.suites.bias import measure\n",
}


@pytest.mark.parametrize(
    ("file", "tests", "choose"),
    [
        ("oracles/subset/oracle.py", ("oracles/test_subset.py", "laws/test_oracle_*.py"), "test_subset or Subset"),
        ("oracles/numerics.py", ("oracles/test_subset.py", "laws/test_oracle_*.py"), "test_subset or Subset"),
        ("estimators/blackbox.py", ("estimators/test_registry.py", "laws/test_estimator_*.py"), "test_registry or blackbox"),
        ("estimators/base.py", ("estimators/test_registry.py", "laws/test_estimator_*.py"), "test_registry or blackbox"),
        ("suites/bias.py", ("suites/test_bias_suite.py", "suites/test_truth.py"), ""),
    ],
)
def test_the_tests_of_a_source_are_found(file: str, tests: tuple[str, ...], choose: str, mutants: SimpleNamespace, tmp_path: Path) -> None:
    for name, text in TREE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert mutants.selection.tests_of(tmp_path, file, "") == (tuple(f"tests/{name}" for name in tests), choose)


def test_kernels_that_may_have_inlined_a_fault_are_set_aside(mutants: SimpleNamespace, tmp_path: Path) -> None:
    tree, cache = tmp_path / "tree", tmp_path / "tree/oracles/kernels/__pycache__"
    cache.mkdir(parents=True)
    sources = {"inner": "LIMIT = 1\n", "outer": "from .inner import LIMIT\n", "outermost": "from . import outer\n", "other": ""}
    for name, text in sources.items():
        (cache.parent / f"{name}.py").write_text(text)
        (cache / f"{name}.kernel-1.py311.nbi").write_text("kernel")
    copy = mutants.trying.Copy.__new__(mutants.trying.Copy)
    copy.tree, copy.kept = tree, tmp_path / "kept"
    mutation, file = SimpleNamespace(file="oracles/kernels/inner.py"), cache.parent / "inner.py"
    before = file.stat().st_mtime_ns
    with copy.mutated(mutation, "LIMIT = 2\n"):
        assert [path.name.split(".")[0] for path in cache.iterdir()] == ["other"]
        assert (file.read_text(), file.stat().st_mtime_ns > before) == ("LIMIT = 2\n", True)
        (cache / "outer.kernel-1.py311.nbi").write_text("kernel of the mutation")
    assert {path.name.split(".")[0]: path.read_text() for path in cache.iterdir()} == dict.fromkeys(sources, "kernel")
    assert (file.read_text(), file.stat().st_mtime_ns) == ("LIMIT = 1\n", before)


def test_the_summary_names_what_failed(mutants: SimpleNamespace) -> None:
    output = "FAILED tests/test_a.py::test_b[x-1] - assert 1 == 2\nERROR tests/test_c.py\n1 failed\n"
    assert mutants.trying._failures(output) == ["tests/test_a.py::test_b[x-1]", "tests/test_c.py"]
