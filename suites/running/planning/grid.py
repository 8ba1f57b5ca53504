"""Cells of a plan with their identities, the problems that they measure, and the pairs that cannot be measured.

Planning is cheap: nothing is enumerated, and only a few instances of each problem and stage are built.
"""

import fnmatch
import functools
import glob
import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from ....estimators import AVAILABLE_ESTIMATORS, CONTENDERS, ESTIMATORS, SUPERVISED, make_estimator
from ....estimators.base import Estimator
from ....estimators.own import shown_name
from ....oracles import plugins
from ....oracles.registry import imported, oracle_name, unknown
from ....oracles.sources import digest_of, source_of, stamp
from ... import problems
from ...base import SCHEMA_VERSION, Problem, ProblemLoss, Row, pairing
from ...measures import SUITES
from ...problems import REAL_PROBLEMS, TaskProblem, is_task, kinds_of, split_loss
from ...problems.score_files import ScoreFile
from ...tasks import references
from ...tasks.references import reference_name
from ...truth.loss_checks import examine_loss
from ..work import Cell, Grid
from .plan import Plan

SAMPLE = 2  # instances of every problem and stage that are built for the plan: the others come from the same code or file

WANTED = {  # the kinds of problems that suites measure, in words, and an example of each
    "tasks": ("tasks", "task:clusters"),
    "learnt": ("tasks along a run", "learnt:clusters"),
    "references": ("tasks", "task:clusters"),
    "scores": ("problems with scores", "learnt:clusters"),
}


def grid(plan: Plan) -> Grid:
    """Split a plan into cells; ValueError for an unknown name, a pattern without a match, or an input that cannot be read."""
    plan.checked()
    plugins.use(plan.plugins)
    built = _built(plan.estimators)
    cells: list[Cell] = []
    skips: list[Row] = []
    context, stages_of = plan.context(), stages_by_problem(plan)
    suites = suites_of(plan, stages_of)
    # Thousands of cells share the identity of an estimator, and that of a problem at a stage.
    identities = {name: _identity(name, each) for name, each in built.items()}
    losses = Counter[str]()
    for name, stages in stages_of.items():
        losses[split_loss(name)[0]] += 1
        # Shapes and losses are the same at all stages. All instances of a real problem are examined, so that a bad one is refused early.
        first = (
            load_problem(plan, name, stages[0], plan.instances) if split_loss(name)[0] in REAL_PROBLEMS else sample(plan, name, stages[0])
        )
        misfits = {estimator: reason for estimator, each in built.items() if (reason := misfit(each, first)) is not None}
        fitting = tuple(estimator for estimator in built if estimator not in misfits)
        for stage in stages:
            problem, content = sample(plan, name, stage), _content(plan, (name, stage))
            skips += skip_rows(plan, problem, built, misfits)
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
    for name, stages in stages_of.items():
        if "learnt" in kinds_of(name) and name not in shown:  # no cell trains its learner, and other cells have short time limits
            load_problem(plan, name, stages[-1], min(SAMPLE, plan.instances))
    return Grid(tuple(cells), tuple(skips))


def suites_of(plan: Plan, names: Iterable[str] = ()) -> list[str]:
    """The suites of a plan, or all that fit its problems; ValueError for an unknown name, or a suite that fits no problem."""
    kinds = {kind for name in names or stages_by_problem(plan) for kind in kinds_of(name)}
    found = matching(plan.suites or ("*",), tuple(SUITES), "suite")
    for suite in found if plan.suites else ():
        if SUITES[suite].measures not in kinds:
            wanted, example = WANTED[SUITES[suite].measures]
            raise ValueError(f"the suite {suite} measures {wanted}, and the plan has none; name one, such as --problem {example}")
    return [suite for suite in found if SUITES[suite].measures in kinds]


def misfit(estimator: Estimator[Any], problem: Problem) -> str | None:
    """The reason that an estimator does not fit some instance of a problem; None if it fits all."""
    found = (pairing(estimator, problem.oracle, item.loss, tuple(item.scores.shape)) for item in problem.instances)
    return next(filter(None, found), None)


