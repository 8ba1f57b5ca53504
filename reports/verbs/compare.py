"""``structgrad compare``: two runs or more, number by number."""

from __future__ import annotations

from dataclasses import MISSING, dataclass
from pathlib import Path

import typer

from .options import option
from .outcome import sentences


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
        from ..comparison.findings import CHANGED, ordered
        from ..comparison.formats import COMPARISONS

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
            return
        results.write_output("compare", output, text.encode())
        typer.echo(f"comparison: {output.resolve()}")
