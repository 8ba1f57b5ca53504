"""A loss with a constant added."""

from __future__ import annotations

from torch import Tensor

from ..base import ProblemLoss
from .forms import LossForm, form_of, shifted


class Offset:
    """``L + c``: the same gradient, and another variance for whoever multiplies by values of the loss without a baseline.

    Args:
        inner: L.
        constant: c.

    Attributes:
        name: that of the loss with the constant. ``offset``: all constants that were added.
        differentiable, inside_hull, vertex_degree, extension: those of the loss.

    Example:
        >>> import torch
        >>> from structgrad.suites.problems.losses import Linear
        >>> loss = Offset(Linear(torch.ones(3)), 10.0)
        >>> loss.name, loss.offset, loss(torch.tensor([1.0, 0.0, 1.0]))
        ('linear+10', 10.0, tensor(12.))
    """

    def __init__(self, inner: ProblemLoss, constant: float) -> None:
        self.inner, self.constant = inner, constant
        self.name, self.offset = f"{inner.name}{constant:+g}", inner.offset + constant
        self.differentiable, self.inside_hull = inner.differentiable, inner.inside_hull
        self.vertex_degree, self.extension = inner.vertex_degree, inner.extension

    @property
    def form(self) -> LossForm | None:
        """That of the loss, with the constant."""
        form = form_of(self.inner)
        return None if form is None else shifted(form, self.constant)

    def __call__(self, structure: Tensor) -> Tensor:
        """``[..., *event] -> [...]``."""
        return self.inner(structure) + self.constant
