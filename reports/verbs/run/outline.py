"""A plan before it is measured: its cells, and estimates of its time and memory."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ....oracles.derivations import StatedOracle
from ....oracles.magnitudes import beyond_memory
from ....suites.base import split_loss
from ....suites.measures import SUITES
from ....suites.problems import OWN_LOSS
from ....suites.processors import slowdown
from ....suites.running.planning.compiling import SECONDS, uncompiled
from ....suites.running.planning.estimates import CostModel
from ....suites.running.planning.plan import Machine, Plan
from ....suites.running.scores import sample
from ....suites.running.work import Grid
from ....suites.text import duration, gibibytes, plural, setting, spelled

WORKER_BYTES = 0.45 * 2**30
"""Memory of a worker after its imports and its first compiled kernels, as measured."""

COPIES = 40
"""Tensors of a launch that live at one time, as measured on the preset quick: samples, losses, gradients, in float64."""

SKIPS_SHOWN, NAMES_SHOWN, COMPILING_SHOWN = 20, 4, 5.0
"""Reasons for skipped pairs, names of a list, and the fewest seconds of compilation that are printed."""


@dataclass(frozen=True)
class Outline:
    """Names, counts and estimates of a plan.

    Attributes:
        preset: name of the plan's preset. ``source``: origin of the scores.
        problems, stages, estimators: names. ``suites``: cells and instances of each suite.
        cells: number of cells. ``skipped``: number of pairs that do not fit. ``structures``: maximum number to enumerate.
        seconds, bytes: of the whole run. ``compiling``: those seconds in which new kernels are compiled.
        longest: label and seconds of the longest cell. ``workers``: number of processes.
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
    """Estimate a plan; nothing is measured, and `compiled` seconds of compilation are over."""
    cells, costs = work.cells, CostModel(plan)
    samples = {scores: sample(plan, *scores) for scores in dict.fromkeys(cell.scores for cell in cells)}
    instances = {cell.scores: cell.instances for cell in cells}
    structures = 0
    for scores, problem in samples.items():  # of a few instances; larger spaces are not enumerated
        counts = [problem.oracle.count(tuple(item.scores.shape)) for item in problem.instances]
        structures += sum(count for count in counts if count <= plan.effort.cap) * instances[scores] // len(counts)
    oracles = [problem.oracle for problem in samples.values()]
    kernels = {oracle.kernel for oracle in oracles if oracle.kernel} | {"derivations" for one in oracles if isinstance(one, StatedOracle)}
    compiling = compiled + SECONDS * uncompiled(kernels)
    parts = max((item.scores.numel() for problem in samples.values() for item in problem.instances), default=0)
    launches = 8.0 * COPIES * parts * plan.batch_size if plan.device_kind == "cpu" else 0.0  # a device has its own memory
    longest = max(cells, key=costs.seconds, default=None)
    measured = Counter(cell.suite for cell in cells for _ in range(cell.instances))
    return Outline(
        preset=preset,
        source=plan.file.path if plan.file else plan.data or "built-in regimes",
        problems=tuple(dict.fromkeys(cell.problem for cell in cells)),
        stages=tuple(dict.fromkeys(cell.stage for cell in cells)),
        estimators=tuple(dict.fromkeys(name for cell in cells for name in cell.estimators)),
        suites={name: (count, measured[name]) for name, count in Counter(cell.suite for cell in cells).items()},
        cells=len(cells),
        skipped=work.skipped_pairs,
        structures=structures,
        seconds=slowdown() * costs.whole(cells, machine.jobs) + compiling,
        bytes=max(machine.jobs, 1) * (WORKER_BYTES + launches),
        compiling=compiling,
        longest=("", 0.0) if longest is None else (longest.label, costs.seconds(longest)),
        workers=max(machine.jobs, 1),
    )


