"""The vocabulary of a measurement: problems, rows of the result table, skipped pairs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

from ..estimators.base import Estimator
from ..oracles.base import Oracle

SCHEMA_VERSION = 1
"""Version of `Row`; raised when a column changes its meaning."""

Status = Literal["ok", "skipped", "error", "timeout"]


class ProblemLoss(Protocol):
    """A loss on structures ``[..., *event] -> [...]`` that says what it can give.

    Attributes:
        name: for the table.
        differentiable: whether it has gradients in the structure (an estimator that needs them is skipped otherwise).
        inside_hull: whether it is defined at points that are no structures.
        vertex_degree: its degree as a polynomial in the parts *on the structures*, None where it is no polynomial.
    """

    name: str
    differentiable: bool
    inside_hull: bool
    vertex_degree: int | None

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
    """One row of the result table: one metric of one estimator on one instance (or of a timing on a whole problem, ``instance=""``).

    Attributes:
        schema_version: `SCHEMA_VERSION`.
        cell: identity of the cell that the row comes from.
        kind: ``moments`` (bias, variance and relatives), ``timing``, ``sparsity``, or ``skip``.
        problem, stage, source: which scores. ``oracle, loss, estimator``: names with their options, ``imle[lambda=2.5]``.
        family: the registry name of the estimator without options.
        instance: the item; empty for a row about the whole problem.
        objective: what the estimator says it estimates. ``reference``: what it was compared with; always ``expected`` here.
        unbiased, deterministic: what the estimator declares.
        log_count: log of the number of structures. ``entropy``: of the Gibbs distribution, in nats.
        metric, unit: e.g. ``relative_bias``; unit ``1``, ``s``, ``B`` or ``count``.
        value, low, high: the metric and its 95 % interval; None where there is none.
        tier: ``exact`` (replay of all samples, or deterministic), ``mc``; empty for a timing.
        replicates: number of independent estimates; None for the exact tier.
        verdict: of the test for bias: ``unbiased-exact | equivalent | biased | unresolved``; empty for other metrics.
        status, reason: ``ok``, or ``skipped``, ``error``, ``timeout`` and why.
    """

    cell: str
    kind: Literal["moments", "timing", "sparsity", "skip"]
    problem: str
    stage: str
    source: str
    oracle: str
    loss: str
    estimator: str
    family: str
    instance: str = ""
    objective: str = ""
    reference: str = "expected"
    unbiased: bool = False
    deterministic: bool = False
    log_count: float | None = None
    entropy: float | None = None
    metric: str = ""
    unit: str = "1"
    value: float | None = None
    low: float | None = None
    high: float | None = None
    tier: str = ""
    replicates: int | None = None
    seed: int = 0
    verdict: str = ""
    status: Status = "ok"
    reason: str = ""
    schema_version: int = SCHEMA_VERSION


METRICS: dict[str, str] = {
    "relative_bias": "‖E ĝ − g‖ / ‖g‖: 0 for an unbiased estimator",
    "relative_bias_squared": "the same squared, estimated without its own bias (a U-statistic); may be negative",
    "relative_variance": "trace of the covariance of one estimate / ‖g‖²",
    "relative_mse": "E‖ĝ − g‖² / ‖g‖²",
    "gain": "⟨E ĝ, g⟩ / ‖g‖²: 1 where the scale is right",
    "cosine": "cosine between E ĝ and g, corrected for the noise of the mean",
    "rho": "E⟨ĝ, g⟩ / √(‖g‖² E‖ĝ‖²): usefulness of one estimate as a descent step of fixed length, from −1 to 1",
    "zero_gradient_rate": "share of estimates that are exactly 0",
    "gradient_nonzeros": "mean number of non-zero parts of an estimate",
    "truth_norm": "‖g‖, norm of the exact gradient",
    "support": "number of structures with positive probability in the forward distribution",
    "forward_nonzeros": "mean number of non-zero parts of the structure that the loss is evaluated at",
    "forward_time": "median seconds of the structure and the loss, or of the surrogate, for one batch of 32 rows",
    "backward_time": "median seconds of its backward for the same batch",
    "peak_memory": "most bytes that torch held at one time for the same batch, forward and backward",
    "time_ratio": "forward + backward time relative to `reinforce`, paired in interleaved rounds",
}
"""Every metric and what it means; reports print these sentences."""


def pairing(estimator: Estimator[Oracle], oracle: Oracle, loss: ProblemLoss, event_shape: tuple[int, ...] | None = None) -> Skip | None:
    """Why an estimator cannot be measured on an oracle, with scores of a shape and a loss; None where it can."""
    reason = estimator.incompatibility(oracle, event_shape)
    if reason is None and estimator.evaluations().loss_gradients and not loss.differentiable:
        reason = f"{estimator.name} needs gradients of the loss, and the loss {loss.name} gives values only"
    if reason is None and estimator.inside_hull and not loss.inside_hull:
        reason = f"{estimator.name} evaluates the loss inside the hull, where the loss {loss.name} is not defined"
    return None if reason is None else Skip(estimator.name, oracle.name, reason)


Progress = Callable[[int, int, str], None]
"""Called with (finished cells, all cells, name of the cell) as a run advances."""
