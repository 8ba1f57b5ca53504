"""``structgrad gate``: an exit code that says whether a run may take the place of the baseline."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .outcome import NOTHING_TO_COMPARE, OK, REGRESSED, UNDECIDED, fail, sentences

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...suites.comparison import GateResult, Settings
    from ...suites.comparison.timing import TimeComparison, TimedCell
    from ..analysis.loading import Loaded


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
        from ..comparison import markdown, records, terminal
        from ..comparison.configuration import settings_of
        from ..results import check_output

        check_output("gate", junit, run, baseline)
        result = _decided(run, baseline, baselines, settings_of(config), timing_base)
        code = exit_code(result, strict=strict)
        for override in result.idle:
            typer.echo(f"warning: {override} matches no compared number", err=True)
        typer.echo(records.gate_json(result, code) if as_json else "\n".join(terminal.gate_lines(result)) + "\n", nl=False)
        if junit is not None:
            _write(junit, records.junit(result))
        if github:
            _tell_github(records.github_lines(result), markdown.gate_page(result))
    raise typer.Exit(code)


def _decided(run: str, baseline: str, folder: Path, settings: Settings, timing_base: str | None) -> GateResult:
    """By all rows of both; of large runs, of which no times are compared, some problems at a time."""
    from ...suites.comparison import gate as decide
    from ...suites.comparison import gate_tables
    from ...suites.running.store import OtherSchemaError
    from ..analysis.loading import blocks, load, opened

    try:
        large = None if timing_base else opened((baseline, run), folder)
    except OtherSchemaError:
        large = None  # said below, of the side that it is
    if large is not None:
        return gate_tables(blocks(*large), (large[0].machine, large[1].machine), settings)
    head = load(run, folder)
    base = _base(baseline, folder)
    times = _times(timing_base, base, head, settings) if timing_base else []
    return decide(base.rows, head.rows, (base.machine, head.machine), settings, times)


def exit_code(result: GateResult, *, strict: bool) -> int:
    """From the outcome."""
    undecided = UNDECIDED if strict else OK
    return {"passed": OK, "failed": REGRESSED, "undecided": undecided, "nothing to compare": NOTHING_TO_COMPARE}[result.outcome]


def _base(name: str, folder: Path) -> Loaded:
    """The baseline; one of another schema version is none."""
    from ...suites.running.store import OtherSchemaError
    from ..analysis.loading import load

    try:
        found = load(name, folder)
    except OtherSchemaError as error:
        fail(f"no comparable baseline: {error}", NOTHING_TO_COMPARE)
    if found.is_published:
        raise ValueError(
            f"--baseline got {name}, whose numbers are rounded; expected a baseline or a run (`structgrad compare` accepts {name})"
        )
    return found


def _times(interpreter: str, base: Loaded, head: Loaded, settings: Settings) -> list[TimeComparison]:
    """Interleaved times of the estimators and problems that both runs have."""
    from ...suites.comparison.timing import compare_times

    return compare_times(interpreter, _cells(base, head, settings), settings=settings.timing, alpha=settings.alpha)


def _cells(base: Loaded, head: Loaded, settings: Settings) -> list[TimedCell]:
    """Every estimator on every problem, at the first of its stages that both have."""
    from ...suites.comparison.settings import selects
    from ...suites.comparison.timing import TimedCell

    known = {(row.problem, row.stage, row.estimator) for row in base.rows if row.metric and row.status == "ok"}
    found: dict[tuple[str, str], TimedCell] = {}
    for row in head.rows:
        wanted = any(selects(pattern, row.problem) for pattern in settings.timing.problems) and any(
            selects(pattern, row.estimator) for pattern in settings.timing.estimators
        )
        if wanted and row.metric and (row.problem, row.stage, row.estimator) in known:
            found.setdefault((row.problem, row.estimator), TimedCell(row.problem, row.stage, row.estimator))
    return list(found.values())


def _write(path: Path, content: bytes) -> None:
    from .. import results

    results.write_whole(path, content)


def _tell_github(lines: Iterable[str], page: str) -> None:
    """Annotations on standard output, and the page in the summary of the job, where there is one."""
    for line in lines:
        typer.echo(line)
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(page)
