"""A plan before it is measured: its cells, and estimates of its time and memory, as one record that is printed or written as JSON."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from ....suites.base import split_loss
from ....suites.measures import SUITES
from ....suites.problems import OWN_LOSS
from ....suites.running.planning.estimates import START, CostModel
from ....suites.running.planning.grid import sample
from ....suites.running.planning.plan import Machine, Plan
from ....suites.running.work import Grid
from ....suites.text import duration, gibibytes, listed, number, plural, significant

WORKER_BYTES = 0.45 * 2**30
"""Memory of a worker after its imports and its first compiled kernels, as measured."""

COPIES = 40
"""Tensors of a launch that live at one time, as measured on the preset quick: samples, losses, gradients, in float64."""

SKIPS_SHOWN = 20

Outline = dict[str, Any]
"""Names, counts and estimates of a plan as JSON values."""


def outline(plan: Plan, work: Grid, machine: Machine, preset: str, command: str) -> Outline:
    """Estimate a plan; nothing is measured, and time to compile kernels does not count."""
    cells, costs = work.cells, CostModel(plan)
    instances = {cell.scores: cell.instances for cell in cells}
    samples = {scores: sample(plan, *scores) for scores in instances}
    structures = 0
    for scores, problem in samples.items():  # of a few instances; larger spaces are not enumerated
        counts = [problem.oracle.count(tuple(item.scores.shape)) for item in problem.instances]
        structures += sum(count for count in counts if count <= plan.effort.cap) * instances[scores] // len(counts)
    parts = max((item.scores.numel() for problem in samples.values() for item in problem.instances), default=0)
    launches = 8.0 * COPIES * parts * plan.batch_size if plan.device_kind == "cpu" else 0.0  # a device has its own memory
    longest = max(((costs.seconds(cell), cell.label) for cell in cells), key=lambda cost: cost[0], default=(0.0, ""))
    measured = Counter(cell.suite for cell in cells for _ in range(cell.instances))
    return {
        "preset": preset,
        "source": plan.file.path if plan.file else plan.data or "built-in regimes",
        "problems": list(dict.fromkeys(cell.problem for cell in cells)),
        "stages": list(dict.fromkeys(cell.stage for cell in cells)),
        "estimators": list(dict.fromkeys(name for cell in cells for name in cell.estimators)),
        "suites": {name: {"cells": count, "instances": measured[name]} for name, count in Counter(cell.suite for cell in cells).items()},
        "cells": len(cells),
        "skipped": work.skipped_pairs,
        "structures": structures,
        "seconds": round(START + costs.left(cells, machine.jobs), 1),
        "bytes": round(max(machine.jobs, 1) * (WORKER_BYTES + launches)),
        "longest": {"cell": longest[1], "seconds": round(longest[0], 1)},
        "workers": max(machine.jobs, 1),
        "seed": plan.seed,
        "skips": [{name: getattr(row, name) for name in ("suite", "problem", "stage", "estimator", "reason")} for row in work.skips],
        "command": command,
    }


def lines(found: Outline, plan: Plan, machine: Machine, *, skips: bool) -> Iterator[str]:
    """An outline for people, with the skipped pairs if they are asked for."""
    trained = all(SUITES[name].measures in ("tasks", "references") for name in found["suites"])
    effort = plan.effort
    replicates = f"{effort.replicates} to {effort.most_replicates} replicates within {significant(effort.seconds)} s, "
    parts = [split_loss(name) for name in found["problems"]]
    scores, losses = dict.fromkeys(name for name, _ in parts), dict.fromkeys(loss or OWN_LOSS for _, loss in parts)
    named = "" if list(losses) == [OWN_LOSS] else f"; losses: {', '.join(losses)}"
    workers = plural(machine.jobs, "worker") if machine.jobs else "this process alone"
    if plan.device_kind != "cpu" and machine.engine == "local":
        workers += " on one device"
    yield f"preset {found['preset']}" + (": a first look, not for conclusions" if found["preset"] == "quick" else "")
    yield f"{len(scores)} problems: {', '.join(scores)}{named}; entropy levels: {', '.join(found['stages'])}; scores from {found['source']}"
    yield f"{len(found['estimators'])} estimators: {', '.join(found['estimators'])}"
    count = plan.instances if plan.file is None else plan.file.instances or "all"
    yield f"{count} instances each, " + (f"seed {plan.seed}" if trained else f"{replicates}seed {plan.seed}, {plan.dtype} on {plan.device}")
    for name, counts in found["suites"].items():
        yield f"{name}: {counts['cells']} cells, {counts['instances']} instances"
    yield (
        f"{found['cells']} cells, {found['skipped']} pairs skipped; about {duration(found['seconds'])} with {workers}, "
        f"about {gibibytes(found['bytes'])} of memory"
    )
    if found["cells"]:
        yield f"longest cell: about {duration(found['longest']['seconds'])}, {found['longest']['cell']}"
    if skips:
        yield f"structures to enumerate: about {number(found['structures'])}"
        pairs: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for row in found["skips"]:
            place = " of ".join(filter(None, (row["suite"], row["problem"])))
            pairs[row["reason"].removeprefix(row["estimator"]).strip()].append((row["estimator"], place))
        for reason, some in list(pairs.items())[:SKIPS_SHOWN]:
            yield f"skipped: {' on '.join(listed(list(dict.fromkeys(names))) for names in zip(*some, strict=True))}: {reason}"
        if len(pairs) > SKIPS_SHOWN:
            yield f"skipped: pairs for {len(pairs) - SKIPS_SHOWN} more reasons, each a row of the report"
