"""``structgrad init``: the files of a first project: options, a gate, an estimator, and the files that run them on every commit."""

import json
import re
import subprocess
import sys
import tomllib
from contextlib import suppress
from importlib import metadata, resources
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit
from urllib.request import url2pathname

import typer

from .outcome import sentences

FIRST = {"structgrad.toml": "structgrad.toml", "gate.toml": "gate.toml", "my_estimator.py": "my_estimator.py.txt"}
"""Files of every project, each with its template."""

ASV = {"asv.conf.json": "asv.conf.json", "benchmarks/__init__.py": "", "benchmarks/gradient.py": "benchmarks.py.txt"}
WORKFLOW = {".github/workflows/structgrad.yml": "workflow.yml"}
TASK = {"my_task.py": "my_task.py.txt"}
ORACLE = {"my_structure.py": "my_structure.py.txt"}


def init(  # noqa: PLR0913 - one parameter per option
    folder: Annotated[Path, typer.Argument(help="Target folder.", metavar="DIR", show_default="this folder")] = Path(),
    *,
    asv: Annotated[bool, typer.Option("--asv", help="Also write asv.conf.json and benchmarks for airspeed velocity.")] = False,
    gha: Annotated[bool, typer.Option("--gha", help="Also write a GitHub workflow that measures and gates pull requests.")] = False,
    task: Annotated[bool, typer.Option("--task", help="Write only an example task: two modules and a data set.")] = False,
    oracle: Annotated[bool, typer.Option("--oracle", help="Write only an example structure: its derivation rules, in one file.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
) -> None:
    """Write structgrad.toml, gate.toml and an example estimator. Existing files are kept."""
    with sentences():
        from ..results import write_whole

        alone = [flag for flag, given in {"--task": task, "--oracle": oracle}.items() if given]
        others = [flag for flag, given in {"--asv": asv, "--gha": gha}.items() if given]
        if len(alone) > 1 or (alone and others):
            first, second = [*alone, *others][:2]
            raise ValueError(f"`init` got both {first} and {second}; give one of them")
        files = TASK if task else ORACLE if oracle else {**FIRST, **(ASV if asv else {}), **(WORKFLOW if gha else {})}
        if others and not (folder / "pyproject.toml").exists():  # both install the project
            files = {**files, "pyproject.toml": "pyproject.toml"}
        try:
            for name, template in files.items():
                path = folder / name
                if path.exists() and not force:
                    typer.echo(f"kept (already exists; --force replaces it): {path}")
                    continue
                write_whole(path, text_of(template, folder).encode())
                typer.echo(f"written: {path}")
            if (asv or gha) and "@" not in (needed := requirement()):
                typer.echo(f"note: pip must find {needed} where these files run, or name another source of structgrad there")
        except OSError as error:
            raise ValueError(f"`init` cannot write {error.filename or folder} ({error.strerror}); name another folder") from error
    verb = "learn ./my_task.py:task --quick" if task else "run --config structgrad.toml"
    steps = [f"structgrad {'audit --oracle ./my_structure.py:Spread' if oracle else verb}"]
    if others:  # both read the files from a commit
        versioned = any((parent / ".git").exists() for parent in (folder.resolve(), *folder.resolve().parents))
        steps = [] if versioned else ["git init -b main"]
        steps += ["git add .", 'git commit -m "measure estimators"', *(["git push"] if gha else [])]
        steps += ["asv machine --yes", "asv run HEAD^!"] if asv else []
    typer.echo(f"next: {' && '.join([*([] if folder == Path() else [f'cd {folder}']), *steps])}")


def text_of(template: str, folder: Path) -> str:
    """The text of a template, with the name of the project in the folder and the version of Python."""
    if not template:
        return ""
    try:
        project = str(tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]["name"])
    except (OSError, KeyError, TypeError, tomllib.TOMLDecodeError):
        project = re.sub(r"[^\w.-]+", "-", folder.resolve().name, flags=re.ASCII).strip("-._") or "project"
    text = resources.files("structgrad.reports.verbs").joinpath("templates", template).read_text(encoding="utf-8")
    text = text.replace("STRUCTGRAD", requirement()) if "STRUCTGRAD" in text else text
    return text.replace("PROJECT", project).replace('"PYTHON"', f'"{sys.version_info.major}.{sys.version_info.minor}"')


def requirement() -> str:
    """The requirement by which pip installs this package elsewhere: the commit of its repository, else the version."""
    here = metadata.distribution("structgrad")
    origin = json.loads(here.read_text("direct_url.json") or "{}")  # written by pip where the package comes from no index (PEP 610)
    url, commit = str(origin.get("url", "")), origin.get("vcs_info", {}).get("commit_id")
    if "dir_info" in origin:
        from ..results import git

        checkout, commit = url2pathname(urlsplit(url).path), None
        with suppress(OSError, subprocess.SubprocessError):
            url, commit = git(checkout, "remote", "get-url", "origin"), git(checkout, "rev-parse", "HEAD")
    url = re.sub(r"^git@([^:/]+):", r"https://\1/", url)  # a key is not on the other machine
    return f"structgrad@git+{url}@{commit}" if commit and "://" in url else f"structgrad=={here.version}"
