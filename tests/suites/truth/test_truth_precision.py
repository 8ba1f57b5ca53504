"""The exact gradient against 50 digits: it is right to 1e-13, and its error bound holds without being vacuous."""

from __future__ import annotations

import math
import statistics
from functools import cache
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor

from structgrad.oracles import Alignment, Assignment, Constituency, LinearChain, SpanningTree, Subset
from structgrad.suites.truth import exact_truth

SPACES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "linear_chain": (LinearChain(), (4, 3, 3)),
    "constituency": (Constituency(), (7, 7)),
    "assignment": (Assignment(), (5, 5)),
    "spanning_tree": (SpanningTree(single_root=False), (5, 5)),
    "alignment": (Alignment(), (4, 4)),
    "subset": (Subset(4), (9,)),
}
REGIMES = (0.05, 0.1, 1.0, 10.0, 50.0, "masked", "ties")
OFFSETS = (0.0, 1e6)
CASES = [(name, regime, offset) for name in SPACES for regime in REGIMES for offset in OFFSETS]
cases = pytest.mark.parametrize(("name", "regime", "offset"), CASES)


def scores_of(name: str, regime: float | str) -> Tensor:
    oracle, event = SPACES[name]
    generator = torch.Generator().manual_seed(len(name))
    scores = torch.randn(event, generator=generator, dtype=torch.float64)
    if isinstance(regime, float):
        return regime * scores
    if regime == "ties":
        return scores.round()
    # The structures of every sixth rank stay feasible.
    listed = oracle.enumerate(event, dtype=torch.bool)
    return scores.masked_fill(~listed[::6].any(0) | (torch.rand(event, generator=generator) < 0.1) & ~listed[7], -math.inf)


def loss_of(name: str, offset: float) -> Any:
    """A curved loss whose values float64 holds exactly, also with the offset."""
    matrix = torch.randn(3, math.prod(SPACES[name][1]), generator=torch.Generator().manual_seed(9), dtype=torch.float64)

    def loss(z: Tensor) -> Tensor:
        return ((z.reshape(len(z), -1) @ matrix.T).square().sum(-1) * 1024).round() / 1024 + offset

    return loss


@cache
def fifty_digits(name: str, regime: float | str) -> list[Any]:
    """The gradient by enumeration in 50 digits; an offset does not change it."""
    mpmath.mp.dps = 50
    oracle, event = SPACES[name]
    scores, structures = scores_of(name, regime).flatten(), oracle.enumerate(event, dtype=torch.float64)
    losses, listed = loss_of(name, 0.0)(structures), structures.flatten(1).bool()
    kept = [row for row in range(len(listed)) if bool((scores[listed[row]] > -math.inf).all())]
    weights = [mpmath.exp(mpmath.fsum(map(mpmath.mpf, scores[listed[row]].tolist()))) for row in kept]
    total = mpmath.fsum(weights)
    value = mpmath.fsum(w * mpmath.mpf(float(losses[row])) for w, row in zip(weights, kept, strict=True)) / total
    centred = [w / total * (mpmath.mpf(float(losses[row])) - value) for w, row in zip(weights, kept, strict=True)]
    parts = listed[kept].T.tolist()
    return [mpmath.fsum(c for c, used in zip(centred, part, strict=True) if used) for part in parts]


@cache
def errors_of(name: str, regime: float | str, offset: float) -> tuple[float, float, float]:
    """The error of the gradient, its bound, and the norm of the gradient."""
    exact = fifty_digits(name, regime)
    truth = exact_truth(loss_of(name, offset), SPACES[name][0], scores_of(name, regime), kurtosis=False)
    found = truth.gradient.flatten().tolist()
    error = mpmath.sqrt(mpmath.fsum((mpmath.mpf(f) - e) ** 2 for f, e in zip(found, exact, strict=True)))
    return float(error), truth.error, float(mpmath.sqrt(mpmath.fsum(e**2 for e in exact)))


@cases
def test_the_gradient_is_right_to_thirteen_digits_and_within_its_bound(name: str, regime: float | str, offset: float) -> None:
    error, bound, norm = errors_of(name, regime, offset)
    assert norm > 0
    assert error <= min(1e-13 * norm, bound)


def test_the_bound_is_not_vacuous() -> None:
    found = [errors_of(*case) for case in CASES]
    assert statistics.median(bound / error for error, bound, _ in found if error > 0) < 1e4
    assert max(bound / norm for _, bound, norm in found) < 1e-9
