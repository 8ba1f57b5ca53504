"""Tests on one instance whether the mean of estimates is the exact gradient, on a given or a growing number of replicates.

Rare structures are the trap. If a structure that carries the variance is unlikely to occur in the sample, the sample variance is far too
small. Any test that divides by it then rejects falsely (Hotelling's T² at up to half of all peaked instances, at a nominal level of 0.001).
The exact kurtosis is known beforehand: directions are tested only with enough replicates for it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import scipy
import torch
from torch import Tensor

from ..statistics.interval import EVENTS
from ..statistics.intervals import COMMON, Errors, has_spread, is_resolved, looks, profile
from ..statistics.metrics import summarise
from ..statistics.moments import Moments

if TYPE_CHECKING:
    from ...estimators.base import Estimator
    from ..truth import Truth
    from .suite import Effort

Verdict = Literal["unbiased-exact", "equivalent", "biased", "unresolved", "unresolved: rare events", "broken"]

ALPHA = 1e-3  # level of the test for bias of one cell; a hit of an estimator that claims to be unbiased must repeat on fresh seeds
EQUIVALENCE = 0.05  # a bias whose upper bound is below this share of ‖g‖ is called equivalent to none
FILTER = 200  # a direction is tested only if replicates / exact kurtosis reach this: else too few samples carry the variance for a t-test
FLAT = 1000  # all directions are tested together only if replicates / the greatest exact kurtosis reach this
CONSTANT = 1e-5  # a direction with less than this share of the greatest spread is constant: it is compared, not tested
CONFIRMATION = 4  # a rejection must repeat with so many times the replicates, on fresh seeds
ERROR = 0.05  # chance of calling a bias of ε or more equivalent to none
EXACT_TOLERANCE = 1e-9  # relative bias below which the mean of estimates in double precision is the gradient: the rest is rounding


def rounding_floor(size: float, truth: Truth, dtype: torch.dtype = torch.float64) -> float:
    """The distance between a mean of estimates and the exact gradient that rounding explains.

    If the gradient nearly vanishes, the rounding of the estimates and of the losses in them remains. An estimate is a loss less a baseline,
    about size / spread, times z − μ. At a peaked distribution, z − μ has the rounding of 1 − μ.

    ``size`` is the root of the mean square of an estimate, and ``dtype`` that in which the estimator runs.
    """
    unit = torch.finfo(dtype).eps / torch.finfo(torch.float64).eps
    spread = math.sqrt(float((truth.marginals * (1 - truth.marginals)).clamp(min=0).sum()))
    own = (1e-13 + 1e-14 / max(spread, 1e-8)) * size + 1e-14 * (abs(truth.value) + truth.loss_deviation)
    relative = max(EXACT_TOLERANCE, 1e3 * torch.finfo(dtype).eps)
    return relative * float(truth.gradient.norm()) + unit * own + (truth.error if math.isfinite(truth.error) else 0.0)


def resolved(moments: Moments, truth: Truth, dtype: torch.dtype, *, deterministic: bool = False, losses: float | None = None) -> bool:
    """Whether replicates show the variation of estimates: enough of them carry the spread, or there surely is none.

    Estimates without a spread are constant if all are the exact gradient, or the same number other than 0 for many different structures.
    Otherwise the variation may be rare.

    ``losses`` are the `averaged_losses` of an estimator that claims to have no bias; None without the claim. The variance of such an
    estimator follows that of the loss, and a small spread may come from the frequent structures alone. It must be worth `SPREAD_SEEN`
    estimates of `loss_spread`, and `LOSSES_SEEN` changes of the loss at a peaked law.
    """
    summary, variances = summarise(moments), (truth.marginals * (1 - truth.marginals)).clamp(min=0)
    trace, most, size = float(summary.trace), float(variances.max()), float((summary.error + moments.gradient).norm())
    # A norm: replicates that spread by less than the rounding of a single estimate do not vary.
    rounding = 30 * torch.finfo(dtype).eps * (size + abs(truth.value) + truth.loss_deviation)
    if has_spread(moments, rounding):
        needed = min(SPREAD_SEEN, moments.total / COMMON) * loss_spread(truth)
        unseen = losses is not None and (
            losses * moments.total * trace < needed
            or (most < PEAKED and trace * moments.total * most < LOSSES_SEEN * loss_spread(truth) / max(most, 1e-300))
        )
        return is_resolved(moments, rounding) and not unseen
    exact = float(summary.error.norm()) <= min(rounding_floor(size, truth, dtype), EQUIVALENCE * float(moments.gradient.norm()))
    varies_with_loss = losses is not None and losses < math.inf
    return deterministic or exact or (not varies_with_loss and moments.total * most >= EVENTS and size > rounding)


LOSSES_SEEN = 6  # changes of the loss by rare structures, of the usual size, that an interval of an unbiased estimator needs to contain
PEAKED = 0.05  # the greatest variance of a part below which a law is peaked

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

    ``losses`` are those of `resolved`.
    """
    return losses * moments.total * float(summarise(moments).error.square().sum()) < loss_spread(truth)


