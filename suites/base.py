"""The vocabulary of a measurement: problems, rows of the result table, skipped pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from ..estimators.base import Estimator
    from ..oracles.base import Oracle

SCHEMA_VERSION = 3
"""Version of `Row`; raised when a column changes its meaning."""

Status = Literal["ok", "skipped", "error", "timeout", "oom", "crash", "nonfinite"]
"""``oom``: memory ran out. ``crash``: the process died. ``nonfinite``: a number came out, and it was infinite or NaN."""

FAILED: tuple[Status, ...] = ("error", "timeout", "oom", "crash")
"""What is measured again when a run is resumed; a non-finite number would only come out again."""


REFERENCE = "reinforce"
"""Times are relative to the total time of this estimator, and budgets are so many of its estimates."""


class ProblemLoss(Protocol):
    """A loss on structures ``[..., *event] -> [...]`` that says what it can give.

    Attributes:
        name: for the table.
        differentiable: whether it has gradients in the structure (an estimator that needs them is skipped otherwise).
        inside_hull: whether it is defined at points that are no structures.
        vertex_degree: its degree as a polynomial in the parts *on the structures*, None where it is no polynomial.
        extension: how it goes on between the structures: ``linear``, ``quadratic``, ``multilinear``, ``formula`` (what its formula says
            there) or ``none``. Bias that comes from it alone is no bias of the discrete problem.
        offset: the constant that was added to it.
    """

    name: str
    differentiable: bool
    inside_hull: bool
    vertex_degree: int | None
    extension: str
    offset: float

    def __call__(self, structure: Tensor) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class Instance:
    """One item: float64 scores ``[*event]`` and the loss that belongs to them."""

    name: str
    scores: Tensor
    loss: ProblemLoss


@dataclass(frozen=True, eq=False)
class Problem:
    """Instances of one oracle at one stage of training. The unit of replication of every aggregate is the instance."""

    name: str
    stage: str
    oracle: Oracle
    instances: tuple[Instance, ...]
    source: str


@dataclass(frozen=True)
class Skip:
    """A pair that is not measured, with the reason; it is a row of the table too."""

    estimator: str
    oracle: str
    reason: str


@dataclass(frozen=True)
class Row:
    """One row of the result table: one metric of one estimator on one instance (or on a whole problem, ``instance=""``).

    Attributes:
        cell: identity of the cell that the row comes from; empty for what was skipped, and for what follows from several cells.
        suite: which question it answers; empty for a skipped pair.
        problem, stage, source: which scores. ``oracle, loss, estimator``: names with their options, ``imle[lambda=2.5]``.
        family: the registry name of the estimator without options.
        vertex_degree, extension, offset: of the loss: its degree on the structures, how it goes on between them, what was added to it.
        estimator_version, oracle_version, suite_version: as declared; raised when numbers change.
        objective: what the estimator says it estimates. ``unbiased, deterministic``: what it declares.
        instance: the item. ``log_count``: log of its number of structures. ``entropy``: of its Gibbs distribution, in nats.
        normalised_entropy: the same / log_count: 1 for the uniform distribution, 0 for a single structure.
        truth_norm, truth_method, truth_error: of the exact gradient that it was compared with: norm, method, bound of its error.
        metric, unit: e.g. ``relative_bias``; unit ``1``, ``s``, ``B`` or ``count``.
        value, low, high, interval, setting, size, reference, tier, replicates, batches, sampling, verdict, p_value: as in `Finding`.
        p_adjusted: the p-value after Holm's correction over all tests of the run.
        seed, dtype, device: how it was measured.
        status, reason: ``ok``, or what went wrong, in one sentence. ``error_type, traceback``: of a failure, as text.
        seconds: that its whole cell took.
        schema_version: `SCHEMA_VERSION`.
    """

    cell: str
    suite: str
    problem: str
    stage: str
    source: str
    oracle: str
    loss: str
    estimator: str
    family: str
    vertex_degree: int | None = None
    extension: str = ""
    offset: float = 0.0
    estimator_version: int = 1
    oracle_version: int = 1
    suite_version: int = 1
    objective: str = ""
    unbiased: bool = False
    deterministic: bool = False
    instance: str = ""
    log_count: float | None = None
    entropy: float | None = None
    normalised_entropy: float | None = None
    truth_norm: float | None = None
    truth_method: str = ""
    truth_error: float | None = None
    metric: str = ""
    unit: str = "1"
    value: float | None = None
    low: float | None = None
    high: float | None = None
    interval: str = ""
    setting: str = ""
    size: float | None = None
    reference: str = ""
    tier: str = ""
    replicates: int | None = None
    batches: tuple[float, ...] = ()
    sampling: str = ""
    verdict: str = ""
    p_value: float | None = None
    p_adjusted: float | None = None
    seed: int = 0
    dtype: str = "float64"
    device: str = "cpu"
    status: Status = "ok"
    reason: str = ""
    error_type: str = ""
    traceback: str = ""
    seconds: float | None = None
    schema_version: int = SCHEMA_VERSION


METRICS: dict[str, str] = {
    "relative_bias": "‖E ĝ − g‖ / ‖g‖: 0 for an unbiased estimator",
    "relative_bias_squared": "the same squared, estimated without its own bias (a U-statistic); may be negative",
    "relative_bias_bound": "upper 95 % bound of ‖E ĝ − g‖ / ‖g‖: the smallest ε at which the bias is equivalent to none",
    "gain_error_bound": "upper 95 % bound of |gain − 1|",
    "bias_p_value": "p-value of the test for bias, over all its directions and looks",
    "bias_e_value": "capital of a bettor against unbiasedness who started with 1: evidence for a bias at any sample size",
    "relative_variance": "trace of the covariance of one estimate / ‖g‖²",
    "relative_mse": "E‖ĝ − g‖² / ‖g‖²",
    "gain": "⟨E ĝ, g⟩ / ‖g‖²: 1 where the scale is right",
    "cosine": "cosine between E ĝ and g, corrected for the noise of the mean",
    "orthogonal_bias": "norm of the bias orthogonal to g / ‖g‖: what is left when the scale is right",
    "null_bias": "norm of the bias along directions that change no probability / ‖g‖",
    "mean_cosine": "mean cosine between one estimate and g, 0 for an estimate of 0: bias and variance together",
    "snr": "‖E ĝ‖² / trace of the covariance of one estimate; not defined without variance",
    "rho": "E⟨ĝ, g⟩ / √(‖g‖² E‖ĝ‖²): usefulness of one estimate as a descent step of fixed length, from −1 to 1",
    "rho_16": "rho of the average of 16 estimates",
    "fisher_rho": "rho in the metric of the Fisher information: usefulness as a step of fixed divergence, 1 for the natural gradient",
    "fisher_rho_16": "fisher_rho of the average of 16 estimates",
    "descent_probability": "share of estimates along which the loss decreases: ⟨ĝ, g⟩ > 0",
    "sign_agreement": "share of the non-zero parts of estimates whose sign is that of g, over parts where g is not 0",
    "kurtosis": "E‖ĝ‖⁴ / (E‖ĝ‖²)²: 1 where all estimates are equally long, large where few carry the variance",
    "absolute_bias": "‖E ĝ − g‖, where g is too small to compare with",
    "absolute_variance": "trace of the covariance of one estimate, where g is not known, or too small to compare with",
    "zero_gradient_rate": "share of estimates that are exactly 0",
    "gradient_nonzeros": "mean number of non-zero parts of an estimate",
    "truth_norm": "‖g‖, norm of the exact gradient",
    "support": "number of structures with positive probability in the forward distribution",
    "forward_nonzeros": "mean number of non-zero parts of the structure that the loss is evaluated at",
    "forward_time": "median seconds of the structure and the loss, or of the surrogate, for one batch of 32 rows",
    "backward_time": "median seconds of its backward for the same batch",
    "peak_memory": "most bytes that tensors and kernels held at one time for the same batch, forward and backward",
    "time_ratio": "forward + backward time relative to `reinforce`, paired in interleaved rounds",
    "variance_seconds": "relative variance × seconds of one estimate: what an unbiased estimator is to be judged by",
    "loss_evaluations": "evaluations of the loss behind one estimate; the backward of one counts as two",
    "break_even_seconds": "seconds from which on `reinforce`, averaged over as many estimates as they allow, has the smaller error",
    "break_even_evaluations": "the same in evaluations of the loss; the backward of one counts as two",
    "oracle_share": "share of the forward + backward time that is spent inside the oracle, in a run under a stopwatch",
    "seconds_per_estimate": "median seconds of one launch of many rows (how many is its size), forward and backward, per row",
    "threads": "threads that torch computed with while times were taken",
    "forward_memory": "most bytes that tensors and kernels held at one time for a batch of 32 rows, forward alone",
    "memory_per_row": "bytes by which the peak memory of 16 rows grows where each of them is there twice, per row",
    "total_time": "median seconds of forward and backward at one point of a sweep",
    "time_exponent": "e where the time grows like sizeᵉ, over the upper part of a sweep",
    "memory_exponent": "e where the peak memory grows like sizeᵉ, over the upper part of a sweep",
    "variance_exponent": "e where the variance of an estimate grows like samplesᵉ: −1 for independent samples",
    "kl_decrease": "decrease of E L by a step of the estimate relative to one of the exact gradient, both of the same mean KL divergence",
    "kl_decrease_natural": "the same of a step of the natural gradient: the ceiling",
    "bias_of_start": "‖E ĝ − g‖ / ‖g(θ₀)‖ along a trajectory, where g vanishes",
    "regret": "(E L − min L) / (E L at the start − min L) after training for the same time, with the best of 6 step sizes",
    "steps": "training steps that the time allowed",
    "accuracy": "share of the test items of a task that are predicted right from the best structures, after training",
    "structure_accuracy": "agreement of the best structures with the true ones, as the task measures it",
    "relaxed_accuracy": "the same accuracy with marginals in place of the best structures",
    "curve_mean": "mean accuracy over the points of a learning curve: high where learning is fast",
    "curve_accuracy": "accuracy after so many steps of training",
    "steps_to_target": "training steps until the accuracy is .95 of the ceiling; censored where it does not come there",
    "normalised_accuracy": "share of the way from floor to ceiling",
    "diverged": "1 where training ended at scores or a gradient that were not finite, else 0",
    "floor_accuracy": "accuracy without a latent structure: the largest class, or a model of the inputs alone",
    "ceiling_accuracy": "accuracy with the true structures, or with the exact gradient where they are not known",
    "step_time": "median seconds of one step of training, of one seed",
    "seconds_to_target": "steps_to_target × step_time",
    "parameter_bias": "relative_bias of a batch's mean gradient in the encoder's parameters",
    "parameter_variance": "relative_variance of the same",
    "parameter_mse": "relative_mse of the same",
    "parameter_cosine": "cosine of the same",
    "parameter_gain": "gain of the same",
    "parameter_rho": "rho of the same",
    "learning_rate": "of Adam, chosen on the validation split over seeds of its own",
    "chosen_option": "the option that matters most of an estimator, chosen likewise",
}
"""Every metric and what it means; reports print these sentences."""

COUNTS = (
    "support",
    "forward_nonzeros",
    "gradient_nonzeros",
    "break_even_evaluations",
    "loss_evaluations",
    "steps",
    "steps_to_target",
    "threads",
)
"""Metrics that count something."""

SIZES = ("peak_memory", "forward_memory", "memory_per_row")
"""Metrics in bytes."""


def unit_of(metric: str) -> str:
    """The unit of a metric: seconds, bytes, a count, or a plain number.

    Example:
        >>> [unit_of(name) for name in ("seconds_per_estimate", "peak_memory", "support", "memory_exponent")]
        ['s', 'B', 'count', '1']
    """
    if metric.endswith(("_time", "_seconds")) or metric.startswith("seconds_"):
        return "s"
    return "B" if metric in SIZES else "count" if metric in COUNTS else "1"


def pairing(estimator: Estimator[Oracle], oracle: Oracle, loss: ProblemLoss, event_shape: tuple[int, ...] | None = None) -> Skip | None:
    """Why an estimator cannot be measured on an oracle, with scores of a shape and a loss; None where it can."""
    reason = estimator.incompatibility(oracle, event_shape)
    if reason is None and estimator.evaluations().loss_gradients and not loss.differentiable:
        reason = f"{estimator.name} needs gradients of the loss, and the loss {loss.name} gives values only"
    if reason is None and estimator.needs_gold and getattr(loss, "gold", None) is None:
        reason = f"{estimator.name} needs true structures, and the loss {loss.name} holds none"
    if reason is None and estimator.inside_hull and not loss.inside_hull:
        reason = f"{estimator.name} evaluates the loss inside the hull, where the loss {loss.name} is not defined"
    return None if reason is None else Skip(estimator.name, oracle.name, reason)
