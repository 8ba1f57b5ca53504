"""Plan, machine, scope and shard of a run: its contents, its workers, its end, and its part."""

import fnmatch
import math
import os
import re
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Self, get_args

import torch
from pydantic import TypeAdapter, ValidationError, with_config

from ....oracles.registry import unknown
from ...measures.draws import Tier
from ...measures.suite import Context, Effort
from ...problems.score_files import ScoreFile
from ..work import DONE, FAILED_KIND, Cell, Grid, first_error

CORES = min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, 8)
"""Workers by default: the processors of this process, but no more than a laptop has."""

DTYPES = {"float32": torch.float32, "float64": torch.float64}

LIMITS = {"instances": (1, 10**6), "batch_size": (1, 10**15), "seed": (0, 2**63 - 1), "threads": (1, 4096)}
"""The least and the most of settings of a plan. Beyond, a run would take years or all memory."""

MIN_REPLICATES, MAX_REPLICATES = 64, 10**12  # at least two for each of the 32 batches of an interval

MAX_JOBS = 4096

ENGINES = ("local", "ray")  # workers on this machine, or on a Ray cluster
AGAIN_FAILED = "failed"  # the value of ``--rerun`` for cells that failed, or have a number that is not finite


@dataclass(frozen=True)
class Portion:
    """The most instances, stages (spread evenly) and losses (the first ones) that a suite measures of each problem; None is all."""

    instances: int | None = None
    stages: int | None = None
    losses: int | None = None


@dataclass(frozen=True)
class Plan:
    """A grid of suites, problems, stages and estimators with its settings; measured numbers depend on nothing else.

    Attributes:
        suites, problems, stages, estimators: names, patterns (``reinforce*``), and names with options (``imle[lambda=2.5]``). Empty is all.
        data: folder of real score files; None for the built-in score regimes.
        file: your own score file, measured instead of named problems.
        losses: keys of `LOSSES`, and ``own`` for the default of a problem; a problem such as ``subset_regimes@f1`` names its loss itself.
        offset: added to every loss.
        instances: per problem and stage.
        portions: of suites that measure only a part of the grid.
        effort: precision of each answer.
        seed: all randomness follows from it.
        tier, dtype: see `Context`.
        device: ``cpu``, ``cuda``, or one of several such as ``cuda:1``. Many are used by ``--engine ray``.
        batch_size: rows per launch; changes no number.
        threads: of every worker. Times are taken on one thread; other numbers differ by rounding at most.
        plugins: Python files with estimators and oracles.
    """

    suites: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()
    estimators: tuple[str, ...] = ()
    data: str | None = None
    file: ScoreFile | None = None
    losses: tuple[str, ...] = ()
    offset: float = 0.0
    instances: int = 4
    portions: tuple[tuple[str, Portion], ...] = ()
    effort: Effort = field(default_factory=Effort)
    seed: int = 0
    tier: Tier = "auto"
    dtype: str = "float64"
    device: str = "cpu"
    batch_size: int = 4096
    threads: int = 1
    plugins: tuple[str, ...] = ()

    def portion(self, suite: str) -> Portion:
        """The part of the grid that a suite measures."""
        return dict(self.portions).get(suite, Portion())

    @property
    def device_kind(self) -> str:
        """``cpu`` or ``cuda``: numbers depend on this alone."""
        return self.device.partition(":")[0]

    def context(self) -> Context:
        """The settings that every suite gets."""
        return Context(self.seed, DTYPES[self.dtype], self.device, self.batch_size, self.tier, self.effort)

    def checked(self) -> Self:
        """Return this plan, or raise ValueError with one sentence on the first invalid setting."""
        for name, chosen, known in (("dtype", self.dtype, DTYPES), ("tier", self.tier, get_args(Tier))):
            if chosen not in known:
                raise ValueError(unknown(chosen, known, name))
        least, most, seconds = self.effort.replicates, self.effort.most_replicates, self.effort.seconds
        _require(
            MIN_REPLICATES <= least <= most,
            f"replicates (--replicates) must be between {MIN_REPLICATES} and the most of them (--max-replicates), got {least} and {most}",
        )
        _require(seconds > 0, f"the plan got seconds={seconds:g}; expected a positive number")
        for name, (low, high) in LIMITS.items():
            value = getattr(self, name)
            _require(low <= value <= high, f"the plan got {name}={value}; expected an integer from {low} to {high:,}")
        _require(most <= MAX_REPLICATES, f"the plan got most_replicates={most}; expected at most {MAX_REPLICATES:,}")
        _check_name(self.device)
        return self


def _require(right: bool, message: str) -> None:
    if not right:
        raise ValueError(message)


def default_jobs(plan: Plan) -> int:
    """Workers by default: one for a CUDA device, or for each core that the plan's threads leave."""
    return max(CORES // plan.threads, 1) if plan.device_kind == "cpu" else 1


def plan_from(settings: Any) -> Plan:
    """The plan that ``run.json`` holds; ValueError for settings of another version of structgrad."""
    try:
        return TypeAdapter(with_config(extra="forbid")(Plan)).validate_python(settings)
    except ValidationError as error:
        raise ValueError(f"the plan of the run cannot be read ({first_error(error)}); use the structgrad that wrote it") from None


def _check_name(device: str) -> None:
    right = re.fullmatch(r"cpu|cuda(:\d+)?", device) is not None
    _require(right, f"the plan got device={device!r}; expected cpu, cuda, or cuda:1 and so on")


def check_device(name: str) -> None:
    """Raise ValueError if torch has no such device."""
    _check_name(name)
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"the plan got device={name!r}, which is not available ({reason}); expected cpu, or cuda on a machine with a GPU"
        ) from error


