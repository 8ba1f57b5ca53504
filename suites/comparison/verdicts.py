"""The verdict on each number of two runs."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy import special

from ..base import Row
from ..metrics import rule_of, unit_of
from ..statistics.interval import LEVEL
from ..statistics.selection import holm_values
from .pairs import AT_GAIN, PLACE, SCORES, VERSIONS, Estimates, Pairs, contrast, is_close, is_exact, matched, p_above, prepared
from .settings import Settings

MEANING: dict[str, str] = {  # the verdicts, gravest first
    "regressed": "worse by more than the smallest change that counts, and that is proven",
    "changed": "different, for a metric that must stay the same; proven",
    "broken": "the base has a number, and the head failed, or has NaN or infinity",
    "missing": "the base has a number, and the head has none",
    "inconclusive": "neither a change nor its absence is proven",
    "incomparable": "the two do not measure the same, and the reason says why",
    "improved": "better by more than the smallest change that counts, and that is proven",
    "fixed": "the base has a failure, and the head has a number",
    "new": "only the head has it",
    "equivalent": "a change that matters is ruled out",
    "identical": "the same up to rounding",
}

VERDICTS = pd.CategoricalDtype(list(MEANING), ordered=True)

Machine = Mapping[str, Any]  # the ``environment`` of a manifest: processor, cores, versions
SMALLEST_SHARE = 1e-6  # numbers further apart are compared by their difference
LARGEST_RATIO = 1000.0  # a larger change is shown as a difference: the ratio to a rounding error has no meaning
MIN_GAIN, MIN_GAIN_ERRORS = 1e-6, 5.0  # errors are divided by a gain that is larger than this, and than so many standard errors

UNKNOWN_ERROR = "the error of one of them is not known"
NO_SAVING = "its gradient is wrong here, and a cheaper wrong gradient is no improvement"

_OTHER_FACTS = {"": (), "torch": ("torch",), "machine": ("cpu", "cores", "python", "torch")}
_WRONG = ("gain", "relative_bias", "absolute_bias", "orthogonal_bias", "null_bias")
_TESTED = ["verdict", "reason", "scale", "method", "change", "low", "high", "worse", "better"]
_CHUNK = 50_000
_SKIP = "-"


def compare(
    base: pd.DataFrame | Iterable[Row],
    head: pd.DataFrame | Iterable[Row],
    machines: tuple[Machine, Machine] = ({}, {}),
    settings: Settings | None = None,
) -> pd.DataFrame:
    """Compare all numbers of two runs, the head with the base; p-values are adjusted over all of them.

    Margins and level are by default those of `METRICS`. The result has a row for each number: the columns `KEY`, and

    - ``verdict``: one of `MEANING`; ``reason``: in a sentence, if it needs one.
    - ``base, head``: the numbers. ``base_status, head_status``: the statuses of their rows; empty without a row.
    - ``change``: ``head / base`` for positive numbers less than a thousandfold apart, else ``head − base``. ``low, high``: its 95 %
      interval, if it is estimated. ``scale``: ``ratio`` or ``difference``.
    - ``method``: ``exact``, ``paired``, ``independent``, or empty if nothing was compared.
    - ``p_value``: of "it is not worse", or "it did not change" for metrics that must stay. ``p_adjusted``: over all comparisons.
    """
    settings = settings or Settings()
    pairs = matched(prepared(base), prepared(head))
    rules, _ = settings.rules(pairs.keys)
    return adjust(*uncorrected(pairs, rules, machines, settings.alpha), settings.alpha)


def uncorrected(
    pairs: Pairs, rules: pd.DataFrame, machines: tuple[Machine, Machine], alpha: float, wanted: np.ndarray | bool = True
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Comparisons before the correction for many tests, of the pairs that are wanted, with p-values ``worse`` and ``better``.

    The second table holds the errors at the same gain, which replace others if the gain is found to have changed.
    """
    exists = pairs.places[:, 0] >= 0, pairs.places[:, 1] >= 0
    status, values, reasons = (pairs.both(name) for name in ("status", "value", "reason"))
    out = pairs.keys.assign(
        verdict="", reason="", scale="ratio", method="", base=values[0], head=values[1], base_status=status[0], head_status=status[1],
        change=np.nan, low=np.nan, high=np.nan, worse=np.nan, better=np.nan, role=rules["role"],
    )  # fmt: skip
    ok, has = [one == "ok" for one in status], [~np.isnan(one) for one in values]
    lost, failure = exists[0] & ~exists[1], pairs.column("reason", pairs.failure)
    undefined, blank = exists[0] & exists[1] & has[0] & ~has[1], np.full(len(out), "", object)
    cases: list[tuple[np.ndarray, str, Any]] = [  # the first one that holds
        (lost & ~ok[0], "incomparable", "failed in the base: " + reasons[0]),
        (lost & ~has[0], _SKIP, blank),
        (lost & (pairs.failure >= 0), "broken", failure),
        (lost, "missing", blank + "the head has no such number"),
        (~exists[0] & ok[1], "new", blank),
        (~exists[0], "incomparable", "failed, and the base does not have it: " + reasons[1]),
        (~ok[1] & ok[0], "broken", reasons[1]),
        (~ok[1], "incomparable", "failed in both: " + reasons[1]),
        (~ok[0], "fixed", "it was: " + reasons[0]),
        (undefined & (reasons[1] != ""), "inconclusive", reasons[1]),
        (undefined, "broken", blank + "the metric is not defined any more"),
        (~has[0] & has[1], "new", blank + "the metric was not defined in the base"),
        (~has[0] & ~has[1], _SKIP, blank),
    ]
    verdict, reason = np.where(wanted, blank, _SKIP).astype(object), blank.copy()
    for where, name, why in cases:
        where = where & (verdict == "")
        verdict[where], reason[where] = name, why[where]
    comparable = np.ones(len(out), bool)
    for where, text, first, second in _obstacles(pairs, machines):
        where &= exists[0] & exists[1]
        comparable &= ~where
        where &= verdict == ""
        verdict[where] = "incomparable"
        reason[where] = [text.format(one, other) for one, other in zip(first[where], second[where], strict=True)]
    exact = is_exact(pairs, pairs.places[:, 0]) & is_exact(pairs, pairs.places[:, 1])
    verdict[(rules["scale"] == "exact").to_numpy() & ~exact & (verdict == "")] = _SKIP
    out["verdict"], out["reason"] = verdict, reason
    paired = np.logical_and.reduce([np.equal(*pairs.both(name)) for name in ("seed", "tier")])
    replicates = pairs.both("replicates")
    paired &= (replicates[0] == replicates[1]) | (np.isnan(replicates[0]) & np.isnan(replicates[1]))
    untested = np.flatnonzero(verdict == "")
    for rows in _chunks(untested):
        base, head = (Estimates.of(pairs, pairs.places[rows, one]) for one in (0, 1))
        out.loc[rows, _TESTED] = tested(base, head, paired[rows], rules.iloc[rows], alpha).set_index(rows)
    found_at_gain = _at_same_gain(out, pairs, rules, untested, comparable, paired, alpha)
    kept = out["verdict"] != _SKIP
    return out[kept], found_at_gain.loc[found_at_gain.index.isin(out.index[kept])]


