"""Plans and machines: what a run measures, and how it is run; two values, of which the second changes no number."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import torch

from ....oracles.registry import unknown
from ...measures.suite import Context, Effort
from ...problems.score_files import ScoreFile
from ...processors import processors
from .devices import check_device, check_names, devices_of, kind_of

CORES = min(processors(), 8)
"""Workers by default: what this process may use, and no more than a laptop's worth."""

DTYPES = {"float32": torch.float32, "float64": torch.float64}

Tier = Literal["auto", "exact", "mc"]

FEWEST_REPLICATES = 64
"""Two for each of the 32 batches that intervals are made of."""


@dataclass(frozen=True)
class Portion:
    """How much of a grid a suite takes part in.

    Attributes:
        instances: per problem and stage, at most. ``stages``: of each problem, at most, spread over those of the plan. ``losses``: of the
            same scores, at most, the first ones of the plan. None is all.
    """

    instances: int | None = None
    stages: int | None = None
    losses: int | None = None


@dataclass(frozen=True)
class Plan:
    """A grid of suites, problems, stages and estimators with its settings; measured numbers depend on nothing else.

    Attributes:
        suites, problems, stages, estimators: names, patterns allowed (``reinforce*``), estimators with options (``imle[lambda=2.5]``);
            all of them when empty, of the problems those that `problems.available` names.
        data: folder of real score files; None for the built-in score regimes.
        file: a user's own score file, measured instead of named problems.
        losses: of problems with scores that do not name one themselves (``subset_regimes@f1``): keys of `LOSSES`, and ``own`` for that
            which a problem has by default; empty for that alone. ``offset``: added to every loss.
        instances: per problem and stage.
        portions: of suites that take a part of the grid only.
        effort: how much work goes into one answer.
        seed: everything random comes from it. ``tier, dtype, device``: see `Context`; of several devices (``cuda:0,cuda:1``) each
            takes cells as a whole, and no number depends on which.
        batch_size: rows per launch; changes no number.
        threads: of every worker; times are taken on one, and other numbers depend on it in their rounding alone.
        plugins: Python files whose estimators and oracles can be named.
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
        """What a suite takes of the grid."""
        return dict(self.portions).get(suite, Portion())

    @property
    def devices(self) -> tuple[str, ...]:
        """Where cells can be measured."""
        return devices_of(self.device)

    @property
    def device_kind(self) -> str:
        """What numbers depend on of the devices."""
        return kind_of(self.device)

    def at(self, place: int) -> Plan:
        """The plan of the worker at a place: with the one device that it computes on; they take turns."""
        device = self.devices[place % len(self.devices)]
        return self if device == self.device else replace(self, device=device)

    def context(self) -> Context:
        """What every suite is given."""
        return Context(self.seed, DTYPES[self.dtype], self.devices[0], self.batch_size, self.tier, self.effort)

    def checked(self) -> Plan:
        """The same plan, or ValueError with one sentence on the first setting that cannot be."""
        if self.dtype not in DTYPES:
            raise ValueError(unknown(self.dtype, DTYPES, "dtype"))
        if self.tier not in get_args(Tier):
            raise ValueError(unknown(self.tier, get_args(Tier), "tier"))
        if self.effort.replicates < FEWEST_REPLICATES or self.effort.most_replicates < self.effort.replicates:
            raise ValueError(
                f"replicates (--replicates) must be between {FEWEST_REPLICATES} and the most of them (--max-replicates), "
                f"got {self.effort.replicates} and {self.effort.most_replicates}"
            )
        if not self.effort.seconds > 0:
            raise ValueError(f"the plan got seconds={self.effort.seconds:g}; expected a positive number")
        for name, least, most in LIMITS:
            if not least <= getattr(self, name) <= most:
                raise ValueError(f"the plan got {name}={getattr(self, name)}; expected an integer from {least} to {most:,}")
        if self.effort.most_replicates > MOST_REPLICATES:
            raise ValueError(f"the plan got most_replicates={self.effort.most_replicates}; expected at most {MOST_REPLICATES:,}")
        check_names(self.device)
        return self


def default_jobs(plan: Plan) -> int:
    """Workers where nobody says how many: one for each device, whose memory is one; on the CPU one for each core, by their threads."""
    return max(CORES // plan.threads, 1) if plan.device_kind == "cpu" else len(plan.devices)


MOST_JOBS = 4096

MOST_REPLICATES = 10**12

LIMITS = (("instances", 1, 10**6), ("batch_size", 1, 10**15), ("seed", 0, 2**63 - 1), ("threads", 1, 4096))
"""Settings of a plan with the least and the most that they may be: beyond, a run would take years or all memory."""


@dataclass(frozen=True)
class Machine:
    """How a plan is run; no number depends on it.

    Attributes:
        jobs: worker processes, at least one for each device; 0 works in this process, on one thread and without time limits.
        timeout: CPU seconds for one cell, or seconds if it waits for something; None lets `time_limit` decide.
        memory: GiB that a worker may take beyond what its imports took; None for no limit.
        engine: a key of `ENGINES`. ``address``: of its cluster, where it has one.
        gpus: share of a GPU that a worker on a cluster asks for, above 0 and at most 1; None for one to itself with ``device="cuda"``.
    """

    jobs: int = CORES
    timeout: float | None = None
    memory: float | None = None
    engine: str = "local"
    address: str | None = None
    gpus: float | None = None

    def checked(self, engines: Mapping[str, Any], plan: Plan) -> Machine:
        """The same machine, or ValueError with one sentence on what cannot be, such as a device that is not there."""
        if self.engine not in engines:
            raise ValueError(unknown(self.engine, engines, "engine"))
        if not 0 <= self.jobs <= MOST_JOBS or (self.timeout is not None and self.timeout <= 0):
            raise ValueError(
                f"the machine got jobs={self.jobs}, timeout={self.timeout}; expected 0 to {MOST_JOBS:,} jobs and positive seconds"
            )
        if self.memory is not None and not 0 < self.memory < math.inf:
            raise ValueError(f"the machine got memory={self.memory:g}; expected a positive number of GiB, or none")
        if self.memory is not None and sys.platform == "win32":
            raise ValueError(f"the machine got memory={self.memory:g}; Windows has no such limit, leave it out")
        if self.address is not None and self.engine == "local":
            raise ValueError(f"the machine got the address {self.address!r} for the engine local, which has none; choose --engine ray")
        if self.gpus is not None:
            self._check_gpus(self.gpus, plan)
        self._check_devices(plan)
        return self

    def _check_gpus(self, gpus: float, plan: Plan) -> None:
        if not 0 < gpus <= 1:
            raise ValueError(f"the machine got gpus={gpus:g}; expected a share above 0 and at most 1: a cell computes on one GPU")
        if self.engine == "local":
            raise ValueError(f"the machine got gpus={gpus:g} for the engine local; choose --engine ray, or share a GPU by more --jobs")
        if plan.device_kind != "cuda":
            raise ValueError(
                f"the machine got gpus={gpus:g} and device={plan.device!r}, which takes no GPU; choose --device cuda, or leave it out"
            )

    def _check_devices(self, plan: Plan) -> None:
        """What a cluster has is its own matter: its driver need not have a device."""
        check_names(plan.device)
        if self.engine != "local":
            if plan.device != plan.device_kind:
                raise ValueError(f"the engine {self.engine} got device={plan.device!r}; expected cuda: it deals GPUs to workers by itself")
            return
        names = plan.devices
        if len(names) > 1 and 0 <= self.jobs < len(names):
            raise ValueError(
                f"the machine got jobs={self.jobs} for the {len(names)} devices {plan.device}; expected a worker for each: give --jobs "
                f"{len(names)} or more, or fewer devices"
            )
        for name in names:
            check_device(name)
