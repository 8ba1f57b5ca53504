"""``structgrad run``: measure a plan."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from ..describe import names
from ..outcome import INTERRUPTED, SOME_FAILED, code_of, fail, sentences
from .config import read_options

_WHAT, _FILE, _PRECISION = "Plan", "Your own scores", "Precision"
_MACHINE, _OUTPUT = "Machine", "Output"

Out = Annotated[
    str | None,
    typer.Option(
        "--out",
        "-o",
        help="Folder, or URL such as s3://bucket/run, for the results.",
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
            help="Suites (names or globs). Default: the suites of the preset.",
            metavar="SUITE",
            show_default=False,
            autocompletion=names.complete_suites,
        ),
    ] = None,
    *,
    config: Annotated[
        Path | None,
        typer.Option(
            help="TOML file with options under their names here. Options on the command line override it.",
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
            help="quick (first look, minutes), standard (conclusions, about an hour) or thorough (hours or days). Other options "
            "override it.",
            metavar="NAME",
            rich_help_panel=_WHAT,
            show_default="quick",
            autocompletion=names.complete_presets,
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Same as --preset quick.", rich_help_panel=_WHAT)] = False,
    estimator: Annotated[
        list[str],
        typer.Option(
            "--estimator",
            "-e",
            help=r"Name, name with options or glob: 'imle\[lambda=2.5]', 'reinforce*'. Or your own class: module:MyEstimator, "
            "./my.py:MyEstimator (measured again when the file changes). Repeatable.",
            metavar="NAME",
            rich_help_panel=_WHAT,
            show_default="the preset's",
            autocompletion=names.complete_estimators,
        ),
    ] = [],  # noqa: B006 - typer copies it
    plugin: Annotated[
        list[Path],
        typer.Option(
            help="Python file with estimators and oracles to select by their `name`. Repeatable.",
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
            help=r"Name or glob, or a structure with a size: 'subset\[n=10,k=5]'. Or your own: './my.py:Mine\[n=8]' (measured again"
            " when the file changes). Repeatable.",
            metavar="NAME",
            rich_help_panel=_WHAT,
            show_default="the preset's",
            autocompletion=names.complete_problems,
        ),
    ] = [],  # noqa: B006
    stage: Annotated[
        list[str],
        typer.Option(
            help="Entropy level such as h=0.4, or a stage of training (init, early, final). Globs are allowed. Repeatable.",
            metavar="NAME",
            rich_help_panel=_WHAT,
            show_default="the preset's",
            autocompletion=names.complete_stages,
        ),
    ] = [],  # noqa: B006
    loss: Annotated[
        list[str],
        typer.Option(
            help="Loss for all problems; 'own' means the default loss of each problem. For one problem only, use --problem "
            "subset_regimes@f1. Repeatable.",
            metavar="NAME",
            rich_help_panel=_WHAT,
            show_default="the preset's",
            autocompletion=names.complete_losses,
        ),
    ] = [],  # noqa: B006
    offset: Annotated[float, typer.Option(help="Constant added to every loss.", metavar="NUMBER", rich_help_panel=_WHAT)] = 0.0,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Folder with score files of trained models.",
            metavar="DIR",
            rich_help_panel=_WHAT,
            show_default="a folder that is found, else --builtin",
        ),
    ] = None,
    builtin: Annotated[
        bool, typer.Option("--builtin", help="Use built-in random scores even if score files are found.", rich_help_panel=_WHAT)
    ] = False,
    file: Annotated[
        Path | None,
        typer.Option(help="Measure on your scores (.npz or .safetensors).", metavar="FILE", rich_help_panel=_FILE, show_default=False),
    ] = None,
    oracle: Annotated[
        str | None,
        typer.Option(
            help=r"Structure of the scores in --file, such as 'subset\[k=3]'. Without --file, a structure with a size, such as "
            r"'subset\[n=10,k=5]' (same as --problem).",
            metavar="NAME",
            rich_help_panel=_FILE,
            show_default="linear_chain",
            autocompletion=names.complete_oracles,
        ),
    ] = None,
    field: Annotated[
        list[str],
        typer.Option(
            help="Array names in the file (scores, transition, start, end, gold, lengths) and their meaning (meaning=cost, "
            "temperature, transition_axes, root, spans). For example, --field scores=logits. Repeatable.",
            metavar="KEY=VALUE",
            rich_help_panel=_FILE,
            show_default=False,
        ),
    ] = [],  # noqa: B006
    instances: Annotated[
        int | None,
        typer.Option(
            min=1, help="Instances per problem and entropy level.", metavar="N", rich_help_panel=_PRECISION, show_default="the preset's"
        ),
    ] = None,
    replicates: Annotated[
        int | None,
        typer.Option(
            help="Number of independent estimates before the first check of precision.",
            metavar="N",
            rich_help_panel=_PRECISION,
            show_default="the preset's",
        ),
    ] = None,
    max_replicates: Annotated[
        int | None,
        typer.Option(
            help="Maximum number of independent estimates per instance.",
            metavar="N",
            rich_help_panel=_PRECISION,
            show_default="the preset's",
        ),
    ] = None,
    seconds: Annotated[
        str | None,
        typer.Option(
            help="Time limit for one estimator on one instance: 20, 90s, 2m.",
            metavar="DURATION",
            rich_help_panel=_PRECISION,
            show_default="the preset's",
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            help="Time limit for the whole run, such as 10m. It is shared among all cells; no cell starts after it.",
            metavar="DURATION",
            rich_help_panel=_PRECISION,
            show_default="none",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed.", metavar="N", rich_help_panel=_PRECISION)] = 0,
    tier: Annotated[
        str,
        typer.Option(
            help="exact (sums over all samples where possible), mc (draws samples), or auto.",
            metavar="NAME",
            rich_help_panel=_PRECISION,
        ),
    ] = "auto",
    dtype: Annotated[
        str, typer.Option(help="dtype of the estimators: float64 or float32.", metavar="NAME", rich_help_panel=_PRECISION)
    ] = "float64",
    batch_size: Annotated[
        int, typer.Option(help="Rows per launch. Does not change the numbers.", metavar="N", rich_help_panel=_MACHINE)
    ] = 4096,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            "-j",
            min=0,
            help="Worker processes; 0 runs in this process, without time limits. Does not change the numbers.",
            metavar="N",
            rich_help_panel=_MACHINE,
            show_default="one per core or device",
        ),
    ] = None,
    threads: Annotated[
        int, typer.Option(min=1, help="Threads per worker. Timings always use one.", metavar="N", rich_help_panel=_MACHINE)
    ] = 1,
    engine: Annotated[
        str,
        typer.Option(
            help="local, or ray (workers on a Ray cluster).",
            metavar="NAME",
            rich_help_panel=_MACHINE,
            autocompletion=names.complete_engines,
        ),
    ] = "local",
    address: Annotated[
        str | None,
        typer.Option(
            help="Address of the Ray cluster; auto connects to the running one.",
            metavar="ADDRESS",
            rich_help_panel=_MACHINE,
            show_default="a new local one",
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
    memory_limit: Annotated[
        float | None,
        typer.Option(help="Memory limit per worker, in GiB.", metavar="GIB", rich_help_panel=_MACHINE, show_default="none"),
    ] = None,
    gpus_per_cell: Annotated[
        float | None,
        typer.Option(
            help="GPU share per Ray worker: 0.25 runs four workers on one GPU.",
            metavar="SHARE",
            rich_help_panel=_MACHINE,
            show_default="1 with --device cuda",
        ),
    ] = None,
    longest_cell: Annotated[
        str | None,
        typer.Option(
            help="Refuse a plan if one cell is estimated to take longer: 2h, 3d.",
            metavar="DURATION",
            rich_help_panel=_MACHINE,
            show_default="1h; none for the preset thorough",
        ),
    ] = None,
    device: Annotated[
        str,
        typer.Option(
            help="cpu, cuda, cuda:1, or several such as cuda:0,cuda:1. Each device has its own worker.",
            metavar="NAME",
            rich_help_panel=_MACHINE,
        ),
    ] = "cpu",
    timing: Annotated[
        bool, typer.Option("--timing/--no-timing", help="Include suites that need an otherwise idle machine.", rich_help_panel=_WHAT)
    ] = True,
    shard: Annotated[
        str | None,
        typer.Option(
            help="Measure only this part of the plan, such as 3/40, for an array job. Join the parts with `structgrad merge`.",
            metavar="K/N",
            rich_help_panel=_MACHINE,
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show the plan with estimates of time and memory, and exit.", rich_help_panel=_OUTPUT),
    ] = False,
    out: Out = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Discard finished cells of an earlier run.", rich_help_panel=_OUTPUT)] = False,
    rerun: Annotated[
        str | None,
        typer.Option(
            help="Measure only these cells again: failed, or a suite, problem, entropy level or estimator, or a glob.",
            metavar="WHICH",
            rich_help_panel=_OUTPUT,
            show_default=False,
        ),
    ] = None,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="Stop at the first failed cell.", rich_help_panel=_OUTPUT)] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print one line of JSON at the end; everything else goes to standard error.", rich_help_panel=_OUTPUT),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the last lines.", rich_help_panel=_OUTPUT)] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print a line per cell.", rich_help_panel=_OUTPUT)] = False,
) -> None:
    """Measure bias, variance, time and memory of estimators against exact gradients, and write a report.

    Repeat the command to continue an interrupted run; finished cells are not measured again.

    Exit codes: 0 success, 1 an estimator returned NaN, 2 bad input, 3 failed cells or a full disk, 130 interrupted.
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
