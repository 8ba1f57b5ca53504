"""Which modules a source imports, from the sources alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

ROOMS = ("oracles", "estimators", "suites", "reports")
PACKAGE = "reports/package/__init__.py"
"""The module of the package itself."""


@cache
def modules(root: Path) -> dict[str, Path]:
    """The modules of the package by their names, ``structgrad.oracles.subset.oracle``."""
    found = {}
    for room in ROOMS:
        for path in sorted((root / room).rglob("*.py")):
            parts = () if path == root / PACKAGE else path.relative_to(root).with_suffix("").parts
            found[".".join(("structgrad", *parts)).removesuffix(".__init__")] = path
    return found


@cache
def imported(root: Path, path: Path) -> frozenset[str]:
    """The modules of the package that a source imports; a re-exported name counts for the module that defines it."""
    known = modules(root)
    return frozenset(name for module, names in _statements(root, path) for name in _resolved(root, module, names) if name in known)


def _statements(root: Path, path: Path) -> list[tuple[str, list[str]]]:
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            found.append((_absolute(root, path, node), [alias.name for alias in node.names]))
        elif isinstance(node, ast.Import):
            found += [(alias.name, []) for alias in node.names]
    return found


def _absolute(root: Path, path: Path, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = ("structgrad", *path.relative_to(root).parts[: -node.level])
    return ".".join((*package, *([node.module] if node.module else [])))


def _resolved(root: Path, module: str, names: list[str]) -> Iterable[str]:
    known = modules(root)
    if not names:
        yield module
    for name in names:
        yield f"{module}.{name}" if f"{module}.{name}" in known else _source(root, module, name)


def _source(root: Path, module: str, name: str) -> str:
    """The module that a package's name is from."""
    path = modules(root).get(module)
    if path is not None and path.name == "__init__.py":
        for other, names in _statements(root, path):
            if name in names:
                return other if f"{other}.{name}" not in modules(root) else f"{other}.{name}"
    return module


@cache
def importers(root: Path, module: str) -> set[str]:
    """The modules that import one, directly; kernels are found by their names."""
    found = re.fullmatch(r"structgrad\.oracles\.(?:kernels\.(\w+)|(\w+)\.cpu(?:_(\w+))?)", module)
    quoted = None if found is None else f'"{found[1] or found[3] or found[2]}"'
    named = [] if quoted is None else [path for path in (root / "oracles").rglob("*.py") if quoted in path.read_text(encoding="utf-8")]
    return {name for name, path in modules(root).items() if name != module and (module in imported(root, path) or path in named)}


def users(root: Path, module: str, depth: int | None = None) -> set[str]:
    """A module, and those that import it through at most ``depth`` others."""
    found, last = {module}, {module}
    while last and depth != 0:
        last = {name for one in last for name in importers(root, one)} - found
        found |= last
        depth = None if depth is None else depth - 1
    return found
