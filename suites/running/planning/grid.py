"""The cells of a plan: what they are, what their numbers depend on, and which pairs cannot be measured.

Planning is cheap: nothing is enumerated, and of every problem and stage only a few instances are built.
"""

from __future__ import annotations

import fnmatch
import functools
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from ....estimators import AVAILABLE_ESTIMATORS, CONTENDERS, ESTIMATORS, SUPERVISED, make_estimator
from ....estimators.base import Estimator
from ....oracles import plugins
from ....oracles.registry import unknown
from ....oracles.sources import digest_of, source_of
from ...base import SCHEMA_VERSION, Problem, Row, Skip, oracle_name, pairing
from ...measures import SUITES
from ...measures.suite import Context, Effort
from ...problems import REAL_PROBLEMS, TaskProblem, is_task, kinds_of, split_loss
from ...tasks.references import reference_name
from ..rows import skip_rows
from ..scores import SAMPLE, fingerprint, load_problem, matching, prepare, sample, stages_by_problem
from ..work import Cell, Grid, Limit
from .plan import Plan


def grid(plan: Plan) -> Grid:
    """Cut a plan into cells, before anything is measured.

    Raises:
        ValueError: a name that is unknown, a pattern that matches nothing, an input that cannot be read.
    """
    plan.checked()
    plugins.use(plan.plugins)
    built = _built(plan.estimators)
    cells: list[Cell] = []
    skips: list[Row] = []
    limits: list[Limit] = []
    context, found_problems = plan.context(), stages_by_problem(plan)
    suites = suites_of(plan, found_problems)
    # What a cell's identity says of its estimator is written once: thousands of cells share one.
    identities = {name: _identity(name, each) for name, each in built.items()}
    losses = Counter[str]()
    for name, stages in found_problems.items():
        losses[split_loss(name)[0]] += 1
        prepare(plan, name, stages)
        pairs = _pairs(plan, built, name, stages)
        fitting = tuple(estimator for estimator, skip in pairs.items() if skip is None)
        for stage in stages:
            found, content = sample(plan, name, stage), _content(plan, (name, stage))
            skipped = {estimator: skip.reason for estimator, skip in pairs.items() if skip}
            skips += skip_rows(plan, found, built, skipped)
            for suite in suites:
                portion = plan.portion(suite)
                if SUITES[suite].measures not in kinds_of(name) or stage not in _portion(stages, portion.stages):
                    continue
                if portion.losses is not None and losses[split_loss(name)[0]] > portion.losses:
                    continue
                reasons = limitations(suite, found, context)
                limits += [Limit(suite, name, stage, len(reasons), len(found.instances), reasons[0])] if reasons else []
                if len(reasons) == len(found.instances) and not SUITES[suite].partial:
                    skips += skip_rows(plan, found, built, dict.fromkeys(fitting, reasons[0]), suite)
                elif SUITES[suite].measures == "references":
                    cells += _cells(plan, suite, content, _reference(found) if fitting else {})
                else:
                    cells += _cells(plan, suite, content, {estimator: identities[estimator] for estimator in fitting})
    shown = {cell.problem for cell in cells if SUITES[cell.suite].measures == "references"}
    for name, stages in found_problems.items():
        if "learnt" in kinds_of(name) and name not in shown:  # no cell trains its learner, and those of others have short time limits
            load_problem(plan, name, stages[-1], min(SAMPLE, plan.instances))
    return Grid(tuple(cells), tuple(skips), tuple(limits))


def _identity(name: str, estimator: Estimator[Any]) -> str:
    return json.dumps([name, estimator.version, *digest_of(source_of(estimator))])


def _reference(problem: Problem) -> dict[str, str]:
    """The reference estimator of a task with its identity: the references do not depend on which estimators a plan compares."""
    assert isinstance(problem, TaskProblem)
    name = reference_name(problem.task)
    return {name: _identity(name, make_estimator(name))}


def suites_of(plan: Plan, names: Iterable[str] = ()) -> list[str]:
    """The suites that have something to measure of a plan: those that it names, else all that fit its problems.

    Some suites train tasks, others measure scores, or models along a run.

    Args:
        plan: a plan.
        names: of its problems, where they are known already.

    Raises:
        ValueError: an unknown name, or a named suite that has nothing to measure.
    """
    kinds = {kind for name in names or stages_by_problem(plan) for kind in kinds_of(name)}
    found = matching(plan.suites or ("*",), tuple(SUITES), "suite")
    for suite in found if plan.suites else ():
        if SUITES[suite].measures not in kinds:
            wanted, example = WANTED[SUITES[suite].measures]
            raise ValueError(f"the suite {suite} measures {wanted}, and the plan has none; name one, such as --problem {example}")
    return [suite for suite in found if SUITES[suite].measures in kinds]


