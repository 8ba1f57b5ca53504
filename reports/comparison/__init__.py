"""Comparisons and gates as people and programs read them: text, Markdown, JSON, CSV and annotations of GitHub.

A line for each estimator has its most telling metric; then each other metric has a line.
"""

import json
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ...suites.comparison import KEY, MEANING, GateResult
from ...suites.comparison.gating import reaction_to
from ...suites.comparison.pairs import CELL, identities, items_of
from ...suites.statistics.interval import Interval
from ...suites.text import ZERO, change, listed, plural, significant, whole

SYMBOLS = dict(zip(MEANING, "✗≠!−?/✓⊕+≈=", strict=True))  # symbols of the verdicts, which do not depend on colours

CHANGED = [verdict for verdict in MEANING if verdict not in ("identical", "equivalent")]

CLAIM = "claim to be unbiased"
_TELLING = ("gain", "relative_bias", CLAIM, "absolute_bias", "orthogonal_bias", "null_bias", "relative_variance", "absolute_variance")
"""Metrics that say best what is wrong with an estimator, the best first."""

_SAME_GRAVITY = 4  # verdicts of `MEANING` in a row that are about equally grave: proven or missing, open, better, the same

_OTHER_PLAN = {
    "missing": "another plan: the run lacks {} of the baseline ({}); measure them too, or save a new baseline of this run",
    "new": "another plan: the baseline lacks {} of the run ({})",
}

MAX_LINES, MAX_MARKDOWN_LINES, MAX_CHANGES = 20, 100, 200  # lines of a gate in a terminal and in Markdown, and of a comparison

_RECORD = [*KEY, "verdict", "base", "head", "scale", "change", "low", "high", "method", "p_value", "p_adjusted", "reason"]

LEVELS = ("fail", "warn")  # reactions of a gate that are shown
Heads = Sequence[tuple[str, pd.DataFrame]]  # the name of each run, and its comparison with the base
Findings = tuple[list[str], int]  # lines about checks that fail, stay open, or changed, and the number of lines that are left out


def sentence(item: Any) -> str:
    """One line on a comparison of numbers, or on a broken claim."""
    place = f"{item.estimator} on {_instance(item)}"
    if hasattr(item, "evidence"):
        return f"{SYMBOLS['broken']} broken claim: {place}: {item.reason}"
    among = ", ".join(filter(None, (item.suite, item.setting, item.reference if item.reference != "expected" else "")))
    details = (change(Interval(item.change, item.low, item.high), item.scale), _evidence(item), item.reason)
    text = f"{SYMBOLS[item.verdict]} {item.verdict}: {item.metric} ({among}) of {place}: {_values(item)}"
    return f"{text} ({'; '.join(filter(None, details))})" if any(details) else text


def effects(items: pd.DataFrame) -> np.ndarray:
    """The size of each change: of logarithms for ratios, infinite without a change."""
    changes = items["change"].to_numpy(float)
    with np.errstate(all="ignore"):
        sizes = np.where(items["scale"] == "ratio", np.where(changes > 0, np.abs(np.log(changes)), np.inf), np.abs(changes))
    return np.where(np.isnan(changes), np.inf, sizes)


def ordered(items: pd.DataFrame) -> pd.DataFrame:
    """Comparisons with the gravest verdicts first, and the greatest effects among them."""
    names = items.assign(**{name: items[name].astype(str) for name in KEY}, effect=-effects(items))
    return items.loc[names.sort_values(["verdict", "effect", *KEY], kind="stable").index]


def tally(items: pd.DataFrame) -> str:
    """The number of comparisons of each verdict, gravest first."""
    counts = items["verdict"].value_counts()
    return ", ".join(f"{whole(counts[verdict])} {verdict}" for verdict in MEANING if counts.get(verdict)) or "nothing to compare"


def gate_findings(result: GateResult, level: str, most: int) -> Findings:
    """One line for each estimator with checks that fail, or stay open; then their other metrics."""
    judged = [verdict for verdict in MEANING if reaction_to(verdict, result.settings) == level]
    claims = result.claims.assign(broken=result.claims["broken"] & (level == "fail"))
    return by_estimator(result.comparisons, judged, "fail" if level == "fail" else "stay open", most, claims=claims)


