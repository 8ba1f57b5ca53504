"""The problems of a plan: their stages, their instances, and a fingerprint of both."""

from __future__ import annotations

import fnmatch
import functools
import glob
import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

from ...oracles.registry import unknown
from ...oracles.sources import digest_of, source_of
from .. import problems
from ..base import Problem
from ..problems import learning
from ..problems.score_files import ScoreFile
from ..tasks import references
from ..truth.loss_checks import examine_loss
from .planning.plan import Plan

_Settings = tuple[str | None, float, int]

SAMPLE = 2
"""Instances of every problem and stage that are built for the plan: the others come from the same code or file."""


def stages_by_problem(plan: Plan) -> dict[str, list[str]]:
    """The stages of every problem of a plan; a problem that has none of the named stages is left out.

    Raises:
        ValueError: a pattern that matches nothing.
    """
    others = [loss for loss in plan.losses if loss != problems.OWN_LOSS]
    if others and plan.problems and all(problems.comes_from_task(name) for name in plan.problems):
        raise ValueError(f"the plan got the loss {others[0]!r} for tasks alone, which have losses of their own; leave --loss out")
    if plan.file is not None:
        return {name: ["file"] for name in _with_losses(plan, [plan.file.problem])}
    names = _with_losses(plan, _names(plan))
    for pattern in plan.stages:
        if not any(_matched(plan, name, pattern) for name in names):
            for name in names:  # an unavailable problem raises its reason
                sample(plan, name, problems.stages_of(name)[0])
            raise ValueError(unknown(pattern, dict.fromkeys(stage for name in names for stage in problems.stages_of(name)), "stage"))
    found = {name: [stage for pattern in plan.stages or ("*",) for stage in _matched(plan, name, pattern)] for name in names}
    return {name: list(dict.fromkeys(stages)) for name, stages in found.items() if stages}


def _with_losses(plan: Plan, names: list[str]) -> list[str]:
    """Every problem with each of the plan's losses."""
    found = (problems.with_loss(name, loss) for name in names for loss in plan.losses or (problems.OWN_LOSS,))
    return list(dict.fromkeys(found))


def _names(plan: Plan) -> list[str]:
    """Names of problems that match. A glob selects available problems; a plain name may be one whose file is missing."""
    available = problems.available(plan.data)
    at_hand = dict.fromkeys((*available, *problems.BUILT_IN_PROBLEMS))
    return list(dict.fromkeys(name for pattern in plan.problems for name in _named(pattern, at_hand)) if plan.problems else available)


def _named(pattern: str, at_hand: Iterable[str]) -> list[str]:
    if problems.comes_from_task(pattern):
        return problems.task_names(pattern)
    pattern, loss = problems.split_loss(pattern)
    if loss is not None:
        return [problems.with_loss(name, loss) for name in _named(pattern, at_hand)]
    if problems.is_sized(pattern):
        return [problems.sized_name(pattern)]
    problems.refuse_unsized(pattern)
    return matching((pattern,), at_hand if glob.has_magic(pattern) else problems.PROBLEMS, "problem")


def _matched(plan: Plan, name: str, pattern: str) -> list[str]:
    """The stages of a problem that match, or the named one, such as ``h=0.33``, if the problem has it."""
    found = fnmatch.filter(problems.stages_of(name), pattern)
    if found or "=" not in pattern or glob.has_magic(pattern):
        return found
    try:
        sample(plan, name, pattern)
    except ValueError:
        return []
    return [pattern]


def matching(patterns: tuple[str, ...], known: Iterable[str], kind: str) -> list[str]:
    """The known names that match the patterns, in the order of the patterns.

    Raises:
        ValueError: a pattern that matches nothing.
    """
    found: list[str] = []
    for pattern in patterns:
        matched = fnmatch.filter(known, pattern)
        if not matched:
            raise ValueError(unknown(pattern, known, kind))
        found += [name for name in matched if name not in found]
    return found


def load_problem(plan: Plan, name: str, stage: str, instances: int | None) -> Problem:
    """A problem of the plan; the last few are kept, because many cells share one, and with it its exact gradients."""
    if plan.file is not None:
        return _load_file(plan.file, problems.split_loss(name)[1], plan.offset, _stamp(plan.file.path))
    return _load(name, stage, instances or plan.instances, _settings(plan))


@functools.lru_cache(maxsize=len(problems.LOSS_NAMES))
def _load_file(file: ScoreFile, loss: str | None, offset: float, stamp: tuple[int, ...]) -> Problem:
    return problems.from_file(file, loss, offset=offset)


def _stamp(path: str) -> tuple[int, ...]:
    """Time and size of a file, which tell whether it was changed; empty without one."""
    status = os.stat(path) if os.path.isfile(path) else None
    return () if status is None else (status.st_mtime_ns, status.st_size)


def _settings(plan: Plan) -> _Settings:
    return plan.data, plan.offset, plan.seed


@functools.lru_cache(maxsize=8)
def _load(name: str, stage: str, instances: int, settings: _Settings) -> Problem:
    data, offset, seed = settings
    return problems.load(name, stage, instances=instances, data=data, offset=offset, seed=seed)


def sample(plan: Plan, name: str, stage: str) -> Problem:
    """A few instances of a problem, of a learner those before its training; kept, because every cell is planned with them."""
    return load_problem(plan, name, stage, None) if plan.file else _sample(name, stage, min(SAMPLE, plan.instances), _settings(plan))


@functools.lru_cache(maxsize=8192)
def _sample(name: str, stage: str, instances: int, settings: _Settings) -> Problem:
    if not problems.comes_from_task(name):
        return _load(name, stage, instances, settings)
    return learning.load_task(name, stage, instances=instances, offset=settings[1], seed=settings[2], trained=False)


def fingerprint(plan: Plan, name: str, stage: str) -> str:
    """A hash of the file that scores come from, and of the scores, names and losses of a few instances."""
    problem = sample(plan, name, stage)
    return _fingerprint(problem, _source(plan, problem))


@functools.lru_cache(maxsize=8192)
def _fingerprint(problem: Problem, source: str) -> str:
    digest = hashlib.blake2b(source.encode(), digest_size=16)
    for instance in problem.instances:
        examine_loss(instance.loss, problem.oracle, instance.scores)
        value = float(instance.loss(problem.oracle.argmax(instance.scores)))
        for content in (instance.name.encode(), instance.scores.numpy().tobytes(), f"{value:.12e}".encode()):
            digest.update(content)
    return digest.hexdigest()


def _source(plan: Plan, problem: Problem) -> str:
    """The content of a score file and its reading options; empty for generated scores."""
    if isinstance(problem, problems.TaskProblem):
        known = [f"{problem.task!r} version {problem.task.version}", *digest_of(source_of(problem.task))]
        if not problems.is_task(problem.name):  # its scores come from a run, which the plan does not wait for
            learner = learning.learner_of(problem.name, problem.task)
            known += [f"{learner!r} version {learner.version}", *digest_of(source_of(learner)), references.sources()]
        return " ".join(known)
    if plan.file is not None:
        settings = {field.name: str(getattr(plan.file, field.name)) for field in fields(plan.file) if field.name != "path"}
        return json.dumps([_file_hash(plan.file.path, _stamp(plan.file.path)), settings], sort_keys=True)
    file = Path(plan.data or "") / problem.source
    return _file_hash(str(file), _stamp(str(file))) if plan.data is not None and file.is_file() else ""


@functools.lru_cache(maxsize=64)
def _file_hash(path: str, stamp: tuple[int, ...]) -> str:
    """A hash of the bytes of a file; read once per process, unless it changes."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