def _built(patterns: tuple[str, ...]) -> dict[str, Estimator[Any]]:
    names: list[str] = []
    for pattern in patterns or tuple(ESTIMATORS):
        plain = "[" in pattern or ":" in pattern or pattern in SUPERVISED
        matched = [pattern] if plain else fnmatch.filter(AVAILABLE_ESTIMATORS, pattern)
        if not matched:
            raise ValueError(unknown(pattern, CONTENDERS, "estimator"))
        names += matched
    built = {name: make_estimator(name) for name in dict.fromkeys(names)}
    for shown, count in Counter(shown_name(name)[0] for name in built).items():
        if count > 1:
            raise ValueError(f"the plan got {count} estimators with the name {shown!r}; expected a name for each")
    return built


def pair_columns(plan: Plan, problem: Problem, name: str, estimator: Estimator[Any]) -> dict[str, Any]:
    """The columns of every row of an estimator on a problem."""
    return {
        "problem": problem.name,
        "stage": problem.stage,
        "source": problem.source,
        "oracle": oracle_name(problem.oracle),
        "oracle_version": problem.oracle.version,
        "seed": plan.seed,
        "dtype": plan.dtype,
        "device": plan.device_kind,
        **loss_columns(problem.instances[0].loss),
        "estimator": shown_name(name)[0],
        "estimator_version": estimator.version,
        "family": estimator.name,
        "objective": estimator.objective,
        "unbiased": estimator.unbiased,
        "deterministic": estimator.deterministic,
    }


def loss_columns(loss: ProblemLoss) -> dict[str, Any]:
    """The columns of a loss."""
    return {"loss": loss.name, "vertex_degree": loss.vertex_degree, "extension": loss.extension, "offset": loss.offset}


def skip_rows(
    plan: Plan, problem: Problem, built: Mapping[str, Estimator[Any]], reasons: Mapping[str, str], suite: str = ""
) -> Iterator[Row]:
    """Rows of pairs that are not measured, with their reasons; ``suite`` is empty if no suite measures them."""
    count = math.log(problem.oracle.count(tuple(problem.instances[0].scores.shape))) if reasons else None
    for name, reason in reasons.items():
        pair = pair_columns(plan, problem, name, built[name])
        yield Row(cell="", suite=suite, **pair, status="skipped", reason=reason, log_count=count)


def _cells(plan: Plan, suite: str, content: Mapping[str, Any], identities: Mapping[str, list[Any]]) -> Iterator[Cell]:
    where: tuple[str, str] = content["problem"]
    most = plan.portion(suite).instances
    instances = plan.instances if most is None else min(plan.instances, most)
    if plan.file is not None:
        instances = len(sample(plan, *where).instances)
    own = {"suite": [suite, SUITES[suite].version], "instances": instances}
    for chosen in filter(None, [tuple(identities)] if SUITES[suite].together else [(name,) for name in identities]):
        text = json.dumps({**content, **own, "estimators": [identities[name] for name in chosen]}, sort_keys=True)
        yield Cell(suite, *where, chosen, instances, hashlib.blake2b(text.encode(), digest_size=16).hexdigest())


def _content(plan: Plan, where: tuple[str, str]) -> dict[str, Any]:
    """Everything that the numbers of a cell depend on, except its suite and estimators."""
    problem = sample(plan, *where)
    loss = problems.split_loss(problem.name)[1]
    code = digest_of(source_of(imported(loss, "loss"))) if loss and problems.is_code(loss) else ()  # changes with that of one's own
    return {
        "schema": SCHEMA_VERSION,
        "problem": where,
        "oracle": [oracle_name(problem.oracle), problem.oracle.version, *digest_of(source_of(problem.oracle))],
        "loss": [problem.instances[0].loss.name, plan.offset, *code],
        "scores": _fingerprint(problem, _source(plan, problem)),
        "effort": asdict(plan.effort),
        "sampling": [plan.seed, plan.tier, plan.dtype, plan.device_kind],
        # Along a run, estimators are measured with the options that validation chooses.
        **({"options": "validated"} if isinstance(problem, TaskProblem) and not is_task(problem.name) else {}),
    }


def _identity(name: str, estimator: Estimator[Any]) -> list[Any]:
    return [name, estimator.version, *digest_of(source_of(getattr(estimator, "origin", estimator)))]


