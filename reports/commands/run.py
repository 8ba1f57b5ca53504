"""``structgrad run``: measure a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .outcome import INTERRUPTED, SOME_FAILED, sentences

_WHAT, _FILE, _PRECISION = "What is measured", "A score file of your own", "How precisely"
_MACHINE, _OUTPUT = "How it runs", "Where results go"


def run(  # noqa: PLR0913 - one parameter per option
    suite: Annotated[
        list[str] | None,
        typer.Argument(help="Suites: names or globs; those of the preset by default.", metavar="[SUITE]...", show_default=False),
    ] = None,
    *,
    preset: Annotated[
        str | None,
        typer.Option(
            help="quick (a look, two minutes), standard (conclusions) or thorough. Options override it.",
            metavar="NAME",
            rich_help_panel=_WHAT,
            show_default="quick",
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="The same as --preset quick.", rich_help_panel=_WHAT)] = False,
    estimator: Annotated[
        list[str],
        typer.Option(
            "--estimator",
            "-e",
            help=r"A name with or without options, or a glob: 'imle\[lambda=2.5]', 'reinforce*'. Repeatable.",
            metavar="NAME",
            rich_help_panel=_WHAT,
            show_default="the preset's",
        ),
    ] = [],  # noqa: B006 - typer copies it
    problem: Annotated[
        list[str],
        typer.Option(
            "--problem", "-p", help="A name or a glob. Repeatable.", metavar="NAME", rich_help_panel=_WHAT, show_default="the preset's"
        ),
    ] = [],  # noqa: B006
    stage: Annotated[
        list[str],
        typer.Option(
            help="A stage of training (init, early, final), or a normalised entropy such as h=0.4; globs too. Repeatable.",
            metavar="NAME",
            rich_help_panel=_WHAT,
            show_default="the preset's",
        ),
    ] = [],  # noqa: B006
    loss: Annotated[
        str | None, typer.Option(help="A loss for all problems.", metavar="NAME", rich_help_panel=_WHAT, show_default="every problem's own")
    ] = None,
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
        str, typer.Option(help=r"The structure that they score, such as 'subset\[k=3]'.", metavar="NAME", rich_help_panel=_FILE)
    ] = "linear_chain",
    field: Annotated[
        list[str],
        typer.Option(
            help="Which array is what (scores, transition, start, end, gold, lengths), and how numbers are meant "
            "(meaning=cost, temperature, transition_axes, root, spans). Repeatable.",
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
        float | None,
        typer.Option(
            help="The most for one estimator on one instance.", metavar="SECONDS", rich_help_panel=_PRECISION, show_default="the preset's"
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
            show_default="as many as there are cores",
        ),
    ] = None,
    engine: Annotated[
        str, typer.Option(help="local, or ray for the workers of a Ray cluster.", metavar="NAME", rich_help_panel=_MACHINE)
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
        float | None,
        typer.Option(
            help="Seconds that one cell may take.", metavar="SECONDS", rich_help_panel=_MACHINE, show_default="far above its budget"
        ),
    ] = None,
    memory_limit: Annotated[
        float | None,
        typer.Option(help="GiB that a worker may take.", metavar="GIB", rich_help_panel=_MACHINE, show_default="none"),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, or cuda, cuda:1, ...", metavar="NAME", rich_help_panel=_MACHINE)] = "cpu",
    timing: Annotated[
        bool, typer.Option("--timing/--no-timing", help="Whether suites that need the machine alone take part.", rich_help_panel=_WHAT)
    ] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and leave.", rich_help_panel=_OUTPUT)] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="The folder.", metavar="DIR", rich_help_panel=_OUTPUT, show_default="structgrad-results/<hash of the plan>"
        ),
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Discard the finished cells of an earlier run.", rich_help_panel=_OUTPUT)] = False,
) -> None:
    """Measure estimators on problems: bias, variance, time, memory, sparsity; with a report.

    The same command again goes on where it stopped: finished cells are not measured twice.

    Exit codes: 0 all well, 2 bad input, 3 some cells failed, 130 interrupted.
    """
    with sentences():
        from ...suites.running.plan import CORES, Machine
        from ...suites.running.presets import DEFAULT, plan_of
        from .. import launch

        if quick and preset not in (None, "quick"):
            raise ValueError(f"`run` got both --quick and --preset {preset}; give one of them")
        chosen = launch.preset_name(preset or DEFAULT)
        settings = {"loss": loss} if loss else {}
        own = launch.score_file(file, oracle, field, instances=instances, seed=seed, **settings) if file else None
        plan = plan_of(
            chosen,
            suites=launch.suite_names(tuple(suite or ()), chosen, timing=timing),
            problems=tuple(problem) or launch.problems_of_folder(data),
            stages=tuple(stage),
            estimators=tuple(estimator),
            data=None if own else launch.score_source(data, builtin=builtin),
            file=own,
            loss=loss,
            offset=offset,
            instances=instances,
            effort=launch.effort_of(chosen, replicates=replicates, most_replicates=max_replicates, seconds=seconds),
            batch_size=batch_size,
            seed=seed,
            tier=tier,
            dtype=dtype,
            device=device,
        )
        machine = Machine(CORES if jobs is None else jobs, timeout, memory_limit, engine, address)
        launch.pin_threads()
        repeat = launch.command(plan, out, preset=chosen, machine=machine)
        if dry_run:
            launch.show(plan, machine, chosen)
            return
        work = launch.Launch(plan, launch.prepare(plan, out, machine=machine, fresh=fresh), machine, chosen, repeat)
        try:
            counts = work.perform()
        except KeyboardInterrupt:
            typer.echo(f"interrupted; finished cells are kept, go on with: {work.repeat}", err=True)
            raise typer.Exit(INTERRUPTED) from None
    raise typer.Exit(SOME_FAILED if counts["failed"] else 0)
