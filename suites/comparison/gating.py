"""The gate: a run passes if nothing in it is worse than in the baseline, and if every claim to be unbiased holds."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
import pandas as pd

from ..base import Row
from ..statistics.selection import holm_values
from .pairs import KEY, PLACE, matched, prepared
from .settings import Reaction, Settings
from .verdicts import MEANING, VERDICTS, Machine, adjust, uncorrected

Outcome = Literal["passed", "failed", "undecided", "nothing to compare"]

PASSING = ("new", "fixed", "improved", "equivalent", "identical")  # verdicts that pass
MIN_POINTS = 3  # values of a training curve that moves


@dataclass(frozen=True)
class GateResult:
    """The findings of a gate.

    A claim to be unbiased has the columns `KEY`, ``effect``, ``exact``, ``broken``, ``p_adjusted`` (over all tests of the gate),
    ``evidence`` and ``reason``. The effect is the relative bias, or the error of the gain if that is larger.
    """

    comparisons: pd.DataFrame  # of all gated numbers, as `compare` returns them, with a column ``reaction``: ``fail``, ``warn`` or ``pass``
    claims: pd.DataFrame
    settings: Settings  # level, margins and reactions
    idle: list[str]  # overrides that match no number

    def count(self, reaction: Reaction) -> int:
        """The number of checks that fail, or stay open."""
        return int(self.comparisons["reaction"].eq(reaction).sum()) + (int(self.claims["broken"].sum()) if reaction == "fail" else 0)

    @property
    def outcome(self) -> Outcome:
        """A proven fault weighs more than a missing baseline, and that weighs more than an open question."""
        found = self.comparisons
        common = found["base_status"].ne("") & found["head_status"].ne("") & found["verdict"].ne("incomparable")
        if self.claims["broken"].any():
            return "failed"
        if not common.any():
            return "failed" if found["verdict"].eq("broken").any() else "nothing to compare"
        if self.count("fail"):
            return "failed"
        return "undecided" if self.count("warn") else "passed"


def reaction_to(verdict: str, settings: Settings) -> Literal["fail", "warn", "pass"]:
    """The reaction to a verdict."""
    return "pass" if verdict in PASSING else cast("Reaction", getattr(settings, f"on_{verdict}", "fail"))


def gate(
    base: pd.DataFrame | Iterable[Row],
    head: pd.DataFrame | Iterable[Row],
    machines: tuple[Machine, Machine] = ({}, {}),
    settings: Settings | None = None,
) -> GateResult:
    """Compare all gated numbers, and check every claim; one Holm correction covers all tests of both."""
    settings, rows = settings or Settings(), prepared(head)
    pairs = matched(prepared(base), rows)
    rules, idle = settings.rules(pairs.keys)
    wanted = rules["gated"].to_numpy(bool) | pairs.keys["metric"].eq("").to_numpy()
    out, at_gain = uncorrected(pairs, rules, machines, settings.alpha, wanted)
    claims = claims_of(rows, settings, out["worse"].dropna().tolist())
    tests = claims["p_value"].dropna().tolist()
    comparisons = pd.concat([adjust(out, at_gain, settings.alpha, tests), identical_curves(rows)], ignore_index=True)
    reactions = {verdict: reaction_to(verdict, settings) for verdict in MEANING}
    comparisons = comparisons.assign(
        verdict=comparisons["verdict"].astype(VERDICTS), reaction=comparisons["verdict"].map(reactions).astype(object)
    )
    return GateResult(comparisons, claims, settings, idle)


def claims_of(rows: pd.DataFrame, settings: Settings, others: Sequence[float]) -> pd.DataFrame:
    """The claims to be unbiased that can be checked, and estimates that are NaN or infinite, which break every claim.

    Exact claims are decided: an exact bias fails beyond rounding, which in single precision is as large as a small bias. Sampled claims are
    broken if the adjusted test rejects, and the effect is not negligible. ``others``: p-values of other tests that share the level.
    """
    broken = rows["verdict"].eq("broken")
    claims = rows["unbiased"].astype(bool) & rows["objective"].eq("expected") & rows["reference"].eq("expected") & rows["status"].eq("ok")
    rejected = rows["verdict"].eq("biased") & rows["p_value"].notna()  # too few replicates for the size of the bias
    claims &= rows["metric"].eq("relative_bias") & rows["setting"].eq("") & (rows["value"].notna() | rejected)
    found = rows[claims | broken].drop_duplicates([*KEY, "verdict"], keep="last")
    found = found.sort_values("verdict", key=lambda one: one.ne("broken"), kind="stable").reset_index(drop=True)
    gains = rows[rows["metric"].eq("gain") & rows["value"].notna()].drop_duplicates(KEY, keep="last")
    gain = found[PLACE].merge(gains[[*PLACE, "value"]], on=PLACE, how="left")["value"].to_numpy(float)
    nonfinite, biased = (found["verdict"].eq(name).to_numpy() for name in ("broken", "biased"))
    exact = found["tier"].eq("exact").to_numpy() | nonfinite
    effect = np.fmax(np.where(nonfinite, np.inf, found["value"].fillna(np.inf)), np.abs(gain - 1))
    least = np.where(found["dtype"].eq("float64"), 0.0, settings.minimum_bias)
    p_value = np.where(exact, np.nan, found["p_value"])
    p_adjusted = holm_values(p_value, others)
    rejects = (p_adjusted < settings.alpha) & (effect > settings.minimum_bias)
    evidence = [
        reason
        if ever
        else f"{'of unknown size' if size == np.inf else f'{size:.2%} of the gradient'} ({'exactly' if sure else f'adjusted p = {p:.2g}'})"
        for ever, reason, size, sure, p in zip(nonfinite, found["reason"].astype(object), effect, exact, p_adjusted, strict=True)
    ]
    reasons = np.where(nonfinite, "", "claims to be unbiased, and is found biased: ") + np.array(evidence, object)
    known = {"effect": effect, "exact": exact, "broken": nonfinite | (exact & biased & (effect > least)) | rejects}
    return found[KEY].assign(**known, p_value=p_value, p_adjusted=p_adjusted, evidence=evidence, reason=reasons)


def identical_curves(rows: pd.DataFrame) -> pd.DataFrame:
    """Broken comparisons of estimators whose training curves are equal at every step of every seed: one of them is wrong.

    Two deterministic estimators of one objective may be one function on a structure, and pass. So do curves that never move.
    """
    curves = rows[rows["suite"].eq("learning") & rows["metric"].eq("curve_accuracy") & rows["status"].eq("ok")]
    seen, found = defaultdict[object, list[pd.Series]](list), []
    for (problem, stage, name), curve in curves.groupby(["problem", "stage", "estimator"], observed=True, sort=False):
        if curve["value"].nunique(dropna=False) < MIN_POINTS:
            continue
        points = tuple(sorted(zip(curve["instance"], curve["setting"], curve["value"].fillna(-1.0), strict=True)))
        first = curve.iloc[0]
        for other in seen[problem, stage, points]:
            if not (first["deterministic"] and other["deterministic"] and first["objective"] == other["objective"]):
                reason = f"{name} and {other['estimator']} learn the same at every step of every seed; expected them to differ"
                found.append({**first[KEY], "instance": "", "setting": "", "verdict": "broken", "reason": reason, "head": first["value"]})
        seen[problem, stage, points].append(first)
    return pd.DataFrame(found).assign(scale="ratio", method="", base_status="", head_status="ok") if found else pd.DataFrame()
