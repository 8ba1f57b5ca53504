"""Names for the completion of a command line: read from the source of the registries, for importing them would take a second.

Names of plugins are not completed: to know them, their packages would have to be imported.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parents[3]

REGISTRIES: dict[str, tuple[tuple[str, ...], ...]] = {
    "estimators": (("estimators/__init__.py", "ESTIMATORS"),),
    "supervised": (("estimators/supervised_training.py", "SUPERVISED"),),
    "oracles": (("oracles/__init__.py", "ORACLES"), ("oracles/derived", "{}")),
    "problems": (
        ("suites/problems/regimes.py", "REGIMES"),
        ("oracles/derived", "{}_regimes"),
        ("suites/problems/real.py", "REAL"),
        ("suites/tasks/__init__.py", "TASKS", "task:", "learnt:"),
    ),
    "tasks": (("suites/tasks/__init__.py", "TASKS"),),
    "losses": (("suites/problems/losses.py", "LOSSES"),),
    "noises": (("estimators/noise.py", "NOISES"),),
    "suites": (("suites/measures/__init__.py", "SUITES"),),
    "metrics": (("suites/metrics.py", "METRICS"),),
    "engines": (("suites/running/engines/__init__.py", "ENGINES"),),
    "presets": (("suites/running/planning/presets.py", "PRESETS"),),
}
"""Where the registry of each kind stands: a file of the package, the name of a dictionary in it, and what its keys are called with.

Or a folder whose files are the entries, and what each of them is called.
"""

KINDS = (*REGISTRIES, "plugins")
"""What `list` can show."""

STAGES = ("init", "early", "final", "h=0.95", "h=0.7", "h=0.4", "h=0.1")
"""Of the built-in problems."""


def names(kind: str) -> list[str]:
    """The names of a kind in the order of its registry; none where the source cannot be read.

    Example:
        >>> names("presets")
        ['quick', 'standard', 'thorough']
    """
    return [
        f"{prefix}{name}"
        for file, variable, *prefixes in REGISTRIES[kind]
        for prefix in prefixes or ("",)
        for name in _keys(_PACKAGE / file, variable)
    ]


def _keys(file: Path, variable: str) -> list[str]:
    """The text keys of a dictionary that is written out at the top of a file; of a folder, the names of its files."""
    import ast

    if file.is_dir():
        return [variable.format(path.stem) for path in sorted(file.glob("[!_]*.py"))]
    try:
        body = ast.parse(file.read_text(encoding="utf-8")).body
    except (OSError, SyntaxError):
        return []
    for node in body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            if isinstance(target, ast.Name) and target.id == variable:
                return [str(key.value) for key in node.value.keys if isinstance(key, ast.Constant)]
    return []


def complete_tasks(incomplete: str) -> list[str]:
    """Tasks that begin like this."""
    return _beginning(incomplete, "tasks")


def complete_estimators(incomplete: str) -> list[str]:
    """Estimators that begin like this."""
    return _beginning(incomplete, "estimators")


def complete_oracles(incomplete: str) -> list[str]:
    """Oracles that begin like this."""
    return _beginning(incomplete, "oracles")


def complete_problems(incomplete: str) -> list[str]:
    """Problems that begin like this."""
    return _beginning(incomplete, "problems")


def complete_losses(incomplete: str) -> list[str]:
    """Losses that begin like this."""
    return _beginning(incomplete, "losses")


def complete_suites(incomplete: str) -> list[str]:
    """Suites that begin like this."""
    return _beginning(incomplete, "suites")


def complete_presets(incomplete: str) -> list[str]:
    """Presets that begin like this."""
    return _beginning(incomplete, "presets")


def complete_engines(incomplete: str) -> list[str]:
    """Engines that begin like this."""
    return _beginning(incomplete, "engines")


def complete_kinds(incomplete: str) -> list[str]:
    """Kinds of `list` that begin like this."""
    return [kind for kind in KINDS if kind.startswith(incomplete)]


def complete_stages(incomplete: str) -> list[str]:
    """Stages of built-in problems that begin like this."""
    return [stage for stage in STAGES if stage.startswith(incomplete)]


def complete_anything(incomplete: str) -> list[str]:
    """Whatever `describe` knows that begins like this."""
    return [name for kind in REGISTRIES for name in _beginning(incomplete, kind)]


def _beginning(incomplete: str, kind: str) -> list[str]:
    return [name for name in names(kind) if name.startswith(incomplete)]
