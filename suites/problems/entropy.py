"""Entropy of scores: how peaked they are, and how to make them so."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ...oracles.capabilities import MarginalOracle
from ...oracles.capabilities.derivatives import unsqueeze_event

WIDTH = 2.0**-24
"""Of what is left, beside the scale. The straight line through its ends meets the root to nearly all bits of a float64."""

MOST = 60
"""Steps of the search at most; fewer than ten are taken on average, with the interval found before."""

LARGEST = 2.0**60


def entropy_scales(oracle: MarginalOracle, directions: Tensor, entropies: Tensor, *, origin: Tensor | None = None) -> Tensor:
    """The scales s ≥ 0 at which the Gibbs entropies of ``origin + s · directions`` are ``entropies`` nats: ``[items]``.

    All items are searched at once, each in its own interval, by inverse quadratic interpolation or halves (T. R. Chandrupatla, A new hybrid
    quadratic/bisection algorithm, Advances in Engineering Software 28, 1997). From an origin of the uniform law, an entropy falls in s from
    the log count to 0 where the direction has one best structure.

    Args:
        oracle: of the Gibbs law.
        directions: float64 [items, *event].
        entropies: [items], at least 0.
        origin: [*event], scores of the uniform law; 0 when None.

    Raises:
        ValueError: an entropy that no scale of its direction reaches.

    Example:
        >>> from structgrad.oracles import Categorical
        >>> direction = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
        >>> p = torch.tensor([0.9, 0.1], dtype=torch.float64)
        >>> entropy_scales(Categorical(), direction, -(p * p.log()).sum(-1, keepdim=True)).exp()
        tensor([9.0000], dtype=torch.float64)
    """

    def excess(scales: np.ndarray) -> np.ndarray:
        scaled = unsqueeze_event(torch.from_numpy(scales).to(directions), oracle.event_ndim) * directions
        return np.asarray((oracle.entropy(scaled if origin is None else scaled + origin) - entropies).cpu().numpy())

    low, high, above = np.zeros(len(entropies)), np.ones(len(entropies)), np.full(len(entropies), np.nan)
    while (flat := (below := excess(high)) > 0).any():
        if (high[flat] >= LARGEST).any():
            unreached = float(entropies[torch.from_numpy(flat & (high >= LARGEST))][0])
            raise ValueError(
                f"`entropy_scales` got entropy={unreached:g}, which no scale of the direction reaches; "
                f"expected a higher one, or a direction with one best structure"
            )
        low, high, above = np.where(flat, high, low), np.where(flat, 2 * high, high), np.where(flat, below, above)
    above = np.where(low == 0, excess(low), above) if (low == 0).any() else above
    return torch.from_numpy(_roots(excess, (low, above), (high, below))).to(entropies)


_Points = tuple[np.ndarray, np.ndarray]
"""Places and the values there, of every item."""


def _roots(function: Callable[[np.ndarray], np.ndarray], first: _Points, last: _Points) -> np.ndarray:
    """Where a function of every item is 0, between two points at which its signs differ."""
    (other, at_other), (new, at_new) = first, last
    share = np.full(len(new), 0.5)
    for _ in range(MOST):
        if (np.abs(other - new) <= WIDTH * np.maximum(other, new)).all():
            break
        place = new + share * (other - new)
        value = function(place)
        same = (value > 0) == (at_new > 0)
        old, at_old = np.where(same, new, other), np.where(same, at_new, at_other)
        other, at_other = np.where(same, other, new), np.where(same, at_other, at_new)
        new, at_new = place, value
        share = _share((new, at_new), (other, at_other), (old, at_old))
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(at_new != at_other, at_new / (at_new - at_other), 0.5)
    return np.asarray(new + share * (other - new))


def _share(new: _Points, other: _Points, old: _Points) -> np.ndarray:
    """How far to go from the newest point to that beyond the root: by the parabola where it is monotone between them, else half of it."""
    (b, at_b), (a, at_a), (c, at_c) = new, other, old
    with np.errstate(divide="ignore", invalid="ignore"):
        xi, phi = (b - a) / (c - a), (at_b - at_a) / (at_c - at_a)
        monotone = (phi**2 < xi) & ((1 - phi) ** 2 < 1 - xi)
        parabola = at_b / (at_a - at_b) * at_c / (at_a - at_c) + (c - b) / (a - b) * at_b / (at_c - at_b) * at_a / (at_c - at_a)
        least = np.minimum(WIDTH / 4 * np.maximum(a, b) / np.abs(a - b), 0.5)
    return np.asarray(np.where(monotone, np.clip(parabola, least, 1 - least), 0.5))
