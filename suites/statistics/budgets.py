"""Budgets: the worth of the estimates that one buys, their mean as a step, and its squared error.

All quantities are relative to the exact gradient g: ``b² = ‖m − g‖² / ‖g‖²`` for the mean m of an estimate, ``V = tr S / ‖g‖²``, and
``gain = ⟨m, g⟩ / ‖g‖²``, so that ``‖m‖² / ‖g‖² = b² + 2 gain − 1``. A budget of M estimates divides V by M; M need not be whole, since a
batch of training may hold any number of rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class Worth:
    """Moments of one estimate, with their standard errors; arrays of one shape.

    Attributes:
        bias_squared, variance, gain: relative to the exact gradient.
        bias_error, variance_error, gain_error: their standard errors, 0 where they are exact.
    """

    bias_squared: Array
    variance: Array
    gain: Array
    bias_error: Array
    variance_error: Array
    gain_error: Array

    def rho(self, count: Array) -> tuple[Array, Array]:
        """``⟨m, g⟩ / √(‖g‖² E‖mean of M estimates‖²)`` and its standard error; 0 for an estimate that is always 0.

        Args:
            count: M, positive.

        Example:
            >>> one = Worth(*(np.array([value]) for value in (0.0, 3.0, 1.0, 0.0, 0.0, 0.0)))
            >>> [float(one.rho(np.array([count]))[0][0]) for count in (1.0, 9.0)]
            [0.5, 0.8660254037844387]
        """
        length = np.maximum(self.bias_squared + 2 * self.gain - 1, self.gain**2) + self.variance / count
        alive = length > 0
        safe = np.where(alive, length, 1.0)
        value = np.where(alive, self.gain / np.sqrt(safe), 0.0)
        # The gain stands above and below the fraction line, so that its two effects are no independent errors.
        through_gain = self.gain_error * np.abs(1 - self.gain / safe) / np.sqrt(safe)
        through_length = 0.5 * np.abs(value) * np.hypot(self.bias_error, self.variance_error / count) / safe
        error = np.hypot(through_gain, through_length)
        return value, np.where(alive, error, 0.0)

    def squared_error(self, count: Array) -> tuple[Array, Array]:
        """``b² + V / M`` and its standard error.

        Example:
            >>> one = Worth(*(np.array([value]) for value in (0.04, 0.8, 1.0, 0.0, 0.0, 0.0)))
            >>> float(one.squared_error(np.array([20.0]))[0][0])
            0.08
        """
        value = np.maximum(self.bias_squared, 0) + self.variance / count
        return value, np.hypot(self.bias_error, self.variance_error / count)