def averaged_losses(estimator: Estimator[Any]) -> float:
    """Losses that one estimate averages; infinite with sums or loss gradients, whose variance need not follow that of the loss."""
    known = estimator.evaluations()
    other = known.loss_gradients + known.enumerations + known.support_losses + known.completions + known.swap_losses + known.alternatives
    return math.inf if other else max(known.losses, 1)


def bias_test(moments: Moments, truth: Truth, dtype: torch.dtype = torch.float64) -> float | None:
    """p-value of "the mean is the exact gradient", up to rounding of ``dtype``: Bonferroni over `partial_tests`; None without any."""
    p_values = partial_tests(moments, truth, dtype).values()
    return min(1.0, min(p_values) * len(p_values)) if p_values else None


def partial_tests(moments: Moments, truth: Truth, dtype: torch.dtype = torch.float64) -> dict[str, float]:
    """The p-values of the tests that apply, by name; no single one is the best for every error.

    - ``along``: t-test of the error along the exact gradient. It finds errors of scale.
    - ``parts``: the greatest |t| over the parts that pass the kurtosis filter, with Bonferroni over them. It finds errors of single parts.
    - ``joint``: Hotelling's T² over all directions that vary, on flat instances only. It finds small errors that are spread.
    - ``constant``: 0 if estimates are constant and wrong; absent otherwise.

    Reference: Hotelling 1931, "The generalization of Student's ratio", for T².
    """
    summary, norm = summarise(moments), float(moments.gradient.norm())
    error, n = summary.error, float(summary.replicates)
    deviation = moments.mean - error
    square = moments.square.sum(0) + (moments.count.unsqueeze(-1) * deviation.square()).sum(0)
    size = math.sqrt(float((error + moments.gradient).square().sum() + summary.trace))
    floor = rounding_floor(size, truth, dtype)
    # An error below it is rounding, in single precision too.
    tolerance = 1e-6 * norm + 1e-12 + floor
    # Estimates that spread by less are constant, up to rounding in double precision.
    rounding = 1e-6 * tolerance

    def t_tests(errors: Tensor, squares: Tensor) -> Tensor:
        """Two-sided p-values of means of 0; without any spread, a mean is 0 or it is not."""
        standard = (squares / (n - 1) / n).sqrt()
        constant = standard <= torch.clamp(1e-14 * errors.abs(), min=rounding / math.sqrt(n))
        ratios = torch.where(constant, 0, (errors.abs() - floor).clamp(min=0) / standard.clamp(min=1e-300))
        p_values = torch.from_numpy(2 * scipy.special.stdtr(n - 1, -ratios.cpu().numpy())).to(errors)
        return torch.where(constant, (errors.abs() <= tolerance).to(errors), p_values)

    kurtosis, found = truth.kurtosis.flatten().to(error.device), dict[str, float]()
    if norm > 0 and n / truth.kurtosis_along >= FILTER:
        along = moments.along.sum() + moments.count @ (deviation @ moments.direction).square()
        found["along"] = float(t_tests((error @ moments.direction).reshape(1), along.reshape(1))[0])
    if bool((tested := n / kurtosis >= FILTER).any()):
        parts = t_tests(error[tested], square[tested])
        found["parts"] = min(1.0, float(parts.min()) * len(parts))
    varying = kurtosis.isfinite()
    if moments.comoment is not None and bool(varying.any()) and n / float(kurtosis[varying].max()) >= FLAT:
        found |= _joint_test(moments.comoment[varying][:, varying] / (n - 1), error[varying], n, (floor, tolerance, rounding))
    # A part whose loss never varies with it (an entry that is no part, a forced one) that always gets the same wrong gradient.
    still = ~varying & (moments.gradient.abs() <= 1e-12 * norm) & (square <= CONSTANT**2 * n * error.square())
    if bool((still & (error.abs() > tolerance)).any()):
        found["constant"] = 0.0
    return found