def stages_by_problem(plan: Plan) -> dict[str, list[str]]:
    """The stages of every problem of a plan, without problems that have none of the named stages; ValueError if a pattern has no match."""
    others = [loss for loss in plan.losses if loss != problems.OWN_LOSS and not problems.is_code(loss)]
    if others and plan.problems and all(problems.comes_from_task(name) for name in plan.problems):
        raise ValueError(
            f"the plan got the loss {others[0]!r} for tasks alone, which have losses of their own; leave --loss out, or name a function of "
            "predictions and labels, such as ./mine.py:loss"
        )
    # A glob selects available problems; a plain name may be one whose file is missing.
    available = [plan.file.problem] if plan.file else problems.available(plan.data)
    at_hand = dict.fromkeys((*available, *problems.BUILT_IN_PROBLEMS))
    chosen = [name for pattern in plan.problems for name in _named(pattern, at_hand)] if plan.problems and not plan.file else available
    names = list(dict.fromkeys(problems.with_loss(name, loss) for name in chosen for loss in plan.losses or (problems.OWN_LOSS,)))
    if plan.file is not None:
        return {name: ["file"] for name in names}
    for pattern in plan.stages:
        if not any(_matched(plan, name, pattern) for name in names):
            for name in names:  # an unavailable problem raises its reason
                sample(plan, name, problems.stages_of(name)[0])
            raise ValueError(unknown(pattern, dict.fromkeys(stage for name in names for stage in problems.stages_of(name)), "stage"))
    found = {name: [stage for pattern in plan.stages or ("*",) for stage in _matched(plan, name, pattern)] for name in names}
    return {name: list(dict.fromkeys(stages)) for name, stages in found.items() if stages}


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
    """The known names that match the patterns, in the order of the patterns; ValueError for a pattern that matches nothing."""
    found: list[str] = []
    for pattern in patterns:
        matched = fnmatch.filter(known, pattern)
        if not matched:
            raise ValueError(unknown(pattern, known, kind))
        found += [name for name in matched if name not in found]
    return found


def load_problem(plan: Plan, name: str, stage: str, instances: int | None = None) -> Problem:
    """A problem of the plan; the last few are kept, because many cells share one, and with it its exact gradients."""
    if plan.file is not None:
        return _load_file(plan.file, problems.split_loss(name)[1], plan.offset, stamp(Path(plan.file.path)))
    return _load(name, stage, instances=instances or plan.instances, data=plan.data, offset=plan.offset, seed=plan.seed)


@functools.lru_cache(maxsize=len(problems.LOSS_NAMES))
def _load_file(file: ScoreFile, loss: str | None, offset: float, changed: tuple[int, ...]) -> Problem:
    return problems.from_file(file, loss, offset=offset)


def sample(plan: Plan, name: str, stage: str) -> Problem:
    """A few instances of a problem, of a learner those before its training; kept, because every cell is planned with them."""
    if plan.file is not None:
        return load_problem(plan, name, stage)
    few = min(SAMPLE, plan.instances)
    return _sample(name, stage, instances=few, data=plan.data, offset=plan.offset, seed=plan.seed, trained=False)


_load, _sample = (functools.lru_cache(maxsize=size)(problems.load) for size in (8, 8192))


@functools.lru_cache(maxsize=8192)
def _fingerprint(problem: Problem, source: str) -> str:
    """A hash of the file that scores come from, and of the scores, names and losses of a few instances."""
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
            learner = problems.learner_of(problem.name, problem.task)
            known += [f"{learner!r} version {learner.version}", *digest_of(source_of(learner)), references.sources()]
        return " ".join(known)
    if plan.file is not None:
        settings = {field.name: str(getattr(plan.file, field.name)) for field in fields(plan.file) if field.name != "path"}
        return json.dumps([_file_hash(Path(plan.file.path), stamp(Path(plan.file.path))), settings], sort_keys=True)
    file = Path(plan.data or "") / problem.source
    return _file_hash(file, stamp(file)) if plan.data is not None and file.is_file() else ""


@functools.lru_cache(maxsize=64)
def _file_hash(path: Path, changed: tuple[int, ...]) -> str:
    """A hash of the bytes of a file; read once per process, unless it changes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
