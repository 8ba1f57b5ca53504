"""Estimators that claim to be unbiased and are found biased: no baseline is needed to see that this is wrong."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ..base import Row
from .matching import Key, key_of
from .settings import Settings

BROKEN = "broken"
"""The verdict on estimates that are NaN or infinite."""


@dataclass(frozen=True)
class Claim:
    """The claim of one estimator on one instance.

    Attributes:
        key: of its relative bias. ``row``: with verdict and p-value of the test.
        effect: relative bias, or the error of the gain where that is greater; infinite where events are too rare for a number.
        broken: whether the claim is proven wrong. ``exact``: by replay.
        p_adjusted: over all tests of the gate.
    """

    key: Key
    row: Row
    effect: float
    exact: bool
    broken: bool = False
    p_adjusted: float | None = None

    @property
    def reason(self) -> str:
        """In one sentence."""
        if self.row.verdict == BROKEN:
            return self.row.reason
        return f"claims to be unbiased, and is found biased: {self.evidence}"

    @property
    def evidence(self) -> str:
        """How large the bias is, and how that is known."""
        if self.row.verdict == BROKEN:
            return self.row.reason
        size = "of unknown size" if math.isinf(self.effect) else f"{self.effect:.2%} of the gradient"
        return f"{size} ({'exactly' if self.exact else f'adjusted p = {self.p_adjusted:.2g}'})"


def claims(rows: Sequence[Row], settings: Settings) -> list[Claim]:
    """The claims that can be checked: exact ones are decided, of sampled ones the p-value is."""
    gains = {key_of(row)._replace(metric=""): row.value for row in rows if row.metric == "gain" and row.value is not None}
    found = [_claim(row, gains.get(key_of(row)._replace(metric=""))) for row in rows if _claims(row)]
    broken = [Claim(key_of(row), row, math.inf, exact=True, broken=True) for row in rows if row.verdict == BROKEN]
    return [*broken, *(replace(claim, broken=_exactly_broken(claim, settings)) for claim in found)]


def _claims(row: Row) -> bool:
    unbiased = row.unbiased and row.objective == "expected" and row.reference == "expected"
    return (
        unbiased and row.metric == "relative_bias" and row.status == "ok" and not row.setting and (row.value is not None or _rejected(row))
    )


def _rejected(row: Row) -> bool:
    """Whether a bias is found, twice, though too few replicates carry the variance for its size."""
    return row.verdict == "biased" and row.p_value is not None


def _claim(row: Row, gain: float | None) -> Claim:
    value = math.inf if row.value is None else row.value
    return Claim(key_of(row), row, max(value, 0.0 if gain is None else abs(gain - 1)), exact=row.tier == "exact")


def _exactly_broken(claim: Claim, settings: Settings) -> bool:
    """An exact bias fails beyond rounding; in single precision the rounding of the estimator is as large as a small bias."""
    least = 0.0 if claim.row.dtype == "float64" else settings.minimum_bias
    return claim.exact and claim.row.verdict == "biased" and claim.effect > least


def p_values(found: Iterable[Claim]) -> dict[object, float]:
    """Of the sampled ones, by key."""
    return {claim.key: claim.row.p_value for claim in found if not claim.exact and claim.row.p_value is not None}


def decided(found: Iterable[Claim], adjusted: dict[object, float], settings: Settings) -> list[Claim]:
    """Sampled claims are broken where the adjusted test rejects, and the effect is no trifle."""
    return [_decided(claim, adjusted.get(claim.key), settings) for claim in found]


def _decided(claim: Claim, p_adjusted: float | None, settings: Settings) -> Claim:
    if claim.exact or p_adjusted is None:
        return claim
    broken = p_adjusted < settings.alpha and claim.effect > settings.minimum_bias
    return replace(claim, broken=broken, p_adjusted=p_adjusted)
