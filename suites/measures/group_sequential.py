"""The test for bias on a growing sample: a look at every doubling, and a confirmation of each rejection."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from ..statistics.intervals import bias_interval
from ..statistics.moments import Moments
from .bias_tests import Verdict, bias_test, explained_by_rare_events, resolved

if TYPE_CHECKING:
    from ..truth import Truth
    from .suite import Effort

CONFIRMATION = 4
"""A rejection must repeat with so many times the replicates, on fresh seeds."""

ERROR = 0.05
"""Chance of calling a bias of ε or more equivalent to none."""

Draw = Callable[[str, int], Moments]
"""Moments of n fresh replicates from the stream of a name: ``draw(slot, n)``."""


@dataclass(frozen=True)
class Outcome:
    """The result of the looks.

    Attributes:
        moments: of all looks together, without the confirmation.
        p_value: Bonferroni over the looks; after a confirmation, the square of the greater of both p-values. None if no direction could
            be tested.
        verdict: ``biased``, ``equivalent``, ``unresolved`` or ``unresolved: rare events``.
        bound: upper bound of ‖b‖ / ‖g‖, with Bonferroni over the looks; None if events are too rare for one.
        sampling: ``converged`` if the verdict is resolved.
    """

    moments: Moments
    p_value: float | None
    verdict: Verdict
    bound: float | None
    sampling: Literal["converged", "budget"]


def bias_bound(moments: Moments, *, error: float = ERROR) -> float | None:
    """Upper bound of ``‖b‖ / ‖g‖`` at confidence 1 − error: below ε, the bias is (two one-sided tests in one norm); None if g is 0.

    Reference: Schuirmann 1987, "A comparison of the two one-sided tests procedure and the power approach".
    """
    norm = float(moments.gradient.norm())
    return math.sqrt(bias_interval(moments, level=1 - 2 * error)[1]) / norm if norm > 0 else None


def look_sizes(first: int, most: int) -> tuple[int, ...]:
    """Replicates at every look.

    Example:
        >>> look_sizes(4096, 20_000)
        (4096, 8192, 16384, 20000)
    """
    sizes = [min(first, most)]
    while sizes[-1] < most:
        sizes.append(min(2 * sizes[-1], most))
    return tuple(sizes)


def sequential_test(draw: Draw, truth: Truth, effort: Effort, losses: float = 1) -> Outcome:
    """Draw until the estimator is found biased, or equivalent to an unbiased one, or the budget is spent.

    All looks share the level α of ``effort``. A rejection is confirmed on fresh seeds with four times the replicates, so that a false one
    has probability α². P-values keep that calibration: after a confirmation, ``max(p, p')²`` is below x with probability at most x.

    Args:
        draw: gives moments of fresh replicates.
        truth: of the instance.
        effort: replicates of the first look, most replicates, seconds, level and equivalence.
        losses: `averaged_losses` of the estimator.
    """
    sizes = look_sizes(effort.replicates, effort.most_replicates)
    deadline = time.monotonic() + effort.seconds
    moments, smallest = draw("look-0", sizes[0]), None
    for look, size in enumerate(sizes):
        if look > 0:
            moments = moments.merged(draw(f"look-{look}", size - moments.total))
        rare = not resolved(moments, truth, torch.float64, losses=losses)
        p_value = None if rare and explained_by_rare_events(moments, truth, losses) else bias_test(moments, truth)
        if p_value is not None:
            smallest = min(1.0 if smallest is None else smallest, 1.0, len(sizes) * p_value)
        bound = None if rare else bias_bound(moments, error=ERROR / len(sizes))
        rejected = smallest is not None and smallest < effort.alpha
        if rejected or (bound is not None and bound <= effort.equivalence) or time.monotonic() > deadline:
            break
    if smallest is not None and rejected:
        again = bias_test(draw("confirmation", CONFIRMATION * moments.total), truth)
        smallest = max(smallest, 1.0 if again is None else again) ** 2
        rejected = smallest < effort.alpha**2
    verdict: Verdict = "unresolved"  # a test that does not reject is no reason to call an estimator unbiased
    if rejected:
        verdict = "biased"
    elif rare:
        verdict = "unresolved: rare events"
    elif bound is not None and bound <= effort.equivalence:
        verdict = "equivalent"
    return Outcome(moments, smallest, verdict, bound, "budget" if verdict.startswith("unresolved") else "converged")
