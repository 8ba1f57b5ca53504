"""Every structure of an instance with its loss, so that ``E L`` of many scores at once is a product of matrices."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ....estimators.base import Loss
from ....oracles.magnitudes import counted
from ...truth.loss_checks import checked, values

CAP = 20_000
"""The largest space that is tabled: steps are many, and each takes the whole table."""

CHUNK = 2**21
"""Entries of one block of log-probabilities."""


def too_many(oracle: Any, event: tuple[int, ...]) -> str | None:
    """Why there is no table of structures of a shape; None where there is one."""
    count = oracle.count(event)
    if count <= CAP:
        return None
    return f"`StructureTable` got a space of {counted(count)} structures; expected at most {counted(CAP)}, choose smaller sizes"


@dataclass(frozen=True, eq=False)
class StructureTable:
    """The feasible structures of an instance, with their losses; all in float64.

    Attributes:
        oracle: whose structures they are.
        structures: ``[s, parts]``. ``losses``: ``[s]``.
        scores: ``[parts]``, the instance's own. ``free``: ``[parts]`` bool, the parts that may move: read, and not forbidden.
        event: the shape of one score tensor.
    """

    oracle: Any
    structures: Tensor
    losses: Tensor
    scores: Tensor
    free: Tensor
    event: tuple[int, ...]

    @classmethod
    def of(cls, oracle: Any, loss: Loss, scores: Tensor) -> StructureTable:
        """The table of an instance.

        Raises:
            ValueError: more than `CAP` structures, or a loss that cannot be measured.

        Example:
            >>> from structgrad.oracles import Categorical
            >>> weights = torch.tensor([1.0, -0.5, 2.0]).double()
            >>> table = StructureTable.of(Categorical(), lambda z: z @ weights, torch.zeros(3).double())
            >>> table.expected(torch.zeros(1, 3).double()), table.least
            (tensor([0.8333], dtype=torch.float64), -0.5)
        """
        event, theta = tuple(scores.shape), scores.detach().double()
        reason = too_many(oracle, event)
        if reason is not None:
            raise ValueError(reason)
        structures = oracle.enumerate(event, 0, oracle.count(event), dtype=torch.float64, device=theta.device)
        forbidden = (theta == -math.inf).flatten()
        feasible = structures.flatten(1) @ forbidden.double() == 0
        structures = structures[feasible]
        losses = checked(values(loss, structures, oracle.event_ndim))
        return cls(oracle, structures.flatten(1), losses, theta.flatten(), oracle.free_parts(theta).flatten(), event)

    @property
    def linear(self) -> bool:
        """Whether the natural parameters are the scores themselves."""
        rows = self.shaped(self.scores.unsqueeze(0))
        return self.oracle.natural_parameters(rows) is rows

    @property
    def least(self) -> float:
        """min L."""
        return float(self.losses.min())

    @property
    def log_count(self) -> float:
        """Log of the number of feasible structures."""
        return math.log(len(self.losses))

    def shaped(self, rows: Tensor) -> Tensor:
        """[b, parts] -> [b, *event], with the scores of forbidden parts at -inf."""
        return torch.where(self.free | (self.scores > -math.inf), rows, self.scores).reshape(-1, *self.event)

    def parameters(self, rows: Tensor) -> Tensor:
        """[b, parts]: natural parameters, 0 for forbidden parts, which no structure of the table holds."""
        flat = self.oracle.natural_parameters(self.shaped(rows)).flatten(1)
        return torch.where(flat > -math.inf, flat, 0)

    def log_probs(self, rows: Tensor) -> Tensor:
        """[b, s], of scores [b, parts]."""
        return torch.log_softmax(self.parameters(rows) @ self.structures.mT, -1)

    def expected(self, rows: Tensor) -> Tensor:
        """E L of scores [b, parts]: [b]."""
        blocks = rows.split(max(1, CHUNK // len(self.losses)))
        return torch.cat([self.log_probs(block).exp() @ self.losses for block in blocks])

    def gradient(self, row: Tensor) -> Tensor:
        """The exact gradient of E L at scores [parts]: ``Cov(L, z)``, pulled back where parameters are not the scores."""
        probabilities = self.log_probs(row.unsqueeze(0))[0].exp()
        centred = probabilities * (self.losses - probabilities @ self.losses)
        return self._pulled_back(row, (centred @ self.structures).unsqueeze(0))[0]

    def entropy(self, row: Tensor) -> float:
        """In nats, of scores [parts]."""
        log_probs = self.log_probs(row.unsqueeze(0))[0]
        return float(-(log_probs.exp() * log_probs).sum())

    def fisher(self, row: Tensor) -> Tensor:
        """The Fisher information [parts, parts] at scores [parts]: the covariance of structures, pulled back to the scores."""
        probabilities = self.log_probs(row.unsqueeze(0))[0].exp()
        centred = self.structures - probabilities @ self.structures
        covariance = (probabilities.unsqueeze(-1) * centred).mT @ centred
        return self._pulled_back(row, self._pulled_back(row, covariance).mT)

    def _pulled_back(self, row: Tensor, vectors: Tensor) -> Tensor:
        """From the natural parameters to the scores: vectors [v, parts] times the Jacobian of the parameters, 0 for what does not move."""
        with torch.enable_grad():
            leaf = self.shaped(row.unsqueeze(0)).expand(len(vectors), *self.event).clone().requires_grad_()
            parameters = self.oracle.natural_parameters(leaf)
            if parameters is not leaf:
                finite = torch.where(parameters > -math.inf, vectors.reshape(parameters.shape), 0)
                (vectors,) = torch.autograd.grad(parameters, leaf, finite)
        return torch.where(self.free, vectors.flatten(1), 0)