def by_estimator(items: pd.DataFrame, judged: Collection[str], verb: str, most: int, *, claims: pd.DataFrame | None = None) -> Findings:
    """One line for each fact that many estimators share, then for each estimator with a verdict of some kinds, then for other metrics.

    The line of an estimator shows its most telling metric, and counts its checks of these kinds with their verb, such as fail. The gravest
    verdicts come first. There are at `most` so many lines.
    """
    claims = items.iloc[:0].assign(broken=False) if claims is None else claims
    wanted, broken = items["verdict"].isin(list(judged)), claims[claims["broken"].astype(bool)]
    shared, spoken = _shared(items, wanted)
    checks = [
        items.loc[wanted & ~spoken, ["estimator", "metric"]].assign(gravity=items["verdict"].cat.codes // _SAME_GRAVITY),
        broken[["estimator"]].assign(metric=CLAIM, gravity=0),
    ]
    found = pd.concat([part.astype({"estimator": str, "metric": str}) for part in checks]).groupby(["estimator", "metric"], as_index=False)
    metrics = found.agg(gravity=("gravity", "min"), count=("gravity", "size"))
    metrics["total"] = metrics.groupby("estimator")["count"].transform("sum")
    metrics["rank"] = metrics["metric"].map({name: rank for rank, name in enumerate(_TELLING)}).fillna(len(_TELLING))
    biased = metrics.loc[metrics["metric"].eq("relative_bias"), "estimator"]
    metrics = metrics[~metrics["metric"].isin([CLAIM, "relative_bias_squared"]) | ~metrics["estimator"].isin(biased)]
    metrics = metrics.sort_values(["gravity", "rank", "count", "metric"], ascending=[True, True, False, True])
    first = ~metrics.duplicated("estimator")
    leaders = metrics[first].sort_values(["gravity", "total", "estimator"], ascending=[True, False, True])
    position = {name: place for place, name in enumerate(leaders["estimator"])}
    others = metrics[~first].sort_values("estimator", key=lambda names: names.map(position), kind="stable")
    checked = Counter(items["estimator"]) + Counter(claims["estimator"])
    lines = list(shared)
    for place, item in enumerate(items_of(pd.concat([leaders, others])[:most])):
        if item.metric == CLAIM:
            claimed = broken[broken["estimator"] == item.estimator]
            most_biased = next(items_of(claimed.loc[[claimed["effect"].idxmax()]]))
            where = f"{_on(claimed, claimed)}, most on {_instance(most_biased)}: {most_biased.evidence}"
            text = f"{SYMBOLS['broken']} {item.estimator}: claims to be unbiased, and is biased{where}"
        else:
            text = _group_sentence(items[(items["estimator"] == item.estimator) & (items["metric"] == item.metric) & ~spoken], judged)
        count = f"; {whole(item.total)} of {plural(checked[item.estimator], 'check')} {verb}" if place < len(leaders) else ""
        lines.append(text + count)
    return lines, max(len(metrics) - most, 0)


def _shared(items: pd.DataFrame, wanted: pd.Series) -> tuple[list[str], pd.Series]:
    """Lines on many numbers that only one run has, or that cannot be compared for one reason; and whether each number is in a line."""
    lines, spoken = [], pd.Series(False, items.index)
    cells, levels = (identities(items, columns) for columns in (CELL, CELL[:3]))
    for verdict, text in _OTHER_PLAN.items():
        lacking = items["verdict"].eq(verdict)
        whole_cell = ~np.isin(cells, cells[~lacking])
        # Fewer instances: every estimator at an entropy level of a problem lacks some.
        whole_level = ~np.isin(levels, levels[~np.isin(cells, cells[lacking])])
        plan = lacking & wanted & (whole_cell | whole_level)
        if plan.any():
            names = (sorted(set(items.loc[plan, column]) - set(items.loc[~lacking, column])) for column in CELL)
            kinds = ("suites", "problems", "entropy levels", "estimators")
            only = "; ".join(f"{kind} {listed(some)}" for kind, some in zip(kinds, names, strict=True) if some) or "other instances"
            lines.append(f"{SYMBOLS[verdict]} {text.format(plural(plan.sum(), 'number'), only)}")
            spoken |= plan
    incomparable = items[wanted & items["verdict"].eq("incomparable") & items["reason"].ne("")]
    for reason, some in incomparable.groupby("reason", sort=False, observed=True):
        estimators = some["estimator"].unique()
        if len(estimators) > 1 or some["metric"].nunique() > 1:
            of = f"{len(estimators)} estimators" if len(estimators) > 1 else estimators[0]
            lines.append(f"{SYMBOLS['incomparable']} {plural(len(some), 'number')} of {of} cannot be compared: {reason}")
            spoken[some.index] = True
    return lines, spoken


def _group_sentence(items: pd.DataFrame, judged: Collection[str]) -> str:
    """One line on a metric of an estimator over all its problems: the gravest verdict, and the changes with it."""
    verdict = items.loc[items["verdict"].isin(list(judged)), "verdict"].min()
    sharing = items[items["verdict"] == verdict]
    sharing = sharing.assign(effect=effects(sharing)).sort_values("effect", kind="stable")
    least, most = (next(items_of(sharing.iloc[[end]])) for end in (0, -1))
    where = _on(sharing, items) + (f" ({len(sharing)} of {len(items)} instances)" if len(sharing) < len(items) else "")
    if len({_values(item, 3) for item in items_of(sharing)}) == 1:
        text = f"{most.metric} {_values(most)}{where}"
    else:
        changes = dict.fromkeys(change(Interval(item.change), item.scale) for item in (least, most) if not np.isnan(item.change))
        text = f"{' '.join(filter(None, (most.metric, ' to '.join(changes))))}{where}, most on {_instance(most)}: {_values(most)}"
    return f"{SYMBOLS[verdict]} {most.estimator}: {text} ({'; '.join(filter(None, (verdict, _evidence(most), most.reason)))})"


def _on(some: pd.DataFrame, everything: pd.DataFrame) -> str:
    """The problems, and the entropy levels unless these are all."""
    problems, levels = set(some["problem"]), set(some["stage"])
    count = everything["problem"].nunique()
    share = f"all {count} problems" if len(problems) == count else f"{len(problems)} of {count} problems"
    at = f" at {listed(sorted(levels))}" if levels != set(everything["stage"]) else ""
    return f" on {share if count > 1 else min(problems)}{at}"


def _instance(item: Any) -> str:
    return f"{item.instance or item.problem}, {item.stage}"


def _evidence(item: Any) -> str:
    return str(item.method) if np.isnan(item.p_adjusted) else f"{item.method}, adjusted p = {significant(item.p_adjusted, 2)}"


def _values(item: Any, digits: int = 4) -> str:
    shown = []
    for value, status in ((item.base, item.base_status), (item.head, item.head_status)):
        number = "undefined" if np.isnan(value) else significant(0.0 if abs(value) < ZERO else value, digits)
        shown.append("none" if not status else number if status == "ok" else status)
    return " → ".join(shown)


# Formats.


def json_text(content: Any, indent: int | None = 1) -> str:
    """Strict JSON of nested values and a line feed: None for no number, a text for infinity."""

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {str(key): plain(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [plain(item) for item in value]
        if isinstance(value, float | np.floating):
            return None if math.isnan(value) else float(value) if math.isfinite(value) else str(float(value))
        return value.item() if isinstance(value, np.generic) else value

    return json.dumps(plain(content), indent=indent, allow_nan=False, ensure_ascii=False) + "\n"


def comparison_text(base: str, heads: Heads) -> str:
    """Counts, and lines on estimators that changed."""
    blocks = []
    for head, items in heads:
        lines = [f"{head} against {base}: {tally(items)}"]
        found, left = by_estimator(items, CHANGED, "changed", MAX_CHANGES)
        if not found:
            lines += ["nothing changed"]
        else:
            lines += ["", "By estimator (head / base, or difference, from the least to the largest):", *found]
            lines += [f"and {left} more (--format csv lists all)"] if left else []
            there = set(items["verdict"])
            lines += ["", *(f"{SYMBOLS[verdict]} {verdict}: {MEANING[verdict]}" for verdict in CHANGED if verdict in there)]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\nexit code 0, whatever changed; `structgrad gate` decides\n"


def comparison_markdown(base: str, heads: Heads) -> str:
    """Lists of the changes in each run, for a comment on a pull request."""
    parts = ["# Comparison", ""]
    for head, items in heads:
        parts += [f"## {_cell(head)} against {_cell(base)}", "", tally(items) + ".", ""]
        parts += _lists("", by_estimator(items, CHANGED, "changed", MAX_MARKDOWN_LINES)) or ["Nothing changed.", ""]
    return "\n".join([*parts, "## Verdicts", "", *(f"- {SYMBOLS[verdict]} {verdict}: {MEANING[verdict]}" for verdict in MEANING), ""])


def _lists(title: str, found: Findings) -> list[str]:
    lines, left = found
    parts = [*([f"### {title}", ""] if title else []), *(f"- {_cell(line)}" for line in lines), ""] if lines else []
    return parts + ([f"and {left} more.", ""] if left else [])


def comparison_json(base: str, heads: Heads) -> str:
    """All comparisons in strict JSON."""
    records = [{"head": head, "comparisons": items[_RECORD].astype(object).to_dict("records")} for head, items in heads]
    return json_text({"base": base, "heads": records})


def comparison_csv(base: str, heads: Heads) -> str:
    """One line per number."""
    tables = [items[_RECORD].assign(compared_with=base, run=head)[["compared_with", "run", *_RECORD]] for head, items in heads]
    return str(pd.concat(tables).to_csv(index=False, lineterminator="\n"))


COMPARISONS = {"text": comparison_text, "md": comparison_markdown, "json": comparison_json, "csv": comparison_csv}


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
    """Lines on estimators that fail or are open, the counts, and the outcome as the last line."""
    lines: list[str] = []
    for title, level in zip(("fails", "open"), LEVELS, strict=True):
        found, left = gate_findings(result, level, MAX_LINES)
        lines += [f"{title}: {line}" for line in found]
        lines += [f"{title}: {left} more (--json lists all)"] if left else []
    lines += [f"numbers: {tally(result.comparisons)}"]
    if len(result.claims):
        lines += [f"claims to be unbiased: {len(result.claims)} checked, {result.claims['broken'].sum()} broken"]
    return "\n".join([*lines, headline(result)]) + "\n"


def gate_markdown(result: GateResult) -> str:
    """The outcome, and lists of the checks that fail or are open, for the summary of a job."""
    mark = {"passed": "✅", "failed": "❌"}.get(result.outcome, "⚠️")
    parts = [f"## {mark} structgrad {headline(result)}", "", f"Numbers: {tally(result.comparisons)}.", ""]
    for title, level in zip(("Fails", "Open"), LEVELS, strict=True):
        parts += _lists(title, gate_findings(result, level, MAX_MARKDOWN_LINES))
    return "\n".join(parts)


def gate_json(result: GateResult, exit_code: int) -> str:
    """The whole gate in strict JSON."""
    checks = [("fail" if claim.broken else "pass", claim) for claim in items_of(result.claims)]
    checks += [(item.reaction, item) for item in items_of(result.comparisons)]
    return json_text(
        {
            "outcome": result.outcome,
            "exit_code": exit_code,
            "alpha": result.settings.alpha,
            "failures": [sentence(check) for reaction, check in checks if reaction == "fail"],
            "warnings": [sentence(check) for reaction, check in checks if reaction == "warn"],
            "comparisons": result.comparisons[_RECORD].astype(object).to_dict("records"),
            "claims": result.claims[[*KEY, "broken", "exact", "effect", "p_adjusted"]].astype(object).to_dict("records"),
            "idle_overrides": result.idle,
        }
    )


def _cell(text: str) -> str:
    """A text that neither ends a cell of a table nor becomes HTML."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
