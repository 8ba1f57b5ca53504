"""``structgrad learn``: train models with estimators, and say what learns best."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from .describe import names
from .outcome import INTERRUPTED, SOME_FAILED, code_of, fail, sentences
from .run.command import Out

_WHAT, _MACHINE, _OUTPUT = "Training", "Machine", "Output"


def learn(  # noqa: PLR0913 - one parameter per option
    task: Annotated[
        list[str] | None,
        typer.Argument(
            help=r"Tasks, optionally with sizes: clusters, 'clusters\[clusters=5]'. Or your own: module:MyTask, ./mine.py:MyTask.",
            metavar="TASK",
            show_default="clusters",
            autocompletion=names.complete_tasks,
        ),
    ] = None,
    *,
    estimator: Annotated[
        list[str],
        typer.Option(
            "--estimator",
            "-e",
            help="Name, name with options or glob; or your own class: ./my.py:MyEstimator. Without options, the most important one"
            " is tuned on the validation split. Repeatable.",
            metavar="NAME",
            rich_help_panel=_WHAT,
            show_default="one per family",
            autocompletion=names.complete_estimators,
        ),
    ] = [],  # noqa: B006 - typer copies it
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1, max=1000, help="Training runs of each estimator on each task.", metavar="N", rich_help_panel=_WHAT, show_default="5"
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="First look in about a minute: clusters, 8 estimators, 3 seeds, fewer steps.", rich_help_panel=_WHAT),
    ] = False,
    study: Annotated[
        bool,
        typer.Option(
            "--study",
            help="The study of docs/results/learning.md: nine tasks, all estimators that fit, 5 seeds, gradients. Takes hours.",
            rich_help_panel=_WHAT,
        ),
    ] = False,
    gradients: Annotated[
        bool | None,
        typer.Option(
            "--gradients/--no-gradients",
            help="Also measure bias, variance, cosine and ρ along runs with the exact gradient, and correlate them with final accuracy.",
            rich_help_panel=_WHAT,
            show_default="yes; no with --quick",
        ),
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(
            help="Another encoder for all tasks: module:MyEncoder or ./mine.py:MyEncoder. It is called with the task and returns "
            "an nn.Module with the same inputs and outputs as the task's encoder.",
            metavar="CLASS",
            rich_help_panel=_WHAT,
            show_default="each task's own",
        ),
    ] = None,
    plugin: Annotated[
        list[Path],
        typer.Option(
            help="Python file with estimators and oracles to select by their `name`. Repeatable.",
            metavar="FILE",
            rich_help_panel=_WHAT,
            show_default=False,
        ),
    ] = [],  # noqa: B006
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            "-j",
            min=0,
            help="Worker processes; 0 runs in this process. Does not change the numbers.",
            metavar="N",
            rich_help_panel=_MACHINE,
            show_default="one per core",
        ),
    ] = None,
    timeout: Annotated[
        str | None,
        typer.Option(
            help="CPU time limit per cell: 90s, 2m.",
            metavar="DURATION",
            rich_help_panel=_MACHINE,
            show_default="a multiple of the estimate",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan with an estimate of time, and exit.", rich_help_panel=_OUTPUT)
    ] = False,
    out: Out = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Discard finished cells of an earlier run.", rich_help_panel=_OUTPUT)] = False,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="Stop at the first failed cell.", rich_help_panel=_OUTPUT)] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print one line of JSON at the end; everything else goes to standard error.", rich_help_panel=_OUTPUT),
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print only the answer and the last lines.", rich_help_panel=_OUTPUT)
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print a line per cell.", rich_help_panel=_OUTPUT)] = False,
) -> None:
    """Train models with every estimator, and compare accuracy, cost and the quality of the gradient.

    Repeat the command to continue, even within a training run.

    Exit codes: 0 success, 1 an estimator returned NaN, 2 bad input, 3 failed cells or a full disk, 130 interrupted.
    """
    with sentences(), ExitStack() as stack:
        from ...suites.running.planning.plan import Machine, default_jobs
        from ...suites.running.planning.presets import STUDY, learning_plan
        from ...suites.running.planning.scope import Scope
        from ..terminal import Verbosity
        from .run import durations, launch, options, repeat

        options.check_loudness("learn", quiet=quiet, verbose=verbose)
        if quick and study:
            raise ValueError("`learn` got both --quick and --study; give one of them")
        verbosity, tasks, chosen = Verbosity(quiet, verbose, as_json), tuple(task or ()), tuple(estimator)
        plan = learning_plan(
            options.with_encoder(tasks or (STUDY if study else ()), encoder),
            estimators=chosen,
            seeds=seeds,
            quick=quick,
            study=study,
            plugins=tuple(map(str, plugin)),
        )
        if gradients or (gradients is None and not quick):
            plan = options.with_gradients(plan)
        usual = Machine(jobs=default_jobs(plan))
        machine = Machine(usual.jobs if jobs is None else jobs, durations.optional_seconds(timeout, "--timeout"))
        scope = Scope(fail_fast=fail_fast)
        given = {"-e": chosen, "--seeds": seeds, "--quick": quick, "--study": study, "--encoder": encoder, "--plugin": tuple(plugin)}
        given |= {"--gradients": gradients, "--no-gradients": gradients is False}
        command = repeat.learning(tasks, given, out, machine=machine, usual=usual, scope=scope)
        launch.pin_threads()
        stack.enter_context(verbosity.compiling())
        asked = launch.Asked("study" if study else "quick" if quick else "standard", command, out, fresh=fresh, dry_run=dry_run)
        try:
            counts = launch.launched(plan, machine, scope, verbosity, asked)
        except launch.StoppedError as error:
            fail(error, INTERRUPTED if error.interrupted else SOME_FAILED)
    raise typer.Exit(code_of(counts))