def _chunks(rows: np.ndarray) -> list[np.ndarray]:
    return np.array_split(rows, len(rows) // _CHUNK + 1) if len(rows) else []


def _obstacles(pairs: Pairs, machines: tuple[Machine, Machine]) -> Iterator[tuple[np.ndarray, str, np.ndarray, np.ndarray]]:
    """Reasons that two rows cannot be compared: their places, and a sentence with two gaps for the values that differ."""
    for name in (*VERSIONS, "dtype", "device"):
        first, second = pairs.both(name)
        shown = "{:.0f}" if name in VERSIONS else "{}"
        yield first != second, f"{name} is {shown} in the base and {shown} in the head", first, second
    other = np.zeros(len(pairs.keys), bool)
    for name in SCORES:
        first, second = pairs.both(name)
        other |= ~(is_close(first, second, relative=1e-6) | (np.isnan(first) & np.isnan(second)))
    first, second = pairs.both("seed")
    # Another seed gives built-in problems other scores. Other scores of the same seed are a change of the code, and are compared.
    yield (first != second) & other, "other scores: the seed is {:.0f} in the base and {:.0f} in the head", first, second
    needs = pairs.keys["metric"].map({name: rule_of(name).needs for name in pairs.keys["metric"].unique()}).to_numpy(object)
    facts = [{**machine, "torch": machine.get("packages", {}).get("torch")} for machine in machines]
    for kind, names in _OTHER_FACTS.items():
        for name in names:
            one, two = (fact.get(name) for fact in facts)
            if one is None or one != two:
                filled = [np.full(len(needs), fact, object) for fact in (one, two)]
                yield needs == kind, f"another machine: {name} is {{}} in the base and {{}} in the head", *filled


def tested(base: Estimates, head: Estimates, paired: np.ndarray, rules: pd.DataFrame, alpha: float) -> pd.DataFrame:
    """The columns ``verdict`` to ``better`` of pairs with a number on both sides, from one-sided tests against the margins."""
    rule = {name: rules[name].to_numpy() for name in rules}
    stable, lower = rule["role"] == "stable", rule["role"] == "lower"
    b, h, exact, known = base.value, head.value, base.exact & head.exact, base.known & head.known
    paired = paired & (base.count == head.count) & (base.count > 1)
    near = (b > 0) & (h > 0) & (np.maximum(b, h) < LARGEST_RATIO * np.minimum(b, h))
    numbers = np.concatenate([b[:, None], base.batches, h[:, None], head.batches], axis=1)
    # A batch without a rare event leaves rounding, whose logarithm looks precise: such numbers are compared by their difference.
    logs = (rule["scale"] == "ratio") & (np.fmin.reduce(numbers, 1) > SMALLEST_SHARE * np.fmax.reduce(numbers, 1))
    ratio = near & (logs | exact)
    width = min(base.batches.shape[1], head.batches.shape[1])
    equal = is_close(np.nan_to_num(base.batches[:, :width]), np.nan_to_num(head.batches[:, :width])).all(1)
    same = is_close(b, h, np.where(exact, rule["tolerance"], 1e-12))
    same &= exact | (is_close(base.error, head.error) & equal & (base.count == head.count))
    with np.errstate(all="ignore"):
        change = np.where(ratio, h / b, h - b)
        inside = (rule["needs"] != "") & (np.abs(h - b) <= rule["minimum_change"] * np.abs(b) + rule["floor"])
    moved = np.where(stable, "changed", np.where((h > b) == lower, "regressed", "improved"))
    out = {
        "verdict": np.where(known, np.where(same, "identical", np.where(inside, "equivalent", moved)), "inconclusive").astype(object),
        "reason": np.where(known, "", UNKNOWN_ERROR).astype(object),
        "scale": np.where(ratio | ~known, "ratio", "difference").astype(object),
        "method": np.where(known, np.where(exact, "exact", np.where(paired, "paired", "independent")), "").astype(object),
        "change": np.where(known, np.where(same & ~exact, np.where(ratio, 1.0, 0.0), change), np.nan),
        **{name: np.full(len(b), np.nan) for name in ("low", "high", "worse", "better")},
    }
    rows = np.flatnonzero(known & ~exact & ~same)
    if not len(rows):
        return pd.DataFrame(out)
    base, head = base[rows], head[rows]
    paired, logs, ratio, stable, lower = (one[rows] for one in (paired, logs, ratio, stable, lower))
    rule = {name: values[rows] for name, values in rule.items()}

    def beyond(sign: int, relative: np.ndarray, absolute: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The difference of head and base above (1) or below (−1) a margin."""
        log, share, margin = (one[:, None] for one in (logs & (absolute == 0), relative, absolute))

        def statistic(x: np.ndarray, y: np.ndarray) -> np.ndarray:
            if log.all():
                return np.asarray(sign * np.log(y / x) - np.log1p(share))
            plain = sign * (y - x) - share * np.abs(x) - margin
            return np.asarray(np.where(log, sign * np.log(np.where(log, y / x, 1.0)) - np.log1p(share), plain) if log.any() else plain)

        return contrast(statistic, base, head, paired)

    up, down = (p_above(*beyond(sign, rule["minimum_change"], rule["floor"])) for sign in (1, -1))
    excess = [beyond(sign, rule["equivalence"], rule["ceiling"]) for sign in (1, -1)]
    harmless = [p_above(-estimate, error, degrees) for estimate, error, degrees in excess]
    harm = np.where(stable, np.maximum(*harmless), np.where(lower, *harmless))
    estimate, error, degrees = contrast(lambda x, y: np.where(ratio[:, None], np.log(y / x), y - x), base, head, paired)
    half = np.where(error > 0, special.stdtrit(degrees, (1 + LEVEL) / 2) * error, 0.0)
    with np.errstate(over="ignore"):
        ends = [np.where(ratio, np.exp(one), one) for one in (estimate, estimate - half, estimate + half)]
    found = {
        "verdict": np.where(harm < alpha, "equivalent", "inconclusive"),
        **dict(zip(("change", "low", "high"), ends, strict=True)),
        "worse": np.where(stable, np.minimum(1.0, 2 * np.minimum(up, down)), np.where(lower, up, down)),
        "better": np.where(stable, np.nan, np.where(lower, down, up)),
    }
    for name, column in found.items():
        out[name][rows] = column
    return pd.DataFrame(out)


def _at_same_gain(  # noqa: PLR0913, PLR0917 - all of them are columns of the same pairs
    out: pd.DataFrame, pairs: Pairs, rules: pd.DataFrame, untested: np.ndarray, comparable: np.ndarray, paired: np.ndarray, alpha: float
) -> pd.DataFrame:
    """Compare errors of ``ĝ / γ`` if the gain γ changed: a smaller estimate has smaller errors, and is not better.

    If both gains are exact, this replaces the comparison in ``out``. Else the errors can only improve at both gains, and the result, with
    the index of ``out``, counts if a test finds that the gain changed.
    """
    metric = pairs.keys["metric"].to_numpy(object)
    shrinks = np.isin(metric, list(AT_GAIN)) & (rules["role"] != "stable").to_numpy()
    gains = np.flatnonzero((metric == "gain") & (pairs.places >= 0).all(1) & comparable)
    shrinking = untested[shrinks[untested]]
    found = pairs.keys.loc[shrinking, PLACE].assign(row=shrinking).merge(pairs.keys.loc[gains, PLACE].assign(gain=gains), on=PLACE)
    found_at_gain = []
    for number in _chunks(np.arange(len(found))):
        row, gain = found["row"].to_numpy()[number], found["gain"].to_numpy()[number]
        sides = [(Estimates.of(pairs, pairs.places[row, one]), Estimates.of(pairs, pairs.places[gain, one])) for one in (0, 1)]
        sure = [size.known & (np.abs(size.value) > np.maximum(MIN_GAIN, MIN_GAIN_ERRORS * size.error)) for _, size in sides]
        both = sure[0] & sure[1]
        base, head = (error.at_gain(size, metric[row], both) for error, size in sides)
        at_gain = tested(base, head, paired[row], rules.iloc[row], alpha).set_index(row)
        shown = [["missing" if np.isnan(value) else f"{value:.4g}" for value in size.value] for _, size in sides]
        at_gain["reason"] = [
            (f"at the same gain, which was {was} and is {now}" + (f"; {reason}" if reason else ""))
            if one
            else f"the gain was {was} and is {now}: errors cannot be compared at the same gain"
            for was, now, reason, one in zip(*shown, at_gain["reason"], both, strict=True)
        ]
        exact = sides[0][1].exact & sides[1][1].exact
        changed = ~is_close(sides[0][1].value, sides[1][1].value, rules["tolerance"].to_numpy()[gain])
        some = sure[0] | sure[1]
        out.loc[row[some & exact & changed], _TESTED] = at_gain[some & exact & changed]
        rest = at_gain[some & ~exact]
        out.loc[rest.index, "better"] = np.maximum(out.loc[rest.index, "better"], rest["better"])
        found_at_gain.append(rest)
    return pd.concat(found_at_gain) if found_at_gain else out.iloc[:0]


def adjust(out: pd.DataFrame, at_gain: pd.DataFrame, alpha: float, others: Sequence[float] = ()) -> pd.DataFrame:
    """Correct uncorrected comparisons for many tests.

    Holm's correction covers all tests that can fail, with the p-values of ``others``, and apart from them all tests that can improve. If
    the gain is found to have changed, its errors are compared again at the same gain. That adds no false alarm to unchanged code: a gain
    that changed is one.
    """

    def corrected(frame: pd.DataFrame) -> pd.DataFrame:
        stable = (frame["role"] == "stable").to_numpy()
        worse, better = holm_values(frame["worse"].to_numpy(float), others), holm_values(frame["better"].to_numpy(float))
        verdict = frame["verdict"].to_numpy(object).copy()
        with np.errstate(invalid="ignore"):
            verdict[(better < alpha) & ~stable] = "improved"
            verdict[worse < alpha] = np.where(stable[worse < alpha], "changed", "regressed")
        return frame.assign(verdict=verdict, p_adjusted=worse)

    first = corrected(out)
    gains = first.loc[first["metric"].eq("gain") & first["verdict"].eq("changed"), PLACE]
    replaced = at_gain.index[pd.MultiIndex.from_frame(out.loc[at_gain.index, PLACE]).isin(pd.MultiIndex.from_frame(gains))]
    if len(replaced):
        second = out.copy()
        second.loc[replaced, _TESTED] = at_gain.loc[replaced, _TESTED]
        first.loc[replaced] = corrected(second).loc[replaced]
    cell = ["problem", "stage", "estimator"]
    wrong = first.loc[first["metric"].isin(_WRONG) & first["verdict"].isin(["regressed", "changed", "broken"]), cell]
    cost = first["metric"].isin([name for name in first["metric"].unique() if unit_of(name) != "1"]) & first["verdict"].eq("improved")
    cost &= pd.MultiIndex.from_frame(first[cell]).isin(pd.MultiIndex.from_frame(wrong))
    first.loc[cost, ["verdict", "reason"]] = "inconclusive", NO_SAVING
    return first.rename(columns={"worse": "p_value"}).drop(columns=["better", "role"]).astype({"verdict": VERDICTS}).reset_index(drop=True)
