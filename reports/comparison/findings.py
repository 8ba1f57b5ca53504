"""Sentences on comparisons: a line for each estimator with its most telling metric, then a line for each other metric."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from ...suites.comparison import KEY, MEANING, GateResult
from ...suites.comparison.gating import reaction_to
from ...suites.comparison.pairs import CELL, identities, items_of
from ...suites.statistics.interval import Interval
from ...suites.text import ZERO, change, listed, plural, significant, whole

SYMBOLS = dict(zip(MEANING, "✗≠!−?/✓⊕+≈=", strict=True))
"""Symbols of the verdicts, which do not depend on colours."""

CHANGED = [verdict for verdict in MEANING if verdict not in ("identical", "equivalent")]

CLAIM = "claim to be unbiased"
_TELLING = ("gain", "relative_bias", CLAIM, "absolute_bias", "orthogonal_bias", "null_bias", "relative_variance", "absolute_variance")
"""Metrics that say best what is wrong with an estimator, the best first."""

_SAME_GRAVITY = 4
"""Verdicts of `MEANING` in a row that are about equally grave: proven or missing, open, better, the same."""

_OTHER_PLAN = {
    "missing": "another plan: the run lacks {} of the baseline ({}); measure them too, or save a new baseline of this run",
    "new": "another plan: the baseline lacks {} of the run ({})",
}


class Findings(NamedTuple):
    """Lines about checks that fail, stay open, or changed, and the number of lines that are left out."""

    lines: list[str]
    left: int


def place(item: Any) -> str:
    """Where a number was measured: estimator, instance, entropy level."""
    return f"{item.estimator} on {_instance(item)}"


def quantity(item: Any) -> str:
    """The metric with its suite, its setting, and the reference unless it is the usual one."""
    details = [detail for detail in (item.setting, item.reference if item.reference not in ("", "expected") else "") if detail]
    return f"{item.metric} ({', '.join([item.suite, *details])})"


def change_text(item: Any) -> str:
    """The change with its interval; empty without one."""
    return change(Interval(item.change, item.low, item.high), getattr(item, "scale", "ratio"))


def sentence(item: Any) -> str:
    """One line on a comparison of numbers, or on a broken claim."""
    if hasattr(item, "evidence"):
        return f"{SYMBOLS['broken']} broken claim: {place(item)}: {item.reason}"
    details = "; ".join(filter(None, [change_text(item), _evidence(item), item.reason]))
    text = f"{SYMBOLS[item.verdict]} {item.verdict}: {quantity(item)} of {place(item)}: {_values(item)}"
    return f"{text} ({details})" if details else text


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


def gate_findings(result: GateResult, level: Literal["fail", "warn"], most: int) -> Findings:
    """One line for each estimator with checks that fail, or stay open; then their other metrics."""
    judged = [verdict for verdict in MEANING if reaction_to(verdict, result.settings) == level]
    claims = result.claims.assign(broken=result.claims["broken"] & (level == "fail"))
    return by_estimator(result.comparisons, judged, "fail" if level == "fail" else "stay open", most, claims=claims)


def by_estimator(items: pd.DataFrame, judged: Collection[str], verb: str, most: int, *, claims: pd.DataFrame | None = None) -> Findings:
    """One line for each fact that many estimators share, then for each estimator with a verdict of some kinds, then for other metrics.

    The line of an estimator is that of its most telling metric, and has the number of its checks of these kinds, with their verb: fail,
    stay open. Those with the gravest verdicts come first. There are at `most` so many lines.
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
            text = _broken_claims(broken[broken["estimator"] == item.estimator])
        else:
            text = _group_sentence(items[(items["estimator"] == item.estimator) & (items["metric"] == item.metric) & ~spoken], judged)
        count = f"; {whole(item.total)} of {plural(checked[item.estimator], 'check')} {verb}" if place < len(leaders) else ""
        lines.append(text + count)
    return Findings(lines, max(len(metrics) - most, 0))


def _shared(items: pd.DataFrame, wanted: pd.Series) -> tuple[list[str], pd.Series]:
    """Lines on many numbers at once, and whether each number is in one: only one run has it, or many cannot be compared for one reason."""
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
    for reason, some in items[wanted & items["verdict"].eq("incomparable") & items["reason"].ne("")].groupby(
        "reason", sort=False, observed=True
    ):
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


def _broken_claims(broken: pd.DataFrame) -> str:
    """One line on all broken claims of an estimator."""
    most = next(items_of(broken.loc[[broken["effect"].idxmax()]]))
    text = f"claims to be unbiased, and is biased{_on(broken, broken)}, most on {_instance(most)}: {most.evidence}"
    return f"{SYMBOLS['broken']} {most.estimator}: {text}"


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
    """Both numbers."""
    shown = []
    for value, status in ((item.base, item.base_status), (item.head, item.head_status)):
        number = "undefined" if np.isnan(value) else significant(0.0 if abs(value) < ZERO else value, digits)
        shown.append("none" if not status else number if status == "ok" else status)
    return " → ".join(shown)