def _joint_test(covariance: Tensor, error: Tensor, n: float, limits: tuple[float, float, float]) -> dict[str, float]:
    """T² over the directions that vary; those that do not (structures fill an affine subspace) are compared with the exact gradient."""
    floor, tolerance, rounding = limits
    values, vectors = torch.linalg.eigh(covariance)
    greatest = float(values[-1])
    kept = values > CONSTANT**2 * greatest
    rank = int(kept.sum())
    if greatest <= rounding**2 or n <= rank + 1:
        return {}
    along = vectors.mT @ error * max(0.0, 1 - floor / max(float(error.norm()), 1e-300))
    if float(along[~kept].norm()) > tolerance + CONSTANT * math.sqrt(greatest):
        return {"joint": 0.0}
    square = n * float((along[kept].square() / values[kept]).sum())
    return {"joint": float(scipy.special.fdtrc(rank, n - rank, square * (n - rank) / (rank * (n - 1))))}


def bias_bound(moments: Moments, *, error: float = ERROR) -> float | None:
    """Upper bound of ``‖b‖ / ‖g‖`` at confidence 1 − error: below ε, the bias is (two one-sided tests in one norm); None if g is 0.

    Reference: Schuirmann 1987, "A comparison of the two one-sided tests procedure and the power approach".
    """
    norm = float(moments.gradient.norm())
    return math.sqrt(profile(Errors.of(moments), level=1 - 2 * error)[1]) / norm if norm > 0 else None


def sequential_test(
    draw: Callable[[str, int], Moments], truth: Truth, effort: Effort, losses: float = 1
) -> tuple[Moments, float | None, float | None]:
    """Draw until the estimator is found biased, or equivalent to an unbiased one, or the budget is spent.

    Returns the moments of all looks, the p-value, and the upper bound of ‖b‖ / ‖g‖; None if there is no such number.

    All looks share the level α of ``effort`` and the `ERROR` of the bound (Bonferroni). A rejection is confirmed on fresh seeds with four
    times the replicates, so that a false one has probability α². P-values keep that calibration: after a confirmation, ``max(p, p')²`` is
    below x with probability at most x.

    ``draw(slot, n)`` gives moments of n fresh replicates from the stream of a name; ``losses`` are the estimator's `averaged_losses`.
    """
    sizes = tuple(looks(effort.replicates, effort.most_replicates))
    deadline = time.monotonic() + effort.seconds
    moments, smallest = draw("look-0", sizes[0]), None
    for look, size in enumerate(sizes):
        if look > 0:
            moments = moments.merged(draw(f"look-{look}", size - moments.total))
        rare = not resolved(moments, truth, torch.float64, losses=losses)
        p_value = None if rare and explained_by_rare_events(moments, truth, losses) else bias_test(moments, truth)
        if p_value is not None:
            smallest = min(1.0 if smallest is None else smallest, len(sizes) * p_value)
        bound = None if rare else bias_bound(moments, error=ERROR / len(sizes))
        if smallest is not None and smallest < effort.alpha:
            again = bias_test(draw("confirmation", CONFIRMATION * moments.total), truth)
            smallest = max(smallest, 1.0 if again is None else again) ** 2
            break
        if (bound is not None and bound <= effort.equivalence) or time.monotonic() > deadline:
            break
    return moments, smallest, bound
