"""``structgrad learn``: train models with estimators, and compare them."""

from __future__ import annotations

import dataclasses
from contextlib import ExitStack

import typer

from .options import LearnOptions
from .outcome import code_of, sentences


def learn(options: LearnOptions) -> None:
    """Train models with every estimator, and compare accuracy, cost and the quality of the gradient.

    Repeat the command to continue, even within a training run.

    Exit codes: 0 success, 1 an estimator returned NaN, 2 bad input, 3 failed cells or a full disk, 130 interrupted.
    """
    with sentences(), ExitStack() as stack:
        from ...suites.base import LEARNT, TASK
        from ...suites.running.planning.plan import Machine, Scope, default_jobs
        from ...suites.running.planning.presets import STUDY, learning_plan
        from ..terminal import Verbosity
        from .run import launch

        options.check_together(("quick", "study"))
        plan = learning_plan(
            with_encoder(options.task or (STUDY if options.study else ()), options.encoder),
            estimators=options.estimator,
            seeds=options.seeds,
            quick=options.quick,
            study=options.study,
            plugins=tuple(map(str, options.plugin)),
        )
        if options.gradients or (options.gradients is None and not options.quick):
            learnt = tuple(f"{LEARNT}{name.removeprefix(TASK)}" for name in plan.problems)
            plan = dataclasses.replace(plan, suites=(*plan.suites, "bias", "parameter_bias"), problems=(*plan.problems, *learnt))
        machine = Machine(default_jobs(plan) if options.jobs is None else options.jobs, options.timeout)
        launch.pin_threads()
        verbosity = Verbosity(options.quiet, options.verbose, options.json)
        stack.enter_context(verbosity.compiling())
        preset = "study" if options.study else "quick" if options.quick else "standard"
        scope = Scope(fail_fast=options.fail_fast)
        counts = launch.launched(plan, options, machine=machine, scope=scope, verbosity=verbosity, preset=preset)
    raise typer.Exit(code_of(counts))


def with_encoder(tasks: tuple[str, ...], encoder: str | None) -> tuple[str, ...]:
    """Name tasks with another encoder."""
    if encoder is None:
        return tasks
    names = tasks or ("clusters",)
    return tuple(f"{name.removesuffix(']')}{',' if name.endswith(']') else '['}encoder={encoder}]" for name in names)