def lines(found: Outline, plan: Plan, machine: Machine) -> list[str]:
    """An outline for people."""
    trained = all(SUITES[name].measures in ("tasks", "references") for name in found.suites)
    effort, quick = plan.effort, ": a first look, not for conclusions" if found.preset == "quick" else ""
    limit = "" if trained else f"{effort.replicates} to {effort.most_replicates} replicates within {setting(effort.seconds)} s, "
    precision = "" if trained else f", {plan.dtype} on {plan.device}"
    count = plan.instances if plan.file is None else plan.file.instances or "all"
    parts = [split_loss(name) for name in found.problems]
    scores, losses = dict.fromkeys(name for name, _ in parts), dict.fromkeys(loss or OWN_LOSS for _, loss in parts)
    named = "" if list(losses) == [OWN_LOSS] else f"; losses: {', '.join(losses)}"
    workers = plural(machine.jobs, "worker") if machine.jobs else "this process alone"
    if plan.device_kind != "cpu" and machine.engine == "local":
        workers += " on one device" if len(plan.devices) == 1 else f" on {len(plan.devices)} devices"
    compiling = f", {duration(found.compiling)} of it to compile kernels, once per machine" if found.compiling >= COMPILING_SHOWN else ""
    return [
        f"preset {found.preset}{quick}",
        f"{len(scores)} problems: {', '.join(scores)}{named}; entropy levels: {', '.join(found.stages)}; scores from {found.source}",
        f"{len(found.estimators)} estimators: {', '.join(found.estimators)}",
        f"{count} instances each, {limit}seed {plan.seed}{precision}",
        *(f"{name}: {count} cells, {instances} instances" for name, (count, instances) in found.suites.items()),
        f"{found.cells} cells, {found.skipped} pairs skipped; about {duration(found.seconds)} with {workers}{compiling}, "
        f"about {gibibytes(found.bytes)} of memory",
    ]


def skips_lines(work: Grid) -> Iterator[str]:
    """The skipped pairs, one line per reason, and the limits of suites."""
    reasons: dict[str, list[tuple[str, str]]] = {}
    for row in work.skips:
        if not row.suite:
            reasons.setdefault(row.reason.removeprefix(row.estimator).strip(), []).append((row.estimator, row.problem))
    for reason, pairs in list(reasons.items())[:SKIPS_SHOWN]:
        yield f"skipped: {' on '.join(_first_of(names) for names in zip(*pairs, strict=True))}: {reason}"
    if len(reasons) > SKIPS_SHOWN:
        yield f"skipped: pairs for {len(reasons) - SKIPS_SHOWN} more reasons, each a row of the report"
    yield from limits_lines(work)


def _first_of(names: Iterable[str]) -> str:
    found = [*dict.fromkeys(names)]
    return ", ".join(found[:NAMES_SHOWN]) + (f" and {len(found) - NAMES_SHOWN} more" if len(found) > NAMES_SHOWN else "")


def limits_lines(work: Grid) -> Iterator[str]:
    """The instances that a suite does not measure, or only in part."""
    for limit in work.limits:
        which = f"{limit.limited} of {limit.instances} instances"
        left = "only metrics that need no exact gradient are measured" if SUITES[limit.suite].partial else "skipped"
        yield f"{limit.suite} on {limit.problem}, {limit.stage}: {which}: {left}: {limit.reason}"


def check_affordable(found: Outline, plan: Plan, machine: Machine, most: float) -> None:
    """Refuse a plan that needs more memory than this machine has, or whose longest cell takes more seconds than `most`.

    Raises:
        ValueError: with the figure, and the options to change.
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


def as_json(found: Outline, work: Grid, plan: Plan, repeat: str) -> dict[str, Any]:
    """An outline for programs."""
    return {
        **vars(found),
        "suites": {name: {"cells": cells, "instances": instances} for name, (cells, instances) in found.suites.items()},
        "seconds": round(found.seconds, 1),
        "compiling": round(found.compiling, 1),
        "longest": {"cell": found.longest[0], "seconds": round(found.longest[1], 1)},
        "bytes": round(found.bytes),
        "seed": plan.seed,
        "skips": [{name: getattr(row, name) for name in ("suite", "problem", "stage", "estimator", "reason")} for row in work.skips],
        "limits": [vars(limit) for limit in work.limits],
        "command": repeat,
    }
