"""What an oracle underscores is its own: nothing outside `oracles/` asks for it."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import structgrad
from structgrad.oracles import AVAILABLE_ORACLES, make_oracle
from structgrad.oracles.capabilities.calls import Calls

PACKAGE = Path(structgrad.oracles.__file__).parents[1]
EXAMPLES = {"subset": "subset[k=1]"}
STAND_IN = "suites/truth/replay.py"
"""An oracle itself, which hands each of its hooks on to the one that it stands for."""

OTHERS = ("owner._parameters",)
"""Of a `torch.nn.Module`."""


@functools.cache
def underscored() -> frozenset[str]:
    kinds = {kind for name in AVAILABLE_ORACLES for kind in type(make_oracle(EXAMPLES.get(name, name))).__mro__}
    named = {name for kind in kinds if issubclass(kind, Calls) for name in vars(kind)}
    return frozenset(name for name in named if name.startswith("_") and not name.startswith(("__", "_abc")))


def intruders(tree: ast.Module) -> Iterator[str]:
    """Attributes with the names of an oracle's own, of anything but the object itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in underscored():
            owner = ast.unparse(node.value)
            if owner not in ("self", "cls", "super()"):
                yield f"{owner}.{node.attr}"


def test_nobody_else_asks_for_them() -> None:
    found = {}
    for room in ("estimators", "suites", "reports"):
        for file in sorted((PACKAGE / room).rglob("*.py")):
            asked = [one for one in intruders(ast.parse(file.read_text())) if one not in OTHERS]
            if asked and str(file.relative_to(PACKAGE)) != STAND_IN:
                found[str(file.relative_to(PACKAGE))] = asked
    assert not found


def test_a_stand_in_hands_on_its_own_hooks_alone() -> None:
    tree = ast.parse((PACKAGE / STAND_IN).read_text())
    for method in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name != "__post_init__"):
        asked = {one for one in intruders(ast.Module(method.body, []))}
        assert asked <= {f"self.real.{method.name}"}


def test_the_scan_sees_them() -> None:
    assert {"_argmax", "_best", "_inside", "_cut", "_unrank", "_reference_log_partition"} <= underscored()
    seen = list(intruders(ast.parse("oracle._argmax(x)\nself.oracle._cut(y)\nself._cut(z)\noracle.argmax(x)")))
    assert seen == ["oracle._argmax", "self.oracle._cut"]
