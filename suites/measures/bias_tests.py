"""Tests on one instance whether the mean of estimates is the exact gradient.

Rare structures are the trap. If a structure that carries the variance is unlikely to occur in the sample, the sample variance is far too
small. Any test that divides by it then rejects falsely (Hotelling's T² at up to half of all peaked instances, at a nominal level of 0.001).
The exact kurtosis is known beforehand: directions are tested only with enough replicates for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import scipy
import torch
from torch import Tensor

from ..statistics.interval import EVENTS
from ..statistics.intervals import COMMON, has_spread, is_resolved
from ..statistics.metrics import summarise
from ..statistics.moments import Moments

if TYPE_CHECKING:
    from ...estimators.base import Estimator
    from ..truth import Truth

Verdict = Literal["unbiased-exact", "equivalent", "biased", "unresolved", "unresolved: rare events", "broken"]

ALPHA = 1e-3
"""Level of the test for bias of one cell; a hit of an estimator that claims to be unbiased must repeat on fresh seeds."""

EQUIVALENCE = 0.05
"""A bias whose upper bound is below this share of ‖g‖ is called equivalent to none."""

FILTER = 200
"""A direction is tested only if replicates / exact kurtosis reach this: else too few samples carry the variance for a t-test."""

FLAT = 1000
"""All directions are tested together only if replicates / the greatest exact kurtosis reach this."""

CONSTANT = 1e-5
"""A direction with less than this share of the greatest spread is constant: it is compared, not tested."""


EXACT_TOLERANCE = 1e-9
"""Relative bias below which the mean of estimates in double precision is the gradient: the rest is rounding."""


def rounding_floor(size: float, truth: Truth, dtype: torch.dtype = torch.float64) -> float:
    """The distance between a mean of estimates and the exact gradient that rounding explains.

    If the gradient nearly vanishes, the rounding of the estimates and of the losses in them remains. An estimate is a loss less a baseline,
    about size / spread, times z − μ. At a peaked distribution, z − μ has the rounding of 1 − μ.

    Args:
        size: root of the mean square of an estimate.
        truth: of the instance, with the bound of its own error.
        dtype: in which the estimator runs.
    """
    unit = torch.finfo(dtype).eps / torch.finfo(torch.float64).eps
    spread = math.sqrt(float((truth.marginals * (1 - truth.marginals)).clamp(min=0).sum()))
    own = (1e-13 + 1e-14 / max(spread, 1e-8)) * size + 1e-14 * (abs(truth.value) + truth.loss_deviation)
    relative = max(EXACT_TOLERANCE, 1e3 * torch.finfo(dtype).eps)
    return relative * float(truth.gradient.norm()) + unit * own + (truth.error if math.isfinite(truth.error) else 0.0)


def estimate_rounding(moments: Moments, truth: Truth, dtype: torch.dtype) -> float:
    """The rounding of a single estimate, a norm: replicates that spread by less do not vary."""
    size = float((summarise(moments).error + moments.gradient).norm())
    return 30 * torch.finfo(dtype).eps * (size + abs(truth.value) + truth.loss_deviation)


def resolved(moments: Moments, truth: Truth, dtype: torch.dtype, *, deterministic: bool = False, losses: float | None = None) -> bool:
    """Whether replicates show the variation of estimates: enough of them carry the spread, or there surely is none.

    Estimates without a spread are constant if all are the exact gradient, or the same number other than 0 for many different structures.
    Otherwise the variation may be rare.

    Args:
        moments: of the errors of independent replicates.
        truth: of the instance.
        dtype: in which the estimator runs.
        deterministic: whether it has no randomness.
        losses: of an estimator that claims to have no bias, `averaged_losses`; None without the claim. The variance of such an estimator
            follows that of the loss, and a small spread may come from the frequent structures alone. It must be worth `SPREAD_SEEN`
            estimates of `loss_spread`, and `LOSSES_SEEN` changes of the loss at a peaked law.
    """
    rounding, summary = estimate_rounding(moments, truth, dtype), summarise(moments)
    variances = (truth.marginals * (1 - truth.marginals)).clamp(min=0)
    changes, most = moments.total * float(variances.max()), float(variances.max())
    if has_spread(moments, rounding):
        needed = LOSSES_SEEN * truth.loss_variance * float(variances.sum()) / max(most, 1e-300)
        unseen = losses is not None and (
            losses * moments.total * float(summary.trace) < min(SPREAD_SEEN, moments.total / COMMON) * loss_spread(truth)
            or (most < PEAKED and float(summary.trace) * changes < needed)
        )
        return is_resolved(moments, rounding) and not unseen
    size = float((summary.error + moments.gradient).norm())
    exact = float(summary.error.norm()) <= min(rounding_floor(size, truth, dtype), EQUIVALENCE * float(moments.gradient.norm()))
    varies_with_loss = losses is not None and losses < math.inf
    return deterministic or exact or (not varies_with_loss and changes >= EVENTS and size > rounding)


LOSSES_SEEN = 6
"""Changes of the loss by rare structures, of the usual size, that an interval of an unbiased estimator needs to contain."""

PEAKED = 0.05
"""The greatest variance of a part below which a law is peaked."""

SPREAD_SEEN = 400
"""Estimates with the spread of the loss that the replicates of an unbiased estimator need to be worth, for an interval.

