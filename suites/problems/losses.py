"""Losses on structures: differentiable and black-box, decomposable and not.

A loss that is simple enough for an exact gradient at any size declares its formula on structures through an attribute ``form``. A form says
nothing about the loss inside the hull.
"""

import abc
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...oracles.capabilities import Oracle
from ...oracles.numerics import row_products
from ...oracles.registry import unknown
from ..base import ProblemLoss


@dataclass(frozen=True, eq=False)
class LinearForm:
    """``⟨c, z⟩ + constant`` with the weights c, [*event]."""

    weights: Tensor
    constant: float = 0.0


@dataclass(frozen=True, eq=False)
class QuadraticForm:
    """``‖A z − b‖²`` with the matrix A, [r, *event], and the target b, [r]."""

    matrix: Tensor
    target: Tensor


@dataclass(frozen=True, eq=False)
class CountForm:
    """A function φ of counts, elementwise: ``φ(⟨a₁, z⟩, ⟨a₂, z⟩, …)``, int64 to floating; every a [*event] has integers of at least 0."""

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


class StructureLoss(abc.ABC):
    """A loss ``[..., *event] -> [...]`` that holds float64 tensors and computes in the dtype and on the device of the structure.

    For its attributes see `ProblemLoss`. Of the fields of losses, ``gold`` is a structure, [*event] of 0/1, and ``parts`` says which
    entries count, boolean [*event]; None stands for all. ``discrete`` is the name of the loss of which this is another extension.
    """

    name: str
    differentiable: bool = True
    inside_hull: bool = True
    vertex_degree: int | None = None
    extension: str = "formula"
    offset: float = 0.0
    discrete: str | None = None

    event_of, leading = "gold", 0  # a field shaped like an event, behind so many other dimensions

    @abc.abstractmethod
    def __call__(self, structure: Tensor) -> Tensor:
        """The loss of every structure: ``[..., *event] -> [...]``."""

    @property
    def form(self) -> LossForm | None:
        """The loss as a formula on structures, for an exact gradient at any size; None if none is declared."""
        return None

    def _rows(self, structure: Tensor) -> Tensor:
        """``[..., *event] -> [..., d]``."""
        return structure.flatten(self.leading - getattr(self, self.event_of).ndim)

    def _counted(self) -> Tensor:
        """The entries that count, boolean [d]."""
        parts: Tensor | None = getattr(self, "parts", None)
        return (torch.ones_like(getattr(self, self.event_of), dtype=torch.bool) if parts is None else parts).flatten()


@dataclass(frozen=True, eq=False)
class Linear(StructureLoss):
    """``⟨c, z⟩``, whose value inside the hull is its expectation. The weights c are [*event]."""

    weights: Tensor

    name, event_of = "linear", "weights"
    vertex_degree, extension = 1, "linear"

    def __call__(self, structure: Tensor) -> Tensor:
        return _inner(self._rows(structure), self.weights.to(structure).flatten())

    @property
    def form(self) -> LossForm:
        return LinearForm(self.weights)


@dataclass(frozen=True, eq=False)
class SquaredDistance(StructureLoss):
    """``‖z − b‖²``: linear on the structures, where ``z² = z``, and quadratic between them. The target b is [*event]."""

    target: Tensor
    parts: Tensor | None = None

    name, event_of = "squared_distance", "target"
    vertex_degree, extension = 1, "quadratic"

    def __call__(self, structure: Tensor) -> Tensor:
        return _inner(self._rows((structure - self.target.to(structure)).square()), self._counted().to(structure))

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
    """``‖A (z − gold)‖²``: couples all parts, 0 at the gold structure. The matrix A is [r, *event]."""

    matrix: Tensor
    target: Tensor

    name, event_of = "quadratic", "target"
    vertex_degree, extension = 2, "quadratic"

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
    vertex_degree, extension = 1, "linear"

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
    """``1 − 2⟨z, gold⟩ / (|z| + |gold|)``, also inside the hull: a sum over parts if all structures have one size. Gold has a part."""

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
    """Cross-entropy of a label under a network ``V tanh(U z + b)``; U is ``first``, [h, *event], and V is ``second``, [classes, h]."""

    first: Tensor
    bias: Tensor
    second: Tensor
    label: int

    name = "mlp"
    event_of, leading = "first", 1

    def logits(self, structure: Tensor) -> Tensor:
        first, bias, second = (tensor.to(structure) for tensor in (self.first, self.bias, self.second))
        return row_products((row_products(self._rows(structure), first.flatten(1)) + bias).tanh(), second)


@dataclass(frozen=True, eq=False)
class Downstream(Classifier):
    """Cross-entropy of ``W (Σ_i z_i x_i / k) + b``, a classifier [classes, features] of the mean chosen frame; x is [n, features]."""

    weight: Tensor
    bias: Tensor
    frames: Tensor
    k: int
    label: int

    name = "downstream"

    def logits(self, structure: Tensor) -> Tensor:
        weight, bias, frames = (tensor.to(structure) for tensor in (self.weight, self.bias, self.frames))
        return row_products(structure, weight @ frames.mT / self.k) + bias


@dataclass(frozen=True, eq=False)
class BlackBox(StructureLoss):
    """The values of another loss on structures, and nothing else: no gradient, no values inside the hull, no degree."""

    inner: StructureLoss

    name, extension = "black_box", "none"
    differentiable = inside_hull = False

    def __call__(self, structure: Tensor) -> Tensor:
        return self.inner(structure.detach()).detach()


class Offset:
    """``L + c``: the same gradient, and another variance of estimators that multiply by the loss without a baseline."""

    def __init__(self, inner: ProblemLoss, constant: float) -> None:
        self.inner, self.constant = inner, constant
        self.name, self.offset = f"{inner.name}{constant:+g}", inner.offset + constant
        self.differentiable, self.inside_hull = inner.differentiable, inner.inside_hull
        self.vertex_degree, self.extension = inner.vertex_degree, inner.extension
        self.form: LossForm | None = getattr(inner, "form", None)  # without the constant, on which no gradient depends

    def __call__(self, structure: Tensor) -> Tensor:
        return self.inner(structure) + self.constant


LOSSES: dict[str, type[StructureLoss]] = {
    kind.name: kind
    for kind in (*(Linear, SquaredDistance, LinearSquaredDistance, LowRankQuadratic, Hamming), *(ExactMatch, F1, MLP, Downstream, BlackBox))
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

    Entries that the oracle ignores, and counted parts (see `Oracle.binary_mask`), have weight 0. Gold is [*event] of 0/1, with at least one
    part. Everything random comes from the seed alone.
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

    root = math.sqrt(float(gold.sum()))  # divided by it, an inner product of noise with a structure has variance 1

    def network() -> MLP:
        first, bias = noise(MLP_HIDDEN) / root, torch.from_numpy(random.standard_normal(MLP_HIDDEN))
        second = torch.from_numpy(random.standard_normal((MLP_CLASSES, MLP_HIDDEN)))
        return MLP(first, bias, second, int(MLP(first, bias, second, 0).logits(gold).argmax()))

    makers: dict[str, Callable[[], StructureLoss]] = {
        "linear": lambda: Linear(noise() - gold),
        "squared_distance": lambda: SquaredDistance(gold + noise() / 2, parts),
        "squared_distance_linear": lambda: LinearSquaredDistance(gold + noise() / 2, parts),
        "quadratic": lambda: LowRankQuadratic(noise(QUADRATIC_RANK) / root, gold),
        "hamming": lambda: Hamming(gold),
        "exact_match": lambda: ExactMatch(whole, parts),
        "f1": lambda: F1(gold, parts),
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
