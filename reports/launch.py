"""From the options of ``structgrad run`` to a plan, its folder, its results and its report."""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from ..oracles import registry
from ..suites.measures import SUITES
from ..suites.problems.named import REAL_PROBLEMS, available, default_data
from ..suites.problems.score_files import Convention, ScoreFile
from ..suites.running import runner, store
from ..suites.running.engines import ENGINES
from ..suites.running.grid import grid
from ..suites.running.plan import Machine, Plan
from ..suites.running.presets import PRESETS, plan_of
from ..suites.running.progress import CostModel
from ..suites.running.scores import matching, sample, stages_by_problem
from ..suites.suite import EFFORTS, Effort
from . import html, results, tables, terminal

PAGE = "report.html"
_FLAGS = {"estimators": "-e", "problems": "-p", "stages": "--stage"}
_PLAIN = ("loss", "offset", "instances", "seed", "tier", "dtype", "device", "batch_size")
_EFFORT_FLAGS = {"replicates": "--replicates", "most_replicates": "--max-replicates", "seconds": "--seconds"}
_MACHINE = ("jobs", "timeout", "engine", "address")
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


def preset_name(name: str) -> str:
    """The same name, or ValueError where there is no such preset."""
    if name not in PRESETS:
        raise ValueError(registry.unknown(name, PRESETS, "preset"))
    return name


def suite_names(chosen: tuple[str, ...], preset: str, *, timing: bool) -> tuple[str, ...]:
    """The suites that are named, or those of the preset; without those that need the machine alone, where no time is wanted."""
    names = chosen or PRESETS[preset].suites
    if timing:
        return names
    return tuple(name for name in matching(names or ("*",), SUITES, "suite") if not SUITES[name].exclusive)


def problems_of_folder(data: Path | None) -> tuple[str, ...]:
    """Who names a folder of score files wants its problems; empty where none is named."""
    return () if data is None else tuple(name for name in available(str(data)) if name in REAL_PROBLEMS)


def show(plan: Plan, machine: Machine, preset: str) -> None:
    """Print what would be measured, without a folder."""
    console = terminal.console()
    for line in (*description(plan, machine, preset), structures_line(plan)):
        console.print(line, markup=False, soft_wrap=True)


def prepare(plan: Plan, out: Path | None, *, machine: Machine, fresh: bool) -> Path:
    """The output folder, made and known to be writable before anything is measured; by default named after the plan.

    A plan that cannot be measured is refused first, so that a misspelt name leaves no folder behind.

    Raises:
        ValueError: a plan that cannot be measured.
        OSError: a folder that cannot be written.
    """
    machine.checked(ENGINES)
    grid(plan)
    folder = out or Path("structgrad-results") / results.plan_hash(dataclasses.asdict(plan))
    store.check_writable(folder)
    if fresh:
        store.discard(folder)
    return folder


def effort_of(preset: str, **given: Any) -> Effort:
    """The effort of a preset with the numbers that are given; the most replicates are never fewer than the first ones."""
    chosen = dataclasses.replace(EFFORTS[preset], **{name: value for name, value in given.items() if value is not None})
    if given.get("most_replicates") is None and given.get("replicates") is not None:
        chosen = dataclasses.replace(chosen, most_replicates=max(chosen.most_replicates, chosen.replicates))
    return chosen


def command(plan: Plan, out: Path | None = None, *, preset: str, machine: Machine | None = None) -> str:
    """The command that repeats a plan: the preset, every option that differs from it, and always where the scores come from."""
    standard = plan_of(preset, file=plan.file, data=plan.data)
    words = ["structgrad", "run", *(plan.suites if plan.suites != standard.suites else ()), "--preset", preset]
    for field in dataclasses.fields(plan):
        value = getattr(plan, field.name)
        if field.name == "data":
            words += _source_words(plan)
        elif field.name == "effort":
            words += _changed(value, standard.effort, _EFFORT_FLAGS)
        elif field.name in _FLAGS and value != getattr(standard, field.name):
            words += [word for item in value for word in (_FLAGS[field.name], item)]
        elif field.name in _PLAIN and value != getattr(standard, field.name):
            words += [f"--{field.name.replace('_', '-')}", str(value)]
    words += _changed(
        machine or Machine(), Machine(), {name: f"--{name.replace('_', '-')}" for name in _MACHINE} | {"memory": "--memory-limit"}
    )
    return shlex.join([*words, *(["--out", str(out)] if out else [])])


