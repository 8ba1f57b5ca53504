"""Measuring one cell, and keeping its rows on disk."""

from __future__ import annotations

import functools
import json
import math
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import torch

from ...estimators import make_estimator
from ...oracles.base import EnumerableOracle
from ..base import Instance, Problem, Row, Status
from ..measures.bias import Measurement, measure
from ..measures.memory import peak_memory
from ..measures.sparsity import forward_sparsity
from ..measures.wall_clock import measure_times, time_once, timing_batch
from ..statistics import seeds
from ..statistics.metrics import Interval
from ..truth import Truth, exact_truth
from .plan import Cell, Plan, load_problem, row_of


def execute(plan: Plan, cell: Cell, directory: str) -> None:
    """Measure a cell and write its rows; an error of the measured code becomes a row with its reason, not a crash of the run."""
    torch.set_num_threads(1)
    problem = load_problem(plan, cell.problem, cell.stage)
    try:
        rows = _timing_rows(plan, cell, problem) if cell.kind == "timing" else _moment_rows(plan, cell, problem)
    except Exception as error:  # any user-supplied estimator may run here
        rows = failed_rows(plan, cell, "error", f"{type(error).__name__}: {error}")
    write_cell(Path(directory), cell, rows)


def failed_rows(plan: Plan, cell: Cell, status: Status, reason: str) -> list[Row]:
    """One row per estimator that says what went wrong."""
    problem = load_problem(plan, cell.problem, cell.stage)
    return [row_of(problem, name, cell.identity, kind=cell.kind, status=status, reason=reason, seed=plan.seed) for name in cell.estimators]


def write_cell(directory: Path, cell: Cell, rows: list[Row]) -> None:
    """Write atomically: a killed run leaves whole cells, or none."""
    write_atomically(cell_path(directory, cell), json.dumps({"cell": asdict(cell), "rows": [asdict(row) for row in rows]}))


def finished_rows(directory: Path, cell: Cell) -> list[Row] | None:
    """The rows of a finished cell; None where it has none yet, or failed: failures are measured again."""
    if not cell_path(directory, cell).exists():
        return None
    rows = stored_rows(directory, cell)
    return rows if all(row.status == "ok" for row in rows) else None


def stored_rows(directory: Path, cell: Cell) -> list[Row]:
    """The rows on disk, whatever their status."""
    return [Row(**row) for row in json.loads(cell_path(directory, cell).read_text())["rows"]]


def cell_path(directory: Path, cell: Cell) -> Path:
    """Where a cell's rows lie."""
    return directory / "cells" / f"{cell.identity}.json"


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that it is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@dataclass(frozen=True)
class _Known:
    """An instance with its exact gradient, on the device of the plan."""

    instance: Instance
    truth: Truth


@functools.lru_cache(maxsize=8)
def _known(plan: Plan, name: str, stage: str) -> tuple[_Known, ...]:
    problem = load_problem(plan, name, stage)
    oracle = cast(EnumerableOracle, problem.oracle)
    return tuple(_Known(instance, exact_truth(instance.loss, oracle, instance.scores.to(plan.device))) for instance in problem.instances)


def _moment_rows(plan: Plan, cell: Cell, problem: Problem) -> list[Row]:
    name = cell.estimators[0]
    rows = []
    for known in _known(plan, cell.problem, cell.stage):
        scores = known.instance.scores.to(plan.device)
        key = (problem.name, problem.stage, known.instance.name)
        found = measure(make_estimator(name), problem.oracle, known.instance.loss, scores, truth=known.truth, sampling=plan.sampling(key))
        shared = _shared_columns(plan, known, found)
        rows += [
            row_of(problem, name, cell.identity, kind="moments", metric=metric, unit=_unit(metric), value=interval.value, low=interval.low,
                   high=interval.high, verdict=found.verdict if metric == "relative_bias" else "", **shared)
            for metric, interval in found.metrics.items()
        ]  # fmt: skip
        norm = float(known.truth.gradient.norm())
        rows.append(row_of(problem, name, cell.identity, kind="moments", metric="truth_norm", value=norm, **shared))
        sparsity = forward_sparsity(make_estimator(name), problem.oracle, scores, truth=known.truth)
        rows += [
            row_of(problem, name, cell.identity, kind="sparsity", metric=metric, unit="count", value=value, **shared)
            for metric, value in sparsity.items()
        ]
    return rows


def _shared_columns(plan: Plan, known: _Known, found: Measurement) -> dict[str, Any]:
    return {
        "instance": known.instance.name,
        "log_count": math.log(known.truth.count),
        "entropy": known.truth.entropy,
        "tier": found.tier,
        "replicates": found.replicates,
        "seed": plan.seed,
    }


def _timing_rows(plan: Plan, cell: Cell, problem: Problem) -> list[Row]:
    """All estimators of a problem take turns on a batch around its largest instance."""
    instance = max(problem.instances, key=lambda item: item.scores.numel())
    sampling = plan.sampling(())
    scores = timing_batch(
        instance.scores.to(plan.device, sampling.dtype), generator=seeds.generator(plan.seed, "timing", device=plan.device)
    )
    estimators = {name: make_estimator(name) for name in cell.estimators}
    rows = []
    for name, times in measure_times(estimators, problem.oracle, instance.loss, scores).items():
        once = functools.partial(time_once, estimators[name], problem.oracle, instance.loss, scores)
        memory = Interval(float(peak_memory(once, device=plan.device)))
        found = {"forward_time": times.forward, "backward_time": times.backward, "time_ratio": times.ratio, "peak_memory": memory}
        rows += [
            row_of(problem, name, cell.identity, kind="timing", metric=metric, unit=_unit(metric), value=interval.value, low=interval.low,
                   high=interval.high, seed=plan.seed)
            for metric, interval in found.items()
        ]  # fmt: skip
    return rows


def _unit(metric: str) -> str:
    if metric == "peak_memory":
        return "B"
    return "s" if metric.endswith("_time") else "count" if metric.endswith("nonzeros") else "1"
