"""The problems of a plan: their stages, their instances, and a fingerprint of both."""

from __future__ import annotations

import fnmatch
import functools
import hashlib
import json
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

from ...oracles.registry import unknown
from .. import problems
from ..base import Problem
from .plan import Plan

SAMPLE = 2
"""Instances of every problem and stage that are built for the plan: the others come from the same code or file."""


def stages_by_problem(plan: Plan) -> dict[str, list[str]]:
    """The stages of every problem of a plan; a problem that has none of the named stages is left out.

    Raises:
        ValueError: a pattern that matches nothing.
    """
    if plan.file is not None:
        return {Path(plan.file.path).stem: ["file"]}
    names = matching(plan.problems, problems.PROBLEMS, "problem") if plan.problems else list(problems.available(plan.data))
    offered = {name: list(problems.STAGES) for name in names}
    known = list(dict.fromkeys(stage for stages in offered.values() for stage in stages))
    for pattern in plan.stages:
        matching((pattern,), known, "stage")
    chosen = {name: [stage for pattern in plan.stages for stage in fnmatch.filter(stages, pattern)] for name, stages in offered.items()}
    return {name: list(dict.fromkeys(stages)) for name, stages in (chosen if plan.stages else offered).items() if stages}


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
        return _load_file(plan)
    return _load(name, stage, instances or plan.instances, (plan.data, plan.loss, plan.offset, plan.seed))


@functools.lru_cache(maxsize=1)
def _load_file(plan: Plan) -> Problem:
    if plan.file is None:
        raise ValueError("the plan holds no score file")
    return problems.from_file(plan.file)


@functools.lru_cache(maxsize=8)
def _load(name: str, stage: str, instances: int, settings: tuple[str | None, str | None, float, int]) -> Problem:
    data, loss, offset, seed = settings
    if offset:
        raise ValueError(f"the plan got offset={offset:g}, which no problem takes yet; expected 0")
    return problems.load(name, stage, instances=instances, data=data, loss=loss, seed=seed)


def sample(plan: Plan, name: str, stage: str) -> Problem:
    """A few instances of a problem."""
    return load_problem(plan, name, stage, min(SAMPLE, plan.instances))


def fingerprint(plan: Plan, name: str, stage: str) -> str:
    """A hash of the file that scores come from, and of the scores, names and losses of a few instances."""
    problem = sample(plan, name, stage)
    return _fingerprint(problem, _source(plan, problem))


@functools.lru_cache(maxsize=1024)
def _fingerprint(problem: Problem, source: str) -> str:
    digest = hashlib.blake2b(source.encode(), digest_size=16)
    for instance in problem.instances:
        best = problem.oracle.argmax(instance.scores)
        digest.update(instance.name.encode())
        digest.update(instance.scores.numpy().tobytes())
        digest.update(f"{float(instance.loss(best)):.12e}".encode())
    return digest.hexdigest()


def _source(plan: Plan, problem: Problem) -> str:
    """The content of a score file with the way it is read; nothing for scores that are made."""
    if plan.file is not None:
        settings = {field.name: str(getattr(plan.file, field.name)) for field in fields(plan.file) if field.name != "path"}
        return json.dumps([_file_hash(plan.file.path), settings], sort_keys=True)
    file = Path(plan.data or "") / problem.source
    return _file_hash(str(file)) if plan.data is not None and file.is_file() else ""


@functools.lru_cache(maxsize=64)
def _file_hash(path: str) -> str:
    """A hash of the bytes of a file; read once per process."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
