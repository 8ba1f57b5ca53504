"""From the options of ``structgrad run`` to a plan, its folder, its results and its report."""

from __future__ import annotations

import dataclasses
import os
import shlex
import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from ..oracles import registry
from ..suites.base import Row
from ..suites.problems.named import REAL_PROBLEMS, default_data
from ..suites.problems.score_files import Convention, ScoreFile
from ..suites.running import runner
from ..suites.running.plan import grid
from ..suites.running.runner import Plan
from . import html, results, tables, terminal

PAGE = "report.html"
_FLAGS = {"estimators": "-e", "problems": "-p", "stages": "--stage"}
_CONVENTION = tuple(field.name for field in dataclasses.fields(Convention))
_KEYS = ("scores", "transition", "start", "end", "gold", "lengths")
_ERRORS_SHOWN = 5


def score_source(data: Path | None, *, builtin: bool) -> str | None:
    """The folder of score files: the given one, none, or the one that is found."""
    if data is not None and builtin:
        raise ValueError("`run` got both --data and --builtin; give one of them")
    if data is None:
        return None if builtin else default_data()
    if not any((data / f"{name}.npz").is_file() for name in REAL_PROBLEMS):
        files = ", ".join(f"{name}.npz" for name in REAL_PROBLEMS)
        raise ValueError(f"--data got {str(data)!r}, which holds none of {files}; expected their folder, or choose --builtin")
    return str(data)


def score_file(path: Path, oracle: str, fields: list[str], **settings: Any) -> ScoreFile:
    """A user's own score file; ``fields`` are texts ``gold=labels`` or ``meaning=cost``.

    Raises:
        ValueError: a field without a value, or one that is unknown.
    """
    pairs = dict(_field(text) for text in fields)
    convention: dict[str, Any] = {key: value for key, value in pairs.items() if key in _CONVENTION}
    if "temperature" in convention:
        convention["temperature"] = _number(convention["temperature"])
    keys: dict[str, Any] = {key: value for key, value in pairs.items() if key in _KEYS}
    return ScoreFile(str(path), oracle, convention=Convention(**convention), **keys, **settings)


def _field(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not value:
        raise ValueError(f"--field got {text!r}; expected key=value")
    if key not in (*_KEYS, *_CONVENTION):
        raise ValueError(f"--field got the key {key!r}; {registry.hint(key, (*_KEYS, *_CONVENTION))}")
    return key, value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"--field got temperature={text}; expected a number") from None


def pin_threads() -> None:
    """One thread per process: on a shared machine more make small tensors slower, and times incomparable."""
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[variable] = "1"
    import torch

    torch.set_num_threads(1)


def prepare(plan: Plan, out: Path | None, *, fresh: bool) -> Path:
    """The output folder, made and known to be writable before anything is measured; by default named after the plan.

    A plan that cannot be measured is refused first, so that a misspelt name leaves no folder behind.

    Raises:
        ValueError: a plan that cannot be measured.
        OSError: a folder that cannot be written.
    """
    grid(plan)
    folder = out or Path("structgrad-results") / results.plan_hash(dataclasses.asdict(plan))
    runner.check_writable(folder)
    if fresh:
        shutil.rmtree(folder / "cells", ignore_errors=True)
    return folder


def command(plan: Plan, out: Path | None = None, *, quick: bool = False) -> str:
    """The command that repeats a plan: every option that differs from its default, and always where the scores come from."""
    words = ["structgrad", "run"]
    for field in dataclasses.fields(plan):
        value = getattr(plan, field.name)
        if field.name in _FLAGS:
            words += [word for item in value for word in (_FLAGS[field.name], item)]
        elif field.name == "data":
            words += _source_words(plan)
        elif field.name == "timing":
            words += [] if value else ["--no-timing"]
        elif field.name != "file" and value != field.default:
            words += [f"--{field.name.replace('_', '-')}", str(value)]
    return shlex.join([*words, *(["--quick"] if quick else []), *(["--out", str(out)] if out else [])])


def _source_words(plan: Plan) -> list[str]:
    if plan.file is None:
        return ["--data", plan.data] if plan.data else ["--builtin"]
    file, standard = plan.file, Convention()
    fields = {key: getattr(file, key) for key in _KEYS if getattr(file, key) not in (None, "scores")}
    fields |= {key: value for key, value in vars(file.convention).items() if value != getattr(standard, key)}
    return [
        "--file",
        file.path,
        "--oracle",
        file.oracle,
        *(word for pair in fields.items() for word in ("--field", "=".join(map(str, pair)))),
    ]


class Launch:
    """One run of a plan into a folder, told to a person.

    Args:
        plan: what to measure.
        folder: where to.
        repeat: the command that repeats it.
        quick: whether the preset was used, which the report says.
    """

    def __init__(self, plan: Plan, folder: Path, *, repeat: str, quick: bool = False) -> None:
        self.plan, self.folder, self.repeat, self.quick = plan, folder, repeat, quick
        self.console: Console = terminal.console()

    def say(self, text: str, style: str = "") -> None:
        """One line, never wrapped, with brackets as they are."""
        self.console.print(text, style=style, markup=False, soft_wrap=True)

    def perform(self) -> dict[str, int]:
        """Measure, write and summarise.

        Returns:
            How many cells are ok, failed and skipped.
        """
        started = _now()
        self._announce()
        with terminal.progress() as progress:
            rows = runner.run(self.plan, self.folder, progress=progress)
        self._store(rows, started)
        return self._finish()

    def _announce(self) -> None:
        plan = self.plan
        chosen = [", ".join(names) or "all" for names in (plan.estimators, plan.problems, plan.stages)]
        source = plan.file.path if plan.file else plan.data or "built-in regimes"
        self.say(f"estimators: {chosen[0]}; problems: {chosen[1]}; stages: {chosen[2]}")
        instances = plan.instances if plan.file is None else plan.file.instances or "all"
        self.say(f"{instances} instances each, {plan.replicates} replicates, seed {plan.seed}, {plan.dtype} on {plan.device}")
        self.say(f"scores from {source}; results go to {self.folder}")

    def _store(self, rows: list[Row], started: str) -> None:
        settings = dataclasses.asdict(self.plan)
        manifest = {
            "plan": settings,
            "plan_hash": results.plan_hash(settings),
            "seed": self.plan.seed,
            "preset": "quick" if self.quick else "",
            "argv": sys.argv,
            "command": self.repeat,
            "started": started,
            "finished": _now(),
            "environment": results.environment(self.plan.device),
        }
        results.write(rows, self.folder, manifest)

    def _finish(self) -> dict[str, int]:
        frame, manifest = results.read(self.folder)
        results.write_whole(self.folder / PAGE, html.to_html(frame, manifest).encode())
        for title, table in terminal.summary(frame).items():
            self.say(f"\n{title}", "bold")
            self.console.print(table)
        self.say(f"\n{terminal.LEGEND}", "dim")
        for line in html.contradictions(tables.claims(frame)):
            self.say(f"! {line}", "red")
        failures = tables.errors(frame)
        for row in tables.records(failures.head(_ERRORS_SHOWN)):
            self.say(f"{row.status}: {row.estimator} on {row.problem}, {row.stage}: {row.reason}", "red")
        counts = tables.counts(frame)
        self.say("\n" + html.counted(counts))
        if counts["failed"]:
            self.say(f"again, failed cells only: {self.repeat}")
        self.say(f"results: {self.folder / results.TABLE}\nreport:  {(self.folder / PAGE).resolve()}")
        return counts


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
