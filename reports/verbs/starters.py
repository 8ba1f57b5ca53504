"""The files of a first project: options, a gate, an estimator that works, and what runs them on every commit."""

from __future__ import annotations

import sys
import tomllib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from ..results import write_whole

FIRST = {"structgrad.toml": "structgrad.toml", "gate.toml": "gate.toml", "my_estimator.py": "my_estimator.py.txt"}
"""What every project gets: the file, and the template that it is made of."""

ASV = {"asv.conf.json": "asv.conf.json", "benchmarks/__init__.py": "", "benchmarks/gradient.py": "benchmarks.py.txt"}
TASK = {"my_task.py": "my_task.py.txt"}
ORACLE = {"my_structure.py": "my_structure.py.txt"}
WORKFLOW = {".github/workflows/structgrad.yml": "workflow.yml"}


@dataclass(frozen=True)
class Started:
    """What was written, and what was there already and was left alone."""

    written: list[Path]
    kept: list[Path]


def start(  # noqa: PLR0913 - one parameter per option
    folder: Path, *, asv: bool = False, workflow: bool = False, task: bool = False, oracle: bool = False, force: bool = False
) -> Started:
    """Write the files of a first project, or a task or a structure of one's own alone; those that are there stay, unless forced.

    Raises:
        OSError: a folder that cannot be written.
    """
    own = {**(TASK if task else {}), **(ORACLE if oracle else {})}
    files = own or {**FIRST, **(ASV if asv else {}), **(WORKFLOW if workflow else {})}
    texts = {folder / name: _text(template, folder) for name, template in files.items()}
    kept = [path for path in texts if path.exists() and not force]
    written = [path for path in texts if path not in kept]
    for path in written:
        write_whole(path, texts[path].encode())
    return Started(written, kept)


def _text(template: str, folder: Path) -> str:
    if not template:
        return ""
    text = resources.files("structgrad.reports.verbs").joinpath("templates", template).read_text(encoding="utf-8")
    return text.replace("PROJECT", _project(folder)).replace('"PYTHON"', f'"{sys.version_info.major}.{sys.version_info.minor}"')


def _project(folder: Path) -> str:
    """The distribution's name, where the folder holds a project; else that of the folder."""
    try:
        return str(tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]["name"])
    except (OSError, KeyError, TypeError, tomllib.TOMLDecodeError):
        return folder.resolve().name
