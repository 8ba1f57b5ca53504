"""Metrics: meaning, unit, direction and margins of a change for the worse, estimation, and display."""

from dataclasses import dataclass, replace
from typing import Literal

Unit = Literal["1", "s", "B", "count"]  # a plain number, seconds, bytes, or a count

Role = Literal["lower", "higher", "stable", "never"]
"""``lower``: less is better; ``higher``: more is better; ``stable``: any change is one for the worse; ``never``: it is not compared."""

Scale = Literal["ratio", "difference", "exact"]
"""How sampled values are compared: logarithms of positive ones, differences of those that may be 0 or negative. ``exact``: only exact
values are compared; sampled values are compared in another metric."""

Needs = Literal["", "torch", "machine"]  # facts that must be equal besides versions, dtype and device: torch, or the whole machine


@dataclass(frozen=True)
class Rule:
    """The rule by which one metric is compared between runs, and whether a gate fails on it.

    A value is worse if ``head > base + minimum_change |base| + floor`` (mirrored where more is better); both margins hold for sampled and
    timed values only. Exact values are worse as soon as they differ by more than the tolerance.
    """

    role: Role
    scale: Scale = "ratio"
    needs: Needs = ""
    gated: bool = False  # whether a gate fails on it; else it is only shown
    minimum_change: float = 0.02  # smaller relative changes do not count
    floor: float = 0.0  # smaller absolute changes do not count
    equivalence: float = 0.10  # values are equivalent if the relative change is proven to be smaller
    ceiling: float = 0.0  # values are equivalent if the absolute change is proven to be smaller
    tolerance: float = 1e-12  # absolute difference of exact values that counts as rounding


RTOL = 1e-9  # relative difference of exact values that counts as rounding

_LOWER = Rule("lower")
_GATED = replace(_LOWER, gated=True)
# The norm of a bias is at least 0, and its estimate is not normal near 0. So its square is tested, which is estimated without bias. Norms
# below 1e-9 are rounding in the exact tier.
_NORM = Rule("lower", "exact", gated=True, tolerance=1e-9)
_SQUARE = Rule("lower", "difference", gated=True, floor=0.02**2, ceiling=0.10**2)
_SCALE = Rule("stable", "difference", gated=True, minimum_change=0.005, floor=1e-4, equivalence=0.05, ceiling=0.05)
_SHARE = Rule("higher", "difference", minimum_change=0.0, floor=0.01, equivalence=0.0, ceiling=0.05)
# Training: means over paired seeds, proven not worse by two points, or proven worse by more.
_LEARNT = Rule("higher", "difference", gated=True, minimum_change=0.0, floor=0.02, equivalence=0.0, ceiling=0.02)
_SHARE_LOST = replace(_SHARE, role="lower")
_NEVER = Rule("never")
_BYTES = Rule("lower", needs="torch", gated=True, floor=16_384.0, ceiling=16_384.0)
_BETWEEN_RUNS = Rule("lower", needs="machine", gated=True, minimum_change=0.10, equivalence=0.25)


@dataclass(frozen=True)
class Metric:
    """One metric, except its measurement; its name is its key in `METRICS`."""

    meaning: str  # a sentence, which reports print
    rule: Rule
    unit: Unit = "1"
    range: str = ""  # of its values, with the best value if it is neither end
    label: str = ""  # its name in words: of a column, on an axis or in a sentence; empty for its name
    width: tuple[float, float] | None = None
    """Sampling continues until half of the interval is at most this share of the value, or this absolute number if that is larger."""
    undirected: bool = False  # whether it is defined even if the exact gradient is 0
    mean: bool = False  # whether it is a mean of independent numbers, one per replicate: the jackknife of their batches is a t-interval
    paired: bool = False  # whether its values without each batch are kept, so that runs are compared pair by pair

    @property
    def sign(self) -> int:
        """−1 if less is better, else 1."""
        return -1 if self.rule.role == "lower" else 1

    def __str__(self) -> str:
        """The meaning."""
        return self.meaning


