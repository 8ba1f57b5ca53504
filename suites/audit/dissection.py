"""Interventions: change one loss, or the gradient of the loss, and read the difference of the estimate.

An estimate that is linear in the losses is ``ĝ = Σ_i L_i D_i + ĝ(0)``. The loss gets the structures ``z_i``, with scores
``s_i = ∇ log p(z_i)``. These and the ``D_i`` show the wrong part: samples, losses, weights, scores, or a further term.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ...estimators.base import Estimator
from ...estimators.score_function.reinforce import scores_of
from .cases import AuditLoss, Structure, all_structures, off_structures, seeded

ROWS = 2048
"""Estimates at the same scores."""

TOLERANCE = 1e-6
"""Relative distance below which rows of estimates are equal."""

DEVIATIONS = 6.0
"""Standard errors by which a frequency or a mean must be off."""

Change = Callable[[Tensor, list[int], Tensor], Tensor]
"""``(values, numbers of the samples, structures)`` of one call of the loss, to other values."""


def same(first: Tensor, second: Tensor, tolerance: float = TOLERANCE) -> bool:
    """Whether two tensors agree up to a share of their norm."""
    return float((first - second).norm()) <= tolerance * max(float(first.norm()), float(second.norm()), 1e-12)


def fits(columns: Tensor, wanted: Tensor, tolerance: float = TOLERANCE) -> Tensor | None:
    """Coefficients of a least-squares fit; None if it leaves a residual."""
    found = torch.linalg.lstsq(columns, wanted, driver="gelsd").solution
    return found if same(columns @ found, wanted, tolerance) else None


def mean_is_zero(rows: Tensor) -> bool:
    """Whether the mean of independent rows ``[rows, d]`` is 0 up to sampling error."""
    error = rows.std(0) / math.sqrt(len(rows)) + 1e-9 * float(rows.abs().max())
    return bool((rows.mean(0).abs() <= DEVIATIONS * error).all())


class Dissection:
    """Estimates of one structure at repeated scores, and the arguments of the loss.

    Args:
        estimator: an estimator with equal numbers for equal seeds.
        structure: a small one.
        scores: ``[*event]``.
        has_count: whether the number of samples is an option, so that factors of it were already tested.

    Attributes:
        calls: numbers of the samples in each call of the loss.
        differentiated: whether the loss is differentiated.
        readable: whether every call has the rows of the scores.
        estimate: ``[rows, d]``.
        samples: structures that the loss gets, ``[N, rows, *event]``. ``points``: others. ``losses``: of the samples, ``[N, rows]``.
        inside: numbers of the samples.
    """

    def __init__(self, estimator: Estimator[Any], structure: Structure, scores: Tensor, *, has_count: bool) -> None:
        self.estimator, self.structure, self.scores, self.has_count = estimator, structure, scores, has_count
        self.calls: list[list[int]] = []
        self.differentiated, self.readable = False, True
        self._shown: list[Tensor] = []
        self._values: list[Tensor] = []
        self.estimate = self.run(record=True)
        outside = [off_structures(shown[:64], structure) for shown in self._shown]
        self.inside = [number for number, one in enumerate(outside) if not one]
        self.size = len(self.inside)
        between = [number for number, one in enumerate(outside) if one]

        def stacked(values: list[Tensor], numbers: list[int]) -> Tensor:
            return torch.stack([values[number] for number in numbers]) if numbers else torch.empty(0)

        self.samples, self.losses = stacked(self._shown, self.inside), stacked(self._values, self.inside)
        self.points = stacked(self._shown, between)

    def run(self, change: Change = lambda values, numbers, z: values, *, record: bool = False) -> Tensor:
        """Flat estimates ``[rows, d]`` with other losses, and the same seed."""
        loss, shape, calls = AuditLoss(self.structure), (ROWS, *self.structure.event), 0

        def call(z: Tensor) -> Tensor:
            nonlocal calls
            values = loss(z)
            if z.shape[-len(shape) :] != shape:
                self.readable = False
                return values
            if record:
                self._record(z.detach().double().reshape(-1, *shape), values)
            calls += 1
            return change(values, self.calls[min(calls, len(self.calls)) - 1], z)

        rows = self.scores.expand(shape).clone()
        return self.estimator.gradient(call, self.structure.oracle, rows, generator=seeded(1, "dissection")).double().flatten(1)

    def _record(self, blocks: Tensor, values: Tensor) -> None:
        """Number the samples of a call. A sample of an earlier call keeps its number: the loss is evaluated again."""
        known, numbers = len(self._shown), []
        for block, value in zip(blocks, values.detach().double().reshape(-1, ROWS), strict=True):
            number = next((number for number in range(known) if torch.equal(self._shown[number], block)), len(self._shown))
            if number == len(self._shown):
                self._shown.append(block)
                self._values.append(value)
            numbers.append(number)
        self.calls.append(numbers)
        if values.requires_grad:
            values.register_hook(lambda _: setattr(self, "differentiated", True))

    @cached_property
    def varies(self) -> Tensor:
        """Whether a sample differs between rows, ``[N]``."""
        return (self.samples != self.samples[:, :1]).flatten(1).any(-1)

    def directions(self, temperature: float = 1.0) -> Tensor:
        """``∇_θ log p(z_i; θ / T)``, flat: ``[N, rows, d]``."""
        rows = (self.scores / temperature).expand(ROWS, *self.structure.event)
        return scores_of(self.structure.oracle, self.samples, rows).flatten(2) / temperature

    @cached_property
    def log_chances(self) -> Tensor:
        """``[N, rows]``."""
        found: Tensor = self.structure.oracle.log_prob(self.samples, self.scores.expand(self.samples.shape))
        return found

    @cached_property
    def equal(self) -> Tensor:
        """Share of rows in which two different samples are equal, ``[N, N]``; 0 on the diagonal."""
        flat = self.samples.flatten(2)
        shares = (flat.unsqueeze(0) == flat.unsqueeze(1)).all(-1).double().mean(-1)
        return shares - torch.diag(shares.diagonal())

    def rescaled(self, size: float, bend: float = 0.0) -> Tensor:
        """The estimate if losses are multiplied by ``size (1 + bend ⟨w, z⟩)``, with weights from 1 to 2."""
        weights = bend * torch.linspace(1, 2, math.prod(self.structure.event), dtype=torch.float64)
        return self.run(lambda values, _, z: size * values * (1 + (z.flatten(z.ndim - self.structure.ndim) @ weights.to(z)).to(values)))

    @cached_property
    def constant(self) -> Tensor:
        """The estimate if all losses are 0, ``[rows, d]``."""
        return self.run(lambda values, numbers, z: 0 * values)

    @cached_property
    def responses(self) -> Tensor:
        """``D_i``, ``[N, rows, d]``: the growth of the estimate if the loss of one sample grows by 1."""

        def raised(sample: int) -> Change:
            def change(values: Tensor, numbers: list[int], z: Tensor) -> Tensor:
                bump = (torch.tensor(numbers) == sample).to(values).unsqueeze(-1)
                return (values.reshape(-1, ROWS) + bump).reshape(values.shape)

            return change

        return torch.stack([self.run(raised(number)) - self.estimate for number in self.inside])

    def slope_response(self, *, of_sample: bool) -> Tensor:
        """Growth of the estimate ``[rows, d]`` if the gradient of the loss grows, by a constant or by one that depends on the sample.

        The values of the loss stay equal, so that an unbiased estimate has the same mean.
        """
        size = math.prod(self.structure.event)
        weights = torch.linspace(-1, 1, size, dtype=torch.float64).roll(1)
        matrix = torch.randn(size, size, generator=seeded(2, "slopes"), dtype=torch.float64)

        def change(values: Tensor, numbers: list[int], z: Tensor) -> Tensor:
            flat = z.flatten(z.ndim - self.structure.ndim)
            field = flat.detach() @ matrix.to(z) if of_sample else weights.to(z).expand_as(flat)
            along = (flat * field).sum(-1)
            return values + (along - along.detach())

        return self.run(change) - self.estimate

    @cached_property
    def own_weights(self) -> Tensor | None:
        """``[N, rows]`` of ``D_i = w_i s_i``; None if a loss has other scores too."""
        directions = self.directions()
        weights = (self.responses * directions).sum(-1) / directions.square().sum(-1).clamp(min=1e-300)
        return weights if same(weights.unsqueeze(-1) * directions, self.responses) else None

    @cached_property
    def linear(self) -> bool:
        """Whether the estimate is ``Σ L_i D_i + ĝ(0)``."""
        return same((self.losses.unsqueeze(-1) * self.responses).sum(0) + self.constant, self.estimate)

    def mixture(self, directions: Tensor) -> Tensor | None:
        """A of ``D_i = Σ_j A_ij s_j``, equal in all rows; None if there is none."""
        found = fits(directions.flatten(1).mT, self.responses.flatten(1).mT)
        return None if found is None else found.mT

    @cached_property
    def kinds(self) -> tuple[Tensor, Tensor]:
        """Which structure each sample is, ``[N, rows]``, and ``p(z)`` of every structure."""
        structures = all_structures(self.structure)
        chances = self.structure.oracle.log_prob(structures, self.scores.expand(structures.shape)).exp()
        code = torch.randn(structures[0].numel(), generator=seeded(3, "code"), dtype=torch.float64)
        known, order = (structures.flatten(1) @ code).sort()
        places = torch.searchsorted(known, self.samples.flatten(2) @ code - 1e-9).clamp(max=len(known) - 1)
        return order[places], chances

    def counts(self, weights: Tensor | None = None) -> Tensor:
        """Number of times that each structure is a sample, or its total weight in all estimates."""
        numbers, chances = self.kinds
        every = torch.ones(numbers.shape, dtype=torch.float64) if weights is None else weights
        return torch.zeros_like(chances).index_add_(0, numbers.flatten(), every.flatten())

    @cached_property
    def has_right_frequencies(self) -> bool:
        """Whether random samples have the frequencies of p. Samples of one estimate may depend on each other, rows do not."""
        if not bool(self.varies.any()):
            return False
        random, (numbers, chances) = int(self.varies.sum()), self.kinds
        seen = torch.bincount(numbers[self.varies].flatten(), minlength=len(chances)).double()
        due = chances * random * ROWS
        return float(((seen - due).abs() / (random * due.clamp(min=1.0)).sqrt()).max()) < DEVIATIONS

    @cached_property
    def is_independent(self) -> bool:
        """Whether samples are equal as often as independent ones of p."""
        n, repeats = self.size, float(self.kinds[1].square().sum())
        pairs = float(self.equal.sum()) / (n * (n - 1))
        return abs(pairs - repeats) < DEVIATIONS * math.sqrt(repeats * (1 - repeats) / ROWS) and self.has_right_frequencies
