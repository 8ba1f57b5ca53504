"""``structgrad run`` and ``structgrad learn``: the plan of the options, and its measurement."""

import dataclasses
from typing import TYPE_CHECKING, Any

import typer

from ..options import LearnOptions, RunOptions
from ..outcome import code_of, sentences

if TYPE_CHECKING:
    from ....suites.problems.score_files import ScoreFile
    from ....suites.running.planning.plan import Plan


def run(options: RunOptions) -> None:
    """Measure bias, variance, time and memory of estimators against exact gradients, and write a report.

    Repeat the command to continue an interrupted run; finished cells are not measured again.

    Exit codes: 0 success, 1 an estimator returned NaN, 2 bad input, 3 failed cells or a full disk, 130 interrupted.
    """
    with sentences():
        from ....suites.running.planning.estimates import seconds_within
        from ....suites.running.planning.grid import grid
        from ....suites.running.planning.plan import Machine, Scope, Shard, default_jobs
        from . import launch

        pairs = [("file", name) for name in ("problem", "stage", "data", "builtin")]
        pairs += [("quick", "preset")] if options.preset != "quick" else []
        options.check_exclusive(*pairs, ("data", "builtin"), ("fresh", "rerun"))
        for needing, needed, missing in (
            ("field", "file FILE", options.field and not options.file),
            ("address", "engine ray", options.address and options.engine != "ray"),
        ):
            if missing:
                raise ValueError(f"`run` got --{needing} without --{needed}; expected both, or neither")
        shard = None if options.shard is None else Shard.parsed(options.shard)
        preset, plan = plan_from(options)
        jobs = default_jobs(plan) if options.jobs is None else options.jobs
        machine = Machine(jobs, options.timeout, options.memory_limit, options.engine, options.address, options.gpus_per_cell)
        scope = Scope(options.rerun, options.budget, options.fail_fast)
        launch.pin_threads(options.threads)
        seconds = options.seconds
        if options.budget and not seconds:  # the same plan and budget always give the same time for each answer
            seconds = seconds_within(plan, grid(plan).cells, jobs, options.budget)
            plan = dataclasses.replace(plan, effort=dataclasses.replace(plan.effort, seconds=seconds))
        builtin = options.builtin or (plan.data is None and plan.file is None)
        repeated = dataclasses.replace(options, preset=preset, quick=False, seconds=seconds, builtin=builtin)
        counts = launch.launched(plan, repeated, machine=machine, scope=scope, preset=preset, shard=shard)
    raise typer.Exit(code_of(counts))


def learn(options: LearnOptions) -> None:
    """Train models with every estimator, and compare accuracy, cost and the quality of the gradient.

    Repeat the command to continue, even within a training run.

    Exit codes: 0 success, 1 an estimator returned NaN, 2 bad input, 3 failed cells or a full disk, 130 interrupted.
    """
    with sentences():
        from ....suites.base import LEARNT, TASK
        from ....suites.running.planning.plan import Machine, Scope, default_jobs
        from ....suites.running.planning.presets import learning_plan, with_name
        from . import launch

        options.check_exclusive(("quick", "study"))
        extent: dict[str, Any] = {name: getattr(options, name) for name in ("seeds", "quick", "study")}
        extent |= {"losses": options.loss, "plugins": tuple(map(str, options.plugin))}
        plan = learning_plan(options.task, estimators=with_name(options.estimator, options.name), **extent)
        if options.gradients or (options.gradients is None and not options.quick):
            learnt = tuple(f"{LEARNT}{name.removeprefix(TASK)}" for name in plan.problems)
            plan = dataclasses.replace(plan, suites=(*plan.suites, "bias", "parameter_bias"), problems=(*plan.problems, *learnt))
            plan = dataclasses.replace(plan, stages=("training", "init", "early") if options.study else ())  # those of declared predictors
        machine = Machine(default_jobs(plan) if options.jobs is None else options.jobs, options.timeout)
        launch.pin_threads()
        preset = "study" if options.study else "quick" if options.quick else "standard"
        counts = launch.launched(plan, options, machine=machine, scope=Scope(fail_fast=options.fail_fast), preset=preset)
    raise typer.Exit(code_of(counts))