METRICS: dict[str, Metric] = {
    # Estimates compared with the exact gradient.
    "relative_bias": Metric(
        "b = ‖E ĝ − g‖ / ‖g‖: 0 for an unbiased estimator", _NORM, range="0 to ∞", label="relative bias", width=(0.05, 0.01)
    ),
    "relative_bias_squared": Metric("b², estimated without bias by a U-statistic; may be negative", _SQUARE, paired=True),
    "relative_variance": Metric(
        "V = E‖ĝ − E ĝ‖² / ‖g‖² of one estimate ĝ: 0 for a deterministic estimator",
        _GATED,
        range="0 to ∞",
        label="relative variance",
        width=(0.05, 0.0),
        paired=True,
    ),
    "relative_mse": Metric(
        "E‖ĝ − g‖² / ‖g‖² = b² + V; the average of N estimates has b² + V/N", _GATED, range="0 to ∞", label="relative MSE", paired=True
    ),
    "gain": Metric(
        "⟨E ĝ, g⟩ / ‖g‖²: length of the mean along g", _SCALE, range="−∞ to ∞, 1 is best", width=(0.0, 0.02), mean=True, paired=True
    ),
    "cosine": Metric(
        "⟨E ĝ, g⟩ / (‖E ĝ‖ ‖g‖), corrected for the noise of the mean",
        _SHARE,
        range="−1 to 1",
        label="cosine of the mean",
        width=(0.0, 0.01),
    ),
    "orthogonal_bias": Metric(
        "√(b² − (1 − gain)²): part of the bias b orthogonal to g, which no step size removes",
        _NORM,
        range="0 to ∞",
        label="orthogonal bias",
    ),
    "null_bias": Metric("‖bias along directions that change no probability‖ / ‖g‖", _NORM),
    "mean_cosine": Metric("E[⟨ĝ, g⟩ / (‖ĝ‖ ‖g‖)], with 0 for ĝ = 0: depends on bias and variance", _SHARE, mean=True),
    "snr": Metric("‖E ĝ‖² / tr Cov(ĝ) of one estimate; undefined without variance", Rule("higher"), width=(0.05, 0.002), undirected=True),
    "rho": Metric(
        "E⟨ĝ, g⟩ / (‖g‖ √E‖ĝ‖²) of one estimate ĝ: a step of fixed length along ĝ compared with one along g",
        _SHARE,
        range="−1 to 1",
        label="ρ",
        width=(0.025, 0.005),
    ),
    "rho_16": Metric("rho of the average of 16 estimates", _SHARE, label="ρ of 16 estimates"),
    "fisher_rho": Metric(
        "rho in the metric of the Fisher information, for a step of fixed KL divergence: 1 for the natural gradient", _SHARE
    ),
    "fisher_rho_16": Metric("fisher_rho of the average of 16 estimates", _SHARE),
    "descent_probability": Metric("P(⟨ĝ, g⟩ > 0): share of estimates along which a small step decreases the loss", _SHARE),
    "sign_agreement": Metric("share of non-zero parts of ĝ with the sign of g, over parts where g is not 0", _SHARE),
    "kurtosis": Metric(
        "E‖ĝ‖⁴ / (E‖ĝ‖²)²: 1 if all estimates have the same norm, large if a few dominate the variance", Rule("lower"), undirected=True
    ),
    # Estimates without an exact gradient.
    "absolute_bias": Metric("‖E ĝ − g‖, reported if g is too small for a relative bias", _NORM),
    "absolute_variance": Metric("tr Cov(ĝ) of one estimate, reported if g is unknown or too small for a relative variance", _GATED),
    "zero_gradient_rate": Metric(
        "share of estimates that are exactly 0", replace(_SHARE_LOST, gated=True), label="zero gradients", undirected=True
    ),
    "gradient_nonzeros": Metric(
        "mean number of parts of an estimate that are not 0 but for rounding",
        _GATED,
        unit="count",
        label="parts in the gradient",
        undirected=True,
        mean=True,
    ),
    "truth_norm": Metric("‖g‖, norm of the exact gradient", Rule("stable", "exact", gated=True)),
    # Counts: exact, or means of draws.
    "support": Metric(
        "number of structures with positive probability in the forward distribution",
        replace(_GATED, minimum_change=0.0),
        unit="count",
        label="structures in the support",
    ),
    "forward_nonzeros": Metric(
        "mean number of non-zero parts of the structures at which the loss is evaluated",
        _GATED,
        unit="count",
        label="parts in the structure",
    ),
    # Times and bytes. Absolute times, and metrics that use them, are never compared between runs; ratios are paired within a run.
    "forward_time": Metric(
        "median seconds of the forward pass (structure and loss, or surrogate) for a batch of 32 rows", _NEVER, unit="s"
    ),
    "backward_time": Metric("median seconds of the backward pass for a batch of 32 rows", _NEVER, unit="s"),
    "peak_memory": Metric(
        "peak bytes of tensors and kernels in a forward and backward pass for a batch of 32 rows", _BYTES, unit="B", label="peak bytes"
    ),
    "time_ratio": Metric("seconds per estimate relative to `reinforce`, paired in interleaved rounds", _BETWEEN_RUNS, label="time ratio"),
    "loss_evaluations": Metric("evaluations of the loss per estimate; a backward pass of the loss counts as two", _GATED, unit="count"),
    "seconds_per_estimate": Metric(
        "median seconds per row of forward and backward passes over a large batch; on a CPU, processor time", _NEVER, unit="s"
    ),
    "threads": Metric("number of torch threads during the timings", _NEVER, unit="count"),
    "total_time": Metric("median seconds of forward and backward at one point of a sweep", _NEVER, unit="s", label="seconds"),
    "time_exponent": Metric("exponent e of time ∝ sizeᵉ, over the upper part of a sweep", _NEVER),
    "memory_exponent": Metric("exponent e of peak memory ∝ sizeᵉ, over the upper part of a sweep", _NEVER),
    # Training.
    "regret": Metric(
        "(E L − min L) / (E L at the start − min L) after training for the same loss evaluations, with the best of 6 step sizes",
        _SHARE_LOST,
    ),
    "steps": Metric("number of training steps within the budget of loss evaluations", _NEVER, unit="count"),
    "accuracy": Metric(
        "share of test items that are predicted correctly with the argmax structures, after training", _LEARNT, label="final accuracy"
    ),
    "structure_accuracy": Metric("agreement of the argmax structures with the true structures, by the metric of the task", _SHARE),
    "relaxed_accuracy": Metric("accuracy with marginals instead of argmax structures", _SHARE),
    "curve_mean": Metric(
        "mean accuracy over the points of a learning curve: higher if learning is faster", _SHARE, label="mean of the learning curve"
    ),
    "curve_accuracy": Metric("accuracy after the given number of training steps", _SHARE),
    "steps_to_target": Metric(
        "training steps until the accuracy is 95 % of the ceiling; censored if it is not reached",
        Rule("lower"),
        unit="count",
        label="steps to the target",
    ),
    "normalised_accuracy": Metric("(accuracy − floor) / (ceiling − floor)", _SHARE),
    "diverged": Metric("1 if training ended with scores or a gradient that are not finite, else 0", _SHARE_LOST),
    "floor_accuracy": Metric(
        "accuracy without a latent structure: the largest class, or a model of the inputs alone", Rule("stable", "exact")
    ),
    "ceiling_accuracy": Metric(
        "accuracy with the true structures, or with the exact gradient where they are not known", Rule("stable", "exact")
    ),
    "step_time": Metric("median seconds of one step of training, of one seed", _NEVER, unit="s"),
    "seconds_to_target": Metric("steps_to_target × step_time", _NEVER, unit="s"),
    **{
        f"parameter_{name}": Metric(f"{of} of a batch’s mean gradient in the encoder’s parameters", rule, label=f"{label}, parameters")
        for name, of, rule, label in (
            ("bias", "relative_bias", Rule("lower", "exact", tolerance=1e-9), "bias"),
            ("variance", "relative_variance", _LOWER, "variance"),
            ("mse", "relative_mse", _LOWER, "MSE"),
            ("cosine", "cosine", _SHARE, "cosine"),
            ("gain", "gain", replace(_SCALE, gated=False), "gain"),
            ("rho", "rho", _SHARE, "ρ"),
        )
    },
    "parameter_truth_norm": Metric(
        "norm of the exact gradient of a batch in the encoder's parameters", Rule("stable", "exact", tolerance=1e-9)
    ),
    "learning_rate": Metric("learning rate of Adam, chosen on the validation split with separate seeds", _NEVER),
    "chosen_option": Metric("main option of an estimator, chosen on the validation split with separate seeds", _NEVER),
}
"""The metrics by name, in the order of the glossary. A new metric is a record here and the code that measures it."""


def label_of(metric: str) -> str:
    """A metric in words, such as "relative MSE"."""
    return METRICS[metric].label or metric if metric in METRICS else metric


def signed_label(metric: str) -> str:
    """A metric in words, with a minus if less is better, as rank correlations use it."""
    return f"− {label_of(metric)}" if METRICS[metric].sign < 0 else label_of(metric)


def unit_of(metric: str) -> Unit:
    """The unit of a metric. A metric of a user's own suite is in seconds if its name says so."""
    if metric in METRICS:
        return METRICS[metric].unit
    return "s" if metric.endswith(("_time", "_seconds")) or metric.startswith("seconds_") else "1"


def rule_of(metric: str) -> Rule:
    """The rule of a metric. A metric of a user's own suite is not gated, and less of it is better."""
    return METRICS[metric].rule if metric in METRICS else _LOWER
