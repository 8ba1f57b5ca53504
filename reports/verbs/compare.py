"""``structgrad compare`` and ``structgrad gate``: runs number by number, and whether one may take the place of a baseline."""

import os
from dataclasses import MISSING, dataclass
from pathlib import Path

import typer

from .options import option
from .outcome import NOTHING_TO_COMPARE, OK, REGRESSED, UNDECIDED, fail, sentences, write_output


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Options of `compare`."""

    base: str = option(MISSING, None, "BASE")
    """Base of the comparison: a run folder, its table, a baseline, or published (the table of the package)."""
    heads: tuple[str, ...] = option(MISSING, None, "RUN")
    """Runs to compare with the base."""
    only: str = option("all", "Options", "WHICH")
    """all, or changed (without identical and equivalent numbers)."""
    estimator: tuple[str, ...] = option((), "Options", "NAME", "--estimator", "-e")
    """Name or glob. Repeatable."""
    metric: tuple[str, ...] = option((), "Options", "NAME", "--metric", "-m")
    """Name or glob. Repeatable."""
    config: Path | None = option(None, "Options", "FILE")
    """TOML file with margins and level, as for gate."""
    format: str | None = option(None, "Options", "NAME", shown="from the output file name, else text")
    """text, md, json or csv."""
    output: Path | None = option(None, "Options", "FILE", "--output", "-o")
    """Output file instead of standard output."""
    dir: Path = option(Path("baselines"), "Options", "DIR")
    """Folder with the baselines."""


def compare(options: CompareOptions) -> None:
    """Compare runs: list improved, worse and inconclusive numbers. The exit code is 0 for every result.

    Numbers with the same seeds are compared batch by batch, other sampled numbers with the errors of both sides, and exact numbers exactly.
    To get a verdict as exit code, use gate.
    """
    with sentences():
        from ...suites.comparison import compare as compare_tables
        from ...suites.comparison.pairs import COLUMNS
        from ...suites.comparison.settings import load_settings, selects
        from .. import published, results
        from ..analysis.loading import comparable, load
        from ..comparison import CHANGED, COMPARISONS, ordered

        output = options.output
        suffix = output.suffix[1:] if output else ""
        kind = options.format or ("text" if suffix in ("", "txt") else suffix)
        for flag, value, known in (("format", kind, COMPARISONS), ("only", options.only, ("all", "changed"))):
            if value not in known:
                from ...oracles.registry import hint

                raise ValueError(f"--{flag} got {value!r}; {hint(value, known)}")
        settings = load_settings(options.config)
        base, others = options.base, options.heads
        results.check_output("compare", output, base, *others)
        columns = None if published.NAME in (base, *others) else COLUMNS
        before, found = load(base, options.dir, columns), []
        for name in others:
            head = load(name, options.dir, columns)
            items = compare_tables(*comparable(before, head), (before.machine, head.machine), settings)
            for column, patterns in (("estimator", options.estimator), ("metric", options.metric)):
                names = [one for one in items[column].unique() if any(selects(pattern, one) for pattern in patterns)]
                items = items[items[column].isin(names)] if patterns else items
            found.append((name, ordered(items[items["verdict"].isin(CHANGED)] if options.only == "changed" else items)))
        text = COMPARISONS[kind](base, found)
        if output is None:
            typer.echo(text, nl=False)
        else:
            write_output("compare", output, text.encode(), "comparison")


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
        from .. import comparison
        from ..analysis.loading import load

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
        typer.echo(comparison.gate_json(result, code) if options.json else comparison.gate_text(result), nl=False)
        if options.github:
            for kind, level in zip(("error", "warning"), comparison.LEVELS, strict=True):
                for line in comparison.gate_findings(result, level, 10).lines:  # GitHub keeps ten annotations of each kind
                    text = line.replace("%", "%25").replace("\r", "").replace("\n", "%0A")
                    typer.echo(f"::{kind} title=structgrad gate::{text}")
            if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
                with Path(summary).open("a", encoding="utf-8") as file:
                    file.write(comparison.gate_markdown(result))
    raise typer.Exit(code)