def plan_from(options: RunOptions) -> tuple[str, "Plan"]:
    """The name of the preset, and its plan with the options in it."""
    from ....oracles.registry import unknown
    from ....suites.measures import SUITES
    from ....suites.measures.suite import EFFORTS
    from ....suites.problems import default_data
    from ....suites.running.planning.grid import suites_of
    from ....suites.running.planning.presets import DEFAULT, PRESETS, plan_of, with_name

    preset = options.preset or DEFAULT
    if preset not in PRESETS:
        raise ValueError(unknown(preset, PRESETS, "preset"))
    own = _score_file(options) if options.file else None
    data = str(options.data) if options.data else None if own or options.builtin else default_data()
    limits: dict[str, Any] = {"replicates": options.replicates, "most_replicates": options.max_replicates, "seconds": options.seconds}
    effort = dataclasses.replace(EFFORTS[preset], **{name: value for name, value in limits.items() if value is not None})
    if options.max_replicates is None:
        effort = dataclasses.replace(effort, most_replicates=max(effort.most_replicates, effort.replicates))
    plan = plan_of(
        preset,
        suites=options.suite,
        problems=options.problem if own else _named_problems(options),
        stages=options.stage,
        estimators=with_name(options.estimator, options.name),
        losses=options.loss,
        data=data,
        file=own,
        effort=effort,
        plugins=tuple(map(str, options.plugin)),
        **{name: getattr(options, name) for name in ("offset", "instances", "batch_size", "seed", "tier", "dtype", "device", "threads")},
    )
    if options.timing:
        return preset, plan
    suites = tuple(name for name in suites_of(plan) if not SUITES[name].exclusive)
    if not suites:
        names = ", ".join(suites_of(plan))
        raise ValueError(f"--no-timing leaves out {names}, the only suites of this run; leave --no-timing out, or name another suite")
    return preset, dataclasses.replace(plan, suites=suites)


def _named_problems(options: RunOptions) -> tuple[str, ...]:
    """The problems of --problem and --oracle, else those of --data."""
    from ....suites.problems import is_sized
    from ....suites.problems.named import REAL_PROBLEMS, available

    problems = options.problem
    if options.oracle is not None:
        if not is_sized(options.oracle):
            raise ValueError(
                f"--oracle got {options.oracle!r} without --file; expected a size, such as 'subset[n=10,k=5]' or 'spanning_tree[n=5]', "
                "to measure on built-in scores"
            )
        problems += (options.oracle,)
    if options.data:
        found = tuple(name for name in available(str(options.data)) if name in REAL_PROBLEMS)
        if not found:
            raise ValueError(
                f"--data got {str(options.data)!r}, which holds none of the {len(REAL_PROBLEMS)} score files "
                f"({next(iter(REAL_PROBLEMS))}.npz and so on); expected their folder, or choose --builtin"
            )
        problems = problems or found
    return problems


def _score_file(options: RunOptions) -> "ScoreFile":
    """Your own score file, with the fields of --field."""
    from ....oracles.registry import hint
    from ....suites.problems.score_files import ARRAYS, ScoreFile

    known, given = (*ARRAYS, "meaning", "temperature"), dict[str, Any](instances=options.instances, seed=options.seed)
    for text in options.field:
        key, _, value = text.partition("=")
        if not value:
            raise ValueError(f"--field got {text!r}; expected key=value")
        if key not in known:
            raise ValueError(f"--field got the key {key!r}; {hint(key, known)}")
        try:
            given[key] = float(value) if key == "temperature" else value
        except ValueError:
            raise ValueError(f"--field got temperature={value}; expected a number") from None
    return ScoreFile(str(options.file), options.oracle or "linear_chain", **given)
