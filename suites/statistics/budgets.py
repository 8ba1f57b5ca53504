"""Budgets: the worth of the estimates that one buys, their mean as a step, and its squared error.

All quantities are relative to the exact gradient g. For the mean m of an estimate, ``b² = ‖m − g‖² / ‖g‖²``, ``V = tr S / ‖g‖²`` and
``gain = ⟨m, g⟩ / ‖g‖²``. Then ``‖m‖² / ‖g‖² = b² + 2 gain − 1``. A budget of M estimates divides V by M. M need not be whole, since a
batch of training may hold any number of rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ...estimators.base import Evaluations

Array = np.ndarray

GRADIENT_WORK = 2  # loss evaluations that the backward of one counts as

MAX_RATIO_ERROR = 0.2
"""A ratio of times whose 95 % interval is wider than ± this share buys no budget: it is timed again, or work is counted instead."""


@dataclass(frozen=True, eq=False)
class Worth:
    """Bias, variance and gain of one estimate, relative to the exact gradient; arrays of one shape."""

    bias_squared: Array
    variance: Array
    gain: Array

    def rho(self, count: Array) -> Array:
        """``ρ = E⟨ĝ, g⟩ / (‖g‖ √E‖ĝ‖²)`` for the mean ĝ of M estimates; 0 for an estimate that is always 0."""
        length = np.maximum(self.bias_squared + 2 * self.gain - 1, self.gain**2) + self.variance / count
        alive = length > 0
        return np.where(alive, self.gain / np.sqrt(np.where(alive, length, 1.0)), 0.0)

    def squared_error(self, count: Array) -> Array:
        """``b² + V / M``."""
        return np.asarray(np.maximum(self.bias_squared, 0) + self.variance / count)


def loss_evaluations(evaluations: Evaluations, **sizes: int) -> float:
    """Evaluations of the loss that one estimate takes; the backward of one counts as `GRADIENT_WORK` more.

    ``sizes`` are the numbers of losses of declared passes: ``enumerations``, ``support_losses``, ``completions``, ``swap_losses``,
    ``alternatives``. ValueError if one is missing.
    """
    total = float(evaluations.losses + GRADIENT_WORK * evaluations.loss_gradients)
    for name in ("enumerations", "support_losses", "completions", "swap_losses", "alternatives"):
        passes = getattr(evaluations, name)
        if passes and name not in sizes:
            raise ValueError(f"`loss_evaluations` got no {name}=; expected how many losses one of the {passes} declared takes")
        total += passes * sizes.get(name, 0)
    return total