Intervals of the variance of sets without replacement cover 51 to 66 % where replicates are worth 12 to 100 of them, and 85 % up to 400.
"""


def loss_spread(truth: Truth) -> float:
    """The variance of an estimate that varies with the loss: that of the loss, times the variances of all parts."""
    return truth.loss_variance * float((truth.marginals * (1 - truth.marginals)).clamp(min=0).sum())


def explained_by_rare_events(moments: Moments, truth: Truth, losses: float) -> bool:
    """Whether events that are too rare for the replicates, as large as changes of the loss, could make up the error of the mean.

    A t-test rejects too often if such events carry the variance: it knows the variance of the frequent ones alone. They explain an error
    of less than one standard error that `loss_spread` would give.

    Args:
        moments: of the errors of independent replicates.
        truth: of the instance.
        losses: as for `resolved`.
    """
    return losses * moments.total * float(summarise(moments).error.square().sum()) < loss_spread(truth)


def averaged_losses(estimator: Estimator[Any]) -> float:
    """The number of losses that one estimate averages.

    Infinite for an estimator that sums over structures or uses gradients of the loss: its variance need not follow that of the loss.
    """
    known = estimator.evaluations()
    other = known.loss_gradients + known.enumerations + known.support_losses + known.completions + known.swap_losses + known.alternatives
    return math.inf if other else max(known.losses, 1)


def bias_test(moments: Moments, truth: Truth, dtype: torch.dtype = torch.float64) -> float | None:
    """p-value of "the mean of the estimates is the exact gradient": Bonferroni over the tests of `partial_tests` that apply.

    Args:
        moments: of the errors of independent replicates.
        truth: of the instance, with the exact kurtoses.
        dtype: in which the estimates were made: an error within their rounding is none.

    Returns:
        The p-value; None if no direction can be tested.

    Example:
        >>> from structgrad.oracles import Categorical
        >>> from structgrad.suites.truth import exact_truth
        >>> truth = exact_truth(lambda z: z[..., 0], Categorical(), torch.zeros(3, dtype=torch.float64))
        >>> truth.gradient
        tensor([ 0.2222, -0.1111, -0.1111], dtype=torch.float64)
        >>> moments = Moments.empty(truth.gradient)
        >>> moments.add(torch.tensor([[1.0, -1.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64).repeat(400, 1), batch=0)
        >>> bias_test(moments, truth) < 1e-9
        True
    """
    return bonferroni_of(partial_tests(moments, truth, dtype))


def bonferroni_of(p_values: dict[str, float]) -> float | None:
    """The smallest p-value times their number, at most 1; None without p-values."""
    return min(1.0, min(p_values.values()) * len(p_values)) if p_values else None


def partial_tests(moments: Moments, truth: Truth, dtype: torch.dtype = torch.float64) -> dict[str, float]:
    """The p-values of the tests that apply, by name; no single one is the best for every error.

    - ``along``: t-test of the error along the exact gradient. It finds errors of scale.
    - ``parts``: the greatest |t| over the parts that pass the kurtosis filter, with Bonferroni over them. It finds errors of single parts.
    - ``joint``: Hotelling's T² over all directions that vary, on flat instances only. It finds small errors that are spread.
    - ``constant``: 0 if estimates are constant and wrong; absent otherwise.

    Reference: Hotelling 1931, "The generalization of Student's ratio", for T².
    """
    pooled = _Pooled.of(moments, truth, dtype)
    kurtosis = truth.kurtosis.flatten().to(pooled.error.device)
    found: dict[str, float] = {}
    if pooled.norm > 0 and pooled.n / truth.kurtosis_along >= FILTER:
        found["along"] = float(pooled.t_tests(pooled.error_along.reshape(1), pooled.square_along.reshape(1))[0])
    tested = pooled.n / kurtosis >= FILTER
    if bool(tested.any()):
        parts = pooled.t_tests(pooled.error[tested], pooled.square[tested])
        found["parts"] = min(1.0, float(parts.min()) * len(parts))
    varying = kurtosis.isfinite()
    if moments.comoment is not None and bool(varying.any()) and pooled.n / float(kurtosis[varying].max()) >= FLAT:
        found |= _joint_test(pooled, moments.comoment[varying][:, varying], pooled.error[varying])
    if _is_constant_and_wrong(pooled, ~varying):
        found["constant"] = 0.0
    return found


@dataclass(frozen=True)
class _Pooled:
    """All batches of replicates together: mean errors and centred sums of squares, by part and along the gradient."""

    n: float
    norm: float
    gradient: Tensor
    error: Tensor
    square: Tensor
    error_along: Tensor
    square_along: Tensor
    floor: float

    @classmethod
    def of(cls, moments: Moments, truth: Truth, dtype: torch.dtype) -> _Pooled:
        summary = summarise(moments)
        norm = moments.gradient.norm()
        unit = moments.gradient / norm.clamp(min=1e-300)
        deviation = moments.mean - summary.error
        between = (moments.count.unsqueeze(-1) * deviation.square()).sum(0)
        along = moments.along.sum() + moments.count @ (deviation @ unit).square()
        square = moments.square.sum(0) + between
        size = math.sqrt(float((summary.error + moments.gradient).square().sum() + summary.trace))
        n, floor = float(summary.replicates), rounding_floor(size, truth, dtype)
        return cls(n, float(norm), moments.gradient, summary.error, square, summary.error @ unit, along, floor)

    @property
    def tolerance(self) -> float:
        """An error below it is rounding, in single precision too."""
        return 1e-6 * self.norm + 1e-12 + self.floor

    @property
    def rounding(self) -> float:
        """Estimates that spread by less are constant, up to rounding in double precision."""
        return 1e-6 * self.tolerance

    def t_tests(self, errors: Tensor, squares: Tensor) -> Tensor:
        """Two-sided p-values of means of 0; without any spread, a mean is 0 or it is not."""
        standard = (squares / (self.n - 1) / self.n).sqrt()
        constant = standard <= torch.clamp(1e-14 * errors.abs(), min=self.rounding / math.sqrt(self.n))
        ratios = torch.where(constant, 0, (errors.abs() - self.floor).clamp(min=0) / standard.clamp(min=1e-300))
        p_values = torch.from_numpy(2 * scipy.special.stdtr(self.n - 1, -ratios.cpu().numpy())).to(errors)
        return torch.where(constant, (errors.abs() <= self.tolerance).to(errors), p_values)


def _joint_test(pooled: _Pooled, comoment: Tensor, error: Tensor) -> dict[str, float]:
    """T² over the directions that vary; those that do not (structures fill an affine subspace) are compared with the exact gradient."""
    values, vectors = torch.linalg.eigh(comoment / (pooled.n - 1))
    greatest = float(values[-1])
    kept = values > CONSTANT**2 * greatest
    rank = int(kept.sum())
    if greatest <= pooled.rounding**2 or pooled.n <= rank + 1:
        return {}
    along = vectors.mT @ error * max(0.0, 1 - pooled.floor / max(float(error.norm()), 1e-300))
    constant_error = float(along[~kept].norm())
    if constant_error > pooled.tolerance + CONSTANT * math.sqrt(greatest):
        return {"joint": 0.0}
    square = pooled.n * float((along[kept].square() / values[kept]).sum())
    ratio = square * (pooled.n - rank) / (rank * (pooled.n - 1))
    return {"joint": float(scipy.special.fdtrc(rank, pooled.n - rank, ratio))}


def _is_constant_and_wrong(pooled: _Pooled, silent: Tensor) -> bool:
    """Whether a part whose loss never varies with it (an entry that is no part, a forced one) always gets the same wrong gradient."""
    still = silent & (pooled.gradient.abs() <= 1e-12 * pooled.norm) & (pooled.square <= CONSTANT**2 * pooled.n * pooled.error.square())
    return bool((still & (pooled.error.abs() > pooled.tolerance)).any())