@dataclass(frozen=True)
class Machine:
    """Workers and limits of a run; no number depends on them.

    Attributes:
        jobs: worker processes. 0 measures in this process, on one thread and without time limits.
        timeout: CPU seconds for one cell, or elapsed seconds if it waits. None for `time_limit`.
        memory: GiB that a worker may take beyond those of its imports. None for no limit.
        engine: one of `ENGINES`.
        address: address of its cluster, if it has one.
        gpus: share of a GPU for each worker of a cluster, above 0 and at most 1. None for a whole GPU with ``device="cuda"``.
    """

    jobs: int = CORES
    timeout: float | None = None
    memory: float | None = None
    engine: str = "local"
    address: str | None = None
    gpus: float | None = None

    def checked(self, plan: Plan) -> Self:
        """Return this machine, or raise ValueError with one sentence on the first invalid setting, such as a missing device."""
        if self.engine not in ENGINES:
            raise ValueError(unknown(self.engine, ENGINES, "engine"))
        local = self.engine == "local"
        _require(
            0 <= self.jobs <= MAX_JOBS and (self.timeout is None or self.timeout > 0),
            f"the machine got jobs={self.jobs}, timeout={self.timeout}; expected 0 to {MAX_JOBS:,} jobs and positive seconds",
        )
        if self.memory is not None:
            got = f"the machine got memory={self.memory:g}"
            _require(0 < self.memory < math.inf, f"{got}; expected a positive number of GiB, or none")
            _require(sys.platform != "win32", f"{got}; Windows has no such limit, leave it out")
        nowhere = f"the machine got the address {self.address!r} for the engine local, which has none; choose --engine ray"
        _require(not local or self.address is None, nowhere)
        if self.gpus is not None:
            got = f"the machine got gpus={self.gpus:g}"
            _require(0 < self.gpus <= 1, f"{got}; expected a share above 0 and at most 1: a cell computes on one GPU")
            _require(not local, f"{got} for the engine local; choose --engine ray, or share a GPU by more --jobs")
            cpu = f"{got} and device={plan.device!r}, which takes no GPU; choose --device cuda, or leave it out"
            _require(plan.device_kind == "cuda", cpu)
        _check_name(plan.device)
        if not local:  # its driver need not have the devices of the cluster
            dealt = f"the engine {self.engine} got device={plan.device!r}; expected cuda: it deals GPUs to workers by itself"
            _require(plan.device == plan.device_kind, dealt)
        else:
            check_device(plan.device)
        return self


@dataclass(frozen=True)
class Scope:
    """The extent of a run; no number depends on it."""

    rerun: str | None = None  # measure again only cells that match this name or pattern, or that ``failed``; None for all unfinished ones
    budget: float | None = None  # seconds after which no further cell is started
    fail_fast: bool = False  # whether the first failed cell ends the run
    started: float = field(default_factory=time.monotonic, compare=False)  # the begin of the budget

    def __post_init__(self) -> None:
        if self.budget is not None:
            _require(self.budget > 0, f"the run got budget={self.budget:g}; expected a positive number of seconds")

    def check_names(self, cells: Iterable[Cell]) -> None:
        """Raise ValueError if no cell of a plan matches ``rerun``."""
        if self.rerun not in (None, AGAIN_FAILED) and not any(self.wants(cell, DONE) for cell in cells):
            raise ValueError(
                f"--rerun got {self.rerun!r}, which no cell of this run has; expected failed, or one of its suites, problems, stages or "
                "estimators, or a glob"
            )

    def spent(self) -> bool:
        """Whether no further cell may be started."""
        return self.budget is not None and time.monotonic() - self.started >= self.budget

    def wants(self, cell: Cell, kind: str | None) -> bool:
        """Whether a cell is to be measured, if it is finished with some kind of rows, or not yet (None)."""
        if self.rerun is None:
            return kind in (None, FAILED_KIND)
        if self.rerun == AGAIN_FAILED:
            return kind not in (None, DONE)
        names = (cell.suite, cell.problem, cell.stage, *cell.estimators, cell.label)
        return any(name == self.rerun or fnmatch.fnmatchcase(name, self.rerun) for name in names)


@dataclass(frozen=True)
class Shard:
    """One part of a plan for an array job, counted from 1, such as ``3/40``."""

    number: int
    of: int

    @classmethod
    def parsed(cls, text: str) -> Self:
        """Parse ``3/40``; ValueError for anything else."""
        found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text.strip())
        shard = cls(int(found[1]), int(found[2])) if found else None
        if shard is None or not 1 <= shard.number <= shard.of:
            raise ValueError(f"--shard got {text!r}; expected a part of a whole such as 3/40, counted from 1")
        return shard

    def of_plan(self, work: Grid) -> Grid:
        """The cells of this part: neighbours, which share exact gradients, and as many as in each of the other parts."""
        ends = [len(work.cells) * number // self.of for number in (self.number - 1, self.number)]
        return Grid(work.cells[slice(*ends)], work.skips, tuple(range(*ends)))
