"""The report of a run: one self-contained page, and the same tables as Markdown.

Both are made from the same `Table` objects; a page needs nothing but itself, neither a server nor a network.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup

from ..suites.base import METRICS
from . import figures, tables
from .results import Manifest
from .tables import Spread, number

VERDICT_MEANING = {
    "unbiased-exact": "all outcomes of the randomness were replayed, or there is none: the bias is 0 up to rounding",
    "equivalent": "the whole interval of the bias lies inside the margin below which a bias counts as none",
    "biased": "the test finds a bias",
    "unresolved": "neither is proven with this number of replicates; this is no evidence that there is no bias",
}
"""What the words of the test for bias say, and what they do not say."""

COMMENT_LIMIT = 60_000
"""Characters that fit into a comment on a pull request."""

_TITLES = {
    "relative_bias": "rel. bias",
    "relative_variance": "rel. variance",
    "relative_mse": "rel. MSE",
    "zero_gradient_rate": "zero gradients",
    "time_ratio": "time ratio",
    "peak_memory": "peak bytes",
    "support": "support",
    "forward_nonzeros": "parts, structure",
    "gradient_nonzeros": "parts, gradient",
}
_CAPTIONS = {
    "bias-variance": "Bias against variance. Median over instances, bars to the quartiles. Dotted: equal mean squared error. "
    "Left of, or below, a dashed line the value is 0.",
    "cost-error": "Cost against error of one estimate, timed once per problem. The line joins what no other estimator "
    "beats in both; the exact gradient is left out of it.",
    "sparsity": "Sparsity. Number of structures and parts touched, median over instances; marks grow with the stage.",
}


_PROBLEM_NOTE = (
    "Median over instances with quartiles; of a single instance, its own 95 % interval. (k of n): the metric exists on k instances only, "
    "as a gradient that is always 0 has no direction. Times and memory: once per problem."
)


@dataclass(frozen=True)
class Cell:
    """One entry of a table: what is shown, what it is sorted by, and a verdict that colours it."""

    text: str
    key: float | str = ""
    verdict: str = ""
    alarm: bool = False


@dataclass(frozen=True)
class Table:
    """A table for people: column titles with explanations, and rows of cells."""

    title: str
    columns: tuple[tuple[str, str], ...]
    rows: list[list[Cell]]
    note: str = ""
    name: str = ""


@dataclass(frozen=True)
class Report:
    """Everything that a report says, before it is written as a page or as Markdown."""

    headline: str
    counts: dict[str, int]
    contradictions: list[str]
    answers: list[tuple[str, str, str]]
    overview: list[Table]
    problems: list[Table]
    sparsity: Table
    skipped: Table
    errors: Table
    facts: list[tuple[str, str]]
    command: str
    quick: bool = False
    metrics: dict[str, str] = field(default_factory=lambda: dict(METRICS))
    verdicts: dict[str, str] = field(default_factory=lambda: dict(VERDICT_MEANING))


def to_html(frame: pd.DataFrame, manifest: Manifest) -> str:
    """The page. It holds its style, script and figures, and asks for nothing else."""
    environment = jinja2.Environment(loader=jinja2.PackageLoader(__package__), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["tick"] = ticked
    drawings = [(drawing, _CAPTIONS[drawing.kind], Markup(drawing.svg)) for drawing in figures.draw(frame)]
    return environment.get_template("report.html.j2").render(report=report(frame, manifest), drawings=drawings)


def report(frame: pd.DataFrame, manifest: Manifest) -> Report:
    """All that is to be said about a run."""
    claims = tables.claims(frame)
    return Report(
        headline=headline(frame, manifest),
        counts=tables.counts(frame),
        contradictions=contradictions(claims),
        answers=list(tables.answers(frame).itertuples(index=False, name=None)),
        overview=[_verdict_overview(frame, claims), _summary_table(frame, "relative_mse")],
        problems=[_problem_table(problem, claims[claims["problem"] == problem]) for problem in tables.order(claims, "problem")],
        sparsity=_sparsity_table(tables.sparsity(frame)),
        skipped=_plain_table("Skipped pairs", tables.skipped(frame)),
        errors=_plain_table("Errors", tables.errors(frame)),
        facts=facts(manifest),
        command=str(manifest.get("command", "")),
        quick=manifest.get("preset") == "quick",
    )


def headline(frame: pd.DataFrame, manifest: Manifest) -> str:
    """What was measured, in one sentence."""
    rows = tables.measured(frame)
    parts = (
        _plural(rows["estimator"].nunique(), "estimator"),
        _plural(rows["problem"].nunique(), "problem"),
        _plural(len(tables.cells(rows)), "pair of problem and stage", "pairs of problem and stage"),
        _plural(rows.loc[rows["instance"] != "", ["problem", "stage", "instance"]].drop_duplicates().shape[0], "instance"),
    )
    replicates = rows["replicates"].dropna()
    precision = f", up to {int(replicates.max()):,} replicates each" if len(replicates) else ""
    return f"{parts[0]} on {parts[1]} ({parts[2]}, {parts[3]}{precision}), compared with the exact gradient of the expected loss."


def _plural(count: int, one: str, many: str = "") -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"


def contradictions(claims: pd.DataFrame) -> list[str]:
    """One sentence for every estimator that is found biased although it declares otherwise."""
    found = claims[claims["contradicted"]]
    return [
        f"{row.estimator} declares itself unbiased, and is found biased on {row.problem}, {row.stage} "
        f"({row.sharing:.0f} of {row.instances:.0f} instances)."
        for row in tables.records(found)
    ]


def _spread_cell(value: Spread | None, *, of: float = math.nan) -> Cell:
    """A spread; with the number of its instances, where the metric does not exist on all of them."""
    if value is None:
        return Cell("", math.nan)
    fewer = f" ({value.instances} of {of:.0f})" if value.instances < of else ""
    return Cell(str(value) + fewer, value.median)


def _verdict_cell(row: Any) -> Cell:
    if not row.verdict:
        return Cell("")
    share = "" if row.sharing == row.instances else f" {row.sharing:.0f}/{row.instances:.0f}"
    return Cell(row.verdict + share, tables.VERDICTS.index(row.verdict), row.verdict, bool(row.contradicted))


def _verdict_overview(frame: pd.DataFrame, claims: pd.DataFrame) -> Table:
    pairs = tables.cells(claims)
    by_key = {(row.problem, row.stage, row.estimator): row for row in tables.records(claims)}
    declared = claims.drop_duplicates("estimator").set_index("estimator")
    columns = [("estimator", ""), ("objective", "the objective whose gradient it estimates"), ("declares", "what it says about its bias")]
    rows = []
    for estimator in tables.order(claims, "estimator"):
        first = declared.loc[estimator]
        cells = [_bias_cell(by_key.get((*pair, estimator))) for pair in pairs]
        rows.append(
            [_text(estimator), _text(first["objective"]), _text(declaration(bool(first["unbiased"]), str(first["objective"]))), *cells]
        )
    note = "The worst verdict over instances, and the median relative bias with quartiles."
    return Table(
        "Claims and verdicts",
        (*columns, *((f"{problem}, {stage}", METRICS["relative_bias"]) for problem, stage in pairs)),
        rows,
        note,
        "claims",
    )


def declaration(unbiased: bool, objective: str) -> str:
    """What an estimator says about itself, in words."""
    return f"unbiased for {objective}" if unbiased else "biased"


def _bias_cell(row: Any) -> Cell:
    if row is None:
        return Cell("", math.nan)
    verdict = _verdict_cell(row)
    bias = _spread_cell(row.relative_bias)
    return Cell(bias.text, bias.key, verdict.verdict, verdict.alarm)


def _text(value: object) -> Cell:
    return Cell(str(value), str(value))


def _summary_table(frame: pd.DataFrame, metric: str) -> Table:
    summary = tables.summary(frame, metric)
    columns = (("estimator", ""), *((f"{problem}, {stage}", METRICS[metric]) for problem, stage in tables.cells(tables.measured(frame))))
    rows = [[_text(name), *(_spread_cell(value) for value in summary.loc[name])] for name in summary.index]
    return Table("Relative mean squared error", columns, rows, "Median over instances with quartiles.", "errors-of-estimates")


def _problem_table(problem: str, claims: pd.DataFrame) -> Table:
    metrics = tuple((_TITLES.get(name, name), METRICS[name]) for name in tables.CLAIM_METRICS)
    columns = (("stage", ""), ("estimator", ""), ("declares", "what it says about its bias"), ("verdict", "of the test for bias"), *metrics)
    rows = [
        [
            _text(row.stage),
            _text(row.estimator),
            _text(declaration(row.unbiased, row.objective)),
            _verdict_cell(row),
            *(
                _spread_cell(getattr(row, name), of=math.nan if name in tables.TIMED_METRICS else row.instances)
                for name in tables.CLAIM_METRICS
            ),
        ]
        for row in tables.records(claims)
    ]
    return Table(
        problem,
        columns,
        rows,
        _PROBLEM_NOTE,
        f"problem-{problem}",
    )


def _sparsity_table(table: pd.DataFrame) -> Table:
    metrics = tuple((_TITLES.get(name, name), METRICS[name]) for name in tables.SPARSITY_METRICS)
    columns = (("problem", ""), ("stage", ""), ("estimator", ""), ("structures", "how many structures there are"), *metrics)
    rows = [
        [
            *(_text(getattr(row, name)) for name in ("problem", "stage", "estimator")),
            Cell(number(row.structures), row.structures),
            *(_spread_cell(getattr(row, name)) for name in tables.SPARSITY_METRICS),
        ]
        for row in tables.records(table)
    ]
    return Table("Sparsity", columns, rows, "Median over instances with quartiles.", "sparsity")


def _plain_table(title: str, table: pd.DataFrame) -> Table:
    rows = [[_text(value) for value in row] for row in table.itertuples(index=False, name=None)]
    return Table(title, tuple((str(name), "") for name in table.columns), rows, "", title.lower().replace(" ", "-"))


def facts(manifest: Manifest) -> list[tuple[str, str]]:
    """The manifest as (what, value) lines: plan, times, environment."""
    surroundings = dict(manifest.get("environment", {}))
    packages = surroundings.pop("packages", {})
    dirty = " with changes that are not committed" if surroundings.pop("dirty", False) else ""
    commit = surroundings.pop("commit", None)
    lines = {
        "started": manifest.get("started"),
        "finished": manifest.get("finished"),
        "seed": manifest.get("seed"),
        **{f"plan: {key}": _value(value) for key, value in manifest.get("plan", {}).items()},
        "commit": f"{commit}{dirty}" if commit else None,
        **surroundings,
        **packages,
    }
    return [(key, str(value)) for key, value in lines.items() if value not in (None, "")]


def _value(value: object) -> object:
    return (", ".join(map(str, value)) or "all") if isinstance(value, list | tuple) else value


def to_markdown(frame: pd.DataFrame, manifest: Manifest) -> str:
    """The tables of the page as Markdown, short enough for a comment; tables that do not fit are named."""
    found = report(frame, manifest)
    sections = [_opening(found), *_folded_tables(found), _closing(found)]
    left_out: list[str] = []
    text = ""
    for title, body in sections:
        fits = len(text) + len(body) <= COMMENT_LIMIT
        text += body + "\n" if fits else ""
        left_out += [] if fits else [title]
    return text + (f"\nLeft out, since a comment has a limit: {', '.join(left_out)}.\n" if left_out else "")


def _opening(found: Report) -> tuple[str, str]:
    lines = [
        "## structgrad report",
        "",
        escaped(found.headline),
        "",
        counted(found.counts),
        "",
        *(f"> **Contradicted claim:** {escaped(line)}" for line in found.contradictions),
        *(["> Quick preset: for a look, not for conclusions.", ""] if found.quick else [""]),
        *(f"- **{escaped(problem)}, {escaped(stage)}**: {escaped(answer)}" for problem, stage, answer in found.answers),
        "",
    ]
    return "answers", "\n".join(lines)


def _folded_tables(found: Report) -> Iterable[tuple[str, str]]:
    every = [*found.overview, found.skipped, found.errors, *found.problems, found.sparsity]
    for position, table in enumerate(every):
        if table.rows:
            opening = "<details open>" if position == 0 else "<details>"
            body = f"{opening}<summary>{ticked(table.title)}</summary>\n\n{table.note}\n\n{markdown_table(table)}\n</details>\n"
            yield table.title, body


def markdown_table(table: Table) -> str:
    """A table in GitHub's Markdown."""
    titles = [title for title, _ in table.columns]
    lines = [titles, ["---"] * len(titles), *([_markdown_cell(cell) for cell in row] for row in table.rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _markdown_cell(cell: Cell) -> str:
    verdict = f" ({cell.verdict})" if cell.verdict and not cell.text.startswith(cell.verdict) else ""
    return escaped(cell.text) + verdict + (" ⚠ contradicts its claim" if cell.alarm else "")


def escaped(text: str) -> str:
    """Text that Markdown shows as it is."""
    clean = text.replace("&", "&amp;").replace("<", "&lt;").replace("\n", " ")
    return "".join("\\" + letter if letter in "|*_`[]" else letter for letter in clean)


def ticked(text: str) -> str:
    """A title with its underscores kept apart from Markdown, and safe in HTML."""
    return text.replace("&", "&amp;").replace("<", "&lt;")


def counted(counts: dict[str, int]) -> str:
    """The line that every run ends with."""
    return f"{_plural(counts['ok'], 'cell')} ok, {counts['failed']} failed, {counts['skipped']} skipped."


def _closing(found: Report) -> tuple[str, str]:
    words: Sequence[str] = [f"- `{name}`: {meaning}" for name, meaning in {**found.verdicts, **found.metrics}.items()]
    surroundings = [f"- {escaped(key)}: {escaped(value)}" for key, value in found.facts]
    lines = [
        "<details><summary>Words, environment</summary>",
        "",
        *words,
        "",
        *surroundings,
        "",
        "</details>",
        "",
        f"Reproduce: `{found.command}`",
        "",
    ]
    return "words and environment", "\n".join(lines)
