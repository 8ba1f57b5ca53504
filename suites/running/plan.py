"""What a run measures: the plan, and the cells that it is cut into."""

from __future__ import annotations

import fnmatch
import functools
import hashlib
import importlib.metadata
import json
import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from ...estimators import ESTIMATORS, make_estimator
from ...estimators.base import Estimator
from ...oracles.registry import unknown
from .. import problems
from ..base import SCHEMA_VERSION, Problem, Row, Skip, pairing
from ..measures.bias import Sampling, Tier
from ..problems import STAGES
from ..problems.score_files import ScoreFile

CORES = min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, 8)
"""Workers by default: what this process may use, and no more than a laptop's worth."""

DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Plan:
    """The grid and its settings; measured numbers depend on nothing else.

    Attributes:
        problems, stages: which scores, patterns allowed; all of the default suite when empty.
        estimators: names with options, patterns allowed (``reinforce*``, ``imle[lambda=2.5]``); all when empty.
        data: folder of real score files; None for the built-in score regimes.
        file: a user's own score file, measured instead of named problems.
        loss: instead of every problem's own.
        instances: per problem and stage.
        replicates, batch_size, seed, tier: see `Sampling`. ``batch_size`` and ``jobs`` do not change any number.
        jobs: worker processes; 0 runs in this process, on one thread and without time limits.
        timeout: seconds for one cell.
        dtype, device: where estimators run; truth and moments are float64.
        timing: whether wall-clock is measured, after everything else and alone on the machine.
    """

    problems: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()
    estimators: tuple[str, ...] = ()
    data: str | None = None
    file: ScoreFile | None = None
    loss: str | None = None
    instances: int = 4
    replicates: int = 4096
    batch_size: int = 4096
    seed: int = 0
    tier: Tier = "auto"
    jobs: int = CORES
    timeout: float = 300.0
    dtype: str = "float64"
    device: str = "cpu"
    timing: bool = True

    def sampling(self, key: tuple[str, ...]) -> Sampling:
        """How one instance is sampled."""
        return Sampling(self.replicates, self.seed, key, self.batch_size, self.tier, DTYPES[self.dtype])

    def checked(self) -> Plan:
        """The same plan, or ValueError with one sentence on the first setting that cannot be."""
        if self.dtype not in DTYPES:
            raise ValueError(unknown(self.dtype, DTYPES, "dtype"))
        self.sampling(())
        if self.instances < 1:
            raise ValueError(f"the plan got instances={self.instances}; expected at least 1")
        if self.jobs < 0 or self.timeout <= 0:
            raise ValueError(f"the plan got jobs={self.jobs}, timeout={self.timeout}; expected jobs >= 0 and a positive number of seconds")
        _check_device(self.device)
        return self


@dataclass(frozen=True)
class Cell:
    """The unit of work, of storage and of resumption: one estimator on one problem at one stage, or the timing of all on one problem."""

    kind: Literal["moments", "timing"]
    problem: str
    stage: str
    estimators: tuple[str, ...]
    identity: str

    @property
    def label(self) -> str:
        """For people."""
        what = self.estimators[0] if self.kind == "moments" else "wall-clock"
        return f"{self.problem} {self.stage} {what}"


@dataclass(frozen=True)
class Grid:
    """The cells of a plan, and the pairs that cannot be measured."""

    cells: tuple[Cell, ...]
    skips: tuple[Row, ...]


def grid(plan: Plan) -> Grid:
    """Cut a plan into cells, before anything is measured.

    Raises:
        ValueError: a name that is unknown, a pattern that matches nothing, an input that cannot be read.
    """
    plan.checked()
    names = estimator_names(plan.estimators)
    cells: list[Cell] = []
    skips: list[Row] = []
    scores = _scores(plan)
    for name, stage in scores:
        problem = load_problem(plan, name, stage)
        fitting = []
        for estimator in names:
            skip = first_skip(make_estimator(estimator), problem)
            if skip is None:
                fitting.append(estimator)
            else:
                skips.append(_skip_row(problem, estimator, skip.reason))
        cells += [_cell(plan, "moments", problem, (estimator,)) for estimator in fitting]
        if plan.timing and fitting and stage == scores[0][1]:
            cells.append(_cell(plan, "timing", problem, tuple(fitting)))
    return Grid(tuple(cells), tuple(skips))


def first_skip(estimator: Estimator[Any], problem: Problem) -> Skip | None:
    """Why an estimator cannot be measured on some instance of a problem; None where it can on all."""
    found = (pairing(estimator, problem.oracle, item.loss, tuple(item.scores.shape)) for item in problem.instances)
    return next((skip for skip in found if skip is not None), None)


