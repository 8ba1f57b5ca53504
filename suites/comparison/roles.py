"""What a change of every metric means: which way is worse, on which scale it is compared, and whether a gate looks at it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Role = Literal["lower", "higher", "stable", "never"]
"""``lower``: less is better; ``higher``: more is better; ``stable``: any change is one for the worse; ``never``: it is not compared."""

Scale = Literal["ratio", "difference", "exact"]
"""How sampled values are compared: logarithms of positive ones, differences of those that may be 0 or negative. ``exact``: only exact
values are compared; of sampled ones another metric tells."""

Needs = Literal["", "torch", "machine"]
"""What must agree beside versions, dtype and device: the version of torch, or the whole machine."""


@dataclass(frozen=True)
class Rule:
    """How one metric is compared, and what a gate does about it.

    A value is worse if ``head > base + minimum_change |base| + floor`` (mirrored where more is better); both margins hold for sampled and
    timed values only. Exact values are worse as soon as they differ by more than the tolerance.

    Attributes:
        role, scale, needs: see there.
        gated: whether a gate fails on it; else it is only shown.
        minimum_change: a smaller relative change is no change. ``floor``: the same, absolute.
        equivalence: a change that is surely smaller than this is none. ``ceiling``: the same, absolute.
        tolerance: absolute difference of exact values that counts as rounding.
    """

    role: Role
    scale: Scale = "ratio"
    needs: Needs = ""
    gated: bool = False
    minimum_change: float = 0.02
    floor: float = 0.0
    equivalence: float = 0.10
    ceiling: float = 0.0
    tolerance: float = 1e-12


RTOL = 1e-9
"""Relative difference of exact values that counts as rounding."""

_LOWER = Rule("lower")
_GATED = replace(_LOWER, gated=True)
# A norm of a bias is 0 at best, where the interval of an estimate is that of no normal law: its square, which is estimated without bias,
# is tested in its place. Below 1e-9 it is the rounding that the exact tier allows.
_NORM = Rule("lower", "exact", gated=True, tolerance=1e-9)
_SQUARE = Rule("lower", "difference", gated=True, floor=0.02**2, ceiling=0.10**2)
_SCALE = Rule("stable", "difference", gated=True, minimum_change=0.005, floor=1e-4, equivalence=0.05, ceiling=0.05)
_SHARE = Rule("higher", "difference", minimum_change=0.0, floor=0.01, equivalence=0.0, ceiling=0.05)
# Of training, as a mean over seeds that are paired: surely not worse by two points, or surely worse by more.
_LEARNT = Rule("higher", "difference", gated=True, minimum_change=0.0, floor=0.02, equivalence=0.0, ceiling=0.02)
_SHARE_LOST = replace(_SHARE, role="lower")
_NEVER = Rule("never")
_BYTES = Rule("lower", needs="torch", gated=True, floor=16_384.0, ceiling=16_384.0)
_BETWEEN_RUNS = Rule("lower", needs="machine", gated=True, minimum_change=0.10, equivalence=0.25)

RULES: dict[str, Rule] = {
    # Errors: less is better.
    "relative_bias": _NORM,
    "absolute_bias": _NORM,
    "orthogonal_bias": _NORM,
    "null_bias": _NORM,
    "bias_of_start": Rule("lower", "exact"),
    "relative_bias_squared": _SQUARE,
    "relative_variance": _GATED,
    "absolute_variance": _GATED,
    "relative_mse": _GATED,
    # Targets: any change is suspicious. A gain that shrinks makes errors smaller, which are therefore judged at the same gain, see `gains`.
    "gain": _SCALE,
    "truth_norm": Rule("stable", "exact", gated=True),
    # Counts: exact, or means of draws.
    "support": replace(_GATED, minimum_change=0.0),
    "loss_evaluations": _GATED,
    "forward_nonzeros": _GATED,
    "gradient_nonzeros": _GATED,
    "zero_gradient_rate": replace(_SHARE_LOST, gated=True),
    # Bytes that torch's allocators count do not depend on the processor. Small tensors may move by a page.
    "peak_memory": _BYTES,
    "forward_memory": _BYTES,
    "memory_per_row": _BYTES,
    # Paired within a run, and therefore comparable between runs of one machine, though not finely.
    "time_ratio": _BETWEEN_RUNS,
    # Functions of the above: shown, and not tested a second time.
    "cosine": _SHARE,
    "mean_cosine": _SHARE,
    "snr": Rule("higher"),
    "rho": _SHARE,
    "rho_16": _SHARE,
    "fisher_rho": _SHARE,
    "fisher_rho_16": _SHARE,
    "descent_probability": _SHARE,
    "sign_agreement": _SHARE,
    "kurtosis": Rule("lower"),
    "kl_decrease": _SHARE,
    "kl_decrease_natural": _SHARE,
    "regret": replace(_SHARE_LOST, needs="machine"),
    # Of training.
    "accuracy": _LEARNT,
    "structure_accuracy": _SHARE,
    "relaxed_accuracy": _SHARE,
    "curve_mean": _SHARE,
    "curve_accuracy": _SHARE,
    "normalised_accuracy": _SHARE,
    "steps_to_target": Rule("lower"),
    "diverged": _SHARE_LOST,
    "floor_accuracy": Rule("stable", "exact"),
    "ceiling_accuracy": Rule("stable", "exact"),
    "step_time": _NEVER,
    "seconds_to_target": _NEVER,
    "parameter_bias": Rule("lower", "exact", tolerance=1e-9),
    "parameter_variance": _LOWER,
    "parameter_mse": _LOWER,
    "parameter_cosine": _SHARE,
    "parameter_gain": replace(_SCALE, gated=False),
    "parameter_rho": _SHARE,
    "learning_rate": _NEVER,
    "chosen_option": _NEVER,
    "variance_exponent": replace(_SHARE_LOST, minimum_change=0.0),
    # Absolute times, and what is made of them, are never compared between runs: see `timing`.
    "forward_time": _NEVER,
    "backward_time": _NEVER,
    "total_time": _NEVER,
    "seconds_per_estimate": _NEVER,
    "variance_seconds": _NEVER,
    "break_even_seconds": _NEVER,
    "break_even_evaluations": _NEVER,
    "oracle_share": _NEVER,
    "time_exponent": _NEVER,
    "memory_exponent": _NEVER,
    "steps": _NEVER,
    "threads": _NEVER,
    # Evidence, not quantities: the claim is checked by itself, see `claims`.
    "relative_bias_bound": _NEVER,
    "gain_error_bound": _NEVER,
    "bias_p_value": _NEVER,
    "bias_e_value": _NEVER,
}
"""By metric; one that is not here, of a user's own suite, is shown as ``lower``."""


def rule_of(metric: str) -> Rule:
    """How a metric is compared.

    Example:
        >>> rule_of("gain").role, rule_of("relative_variance").gated, rule_of("forward_time").role
        ('stable', True, 'never')
    """
    return RULES.get(metric, _LOWER)