WANTED = {
    "tasks": ("tasks", "task:clusters"),
    "learnt": ("tasks along a run", "learnt:clusters"),
    "references": ("tasks", "task:clusters"),
    "scores": ("problems with scores", "learnt:clusters"),
}
"""What suites measure in words, and an example."""


def limitations(suite: str, problem: Problem, context: Context) -> list[str]:
    """Why a suite does not measure instances of a problem, or in part only: one reason for each of those."""
    measuring = SUITES[suite]()
    found = (measuring.limitation(problem, instance, context) for instance in problem.instances)
    return [reason for reason in found if reason is not None]


def first_skip(estimator: Estimator[Any], problem: Problem) -> Skip | None:
    """Why an estimator cannot be measured on some instance of a problem; None where it can on all."""
    found = (pairing(estimator, problem.oracle, item.loss, tuple(item.scores.shape)) for item in problem.instances)
    return next((skip for skip in found if skip is not None), None)


def _pairs(plan: Plan, built: Mapping[str, Estimator[Any]], problem: str, stages: list[str]) -> dict[str, Skip | None]:
    """Whether each estimator fits a problem; shapes and losses are the same at all of its stages.

    Of a real problem all instances are looked at, so that too many of them are refused before anything is measured.
    """
    found = (
        load_problem(plan, problem, stages[0], plan.instances)
        if split_loss(problem)[0] in REAL_PROBLEMS
        else sample(plan, problem, stages[0])
    )
    return {name: first_skip(estimator, found) for name, estimator in built.items()}


_NOBODY = '"estimators": []'


def _cells(plan: Plan, suite: str, content: Mapping[str, Any], identities: Mapping[str, str]) -> Iterator[Cell]:
    """One for each estimator, or one for all of them; what they share is written once, for there may be hundreds of them."""
    if not identities:
        return
    where: tuple[str, str] = content["problem"]
    instances = instances_of(plan, suite, where)
    own = {"suite": [suite, SUITES[suite].version], "instances": instances}
    before, _, after = json.dumps({**content, **own}, sort_keys=True).partition(_NOBODY)
    for chosen in [tuple(identities)] if SUITES[suite].together else [(name,) for name in identities]:
        asked = ", ".join(identities[name] for name in chosen)
        yield Cell(suite, *where, chosen, instances, _hash(f'{before}"estimators": [{asked}]{after}'.encode()))


def instances_of(plan: Plan, suite: str, where: tuple[str, str]) -> int:
    """How many instances of a problem at a stage a suite measures."""
    if plan.file is not None:
        return len(sample(plan, *where).instances)
    most = plan.portion(suite).instances
    return plan.instances if most is None else min(plan.instances, most)


def _portion(stages: list[str], most: int | None) -> list[str]:
    """At most so many of the stages, spread over all of them."""
    return stages if most is None else stages[:: -(-len(stages) // most)]


def _built(patterns: tuple[str, ...]) -> dict[str, Estimator[Any]]:
    """The estimators of the names, each built once."""
    names: list[str] = []
    for pattern in patterns or tuple(ESTIMATORS):
        plain = "[" in pattern or ":" in pattern or pattern in SUPERVISED
        matched = [pattern] if plain else fnmatch.filter(AVAILABLE_ESTIMATORS, pattern)
        if not matched:
            raise ValueError(unknown(pattern, CONTENDERS, "estimator"))
        names += matched
    return {name: make_estimator(name) for name in dict.fromkeys(names)}


# What the numbers of a cell depend on.


def _content(plan: Plan, where: tuple[str, str]) -> dict[str, Any]:
    """All that the numbers of a cell depend on beside its suite and estimators, and nothing else: no worker, no package's version."""
    problem = sample(plan, *where)
    return {
        "schema": SCHEMA_VERSION,
        "problem": where,
        "oracle": [oracle_name(problem.oracle), problem.oracle.version, *digest_of(source_of(problem.oracle))],
        "loss": [problem.instances[0].loss.name, plan.offset],
        "scores": fingerprint(plan, *where),
        "estimators": [],
        "effort": _effort(plan.effort),
        "sampling": [plan.seed, plan.tier, plan.dtype, plan.device_kind],
        # Of models along a run, estimators are measured with the options that validation chooses.
        **({"options": "validated"} if isinstance(problem, TaskProblem) and not is_task(problem.name) else {}),
    }


@functools.lru_cache(maxsize=8)
def _effort(effort: Effort) -> dict[str, Any]:
    """As JSON has it: taken apart once for the thousands of scores of a plan."""
    return asdict(effort)


def _hash(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
