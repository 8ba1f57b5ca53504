"""A plan before it is measured: its grid, its structures, how long it takes and how much memory, about."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ....oracles.derivations import StatedOracle
from ....oracles.magnitudes import beyond_memory
from ....suites.base import Row, split_loss
from ....suites.measures import SUITES
from ....suites.problems import OWN_LOSS
from ....suites.processors import slowdown
from ....suites.running.planning.compiling import SECONDS, uncompiled
from ....suites.running.planning.plan import Machine, Plan
from ....suites.running.progress import CostModel
from ....suites.running.scores import sample
from ....suites.running.work import Cell, Grid
from ....suites.text import duration, gibibytes, number, setting, spelled
from ...terminal import console

WORKER_BYTES = 0.45 * 2**30
"""What a worker takes after its imports and its first compiled kernels, as measured."""

COPIES = 40
"""Tensors of a launch that live at one time, as measured on the preset quick: samples, losses, gradients, in float64."""

_SKIPS_SHOWN = 20

_NAMED = 4
"""How many names of a list are shown."""

_NOTED = 5.0
"""Seconds of compilation that are worth a word."""


@dataclass(frozen=True)
class Outline:
    """What would be measured.

    Attributes:
        preset: what the plan began as. ``source``: where scores come from.
        problems, stages, estimators: names.
        suites: cells and instances of each suite.
        cells, skipped: how many cells, how many pairs that do not fit.
        structures: to be enumerated at most. ``seconds, bytes``: of the whole run from the command to its end, estimated.
        compiling: of the seconds, those in which kernels are compiled that this machine had not compiled before.
        longest: the label of the cell that takes longest, and its seconds. ``workers``: processes.
    """

    preset: str
    source: str
    problems: tuple[str, ...]
    stages: tuple[str, ...]
    estimators: tuple[str, ...]
    suites: dict[str, tuple[int, int]]
    cells: int
    skipped: int
    structures: int
    seconds: float
    bytes: float
    compiling: float
    longest: tuple[str, float]
    workers: int


def outline(plan: Plan, work: Grid, machine: Machine, preset: str, compiled: float = 0.0) -> Outline:
    """Lay the grid of a plan out; nothing is measured. ``compiled`` are the seconds that compilation has taken already."""
    costs, compiling = CostModel(plan), compiled + SECONDS * uncompiled(_structures_of(plan, work.cells))
    longest = max(work.cells, key=costs.seconds, default=None)
    instances = Counter(cell.suite for cell in work.cells for _ in range(cell.instances))
    return Outline(
        preset=preset,
        source=plan.file.path if plan.file else plan.data or "built-in regimes",
        problems=tuple(dict.fromkeys(cell.problem for cell in work.cells)),
        stages=tuple(dict.fromkeys(cell.stage for cell in work.cells)),
        estimators=tuple(dict.fromkeys(name for cell in work.cells for name in cell.estimators)),
        suites={name: (count, instances[name]) for name, count in Counter(cell.suite for cell in work.cells).items()},
        cells=len(work.cells),
        skipped=work.skipped_pairs,
        structures=_structures(plan, work.cells),
        seconds=slowdown() * costs.whole(work.cells, machine.jobs) + compiling,
        compiling=compiling,
        longest=("", 0.0) if longest is None else (longest.label, costs.seconds(longest)),
        bytes=_bytes(plan, machine, work.cells),
        workers=max(machine.jobs, 1),
    )


def lines(found: Outline, plan: Plan, machine: Machine) -> list[str]:
    """An outline for people."""
    trained = all(SUITES[name].measures in ("tasks", "references") for name in found.suites)
    effort = plan.effort
    limit = "" if trained else f"{effort.replicates} to {effort.most_replicates} replicates within {setting(effort.seconds)} s, "
    precision = "" if trained else f", {plan.dtype} on {plan.device}"
    quick = ": a first look, not for conclusions" if found.preset == "quick" else ""
    compiling = f", {duration(found.compiling)} of it to compile kernels, once per machine" if found.compiling >= _NOTED else ""
    return [
        f"preset {found.preset}{quick}",
        f"{_problems(found)}; entropy levels: {', '.join(found.stages)}; scores from {found.source}",
        f"{len(found.estimators)} estimators: {', '.join(found.estimators)}",
        f"{instances_line(plan)} each, {limit}seed {plan.seed}{precision}",
        *(f"{name}: {count} cells, {instances} instances" for name, (count, instances) in found.suites.items()),
        f"{found.cells} cells, {found.skipped} pairs skipped; about {duration(found.seconds)} with {processes(plan, machine)}{compiling}, "
        f"about {gibibytes(found.bytes)} of memory",
    ]


def _problems(found: Outline) -> str:
    """Scores, and the losses that they are measured with where these are not their own."""
    parts = [split_loss(name) for name in found.problems]
    scores = tuple(dict.fromkeys(name for name, _ in parts))
    losses = tuple(dict.fromkeys(loss or OWN_LOSS for _, loss in parts))
    named = "" if losses == (OWN_LOSS,) else f"; losses: {', '.join(losses)}"
    return f"{len(scores)} problems: {', '.join(scores)}{named}"


def check_affordable(found: Outline, plan: Plan, machine: Machine, most: float) -> None:
    """Refuse a plan that this machine cannot hold, or of which one cell takes too long; what a cluster has is its own matter.

    Raises:
        ValueError: with the figure, and what to do.
    """
    beyond = beyond_memory(found.bytes) if machine.engine == "local" else ""
    if beyond:
        raise ValueError(
            f"the plan takes about {beyond}; choose fewer rows by --batch-size (it is {plan.batch_size}, and numbers do not depend on it), "
            f"fewer --jobs (they are {machine.jobs}), or smaller problems"
        )
    label, seconds = found.longest
    if seconds > most:
        raise ValueError(
            f"the plan has a cell, {label}, that takes about {duration(seconds)}, longer than {duration(most)}; choose smaller problems, "
            f"fewer instances or other estimators, or ask for it by --longest-cell {spelled(math.ceil(seconds / 3600) * 3600.0)}"
        )


def structures_line(found: Outline) -> str:
    """How many structures the exact gradients have to look at, at most."""
    return f"structures to enumerate: about {number(found.structures)}"


def skips_lines(work: Grid) -> Iterator[str]:
    """Which pairs are skipped and which suites have limits, with the reasons; estimators and problems of one reason share a line."""
    by_reason: dict[str, list[Row]] = {}
    for row in work.skips:
        if not row.suite:
            by_reason.setdefault(row.reason.removeprefix(row.estimator).strip(), []).append(row)
    for reason, rows in list(by_reason.items())[:_SKIPS_SHOWN]:
        names, found = ([*dict.fromkeys(getattr(row, key) for row in rows)] for key in ("estimator", "problem"))
        yield f"skipped: {_first_of(names)} on {_first_of(found)}: {reason}"
    if len(by_reason) > _SKIPS_SHOWN:
        yield f"skipped: pairs for {len(by_reason) - _SKIPS_SHOWN} more reasons, each a row of the report"
    yield from limits_lines(work)


def _first_of(names: list[str]) -> str:
    """A few of them, and how many more there are."""
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def limits_lines(work: Grid) -> Iterator[str]:
    """What suites do not measure, or in part only."""
    for limit in work.limits:
        which = f"{limit.limited} of {limit.instances} instances looked at"
        left = "what needs no exact gradient is measured" if SUITES[limit.suite].partial else "skipped"
        yield f"{limit.suite} on {limit.problem}, {limit.stage}: {which}: {left}: {limit.reason}"


def instances_line(plan: Plan) -> str:
    """How many instances a problem has."""
    count = plan.instances if plan.file is None else plan.file.instances or "all"
    return f"{count} instances"


def processes(plan: Plan, machine: Machine) -> str:
    """How many processes work, and how many of them on each device."""
    found = "1 worker" if machine.jobs == 1 else f"{machine.jobs} workers" if machine.jobs else "this process alone"
    if plan.device_kind == "cpu" or machine.engine != "local":
        return found
    count = len(plan.devices)
    return f"{found} on one device" if count == 1 else f"{found} on {count} devices"


def as_json(found: Outline, work: Grid, plan: Plan, repeat: str) -> dict[str, Any]:
    """An outline for programs."""
    suites = {name: {"cells": cells, "instances": instances} for name, (cells, instances) in found.suites.items()}
    return {
        **vars(found),
        "suites": suites,
        "seconds": round(found.seconds, 1),
        "compiling": round(found.compiling, 1),
        "longest": {"cell": found.longest[0], "seconds": round(found.longest[1], 1)},
        "bytes": round(found.bytes),
        "seed": plan.seed,
        "skips": [{name: getattr(row, name) for name in ("suite", "problem", "stage", "estimator", "reason")} for row in work.skips],
        "limits": [vars(limit) for limit in work.limits],
        "command": repeat,
    }


def _structures(plan: Plan, cells: Sequence[Cell]) -> int:
    """Those of a few instances of each problem and stage, times how many instances there are; larger spaces are not enumerated."""
    total = 0
    for (name, stage), instances in {cell.scores: cell.instances for cell in cells}.items():
        found = sample(plan, name, stage)
        counts = [found.oracle.count(tuple(item.scores.shape)) for item in found.instances]
        total += sum(count for count in counts if count <= plan.effort.cap) * instances // len(counts)
    return total


def _structures_of(plan: Plan, cells: Sequence[Cell]) -> set[str]:
    """The modules of kernels of the structures of a plan."""
    oracles = [sample(plan, *scores).oracle for scores in dict.fromkeys(cell.scores for cell in cells)]
    stated = {"derivations" for oracle in oracles if isinstance(oracle, StatedOracle)}
    return stated | {oracle.kernel for oracle in oracles if oracle.kernel is not None}


def _bytes(plan: Plan, machine: Machine, cells: Sequence[Cell]) -> float:
    """Workers, each with the launches of the largest problem; those of a device take its own memory, and what is free of it."""
    problems = (sample(plan, *scores) for scores in dict.fromkeys(cell.scores for cell in cells))
    parts = max((item.scores.numel() for problem in problems for item in problem.instances), default=0)
    launches = 8.0 * COPIES * parts * plan.batch_size if plan.device_kind == "cpu" else 0.0
    return max(machine.jobs, 1) * (WORKER_BYTES + launches)


def show(found: Outline, work: Grid, plan: Plan, machine: Machine, repeat: str | None) -> None:
    """Print an outline: as JSON where the command that repeats it is given, else in lines."""
    if repeat is not None:
        sys.stdout.write(json.dumps(as_json(found, work, plan, repeat), ensure_ascii=False) + "\n")
        return
    for line in (*lines(found, plan, machine), structures_line(found), *skips_lines(work)):
        console().print(line, markup=False, soft_wrap=True)
