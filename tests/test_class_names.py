"""Words that named several classes name one class each."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import structgrad

PACKAGE = Path(structgrad.__file__).parent
ONCE = ("Comparison", "Cell", "Law", "Workspace")


def test_a_name_stands_for_one_class() -> None:
    trees = (ast.parse(file.read_text()) for file in PACKAGE.rglob("*.py"))
    found = Counter(node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    assert {name: found[name] for name in ONCE} == {"Comparison": 1, "Cell": 1, "Law": 1, "Workspace": 0}