def _changed(value: Any, standard: Any, flags: Mapping[str, str]) -> list[str]:
    """The options for what differs in two values of one class."""
    pairs = ((flag, getattr(value, name)) for name, flag in flags.items() if getattr(value, name) != getattr(standard, name))
    return [word for flag, number in pairs for word in (flag, str(number))]


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


@dataclasses.dataclass(frozen=True)
class Launch:
    """One run of a plan into a folder, told to a person.

    Args:
        plan: what to measure.
        folder: where to.
        machine: how.
        preset: what the plan began as.
        repeat: the command that repeats it.
    """

    plan: Plan
    folder: Path
    machine: Machine
    preset: str
    repeat: str
    console: Console = dataclasses.field(default_factory=terminal.console)

    def say(self, text: str, style: str = "") -> None:
        """One line, never wrapped, with brackets as they are."""
        self.console.print(text, style=style, markup=False, soft_wrap=True)

    def announce(self) -> None:
        """What will be measured, before it is."""
        for line in description(self.plan, self.machine, self.preset):
            self.say(line)

    def perform(self) -> dict[str, int]:
        """Measure, write and summarise.

        Returns:
            How many cells are ok, failed and skipped.
        """
        manifest = self._manifest(started=_now())
        self.announce()
        self.say(f"results go to {self.folder}")
        results.write_manifest(self.folder, {**manifest, "status": "running"})
        with terminal.progress() as progress:
            rows = runner.run(self.plan, self.folder, machine=self.machine, progress=progress)
        results.write(rows, self.folder, {**manifest, "status": "finished", "finished": _now()})
        return self._finish()

    def _manifest(self, *, started: str) -> results.Manifest:
        settings = dataclasses.asdict(self.plan)
        return {
            "plan": settings,
            "plan_hash": results.plan_hash(settings),
            "machine": dataclasses.asdict(self.machine),
            "seed": self.plan.seed,
            "preset": self.preset,
            "argv": sys.argv,
            "command": self.repeat,
            "started": started,
            "environment": results.environment(self.plan.device),
        }

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


def description(plan: Plan, machine: Machine, preset: str) -> list[str]:
    """A plan in lines: what, how precisely, how many cells of each suite, how long about."""
    work = grid(plan)
    suites = Counter(cell.suite for cell in work.cells)
    instances = Counter(cell.suite for cell in work.cells for _ in range(cell.instances or 1))
    costs = CostModel(plan)
    source = plan.file.path if plan.file else plan.data or "built-in regimes"
    problems = dict.fromkeys(cell.problem for cell in work.cells)
    stages = dict.fromkeys(cell.stage for cell in work.cells)
    estimators = dict.fromkeys(name for cell in work.cells for name in cell.estimators)
    limit = f"{plan.effort.replicates} to {plan.effort.most_replicates} replicates within {plan.effort.seconds:g} s"
    return [
        f"preset {preset}" + (": a first look, not for conclusions; --preset standard measures in earnest" if preset == "quick" else ""),
        f"{len(problems)} problems: {', '.join(problems)}; stages: {', '.join(stages)}; scores from {source}",
        f"{len(estimators)} estimators: {', '.join(estimators)}",
        f"{instances_line(plan)} each, {limit}, seed {plan.seed}, {plan.dtype} on {plan.device}",
        *(f"{name}: {count} cells, {instances[name]} instances" for name, count in suites.items()),
        f"{len(work.cells)} cells, {len(work.skips)} pairs skipped; about {terminal.duration(costs.left(work.cells, machine.jobs))}",
    ]


def instances_line(plan: Plan) -> str:
    """How many instances a problem has."""
    count = plan.instances if plan.file is None else plan.file.instances or "all"
    return f"{count} instances"


def structures_line(plan: Plan) -> str:
    """How many structures the exact gradients have to look at, at most, for a few instances of each problem."""
    total = 0
    for name, stages in stages_by_problem(plan).items():
        found = sample(plan, name, stages[0])
        counts = [found.oracle.count(tuple(item.scores.shape)) for item in found.instances]
        total += round(sum(counts) / len(counts) * plan.instances * len(stages))
    return f"structures to enumerate: about {total:.3g}, where nothing better is known"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
