"""Losses on structures: differentiable and black-box, decomposable and not."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...oracles.capabilities import Oracle
from ...oracles.registry import unknown
from ...oracles.row_products import row_products
from ..base import ProblemLoss
from .forms import CountForm, LinearForm, LossForm, PointForm, QuadraticForm, form_of, shifted


class StructureLoss(abc.ABC):
    """A loss ``[..., *event] -> [...]`` that holds float64 tensors and computes in the dtype and on the device of the structure.

    Of the fields of losses, ``gold`` is a structure, [*event] of 0/1, and ``parts`` says which entries count, boolean [*event]; None stands
    for all.

    Attributes:
        name: registry name.
        differentiable, inside_hull, vertex_degree, extension, offset: as in `ProblemLoss`; None also if nothing is claimed.
        discrete: the name of the loss of which this is another extension; None for a loss in its own right.
    """

    name: str
    differentiable: bool = True
    inside_hull: bool = True
    vertex_degree: int | None = None
    extension: str = "formula"
    offset: float = 0.0
    discrete: str | None = None

    event_of = "gold"  # the field of the shape of one event

    @property
    def event_ndim(self) -> int:
        """The number of trailing dimensions of one structure."""
        return int(getattr(self, self.event_of).ndim)

    @abc.abstractmethod
    def __call__(self, structure: Tensor) -> Tensor:
        """The loss of every structure: ``[..., *event] -> [...]``."""

    @property
    def form(self) -> LossForm | None:
        """The loss as a formula on structures, for an exact gradient at any size; None if none is declared."""
        return None

    def _rows(self, structure: Tensor) -> Tensor:
        """[..., *event] -> [..., d] without a copy."""
        return structure.flatten(structure.ndim - self.event_ndim)

    def _counted(self) -> Tensor:
        """The entries that count, boolean [d]."""
        parts: Tensor | None = getattr(self, "parts", None)
        return (torch.ones_like(getattr(self, self.event_of), dtype=torch.bool) if parts is None else parts).flatten()


@dataclass(frozen=True, eq=False)
class Linear(StructureLoss):
    """``⟨c, z⟩``, whose value inside the hull is its expectation.

    Args:
        weights: c, [*event].
    """

    weights: Tensor

    name = "linear"
    event_of = "weights"
    vertex_degree = 1
    extension = "linear"

    def __call__(self, structure: Tensor) -> Tensor:
        return _inner(self._rows(structure), self.weights.to(structure).flatten())

    @property
    def form(self) -> LossForm:
        return LinearForm(self.weights)


@dataclass(frozen=True, eq=False)
class SquaredDistance(StructureLoss):
    """``‖z − b‖²``: linear on the structures, where ``z² = z``, and quadratic between them.

    Args:
        target: b, [*event].
    """

    target: Tensor
    parts: Tensor | None = None

    name = "squared_distance"
    event_of = "target"
    vertex_degree = 1
    extension = "quadratic"

    def __call__(self, structure: Tensor) -> Tensor:
        squared = (structure - self.target.to(structure)).square()
        return _inner(self._rows(squared), self._counted().to(structure))

    @property
    def form(self) -> LossForm:
        counted = self._counted().reshape(self.target.shape).to(self.target)
        return LinearForm(counted * (1 - 2 * self.target), float((counted * self.target.square()).sum()))


@dataclass(frozen=True, eq=False)
class LinearSquaredDistance(SquaredDistance):
    """``⟨1 − 2b, z⟩ + ‖b‖²``: `SquaredDistance` on the structures, where ``z² = z``, and linear between them."""

    name = "squared_distance_linear"
    extension = "linear"
    discrete = SquaredDistance.name

    def __call__(self, structure: Tensor) -> Tensor:
        counted, target = self._counted().to(structure), self.target.to(structure).flatten()
        return _inner(self._rows(structure), counted * (1 - 2 * target)) + _inner(target.square(), counted)


@dataclass(frozen=True, eq=False)
class LowRankQuadratic(StructureLoss):
    """``‖A (z − gold)‖²``: couples all parts, 0 at the gold structure.

    Args:
        matrix: A, [r, *event].
        target: the gold structure.
    """

    matrix: Tensor
    target: Tensor

    name = "quadratic"
    event_of = "target"
    vertex_degree = 2
    extension = "quadratic"

    def __call__(self, structure: Tensor) -> Tensor:
        offset = self._rows(structure - self.target.to(structure))
        return row_products(offset, self.matrix.to(structure).flatten(1)).square().sum(-1)

    @property
    def form(self) -> LossForm:
        return QuadraticForm(self.matrix, self.matrix.flatten(1) @ self.target.to(self.matrix).flatten())


@dataclass(frozen=True, eq=False)
class Hamming(StructureLoss):
    """The number of gold parts that are missed, as its linear extension ``Σ gold (1 − z)``."""

    gold: Tensor

    name = "hamming"
    vertex_degree = 1
    extension = "linear"

    def __call__(self, structure: Tensor) -> Tensor:
        gold = self.gold.to(structure).flatten()
        return gold.sum() - _inner(self._rows(structure), gold)

    @property
    def form(self) -> LossForm:
        return LinearForm(-self.gold, float(self.gold.sum()))


@dataclass(frozen=True, eq=False)
class ExactMatch(StructureLoss):
    """0 at the gold structure and 1 at every other one: ``1 − Π_i (1 − |z_i − gold_i|)``, and the same formula inside the hull.

    There the product is the chance that independent bits of means z are gold. The derivative is 0 at structures with two wrong parts.
    """

    gold: Tensor
    parts: Tensor | None = None

    name = "exact_match"

    def __call__(self, structure: Tensor) -> Tensor:
        right = 1 - (self._rows(structure) - self.gold.to(structure).flatten()).abs()
        return 1 - _product(torch.where(self._counted(), right, 1))

    @property
    def form(self) -> LossForm:
        return PointForm(self.gold, here=0.0, elsewhere=1.0)


@dataclass(frozen=True, eq=False)
class F1(StructureLoss):
    """``1 − 2⟨z, gold⟩ / (|z| + |gold|)``, and the same formula inside the hull.

    It is a sum over parts only if all structures have the same size. Gold has at least one part.
    """

    gold: Tensor
    parts: Tensor | None = None

    name = "f1"

    def __call__(self, structure: Tensor) -> Tensor:
        gold = self.gold.to(structure).flatten()
        common, size = row_products(self._rows(structure), torch.stack([gold, self._counted().to(structure)])).unbind(-1)
        return 1 - 2 * common / (size + gold.sum())

    @property
    def form(self) -> LossForm:
        total = float(self.gold.sum())
        counts = (self.gold, self._counted().reshape(self.gold.shape).to(self.gold))
        return CountForm(counts, lambda common, size: 1 - 2 * common.double() / (size + total))


@dataclass(frozen=True, eq=False)
class MultilinearF1(F1):
    """The expectation of `F1` over independent parts, part i taken with probability ``z_i``: linear in every part.

    With ``|gold| = g``, ``E[1 / (g + 1 + S)] = ∫₀¹ t^g E[t^S] dt``. Here ``E[t^S] = ∏ (1 − z_j (1 − t))`` runs over the parts except i.
    Gauss–Legendre of 2g nodes is exact if at most 3g − 1 parts are taken. O(d g) for a structure of d parts.
    """

    name = "f1_multilinear"
    extension = "multilinear"
    discrete = F1.name

    def __call__(self, structure: Tensor) -> Tensor:
        places = self._counted().nonzero().squeeze(-1).to(structure.device)
        gold = self.gold.to(structure).flatten()[places]
        chances = self._rows(structure)[..., places]
        size = int(self.gold.sum())
        total = torch.zeros_like(chances[..., 0])
        for node, weight in zip(*np.polynomial.legendre.leggauss(2 * size), strict=True):
            t = (float(node) + 1) / 2
            missed = 1 - chances * (1 - t)
            total = total + float(weight) / 2 * t**size * missed.prod(-1) * ((gold * chances) / missed).sum(-1)
        return 1 - 2 * total


class Classifier(StructureLoss):
    """Cross-entropy of a label under scores of classes that depend on the structure."""

    label: int

    @abc.abstractmethod
    def logits(self, structure: Tensor) -> Tensor:
        """The scores of the classes: ``[..., *event] -> [..., classes]``."""

    def __call__(self, structure: Tensor) -> Tensor:
        logits = self.logits(structure)
        return logits.logsumexp(-1) - logits[..., self.label]


@dataclass(frozen=True, eq=False)
class MLP(Classifier):
    """Cross-entropy of a label under a network with one tanh layer: ``V tanh(U z + b)``.

    Args:
        first: U, [h, *event].
        bias: b, [h].
        second: V, [c, h].
        label: the class, 0 ≤ label < c.
    """

    first: Tensor
    bias: Tensor
    second: Tensor
    label: int

    name = "mlp"

    @property
    def event_ndim(self) -> int:
        return self.first.ndim - 1

    def logits(self, structure: Tensor) -> Tensor:
        first, bias, second = (tensor.to(structure) for tensor in (self.first, self.bias, self.second))
        return row_products((row_products(self._rows(structure), first.flatten(1)) + bias).tanh(), second)


@dataclass(frozen=True, eq=False)
class Downstream(Classifier):
    """Cross-entropy of a linear classifier of the mean chosen frame: ``W (Σ_i z_i x_i / k) + b``.

    Args:
        weight: W, [classes, features].
        bias: b, [classes].
        frames: x, [n, features].
        k: how many frames are chosen.
        label: the class, 0 ≤ label < classes.
    """

    weight: Tensor
    bias: Tensor
    frames: Tensor
    k: int
    label: int

    name = "downstream"
    event_ndim = 1

    def logits(self, structure: Tensor) -> Tensor:
        weight, bias, frames = (tensor.to(structure) for tensor in (self.weight, self.bias, self.frames))
        return row_products(structure, weight @ frames.mT / self.k) + bias


@dataclass(frozen=True, eq=False)
class BlackBox(StructureLoss):
    """The values of another loss on structures, and nothing else: no gradient, no values inside the hull, no degree.

    Args:
        inner: the hidden loss.
    """

    inner: StructureLoss

    name = "black_box"
    differentiable = False
    inside_hull = False
    extension = "none"

    @property
    def event_ndim(self) -> int:
        return self.inner.event_ndim

    def __call__(self, structure: Tensor) -> Tensor:
        return self.inner(structure.detach()).detach()


class Offset:
    """``L + c``: the same gradient, and another variance of estimators that multiply by the loss without a baseline.

    Args:
        inner: L.
        constant: c.

    Attributes:
        name: name of the loss with the constant. ``offset``: the sum of all added constants.
        differentiable, inside_hull, vertex_degree, extension: as of the loss.

    Example:
        >>> import torch
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
        """The form of the loss, with the constant."""
        form = form_of(self.inner)
        return None if form is None else shifted(form, self.constant)

    def __call__(self, structure: Tensor) -> Tensor:
        """``[..., *event] -> [...]``."""
        return self.inner(structure) + self.constant


