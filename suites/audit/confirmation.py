"""Error control: whatever looks like a violation is tested again on fresh seeds, and all tests of an audit share one error rate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ..measures.testing.group_sequential import CONFIRMATION
from ..statistics.testing.multiplicity import holm
from .result import Check

Draw = Callable[[str, int], float]
"""The p-value of a test on the stream of a name, with a multiple of its replicates."""


def confirmed(test: Draw, alpha: float) -> float:
    """A p-value below α must repeat with four times the replicates: ``max(p, p')²`` is below x with probability at most x.

    Example:
        >>> confirmed(lambda slot, times: 0.4, 0.001), confirmed(lambda slot, times: 1e-4 if slot == "first" else 0.2, 0.001)
        (0.4, 0.04000000000000001)
    """
    first = test("first", 1)
    if not first < alpha:
        return first
    return max(first, test("confirmation", CONFIRMATION)) ** 2


def settled(checks: Sequence[Check], alpha: float) -> tuple[list[Check], int]:
    """Holm's correction over all tests among some checks: those that reject are violations, and the others have no cause.

    Returns:
        The checks, and how many of them are tests.

    Example:
        >>> checks = [Check("batch", "subset", "holds", p_value=1e-9), Check("sign", "subset", "undecided", cause="?", p_value=0.2)]
        >>> [(check.status, check.cause) for check in settled(checks, 0.001)[0]]
        [('violated', ''), ('undecided', '')]
    """
    adjusted = holm({number: check.p_value for number, check in enumerate(checks) if check.p_value is not None})
    result = []
    for number, check in enumerate(checks):
        if number not in adjusted:
            result.append(check)
        elif adjusted[number] < alpha:
            detail = f"{check.detail}; the test rejects, adjusted p {f'= {adjusted[number]:.1g}' if adjusted[number] else '< 1e-300'}"
            result.append(replace(check, status="violated", detail=detail, unproven=""))
        else:
            result.append(replace(check, cause="", detail=check.detail + check.unproven, unproven=""))
    return result, len(adjusted)
