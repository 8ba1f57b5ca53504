"""``structgrad gate``: an exit code that says whether a run may take the place of the baseline."""

from __future__ import annotations

import os
from dataclasses import MISSING, dataclass
from pathlib import Path

import typer

from .options import option
from .outcome import NOTHING_TO_COMPARE, OK, REGRESSED, UNDECIDED, fail, sentences


@dataclass(frozen=True, kw_only=True)
class GateOptions:
    """Options of `gate`."""

    run: str = option(MISSING, None, "RUN")
    """Run to test: its folder or its table."""
    baseline: str = option(MISSING, "Options", "BASE", "--baseline", "-b")
    """Baseline: a name, its file, or another run."""
    config: Path | None = option(None, "Options", "FILE", "--config", "-c")
    """TOML file with level, margins and reactions."""
    strict: bool = option(False, "Options", None)
    """Exit with 4 if any number is inconclusive or incomparable."""
    github: bool = option(False, "Options", None)
    """Annotate the GitHub job and add to its summary."""
    json: bool = option(False, "Options", None)
    """Print JSON."""
    dir: Path = option(Path("baselines"), "Options", "DIR")
    """Folder with the baselines."""


def gate(options: GateOptions) -> None:
    """Fail if a number is significantly worse than in a baseline, a declared property is violated, or a number is missing.

    Exact numbers are compared exactly. Sampled numbers are tested with one family-wise error rate. Times are not compared: they
    differ between days and machines.

    Exit codes: 0 passed, 1 failed, 2 bad input, 4 inconclusive under --strict, 5 no number in common with the baseline.
    """
    with sentences():
        from ...suites.comparison import gate as decide
        from ...suites.comparison.pairs import COLUMNS
        from ...suites.comparison.settings import load_settings
        from ...suites.running.store import OtherSchemaError
        from ..analysis.loading import load
        from ..comparison import formats

        settings = load_settings(options.config)
        head = load(options.run, options.dir, COLUMNS)
        try:
            base = load(options.baseline, options.dir, COLUMNS)
        except OtherSchemaError as error:
            fail(f"no comparable baseline: {error}", NOTHING_TO_COMPARE)
        if base.is_published:
            more = f"expected a baseline or a run (`structgrad compare` accepts {options.baseline})"
            raise ValueError(f"--baseline got {options.baseline}, whose numbers are rounded; {more}")
        result = decide(base.frame, head.frame, (base.machine, head.machine), settings)
        undecided = UNDECIDED if options.strict else OK
        code = {"passed": OK, "failed": REGRESSED, "undecided": undecided, "nothing to compare": NOTHING_TO_COMPARE}[result.outcome]
        for override in result.idle:
            typer.echo(f"warning: {override} matches no compared number", err=True)
        typer.echo(formats.gate_json(result, code) if options.json else formats.gate_text(result), nl=False)
        if options.github:
            for line in formats.github_lines(result):
                typer.echo(line)
            summary = os.environ.get("GITHUB_STEP_SUMMARY")
            if summary:
                with Path(summary).open("a", encoding="utf-8") as file:
                    file.write(formats.gate_markdown(result))
    raise typer.Exit(code)
