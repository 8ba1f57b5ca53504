"""``structgrad run``: measure a plan."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from ..describe import names
from ..outcome import INTERRUPTED, SOME_FAILED, code_of, fail, sentences
from .config import read_options

_WHAT, _FILE, _PRECISION = "What is measured", "A score file of your own", "How precisely"
_MACHINE, _OUTPUT = "How it runs", "Where results go"

Out = Annotated[
    str | None,
    typer.Option(
        "--out",
        "-o",
        help="The folder, or a URL such as s3://bucket/run that results are mirrored to.",
        metavar="DIR",
        rich_help_panel=_OUTPUT,
        show_default="structgrad-results/<hash of the plan>",
    ),
]
"""Where `run` and `learn` write."""


def run(  # noqa: PLR0913 - one parameter per option
    suite: Annotated[
        list[str] | None,
        typer.Argument(
            help="Suites: names or globs; those of the preset by default.",
            metavar="SUITE",
            show_default=False,
            autocompletion=names.complete_suites,
        ),
    ] = None,
    *,
    config: Annotated[
        Path | None,
        typer.Option(
            help="A TOML file of options, by their names here; those of the command line win.",
            metavar="FILE",
            rich_help_panel=_WHAT,
            show_default=False,
            is_eager=True,
            callback=read_options,
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="quick (a look, two minutes), standard (conclusions) or thorough. Options override it.",
            metavar="NAME",
            rich_help_panel=_WHAT,
            show_default="quick",
            autocompletion=names.complete_presets,
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="The same as --preset quick.", rich_help_panel=_WHAT)] = False,
    estimator: Annotated[
        list[str],
        typer.Option(
            "--estimator",
            "-e",
            help=r"A name with or without options, or a glob: 'imle\[lambda=2.5]', 'reinforce*'; or your own class: "
            "module:MyEstimator, ./my.py:MyEstimator (measured again when its file changes). Repeatable.",
            metavar="NAME",
            rich_help_panel=_WHAT,
            show_default="the preset's",
            autocompletion=names.complete_estimators,
        ),
    ] = [],  # noqa: B006 - typer copies it
    plugin: Annotated[
        list[Path],
        typer.Option(
            help="A Python file whose estimators and oracles can be named by their `name`. Repeatable.",
            metavar="FILE",
            rich_help_panel=_WHAT,
            show_default=False,
        ),
    ] = [],  # noqa: B006
    problem: Annotated[
        list[str],
        typer.Option(
            "--problem",
            "-p",
            help=r"A name or a glob, or a structure with its size: 'subset\[n=10,k=5]'; or your own: './my.py:Mine\[n=8]' (measured again "
            "when its file changes). Repeatable.",
            metavar="NAME",
            rich_help_panel=_WHAT,
            show_default="the preset's",
            autocompletion=names.complete_problems,
        ),
    ] = [],  # noqa: B006
    stage: Annotated[
        list[str],
        typer.Option(
            help="A stage of training (init, early, final), or a normalised entropy such as h=0.4; globs too. Repeatable.",
            metavar="NAME",
            rich_help_panel=_WHAT,
            show_default="the preset's",
            autocompletion=names.complete_stages,
        ),
    ] = [],  # noqa: B006
    loss: Annotated[
        list[str],
        typer.Option(
            help="A loss for all problems with scores, 'own' for the one that a problem has by default; 'subset_regimes@f1' as a "
            "problem's name asks for one there alone. Repeatable.",
            metavar="NAME",
            rich_help_panel=_WHAT,
            show_default="the preset's",
            autocompletion=names.complete_losses,
        ),
    ] = [],  # noqa: B006
    offset: Annotated[float, typer.Option(help="A constant added to every loss.", metavar="NUMBER", rich_help_panel=_WHAT)] = 0.0,
    data: Annotated[
        Path | None,
        typer.Option(
            help="The folder of the real score files.",
            metavar="DIR",
            rich_help_panel=_WHAT,
            show_default="one that is found, else --builtin",
        ),
    ] = None,
    builtin: Annotated[
        bool, typer.Option("--builtin", help="Use the built-in score regimes even where score files are found.", rich_help_panel=_WHAT)
    ] = False,
    file: Annotated[
        Path | None,
        typer.Option(help="Measure on these scores (.npz or .safetensors).", metavar="FILE", rich_help_panel=_FILE, show_default=False),
    ] = None,
    oracle: Annotated[
        str | None,
        typer.Option(
            help=r"The structure that they score, such as 'subset\[k=3]'. Without a file, a structure with its size, "
            r"'subset\[n=10,k=5]': the same as --problem.",
            metavar="NAME",
            rich_help_panel=_FILE,
            show_default="linear_chain",
            autocompletion=names.complete_oracles,
        ),
    ] = None,
    field: Annotated[
        list[str],
        typer.Option(
            help="Which array is what (scores, transition, start, end, gold; lengths: how many words, tokens, ... an item has, the rest is "
            "padding), and how numbers are meant (meaning=cost, temperature, transition_axes, root, spans). Repeatable.",
            metavar="KEY=VALUE",
            rich_help_panel=_FILE,
            show_default=False,
        ),
    ] = [],  # noqa: B006
    instances: Annotated[
        int | None,
        typer.Option(min=1, help="Instances per problem and stage.", metavar="N", rich_help_panel=_PRECISION, show_default="the preset's"),
    ] = None,
    replicates: Annotated[
        int | None,
        typer.Option(help="Independent estimates of the first look.", metavar="N", rich_help_panel=_PRECISION, show_default="4096"),
    ] = None,
    max_replicates: Annotated[
        int | None,
        typer.Option(help="The most of them for one instance.", metavar="N", rich_help_panel=_PRECISION, show_default="the preset's"),
    ] = None,
    seconds: Annotated[
        str | None,
        typer.Option(
            help="The most for one estimator on one instance: 20, 90s, 2m.",
            metavar="DURATION",
            rich_help_panel=_PRECISION,
            show_default="the preset's",
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            help="The most for the whole run, such as 10m: every answer gets its share, and when it is spent no cell is started.",
            metavar="DURATION",
            rich_help_panel=_PRECISION,
            show_default="none",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Everything random comes from it.", metavar="N", rich_help_panel=_PRECISION)] = 0,
    tier: Annotated[
        str,
        typer.Option(
            help="exact replays all samples where it can, sobol and mc draw them, auto chooses.", metavar="NAME", rich_help_panel=_PRECISION
        ),
    ] = "auto",
    dtype: Annotated[
        str, typer.Option(help="float64 or float32, for the estimators.", metavar="NAME", rich_help_panel=_PRECISION)
    ] = "float64",
    batch_size: Annotated[
        int, typer.Option(help="Rows per launch. Numbers do not depend on it.", metavar="N", rich_help_panel=_MACHINE)
    ] = 4096,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            "-j",
            min=0,
            help="Worker processes; 0 works in this one, without time limits. Numbers do not depend on it.",
            metavar="N",
            rich_help_panel=_MACHINE,
            show_default="as many as there are cores, or devices",
        ),
    ] = None,
    threads: Annotated[
        int, typer.Option(min=1, help="Threads of every worker; times are always taken on one.", metavar="N", rich_help_panel=_MACHINE)
    ] = 1,
    engine: Annotated[
        str,
        typer.Option(
            help="local, or ray for the workers of a Ray cluster.",
            metavar="NAME",
            rich_help_panel=_MACHINE,
            autocompletion=names.complete_engines,
        ),
    ] = "local",
    address: Annotated[
        str | None,
        typer.Option(
            help="Of the cluster; auto is the one that runs here.",
            metavar="ADDRESS",
            rich_help_panel=_MACHINE,
            show_default="a new local one",
        ),
    ] = None,
    timeout: Annotated[
        str | None,
        typer.Option(
            help="CPU time of one cell: 90s, 2m.", metavar="DURATION", rich_help_panel=_MACHINE, show_default="far above its share"
        ),
    ] = None,
    memory_limit: Annotated[
        float | None,
        typer.Option(help="GiB that a worker may take.", metavar="GIB", rich_help_panel=_MACHINE, show_default="none"),
    ] = None,
    gpus_per_cell: Annotated[
        float | None,
        typer.Option(
            help="Share of a GPU that each worker on a Ray cluster asks for: 0.25 puts four on one.",
            metavar="SHARE",
            rich_help_panel=_MACHINE,
            show_default="1 with --device cuda",
        ),
    ] = None,
    longest_cell: Annotated[
        str | None,
        typer.Option(
            help="A plan of which one cell is estimated to take longer is refused: 2h, 3d.",
            metavar="DURATION",
            rich_help_panel=_MACHINE,
            show_default="1h, and no limit with the preset thorough",
        ),
    ] = None,
    device: Annotated[
        str,
        typer.Option(
            help="cpu, cuda, cuda:1, or several: cuda:0,cuda:1. Each has a worker of its own, which takes cell after cell.",
            metavar="NAME",
            rich_help_panel=_MACHINE,
        ),
    ] = "cpu",
    timing: Annotated[
        bool, typer.Option("--timing/--no-timing", help="Whether suites that need the machine alone take part.", rich_help_panel=_WHAT)
    ] = True,
    shard: Annotated[
        str | None,
        typer.Option(
            help="Measure this part of the plan alone, such as 3/40: one task of an array job. `structgrad merge` joins the parts.",
            metavar="K/N",
            rich_help_panel=_MACHINE,
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show the plan, its cells, and estimates of time and memory, and leave.", rich_help_panel=_OUTPUT),
    ] = False,
    out: Out = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Discard the finished cells of an earlier run.", rich_help_panel=_OUTPUT)] = False,
    rerun: Annotated[
        str | None,
        typer.Option(
            help="Measure nothing but these cells again: failed, or a suite, problem, stage or estimator, or a glob.",
            metavar="WHICH",
            rich_help_panel=_OUTPUT,
            show_default=False,
        ),
    ] = None,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="End with the first cell that fails.", rich_help_panel=_OUTPUT)] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one line of JSON at the end, all else to standard error.", rich_help_panel=_OUTPUT)
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the last lines only.", rich_help_panel=_OUTPUT)] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print a line for every cell.", rich_help_panel=_OUTPUT)] = False,
) -> None:
    """Measure estimators on problems: bias, variance, time, memory, sparsity; with a report.

    The same command again goes on where it stopped: finished cells are not measured twice.

    Exit codes: 0 all well, 1 an estimator returned NaN, 2 bad input, 3 some cells failed or nothing more could be written, 130 interrupted.
    """
    given = locals()
    with sentences(), ExitStack() as stack:
        from ...terminal import Verbosity
        from . import again

        verbosity, asked = Verbosity(quiet, verbose, as_json), again.request(given)
        told = again.recalled(asked, out) if asked else None
        if told is not None:
            verbosity.repeat(told)
            return

        from ....suites.running.planning.plan import Machine, default_jobs
        from ....suites.running.planning.presets import DEFAULT, PRESETS, plan_of
        from ....suites.running.planning.scope import Scope
        from ....suites.running.planning.sharding import Shard
        from . import durations, launch, options, repeat

        options.check_together(given)
        part = None if shard is None else Shard.parsed(shard)
        chosen = options.preset_name(preset or DEFAULT)
        scored = oracle or options.FILE_ORACLE
        own = options.score_file(file, scored, field, instances=instances, seed=seed) if file else None
        limits = {"replicates": replicates, "most_replicates": max_replicates, "seconds": durations.optional_seconds(seconds, "--seconds")}
        plan = plan_of(
            chosen,
            suites=tuple(suite or ()),
            problems=(*problem, *(() if own else options.problems_of_oracle(oracle))) or options.problems_of_folder(data),
            stages=tuple(stage),
            estimators=tuple(estimator),
            data=None if own else options.score_source(data, builtin=builtin),
            file=own,
            losses=tuple(loss),
            offset=offset,
            instances=instances,
            effort=options.effort_of(chosen, **limits),
            batch_size=batch_size,
            seed=seed,
            tier=tier,
            dtype=dtype,
            device=device,
            threads=threads,
            plugins=tuple(map(str, plugin)),
        )
        workers = default_jobs(plan) if jobs is None else jobs
        machine = Machine(workers, durations.optional_seconds(timeout, "--timeout"), memory_limit, engine, address, gpus_per_cell)
        longest = durations.optional_seconds(longest_cell, "--longest-cell")
        scope = Scope(rerun, durations.optional_seconds(budget, "--budget"), fail_fast, longest)
        launch.pin_threads(threads)
        stack.enter_context(verbosity.compiling())
        plan = plan if timing else options.without_timing(plan)
        plan = plan if seconds else options.within_budget(plan, workers, scope.budget)
        command = repeat.command(plan, out, preset=chosen, machine=machine, scope=scope) + (f" --shard {part}" if part else "")
        most = scope.longest or PRESETS[chosen].longest
        request = launch.Asked(chosen, command, out, fresh=fresh, dry_run=dry_run, most=most, request=asked, shard=part)
        try:
            counts = launch.launched(plan, machine, scope, verbosity, request)
        except launch.StoppedError as error:
            fail(error, INTERRUPTED if error.interrupted else SOME_FAILED)
    raise typer.Exit(code_of(counts))
