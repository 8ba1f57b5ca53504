"""Forms of losses on structures that are simple enough for an exact gradient at any size.

A loss declares its form through an attribute ``form``. A form is about structures alone, not about the loss inside the hull.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class LinearForm:
    """``⟨c, z⟩ + constant`` with the weights c, [*event]."""

    weights: Tensor
    constant: float = 0.0


@dataclass(frozen=True, eq=False)
class QuadraticForm:
    """``‖A z − b‖² + constant`` with the matrix A, [r, *event], and the target b, [r]."""

    matrix: Tensor
    target: Tensor
    constant: float = 0.0


@dataclass(frozen=True, eq=False)
class CountForm:
    """Any function of a few counts: ``φ(⟨a₁, z⟩, ⟨a₂, z⟩, …)`` with integers of at least 0 in every a.

    Args:
        counts: tensors a [*event]; one for a number of correct parts, two for that and the size of the structure.
        function: φ, elementwise, from as many int64 tensors to a floating one.

    Raises:
        ValueError: no count, or weights that are no integers of at least 0.

    Example:
        >>> gold = torch.tensor([0.0, 1.0, 1.0])
        >>> at_most_one = CountForm((gold,), lambda correct: (correct > 1).double())
        >>> at_most_one.function(torch.arange(3))
        tensor([0., 0., 1.], dtype=torch.float64)
    """

    counts: tuple[Tensor, ...]
    function: Callable[..., Tensor]

    def __post_init__(self) -> None:
        if not self.counts:
            raise ValueError("`CountForm` got no counts; expected at least one tensor of weights")
        for weights in self.counts:
            if not bool(((weights >= 0) & (weights == weights.round())).all()):
                raise ValueError(
                    "`CountForm` got weights that are no integers of at least 0; expected 0, 1, 2, …: "
                    "where all structures have the same size, add a constant to every weight, and take it off again in the function"
                )


@dataclass(frozen=True, eq=False)
class PointForm:
    """The value ``here`` at one structure, [*event] of 0/1, and ``elsewhere`` at every other one."""

    structure: Tensor
    here: float
    elsewhere: float


LossForm = LinearForm | QuadraticForm | CountForm | PointForm


def form_of(loss: Any) -> LossForm | None:
    """The declared form of a loss; None if there is none.

    Example:
        >>> form_of(lambda z: z.sum(-1)) is None
        True
    """
    return getattr(loss, "form", None)


def shifted(form: LossForm, constant: float) -> LossForm:
    """The form of a loss with a constant added.

    Example:
        >>> shifted(LinearForm(torch.ones(2), 1.0), 10.0).constant
        11.0
    """
    if isinstance(form, PointForm):
        return replace(form, here=form.here + constant, elsewhere=form.elsewhere + constant)
    if isinstance(form, CountForm):
        function = form.function
        return replace(form, function=lambda *counts: function(*counts) + constant)
    return replace(form, constant=form.constant + constant)


def flat(tensor: Tensor, leading: int = 0) -> Tensor:
    """Weights in float64, with one dimension for the event."""
    return tensor.detach().to(torch.float64).flatten(leading)
