"""A plan before it is measured: its grid, its structures, how long it takes and how much memory, about."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ...suites.measures import SUITES
from ...suites.running.plan import Machine, Plan
from ...suites.running.progress import CostModel
from ...suites.running.scores import sample
from ...suites.running.work import Cell, Grid
from ..terminal import console, duration

WORKER_BYTES = 0.45 * 2**30
"""What a worker takes after its imports and its first compiled kernels, as measured."""

COPIES = 40
"""Tensors of a launch that live at one time, as measured on the preset quick: samples, losses, gradients, in float64."""

_SKIPS_SHOWN = 20


@dataclass(frozen=True)
class Outline:
    """What would be measured.

    Attributes:
        preset: what the plan began as. ``source``: where scores come from.
        problems, stages, estimators: names.
        suites: cells and instances of each suite.
        cells, skipped: how many cells, how many pairs that do not fit.
        structures: to be enumerated at most. ``seconds, bytes``: of the whole run, estimated. ``workers``: processes.
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
    workers: int


def outline(plan: Plan, work: Grid, machine: Machine, preset: str) -> Outline:
    """Lay the grid of a plan out; nothing is measured."""
    instances = Counter(cell.suite for cell in work.cells for _ in range(cell.instances))
    return Outline(
        preset=preset,
        source=plan.file.path if plan.file else plan.data or "built-in regimes",
        problems=tuple(dict.fromkeys(cell.problem for cell in work.cells)),
        stages=tuple(dict.fromkeys(cell.stage for cell in work.cells)),
        estimators=tuple(dict.fromkeys(name for cell in work.cells for name in cell.estimators)),
        suites={name: (count, instances[name]) for name, count in Counter(cell.suite for cell in work.cells).items()},
        cells=len(work.cells),
        skipped=len(work.skips),
        structures=_structures(plan, work.cells),
        seconds=CostModel(plan).left(work.cells, machine.jobs),
        bytes=_bytes(plan, machine, work.cells),
        workers=max(machine.jobs, 1),
    )


def lines(found: Outline, plan: Plan, machine: Machine) -> list[str]:
    """An outline for people."""
    limit = f"{plan.effort.replicates} to {plan.effort.most_replicates} replicates within {plan.effort.seconds:g} s"
    quick = ": a first look, not for conclusions; --preset standard measures in earnest" if found.preset == "quick" else ""
    return [
        f"preset {found.preset}{quick}",
        f"{len(found.problems)} problems: {', '.join(found.problems)}; stages: {', '.join(found.stages)}; scores from {found.source}",
        f"{len(found.estimators)} estimators: {', '.join(found.estimators)}",
        f"{instances_line(plan)} each, {limit}, seed {plan.seed}, {plan.dtype} on {plan.device}",
        *(f"{name}: {count} cells, {instances} instances" for name, (count, instances) in found.suites.items()),
        f"{found.cells} cells, {found.skipped} pairs skipped; about {duration(found.seconds)} with {processes(machine)}, "
        f"about {found.bytes / 2**30:.1f} GiB of memory",
    ]


def structures_line(found: Outline) -> str:
    """How many structures the exact gradients have to look at, at most."""
    return f"structures to enumerate: about {found.structures:.3g}"


def skips_lines(work: Grid) -> Iterator[str]:
    """Which pairs are skipped and which suites have limits, with the reasons."""
    skips = dict.fromkeys((row.suite, row.estimator, row.problem, row.reason) for row in work.skips)
    pairs = [f"skipped: {name} on {problem}: {reason}" for suite, name, problem, reason in skips if not suite]
    yield from pairs[:_SKIPS_SHOWN]
    if len(pairs) > _SKIPS_SHOWN:
        yield f"skipped: and {len(pairs) - _SKIPS_SHOWN} more pairs, each a row of the report with its reason"
    yield from limits_lines(work)


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


def processes(machine: Machine) -> str:
    """How many processes work."""
    return "1 worker" if machine.jobs == 1 else f"{machine.jobs} workers" if machine.jobs else "this process alone"


def as_json(found: Outline, work: Grid, plan: Plan, repeat: str) -> dict[str, Any]:
    """An outline for programs."""
    suites = {name: {"cells": cells, "instances": instances} for name, (cells, instances) in found.suites.items()}
    return {
        **vars(found),
        "suites": suites,
        "seconds": round(found.seconds, 1),
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


def _bytes(plan: Plan, machine: Machine, cells: Sequence[Cell]) -> float:
    """Workers, each with the launches of the largest problem."""
    problems = (sample(plan, *scores) for scores in dict.fromkeys(cell.scores for cell in cells))
    parts = max((item.scores.numel() for problem in problems for item in problem.instances), default=0)
    return max(machine.jobs, 1) * (WORKER_BYTES + 8.0 * COPIES * parts * plan.batch_size)


def show(found: Outline, work: Grid, plan: Plan, machine: Machine, repeat: str | None) -> None:
    """Print an outline: as JSON where the command that repeats it is given, else in lines."""
    if repeat is not None:
        sys.stdout.write(json.dumps(as_json(found, work, plan, repeat), ensure_ascii=False) + "\n")
        return
    for line in (*lines(found, plan, machine), structures_line(found), *skips_lines(work)):
        console().print(line, markup=False, soft_wrap=True)
