"""A comparison and a gate as text, Markdown, a page, JSON, CSV, JUnit and annotations of GitHub."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any
from xml.etree import ElementTree

import jinja2
import numpy as np
import pandas as pd

from ...suites.comparison import KEY, MEANING, GateResult
from ...suites.comparison.pairs import items_of
from ...suites.metrics import METRICS
from . import findings
from .findings import SYMBOLS, change_text, quantity, tally
from .groups import CHANGED, grouped, ordered

MAX_LINES, MAX_CHANGES, MAX_MARKDOWN_ROWS, MAX_PAGE_ROWS, MAX_RATIOS = 20, 200, 100, 500, 40
"""Lines of a gate and of a comparison in a terminal, rows of a table in Markdown and on a page, ratios in a chart."""

_RECORD = [
    *KEY, "verdict", "base", "head", "scale", "change", "low", "high", "method", "p_value", "p_adjusted", "reason"
]  # fmt: skip

Heads = Sequence[tuple[str, pd.DataFrame]]
"""The name of each run, and its comparison with the base."""


# Comparisons.


def comparison_text(base: str, heads: Heads, sort: str) -> str:
    """Counts, a line for each estimator that changed, then its other metrics."""
    blocks = []
    for head, items in heads:
        lines = [f"{head} against {base}: {tally(items)}"]
        found = findings.by_estimator(items, CHANGED, "changed", MAX_CHANGES, by_name=sort == "name")
        if not found.lines:
            lines += ["nothing changed"]
        else:
            lines += ["", "By estimator (head / base, or difference, as a mean over instances with its 95 % interval):", *found.lines]
            lines += ["", "Their other metrics:", *found.details] if found.details else []
            lines += [f"and {found.left} more (--format csv lists all)"] if found.left else []
            there = set(items["verdict"])
            lines += ["", *(f"{SYMBOLS[verdict]} {verdict}: {MEANING[verdict]}" for verdict in CHANGED if verdict in there)]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\nexit code 0, whatever changed; `structgrad gate` decides\n"


def comparison_markdown(base: str, heads: Heads, sort: str) -> str:
    """A table of the changes in each run, for a comment on a pull request."""
    parts = ["# Comparison", ""]
    for head, items in heads:
        parts += [f"## {_cell(head)} against {_cell(base)}", "", tally(items) + ".", ""]
        groups = ordered(grouped(items, CHANGED), sort)
        if groups.empty:
            parts += ["Nothing changed.", ""]
            continue
        parts += [f"- {_cell(line)}" for line in findings.by_estimator(items, CHANGED, "changed", MAX_MARKDOWN_ROWS).lines]
        parts += ["", "| verdict | estimator | problem, entropy level | metric | head / base | instances |", "|---|---|---|---|---|---|"]
        for row in _rows(groups[:MAX_MARKDOWN_ROWS], items):
            cells = (f"{SYMBOLS[row['verdict']]} {row['verdict']}", f"`{row['estimator']}`", row["problem"], row["metric"])
            parts.append("| " + " | ".join(map(_cell, (*cells, row["change"] or row["reason"], row["instances"]))) + " |")
        parts += [f"\nand {len(groups) - MAX_MARKDOWN_ROWS} more."] if len(groups) > MAX_MARKDOWN_ROWS else []
        parts += [""]
    return "\n".join([*parts, "## Verdicts", "", *(f"- {SYMBOLS[verdict]} {verdict}: {MEANING[verdict]}" for verdict in MEANING), ""])


def _rows(groups: pd.DataFrame, items: pd.DataFrame) -> Iterator[dict[str, str]]:
    """Groups as the texts of a table."""
    for group in items_of(groups):
        yield {
            "verdict": group.verdict,
            "estimator": group.estimator,
            "problem": f"{group.problem}, {group.stage}",
            "metric": quantity(group),
            "meaning": METRICS[group.metric].meaning if group.metric in METRICS else "",
            "change": change_text(group),
            "instances": f"{group.sharing} of {group.instances}",
            "reason": str(items.at[group.most, "reason"]),
        }


def comparison_page(base: str, heads: Heads, sort: str, library: Callable[[], str]) -> str:
    """A self-contained page with a chart and a table for each run; ``library`` returns the packed script that draws charts."""
    sections = []
    for head, items in heads:
        groups = ordered(grouped(items, list(MEANING)), sort)
        drawn = groups[groups["verdict"].isin(CHANGED) & groups["scale"].eq("ratio") & groups["change"].gt(0)][:MAX_RATIOS]
        sections.append(
            {
                "head": head,
                "lines": findings.by_estimator(items, CHANGED, "changed", MAX_PAGE_ROWS).lines,
                "counts": [(verdict, int(number)) for verdict, number in items["verdict"].value_counts(sort=False).items() if number],
                "chart": json.dumps(_chart(drawn)).replace("<", "\\u003c") if len(drawn) else "",
                "rows": list(_rows(groups[:MAX_PAGE_ROWS], items)),
                "left_out": max(len(groups) - MAX_PAGE_ROWS, 0),
            }
        )
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("structgrad.reports.page"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    script = library() if any(section["chart"] for section in sections) else ""
    return environment.get_template("comparison.html.j2").render(
        base=base, sections=sections, meaning=MEANING, symbols=SYMBOLS, vega=script
    )


def _chart(groups: pd.DataFrame) -> dict[str, Any]:
    """A forest plot in Vega-Lite: ratios with their intervals on a logarithmic axis, which ends at a hundredfold."""
    import altair as alt

    ends = groups[["change", "low", "high"]].astype(float)
    ends = ends.assign(low=ends["low"].fillna(ends["change"]), high=ends["high"].fillna(ends["change"])).clip(0.01, 100)
    names = [f"{SYMBOLS[group.verdict]} {group.metric}, {findings.place(group)}" for group in items_of(groups)]
    rows = ends.assign(name=names, verdict=groups["verdict"].astype(str), shown=[change_text(group) for group in items_of(groups)])
    chart = alt.Chart(rows).encode(
        y=alt.Y("name:N", sort=None, title=None, axis=alt.Axis(labelLimit=420)),
        color=alt.Color("verdict:N", legend=None),
        tooltip=[alt.Tooltip("name:N"), alt.Tooltip("verdict:N"), alt.Tooltip("shown:N", title="head / base")],
    )
    x = alt.X("low:Q", scale=alt.Scale(type="log", nice=False, padding=10), title="head / base")
    one = alt.Chart(pd.DataFrame({"one": [1]})).mark_rule(strokeDash=[4, 3]).encode(x="one:Q")
    layers = one, chart.mark_rule(strokeWidth=2).encode(x=x, x2="high:Q"), chart.mark_point(filled=True, size=60).encode(x="change:Q")
    spec = alt.layer(*layers).properties(width=480).to_dict()
    return {key: value for key, value in spec.items() if key not in ("$schema", "config")}


def comparison_json(base: str, heads: Heads, sort: str) -> str:
    """All comparisons in strict JSON."""
    return _json({"base": base, "heads": [{"head": head, "comparisons": _records(items[_RECORD])} for head, items in heads]})


def comparison_csv(base: str, heads: Heads, sort: str) -> str:
    """One line per number."""
    tables = [items[_RECORD].assign(compared_with=base, run=head)[["compared_with", "run", *_RECORD]] for head, items in heads]
    return str(pd.concat(tables).to_csv(index=False, lineterminator="\n"))


# Gates.


def headline(result: GateResult) -> str:
    """The outcome in one sentence."""
    checks = len(result.comparisons) + len(result.claims)
    return {
        "passed": "gate passed: nothing is worse",
        "failed": f"gate failed: {result.count('fail')} of {checks} checks fail",
        "undecided": f"gate passed, {result.count('warn')} open: neither worse nor the same is proven (--strict makes this exit code 4)",
        "nothing to compare": "gate not decided: the baseline and the run have no number in common; measure the plan of the baseline, or "
        "save a new baseline of this run",
    }[result.outcome]


def gate_text(result: GateResult) -> str:
    """A line for each estimator that fails or is open, its other metrics, the counts, and the outcome as the last line."""
    both = {"fails": findings.gate_findings(result, "fail", MAX_LINES), "open": findings.gate_findings(result, "warn", MAX_LINES)}
    lines = [f"{title}: {line}" for title, found in both.items() for line in found.lines]
    for title, found in both.items():
        lines += [f"  also {title}: {line}" for line in found.details]
        lines += [f"  also {title}: {found.left} more (--json lists all)"] if found.left else []
    lines += [f"numbers: {tally(result.comparisons)}"]
    if len(result.claims):
        lines += [f"claims to be unbiased: {len(result.claims)} checked, {result.claims['broken'].sum()} broken"]
    return "\n".join([*lines, headline(result)]) + "\n"


def gate_markdown(result: GateResult) -> str:
    """The outcome, and lists of the checks that fail or are open, for the summary of a job."""
    mark = {"passed": "✅", "failed": "❌"}.get(result.outcome, "⚠️")
    parts = [f"## {mark} structgrad {headline(result)}", "", f"Numbers: {tally(result.comparisons)}.", ""]
    for title, level in (("Fails", "fail"), ("Open", "warn")):
        found = findings.gate_findings(result, level, MAX_MARKDOWN_ROWS)  # type: ignore[arg-type]
        parts += [f"### {title}", "", *(f"- {_cell(line)}" for line in found.lines), ""] if found.lines else []
        parts += ["Other metrics:", "", *(f"- {_cell(line)}" for line in found.details), ""] if found.details else []
        parts += [f"and {found.left} more.", ""] if found.left else []
    return "\n".join(parts)


def _checks(result: GateResult) -> Iterator[tuple[str, str, str, str]]:
    """Group, name, reaction and sentence of each check; claims first."""
    for claim in items_of(result.claims):
        name = f"unbiased on {claim.instance}, {claim.stage} ({claim.suite})"
        yield f"structgrad.{claim.problem}.{claim.estimator}", name, "fail" if claim.broken else "pass", findings.sentence(claim)
    for item in items_of(result.comparisons):
        name = f"{quantity(item)} of {findings.place(item)}"
        yield f"structgrad.{item.problem}.{item.estimator}", name, item.reaction, findings.sentence(item)


def gate_json(result: GateResult, exit_code: int) -> str:
    """The whole gate in strict JSON."""
    checks = list(_checks(result))
    return _json(
        {
            "outcome": result.outcome,
            "exit_code": exit_code,
            "alpha": result.settings.alpha,
            "failures": [sentence for *_, reaction, sentence in checks if reaction == "fail"],
            "warnings": [sentence for *_, reaction, sentence in checks if reaction == "warn"],
            "comparisons": _records(result.comparisons[_RECORD]),
            "claims": _records(result.claims[[*KEY, "broken", "exact", "effect", "p_adjusted"]]),
            "idle_overrides": result.idle,
        }
    )


def junit(result: GateResult) -> bytes:
    """One test case per check for CI systems: failures fail, open checks are skipped."""
    states = {"fail": "failure", "warn": "skipped"}
    root = ElementTree.Element("testsuite", {"name": "structgrad gate"})
    for group, name, reaction, sentence in _checks(result):
        case = ElementTree.SubElement(root, "testcase", {"classname": group, "name": name})
        if reaction in states:
            ElementTree.SubElement(case, states[reaction], {"message": sentence})
    for name, tag in (
        ("tests", "testcase"),
        ("failures", "testcase/failure"),
        ("skipped", "testcase/skipped"),
        ("errors", "testcase/error"),
    ):
        root.set(name, str(len(root.findall(tag))))
    return bytes(ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


def github_lines(result: GateResult, most: int = 10) -> Iterable[str]:
    """Annotations of a job; GitHub keeps ten of each kind."""
    for level, kind in (("error", "fail"), ("warning", "warn")):
        for line in findings.gate_findings(result, kind, most).lines:  # type: ignore[arg-type]
            text = line.replace("%", "%25").replace("\r", "").replace("\n", "%0A")
            yield f"::{level} title=structgrad gate::{text}"


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows for JSON: None for no number, a text for infinity."""
    return [{str(name): _finite(value) for name, value in row.items()} for row in frame.astype(object).to_dict("records")]


def _finite(value: Any) -> Any:
    if isinstance(value, float | np.floating):
        return None if math.isnan(value) else float(value) if math.isfinite(value) else str(float(value))
    return bool(value) if isinstance(value, np.bool_) else value


def _json(content: Any) -> str:
    return json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def _cell(text: str) -> str:
    """A text that neither ends a cell of a table nor becomes HTML."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
