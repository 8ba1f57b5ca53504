"""The command that repeats a run: what somebody types to go on, or to measure the same elsewhere."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ....suites.problems.score_files import Convention
from ....suites.running.planning.plan import Machine, Plan, default_jobs
from ....suites.running.planning.presets import plan_of
from ....suites.running.planning.scope import Scope
from ....suites.running.remote.objects import is_url
from .options import KEYS

_FLAGS = {"estimators": "-e", "problems": "-p", "stages": "--stage", "losses": "--loss", "plugins": "--plugin"}
_PLAIN = ("offset", "instances", "seed", "tier", "dtype", "device", "batch_size", "threads")
_EFFORT = {"replicates": "--replicates", "most_replicates": "--max-replicates", "seconds": "--seconds"}
_MACHINE = {
    "jobs": "--jobs",
    "timeout": "--timeout",
    "engine": "--engine",
    "address": "--address",
    "memory": "--memory-limit",
    "gpus": "--gpus-per-cell",
}
_SCOPE = {"budget": "--budget", "longest": "--longest-cell"}


def command(plan: Plan, out: Path | str | None = None, *, preset: str, machine: Machine | None = None, scope: Scope | None = None) -> str:
    """The preset, every option that differs from it, and always where the scores come from."""
    standard = plan_of(preset, file=plan.file, data=plan.data)
    words = ["structgrad", "run", *(plan.suites if plan.suites != standard.suites else ()), "--preset", preset]
    for field in dataclasses.fields(plan):
        value = getattr(plan, field.name)
        if field.name == "data":
            words += _source_words(plan)
        elif field.name == "effort":
            words += _changed(value, standard.effort, _EFFORT)
        elif field.name in _FLAGS and value != getattr(standard, field.name):
            words += [word for item in value for word in (_FLAGS[field.name], item)]
        elif field.name in _PLAIN and value != getattr(standard, field.name):
            words += [f"--{field.name.replace('_', '-')}", str(value)]
    usual = Machine(jobs=default_jobs(plan))
    words += _changed(machine or usual, usual, _MACHINE) + _changed(scope or Scope(), Scope(), _SCOPE)
    words += ["--fail-fast"] if scope is not None and scope.fail_fast else []
    return shlex.join([*words, *_place_words(out)])


def learning(  # noqa: PLR0913
    tasks: tuple[str, ...], options: Mapping[str, Any], out: Path | str | None = None, *, machine: Machine, usual: Machine, scope: Scope
) -> str:
    """The command that repeats a run of learning: its tasks, and every option that was given."""
    words = ["structgrad", "learn", *tasks]
    for flag, value in options.items():
        several = value if isinstance(value, tuple) else (value,) if value not in (None, False) else ()
        words += [word for item in several for word in ((flag,) if item is True else (flag, str(item)))]
    words += _changed(machine, usual, _MACHINE) + _changed(scope, Scope(), _SCOPE)
    words += ["--fail-fast"] if scope.fail_fast else []
    return shlex.join([*words, *_place_words(out)])


def _place_words(out: Path | str | None) -> list[str]:
    return ["--out", str(out) if is_url(out) else str(Path(out))] if out else []


def _changed(value: Any, standard: Any, flags: Mapping[str, str]) -> list[str]:
    """The options for what differs in two values of one class."""
    pairs = ((flag, getattr(value, name)) for name, flag in flags.items() if getattr(value, name) != getattr(standard, name))
    return [word for flag, number in pairs for word in (flag, str(number))]


def _source_words(plan: Plan) -> list[str]:
    if plan.file is None:
        return ["--data", plan.data] if plan.data else ["--builtin"]
    file, standard = plan.file, Convention()
    fields = {key: getattr(file, key) for key in KEYS if getattr(file, key) not in (None, "scores")}
    fields |= {key: value for key, value in vars(file.convention).items() if value != getattr(standard, key)}
    return [
        "--file",
        file.path,
        "--oracle",
        file.oracle,
        *(word for pair in fields.items() for word in ("--field", "=".join(map(str, pair)))),
    ]
