"""``structgrad gate``: an exit code that says whether a run may take the place of the baseline."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .outcome import NOTHING_TO_COMPARE, OK, REGRESSED, UNDECIDED, fail, sentences

if TYPE_CHECKING:
    import pandas as pd

    from ...suites.comparison import Settings
    from ...suites.comparison.timing import TimeComparison


def gate(  # noqa: PLR0913 - one parameter per option
    run: Annotated[str, typer.Argument(help="Run to test: its folder or its table.", metavar="RUN")],
    *,
    baseline: Annotated[str, typer.Option("--baseline", "-b", help="Baseline: a name, its file, or another run.", metavar="BASE")],
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="TOML file with level, margins and reactions.", metavar="FILE")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 4 if any number is inconclusive or incomparable.")] = False,
    timing_base: Annotated[
        str | None,
        typer.Option(
            "--timing-base",
            help="Python interpreter with the structgrad of the baseline. Times of both are then measured in turns on this machine.",
            metavar="PYTHON",
        ),
    ] = None,
    junit: Annotated[Path | None, typer.Option(help="Write a JUnit report for CI systems.", metavar="FILE")] = None,
    github: Annotated[bool, typer.Option("--github", help="Annotate the GitHub job and add to its summary.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    baselines: Annotated[Path, typer.Option("--dir", help="Folder with the baselines.", metavar="DIR")] = Path("baselines"),
) -> None:
    """Fail if a number is significantly worse than in a baseline, a declared property is violated, or a number is missing.

    Exact numbers are compared exactly. Sampled numbers are tested with one family-wise error rate. Times are compared only if both versions
    are measured in turns on this machine (--timing-base).

    Exit codes: 0 passed, 1 failed, 2 bad input, 4 inconclusive under --strict, 5 no number in common with the baseline.
    """
    with sentences():
        from ...suites.comparison import gate as decide
        from ...suites.comparison.pairs import COLUMNS
        from ...suites.comparison.settings import load_settings
        from ...suites.running.store import OtherSchemaError
        from .. import results
        from ..analysis.loading import load
        from ..comparison import formats

        results.check_output("gate", junit, run, baseline)
        settings = load_settings(config)
        head = load(run, baselines, COLUMNS)
        try:
            base = load(baseline, baselines, COLUMNS)
        except OtherSchemaError as error:
            fail(f"no comparable baseline: {error}", NOTHING_TO_COMPARE)
        if base.is_published:
            more = f"expected a baseline or a run (`structgrad compare` accepts {baseline})"
            raise ValueError(f"--baseline got {baseline}, whose numbers are rounded; {more}")
        times = _times(timing_base, base.frame, head.frame, settings) if timing_base else []
        result = decide(base.frame, head.frame, (base.machine, head.machine), settings, times)
        undecided = UNDECIDED if strict else OK
        code = {"passed": OK, "failed": REGRESSED, "undecided": undecided, "nothing to compare": NOTHING_TO_COMPARE}[result.outcome]
        for override in result.idle:
            typer.echo(f"warning: {override} matches no compared number", err=True)
        typer.echo(formats.gate_json(result, code) if as_json else formats.gate_text(result), nl=False)
        if junit is not None:
            results.write_whole(junit, formats.junit(result))
        if github:
            for line in formats.github_lines(result):
                typer.echo(line)
            summary = os.environ.get("GITHUB_STEP_SUMMARY")
            if summary:
                with Path(summary).open("a", encoding="utf-8") as file:
                    file.write(formats.gate_markdown(result))
    raise typer.Exit(code)


def _times(interpreter: str, base: pd.DataFrame, head: pd.DataFrame, settings: Settings) -> list[TimeComparison]:
    """Times of the estimators and problems of both runs, measured in turns, at the first entropy level that both have."""
    from ...suites.comparison.pairs import items_of
    from ...suites.comparison.settings import selects
    from ...suites.comparison.timing import TimedCell, compare_times

    both = []
    for frame in (base, head):
        measured = frame[frame["metric"].ne("") & frame["status"].eq("ok")]
        both.append(measured[["problem", "stage", "estimator"]].astype(str).drop_duplicates())
    cells = both[1].merge(both[0]).drop_duplicates(["problem", "estimator"])
    chosen = [
        TimedCell(*cell)
        for cell in items_of(cells)
        if any(selects(pattern, cell.problem) for pattern in settings.timing.problems)
        and any(selects(pattern, cell.estimator) for pattern in settings.timing.estimators)
    ]
    return compare_times(interpreter, chosen, settings=settings.timing, alpha=settings.alpha)
