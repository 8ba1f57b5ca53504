"""The atoms of many sparse solutions as lists of parts, which take no memory for what they do not use."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from .. import kernels


@dataclass(frozen=True, eq=False)
class AtomLists:
    """The atoms of rows [b, *event], end to end.

    Attributes:
        parts: int32, for each atom the flat indices of its parts; one that a structure counts several times comes as often.
        sizes: int32, for each atom how many parts it has.
        weights: for each atom its weight.
        support: int64 [b], how many atoms each row has.
        event: the event shape.
    """

    parts: np.ndarray
    sizes: np.ndarray
    weights: Tensor
    support: Tensor
    event: torch.Size

    @classmethod
    def of(cls, atoms: Tensor, weights: Tensor) -> Self:
        """Lists of atoms ``[b, m, *event]`` and weights ``[b, m]``, but for those of weight 0.

        Example:
            >>> lists = AtomLists.of(torch.eye(3)[:2].unsqueeze(0), torch.tensor([[0.5, 0.5]]))
            >>> lists.parts, lists.sizes, lists.support
            (array([0, 1], dtype=int32), array([1, 1], dtype=int32), tensor([2]))
        """
        used = weights > 0
        held = atoms.flatten(2)[used].double().round().long()
        places = held.nonzero(as_tuple=True)
        listed = places[1].repeat_interleave(held[places])
        parts, sizes = (counted.to(torch.int32).cpu().numpy() for counted in (listed, held.sum(-1)))
        return cls(parts, sizes, weights[used].double().cpu(), used.sum(-1).cpu(), atoms.shape[2:])

    def parts_in(self, event: torch.Size) -> np.ndarray:
        """`parts` as flat indices in an event that holds, or is held by, this one."""
        if event == self.event:
            return self.parts
        return np.ravel_multi_index(np.unravel_index(self.parts, self.event), event).astype(np.int32)

    @cached_property
    def padded_weights(self) -> Tensor:
        """``[b, m]``, with 0 behind the last atom of a row."""
        most = max([1, *self.support.tolist()])
        weights = torch.zeros(len(self.support), most, dtype=torch.float64)
        weights[self._places] = self.weights
        return weights

    def decompose(self) -> tuple[Tensor, Tensor]:
        """Atoms ``[b, m, *event]``, which are structures, and weights ``[b, m]``."""
        atoms = torch.zeros(*self.padded_weights.shape, self.event.numel(), dtype=torch.float64)
        item, place = self._places
        atom = torch.arange(len(item)).repeat_interleave(torch.from_numpy(self.sizes).long())
        one = torch.ones((), dtype=torch.float64)
        atoms.index_put_((item[atom], place[atom], torch.from_numpy(self.parts).long()), one, accumulate=True)
        return atoms.unflatten(-1, self.event), self.padded_weights

    def move(self, direction: Tensor, from_parts: bool, to_parts: bool) -> Tensor:
        """Derivatives of the mean ``[b, r, *event]`` or the weights ``[b, r, m]`` in scores or correlations; differentiable to any order.

        At fixed atoms A the weights are ``K A θ`` plus a constant, with the symmetric ``K = G⁻¹ − G⁻¹11ᵀG⁻¹/1ᵀG⁻¹1`` and G the Gram matrix.

        Args:
            direction: [b, r, *event] of the scores where ``from_parts``, else [b, r, m] of the correlations ``Aθ``.
            from_parts: whether A is applied first.
            to_parts: whether Aᵀ is applied last, which gives the mean.

        Cost: O(m²) per row for each of its parts, and O(m³) once for all its directions.
        """
        flat = direction.flatten(2) if from_parts else direction
        result: Tensor = _Move.apply(flat, self, from_parts, to_parts)  # type: ignore[no-untyped-call]
        return result.unflatten(-1, self.event) if to_parts else result

    @cached_property
    def _places(self) -> tuple[Tensor, Tensor]:
        """Of each atom, its row and its place in the row."""
        item = torch.arange(len(self.support)).repeat_interleave(self.support)
        return item, torch.arange(len(item)) - (self.support.cumsum(0) - self.support)[item]

    @cached_property
    def bounds(self) -> Tensor:
        """[b, 3]: of each row its first atom, how many it has, and where their parts begin."""
        first = self.support.cumsum(0) - self.support
        begin = np.concatenate([[0], np.cumsum(self.sizes, dtype=np.int64)])[first.numpy()]
        return torch.stack([first, self.support, torch.from_numpy(begin)], -1)


class _Move(torch.autograd.Function):
    """A linear map, whose transpose is the one that goes the other way."""

    @staticmethod
    def forward(ctx: Any, direction: Tensor, lists: AtomLists, from_parts: bool, to_parts: bool) -> Tensor:
        ctx.lists, ctx.back = lists, (to_parts, from_parts)
        most = lists.padded_weights.shape[1]
        product = torch.zeros(*direction.shape[:2], lists.event.numel() if to_parts else most, dtype=torch.float64)
        arrays = [lists.bounds.numpy(), direction.contiguous().double().numpy(), product.numpy()]
        operations = math.ceil(len(lists.parts) / max(1, len(lists.support))) * most
        kernels.launch(kernels.module_of("active_set").move, arrays, (lists.parts, lists.sizes, from_parts, to_parts), operations)
        return product

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return _Move.apply(grads[0], ctx.lists, *ctx.back), None, None, None  # type: ignore[no-untyped-call]