def estimator_names(patterns: tuple[str, ...]) -> tuple[str, ...]:
    """Registry names that match, and names with options or of the user's own classes as they are; each of them can be built."""
    names: list[str] = []
    for pattern in patterns or tuple(ESTIMATORS):
        matched = fnmatch.filter(ESTIMATORS, pattern) if "[" not in pattern and ":" not in pattern else [pattern]
        if not matched:
            raise ValueError(unknown(pattern, ESTIMATORS, "estimator"))
        names += [name for name in matched if name not in names]
    for name in names:
        make_estimator(name)
    return tuple(names)


@functools.lru_cache(maxsize=8)
def load_problem(plan: Plan, name: str, stage: str) -> Problem:
    """A problem of the plan; kept, because many cells share it."""
    if plan.file is not None:
        return problems.from_file(plan.file)
    return problems.load(name, stage, instances=plan.instances, data=plan.data, loss=plan.loss, seed=plan.seed)


def row_of(problem: Problem, estimator_name: str, cell: str, **values: Any) -> Row:
    """A row with the columns that follow from the pair filled in."""
    estimator: Estimator[Any] = make_estimator(estimator_name)
    return Row(
        cell=cell,
        problem=problem.name,
        stage=problem.stage,
        source=problem.source,
        oracle=oracle_name(problem.oracle),
        loss=problem.instances[0].loss.name,
        estimator=estimator_name,
        family=estimator.name,
        objective=estimator.objective,
        unbiased=estimator.unbiased,
        deterministic=estimator.deterministic,
        **values,
    )


def oracle_name(oracle: Any) -> str:
    """The name with options, as the command line takes it: ``subset[k=3]``."""
    options = ",".join(f"{key}={value}" for key, value in asdict(oracle).items())
    return f"{oracle.name}[{options}]" if options else str(oracle.name)


def _scores(plan: Plan) -> list[tuple[str, str]]:
    if plan.file is not None:
        return [(Path(plan.file.path).stem, "file")]
    suite = problems.available(plan.data)
    chosen = _matching(plan.problems, suite, tuple(problems.PROBLEMS), "problem")
    return [(name, stage) for name in chosen for stage in _matching(plan.stages, STAGES, STAGES, "stage")]


def _matching(patterns: tuple[str, ...], default: tuple[str, ...], known: tuple[str, ...], kind: str) -> list[str]:
    if not patterns:
        return list(default)
    found: list[str] = []
    for pattern in patterns:
        matched = fnmatch.filter(known, pattern)
        if not matched:
            raise ValueError(unknown(pattern, known, kind))
        found += [name for name in matched if name not in found]
    return found


def _check_device(name: str) -> None:
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"the plan got device={name!r}, which is not at hand ({reason}); expected cpu, or cuda where there is one"
        ) from error


def _cell(plan: Plan, kind: Literal["moments", "timing"], problem: Problem, estimators: tuple[str, ...]) -> Cell:
    """A cell whose identity holds all that its numbers depend on, and nothing else."""
    content = {
        "schema": SCHEMA_VERSION,
        "package": importlib.metadata.version("structgrad"),
        "kind": kind,
        "problem": problem.name,
        "stage": problem.stage,
        "oracle": oracle_name(problem.oracle),
        "loss": problem.instances[0].loss.name,
        "scores": _fingerprint(problem),
        "estimators": [(name, make_estimator(name).version) for name in estimators],
        "sampling": [plan.replicates, plan.seed, plan.tier, plan.dtype, plan.device],
    }
    text = json.dumps(content, sort_keys=True)
    return Cell(kind, problem.name, problem.stage, estimators, hashlib.blake2b(text.encode(), digest_size=8).hexdigest())


def _fingerprint(problem: Problem) -> str:
    """The scores, the names of the items, and the losses' values at the best structures."""
    digest = hashlib.blake2b(digest_size=8)
    for instance in problem.instances:
        best = problem.oracle.argmax(instance.scores)
        digest.update(instance.name.encode())
        digest.update(instance.scores.numpy().tobytes())
        digest.update(f"{float(instance.loss(best)):.12e}".encode())
    return digest.hexdigest()


def _skip_row(problem: Problem, estimator: str, reason: str) -> Row:
    event = tuple(problem.instances[0].scores.shape)
    count = problem.oracle.count(event)
    return row_of(problem, estimator, "", kind="skip", status="skipped", reason=reason, log_count=math.log(count))
