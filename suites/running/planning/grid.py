"""Cells of a plan with their identities, and the pairs that cannot be measured.

Planning is cheap: nothing is enumerated, and only a few instances of each problem and stage are built.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ....estimators import AVAILABLE_ESTIMATORS, CONTENDERS, ESTIMATORS, SUPERVISED, make_estimator
from ....estimators.base import Estimator
from ....oracles import plugins
from ....oracles.registry import unknown
from ....oracles.sources import digest_of, own_files, source_of, stamp
from ...base import SCHEMA_VERSION, Problem, Row, Skip, oracle_name, pairing
from ...measures import SUITES
from ...problems import REAL_PROBLEMS, TaskProblem, is_task, kinds_of, split_loss
from ...tasks.references import reference_name
from ..rows import skip_rows
from ..scores import SAMPLE, fingerprint, load_problem, matching, sample, stages_by_problem
from ..work import Cell, Grid, Limit
from .plan import Plan

WANTED = {
    "tasks": ("tasks", "task:clusters"),
    "learnt": ("tasks along a run", "learnt:clusters"),
    "references": ("tasks", "task:clusters"),
    "scores": ("problems with scores", "learnt:clusters"),
}
"""The kinds of problems that suites measure, in words, and an example of each."""


def grid(plan: Plan) -> Grid:
    """Split a plan into cells, before anything is measured.

    Raises:
        ValueError: an unknown name, a pattern without a match, or an input that cannot be read.
    """
    plan.checked()
    plugins.use(plan.plugins)
    built = _built(plan.estimators)
    cells: list[Cell] = []
    skips: list[Row] = []
    limits: list[Limit] = []
    context, problems = plan.context(), stages_by_problem(plan)
    suites = suites_of(plan, problems)
    # Thousands of cells share the identity of an estimator, and that of a problem at a stage.
    identities = {name: _identity(name, each) for name, each in built.items()}
    losses = Counter[str]()
    for name, stages in problems.items():
        losses[split_loss(name)[0]] += 1
        # Shapes and losses are the same at all stages. All instances of a real problem are examined, so that a bad one is refused early.
        first = (
            load_problem(plan, name, stages[0], plan.instances) if split_loss(name)[0] in REAL_PROBLEMS else sample(plan, name, stages[0])
        )
        pairs = {estimator: first_skip(each, first) for estimator, each in built.items()}
        fitting = tuple(estimator for estimator, skip in pairs.items() if skip is None)
        for stage in stages:
            problem, content = sample(plan, name, stage), _content(plan, (name, stage))
            skips += skip_rows(plan, problem, built, {estimator: skip.reason for estimator, skip in pairs.items() if skip})
            for suite in suites:
                kind, portion = SUITES[suite], plan.portion(suite)
                step = 1 if portion.stages is None else -(-len(stages) // portion.stages)
                if kind.measures not in kinds_of(name) or stage not in stages[::step]:
                    continue
                if portion.losses is not None and losses[split_loss(name)[0]] > portion.losses:
                    continue
                reasons = [
                    reason for instance in problem.instances if (reason := kind().limitation(problem, instance, context)) is not None
                ]
                limits += [Limit(suite, name, stage, len(reasons), len(problem.instances), reasons[0])] if reasons else []
                if len(reasons) == len(problem.instances) and not kind.partial:
                    skips += skip_rows(plan, problem, built, dict.fromkeys(fitting, reasons[0]), suite)
                elif kind.measures == "references":  # they do not depend on the estimators of the plan
                    assert isinstance(problem, TaskProblem), "references are those of tasks"
                    reference = reference_name(problem.task)
                    identity = {reference: _identity(reference, make_estimator(reference))} if fitting else {}
                    cells += _cells(plan, suite, content, identity)
                else:
                    cells += _cells(plan, suite, content, {estimator: identities[estimator] for estimator in fitting})
    shown = {cell.problem for cell in cells if SUITES[cell.suite].measures == "references"}
    for name, stages in problems.items():
        if "learnt" in kinds_of(name) and name not in shown:  # no cell trains its learner, and other cells have short time limits
            load_problem(plan, name, stages[-1], min(SAMPLE, plan.instances))
    return Grid(tuple(cells), tuple(skips), tuple(limits))


def suites_of(plan: Plan, names: Iterable[str] = ()) -> list[str]:
    """The suites that measure something of a plan: its own, else all that fit its problems.

    Args:
        plan: a plan.
        names: its problems, if they are known already.

    Raises:
        ValueError: an unknown name, or a suite of the plan that fits no problem.
    """
    kinds = {kind for name in names or stages_by_problem(plan) for kind in kinds_of(name)}
    found = matching(plan.suites or ("*",), tuple(SUITES), "suite")
    for suite in found if plan.suites else ():
        if SUITES[suite].measures not in kinds:
            wanted, example = WANTED[SUITES[suite].measures]
            raise ValueError(f"the suite {suite} measures {wanted}, and the plan has none; name one, such as --problem {example}")
    return [suite for suite in found if SUITES[suite].measures in kinds]


def first_skip(estimator: Estimator[Any], problem: Problem) -> Skip | None:
    """The reason that an estimator does not fit some instance of a problem; None if it fits all."""
    found = (pairing(estimator, problem.oracle, item.loss, tuple(item.scores.shape)) for item in problem.instances)
    return next((skip for skip in found if skip is not None), None)


def _built(patterns: tuple[str, ...]) -> dict[str, Estimator[Any]]:
    names: list[str] = []
    for pattern in patterns or tuple(ESTIMATORS):
        plain = "[" in pattern or ":" in pattern or pattern in SUPERVISED
        matched = [pattern] if plain else fnmatch.filter(AVAILABLE_ESTIMATORS, pattern)
        if not matched:
            raise ValueError(unknown(pattern, CONTENDERS, "estimator"))
        names += matched
    return {name: make_estimator(name) for name in dict.fromkeys(names)}


# Identities.

_NONE = '"estimators": []'


def _cells(plan: Plan, suite: str, content: Mapping[str, Any], identities: Mapping[str, str]) -> Iterator[Cell]:
    """One cell for each estimator, or one for all of them."""
    if not identities:
        return
    where: tuple[str, str] = content["problem"]
    most = plan.portion(suite).instances
    instances = plan.instances if most is None else min(plan.instances, most)
    if plan.file is not None:
        instances = len(sample(plan, *where).instances)
    own = {"suite": [suite, SUITES[suite].version], "instances": instances}
    before, _, after = json.dumps({**content, **own}, sort_keys=True).partition(_NONE)
    for chosen in [tuple(identities)] if SUITES[suite].together else [(name,) for name in identities]:
        text = f'{before}"estimators": [{", ".join(identities[name] for name in chosen)}]{after}'
        yield Cell(suite, *where, chosen, instances, hashlib.blake2b(text.encode(), digest_size=16).hexdigest())


def _content(plan: Plan, where: tuple[str, str]) -> dict[str, Any]:
    """Everything that the numbers of a cell depend on, except its suite and estimators."""
    problem = sample(plan, *where)
    return {
        "schema": SCHEMA_VERSION,
        "problem": where,
        "oracle": [oracle_name(problem.oracle), problem.oracle.version, *digest_of(source_of(problem.oracle))],
        "loss": [problem.instances[0].loss.name, plan.offset],
        "scores": fingerprint(plan, *where),
        "estimators": [],
        "effort": asdict(plan.effort),
        "sampling": [plan.seed, plan.tier, plan.dtype, plan.device_kind],
        # Along a run, estimators are measured with the options that validation chooses.
        **({"options": "validated"} if isinstance(problem, TaskProblem) and not is_task(problem.name) else {}),
    }


def _identity(name: str, estimator: Estimator[Any]) -> str:
    return json.dumps([name, estimator.version, *digest_of(source_of(estimator))])


class Watch:
    """Your own files of code, which must not change while they are measured: plugins, estimators, and their imports.

    Args:
        plan: names the plugins.
        names: of estimators, such as ``./mine.py:Mine[k=2]``.
    """

    def __init__(self, plan: Plan, names: Iterable[str] = ()) -> None:
        files = {*plan.plugins, *(name.partition(".py:")[0] + ".py" for name in names if ".py:" in name)}
        found = dict.fromkeys(own for path in map(Path, files) if path.is_file() for own in own_files(path))
        self._digests = {path: digest_of(path) for path in found}
        self._stamps = {path: stamp(path) for path in found}

    def check(self) -> None:
        """Raise ValueError if the content of a file has changed."""
        for path, before in self._stamps.items():
            now = stamp(path)
            if now != before:
                if digest_of(path) != self._digests[path]:
                    raise ValueError(f"{path} changed while it was measured; finished cells are kept, run the command again")
                self._stamps[path] = now
