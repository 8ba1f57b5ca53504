"""Expectations of losses by their form."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ...problems.forms import LinearForm, PointForm, QuadraticForm, flat
from .laws import Law
from .reductions import Count

UNIT_ROUNDOFF = 2.0**-53


class Expected(NamedTuple):
    """``E L``, its gradient [d] in the natural parameters, ``Var L`` (nan where unknown), and what its rounding errors are relative to."""

    value: float
    gradient: Tensor
    variance: float
    magnitude: float


def expected_linear(law: Law, form: LinearForm) -> Expected:
    """``⟨c, z⟩ + constant``: the gradient is Cov(z) c."""
    moments = law.moments(flat(form.weights).unsqueeze(0))
    root = moments.root
    gradient = moments.gradient(torch.ones_like(root.mean), torch.zeros_like(root.mean))
    square = float(2 * root.half_square)
    return Expected(float(root.centre + root.mean) + form.constant, gradient, max(square - float(root.mean) ** 2, 0.0), square**0.5)


def expected_quadratic(law: Law, form: QuadraticForm) -> Expected:
    """``‖A z − b‖² + constant``, by the first two moments of A z about a structure; the variance would take four."""
    moments = law.moments(flat(form.matrix, 1))
    root = moments.root
    offset = root.centre - flat(form.target)
    gradient = moments.gradient(2 * offset, torch.full_like(offset, 2))
    change = 2 * offset @ root.mean + 2 * root.half_square.sum()
    magnitude = 2 * offset.abs() @ (2 * root.half_square).clamp(min=0).sqrt() + 2 * root.half_square.sum()
    return Expected(float(offset @ offset + change) + form.constant, gradient, math.nan, float(magnitude))


def expected_count(law: Law, count: Count) -> Expected:
    """``values[k]`` of a count k."""
    found = law.expected_changes(count)
    centre = float(count.values[found.law.argmax()])
    changes = count.values - centre
    mean = float(found.law @ changes)
    variance = float(found.law @ (changes - mean).square())
    return Expected(centre + mean, found.gradient, variance, found.noise)


def expected_point(law: Law, form: PointForm, parameters: Tensor) -> Expected:
    """One value at z*, another elsewhere: ``∇ p(z*) = p(z*) (z* − μ)``."""
    structure = flat(form.structure, 0)
    taken = (structure * torch.where(structure > 0, parameters.flatten(), 0)).sum()  # a part that is counted as often as it is
    probability = math.exp(min(float(taken) - law.log_partition, 0.0))
    step = form.here - form.elsewhere
    gradient = step * probability * (structure - law.marginals)
    return Expected(form.elsewhere + step * probability, gradient, step**2 * probability * (1 - probability), abs(step) * probability)
