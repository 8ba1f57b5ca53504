"""Entropy of scores: how peaked they are, and how to make them so."""

from __future__ import annotations

import torch
from torch import Tensor

from ...oracles.capabilities import MarginalOracle
from ...oracles.capabilities.derivatives import unsqueeze_event

STEPS = 26
"""Bisections. The straight line through the ends of what is left, 2⁻²⁶ wide, meets the root to nearly all bits of a float64."""

LARGEST = 2.0**60


def entropy_scales(oracle: MarginalOracle, directions: Tensor, entropies: Tensor, *, origin: Tensor | None = None) -> Tensor:
    """The scales s ≥ 0 at which the Gibbs entropies of ``origin + s · directions`` are ``entropies`` nats: ``[items]``.

    All items are bisected at once. From an origin of the uniform law, an entropy falls in s from the log count to 0 where the direction
    has one best structure.

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

    def excess(scales: Tensor) -> Tensor:
        scaled = unsqueeze_event(scales, oracle.event_ndim) * directions
        return oracle.entropy(scaled if origin is None else scaled + origin) - entropies

    low, high = torch.zeros_like(entropies), torch.ones_like(entropies)
    while bool((flat := excess(high) > 0).any()):
        if bool((high[flat] >= LARGEST).any()):
            unreached = float(entropies[flat & (high >= LARGEST)][0])
            raise ValueError(
                f"`entropy_scales` got entropy={unreached:g}, which no scale of the direction reaches; "
                f"expected a higher one, or a direction with one best structure"
            )
        low, high = torch.where(flat, high, low), torch.where(flat, 2 * high, high)
    for _ in range(STEPS):
        middle = (low + high) / 2
        flat = excess(middle) > 0
        low, high = torch.where(flat, middle, low), torch.where(flat, high, middle)
    above, below = excess(low), excess(high)
    share = torch.where(above > below, above / (above - below), 0.5)
    return low + share * (high - low)