LOSSES: dict[str, type[StructureLoss]] = {
    kind.name: kind
    for kind in (
        *(Linear, SquaredDistance, LinearSquaredDistance, LowRankQuadratic, Hamming, ExactMatch),
        *(F1, MultilinearF1, MLP, Downstream, BlackBox),
    )
}

QUADRATIC_RANK = 8
MLP_HIDDEN = 16
MLP_CLASSES = 5


def make_loss(name: str, gold: Tensor, oracle: Oracle, *, seed: np.random.SeedSequence | int) -> StructureLoss:
    """A random loss that is tied to a gold structure.

    P is the number of parts of the gold structure, and ε is standard normal:

    - ``linear`` has the weights ``ε − gold``.
    - ``squared_distance`` and its other extension have the target ``gold + ε/2``.
    - ``quadratic`` has the matrix ``ε/√P`` of 8 rows.
    - ``mlp`` has 16 hidden units with weights ``ε/√P``, and 5 classes. Its label is the class that it gives to gold.
    - ``black_box`` hides that mlp.

    Entries that the oracle ignores have weight 0. So have counted parts (see `Oracle.binary_mask`): the loss of a tied chain is one of its
    tags.

    Args:
        name: a key of `LOSSES`, other than ``downstream``.
        gold: [*event] of 0/1, with at least one part.
        oracle: whose structures they are.
        seed: everything random comes from it alone.

    Raises:
        ValueError: an unknown name, ``downstream``, or a gold structure of another shape.
    """
    if name not in LOSSES:
        raise ValueError(unknown(name, LOSSES, "loss"))
    event = tuple(gold.shape)
    if name == Downstream.name:
        others = ", ".join(known for known in LOSSES if known != name)
        raise ValueError(f"`make_loss` got {name!r}, which needs frames and a classifier; expected one of {others}")
    if gold.ndim != oracle.event_ndim or not bool((gold != 0).any()):
        raise ValueError(
            f"`make_loss` got a gold structure of shape {event} with {int((gold != 0).sum())} part(s); "
            f"expected {oracle.event_ndim} event dimension(s) and at least one part"
        )
    parts = oracle.read_mask(event) & oracle.binary_mask(event)
    whole, gold, random = gold.double(), torch.where(parts, gold, 0).double(), np.random.default_rng(seed)

    def noise(*leading: int) -> Tensor:
        """Standard normal [*leading, *event], 0 at ignored entries."""
        return torch.where(parts, torch.from_numpy(random.standard_normal((*leading, *event))), 0)

    def scaled_noise(*leading: int) -> Tensor:
        """Noise whose inner product with a structure has variance 1."""
        return noise(*leading) / math.sqrt(float(gold.sum()))

    def network() -> MLP:
        first, bias = scaled_noise(MLP_HIDDEN), torch.from_numpy(random.standard_normal(MLP_HIDDEN))
        second = torch.from_numpy(random.standard_normal((MLP_CLASSES, MLP_HIDDEN)))
        return MLP(first, bias, second, int(MLP(first, bias, second, 0).logits(gold).argmax()))

    makers: dict[str, Callable[[], StructureLoss]] = {
        "linear": lambda: Linear(noise() - gold),
        "squared_distance": lambda: SquaredDistance(gold + noise() / 2, parts),
        "squared_distance_linear": lambda: LinearSquaredDistance(gold + noise() / 2, parts),
        "quadratic": lambda: LowRankQuadratic(scaled_noise(QUADRATIC_RANK), gold),
        "hamming": lambda: Hamming(gold),
        "exact_match": lambda: ExactMatch(whole, parts),
        "f1": lambda: F1(gold, parts),
        "f1_multilinear": lambda: MultilinearF1(gold, parts),
        "mlp": network,
        "black_box": lambda: BlackBox(network()),
    }
    return makers[name]()


def _inner(rows: Tensor, weights: Tensor) -> Tensor:
    """``⟨weights, row⟩`` of every row: ``[..., d] -> [...]``."""
    return row_products(rows, weights.unsqueeze(0)).squeeze(-1)


def _product(factors: Tensor) -> Tensor:
    """``[..., d] -> [...]``, halves by halves: a 0 in one row changes the rounding of torch's own derivative in all rows."""
    while (size := factors.shape[-1]) > 1:
        first, second = factors[..., : size // 2], factors[..., (size + 1) // 2 :]
        factors = torch.cat([first * second, factors[..., size // 2 : (size + 1) // 2]], -1)
    return factors.squeeze(-1)
