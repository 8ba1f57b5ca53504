"""The atoms of many sparse solutions as a kernel of the GPU leaves them: as bits, in room for the same number of atoms per row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad

from .. import kernels
from .atoms import moved
from .solution import affine_solve

if TYPE_CHECKING:
    from .gpu import Atoms


@dataclass(frozen=True, eq=False)
class DeviceAtoms:
    """The atoms of rows [b, *event]: `AtomLists` without lengths, which would have to be read on the host.

    Attributes:
        atoms: as the kernel left them, for the completed event.
        completed: the event shape of the rows that the kernel got.
        event: the event shape of the results: the first entries of the completed one.
        kernel: that left them.
    """

    atoms: Atoms
    completed: torch.Size
    event: torch.Size
    kernel: kernels.gpu.DeviceKernel

    @property
    def padded_weights(self) -> Tensor:
        """``[b, m]``, with 0 where there is no atom."""
        return self.atoms.weights

    def decompose(self) -> tuple[Tensor, Tensor]:
        """Atoms ``[b, m, *event]`` of 0/1 and weights ``[b, m]``."""
        part, bits, size = self.atoms.part, self.atoms.bits, self.atoms.part.shape[1]
        met = torch.arange(size, device=bits.device) < self.atoms.counts[:, :1]
        # What no place has is put behind the last part.
        at = torch.where(met, part, size).long().unsqueeze(1).expand(-1, bits.shape[1], -1)
        words = bits.new_zeros(*bits.shape[:2], size + 1).scatter_(2, at, bits)[..., :size]
        lane = torch.arange(32, dtype=torch.int32, device=bits.device)
        held = (words.unsqueeze(2) >> lane.unsqueeze(-1)) & 1
        atoms = torch.where((self.padded_weights > 0).unsqueeze(-1), held.flatten(1, 2), 0).double()
        return self._cut(atoms), self.padded_weights

    def move(self, direction: Tensor, from_parts: bool, to_parts: bool) -> Tensor:
        """How the mean, or the weights, move with the scores, or with correlations: see `AtomLists.move`.

        Cost: for m atoms, m passes over them once for all directions of a row, and a few for each.
        """
        return moved(self, direction, from_parts, to_parts)

    def _moved(self, direction: Tensor, from_parts: bool, to_parts: bool) -> Tensor:
        return self.kernel.attempt(
            lambda: self._moved_by_kernel(direction, from_parts, to_parts), lambda: self._reference_moved(direction, from_parts, to_parts)
        )

    def _moved_by_kernel(self, direction: Tensor, from_parts: bool, to_parts: bool) -> Tensor:
        given = direction.double()
        if from_parts and self.event != self.completed:
            given = self._complete(given.unflatten(-1, self.event)).flatten(2)
        width = self.completed.numel() if to_parts else self.padded_weights.shape[1]
        result = torch.empty(*given.shape[:2], width, dtype=given.dtype, device=given.device)
        # Imported here, because this loads the compiler.
        from .gpu_moves import move

        with torch.cuda.device_of(given):
            move(given.contiguous(), result, self.atoms, from_parts, to_parts)
        return self._cut(result).flatten(2) if to_parts else result

    def _reference_moved(self, direction: Tensor, from_parts: bool, to_parts: bool) -> Tensor:
        atoms, weights = self.decompose()
        flat = atoms.flatten(2)
        given = direction.double() @ flat.mT if from_parts else direction.double()
        change = affine_solve((flat @ flat.mT).unsqueeze(1), (weights > 0).unsqueeze(1), given)
        return change @ flat if to_parts else change

    def _complete(self, values: Tensor) -> Tensor:
        """0 in what completing the rows added to their event."""
        added = [size - own for size, own in zip(reversed(self.completed), reversed(self.event), strict=True)]
        return pad(values, [side for extra in added for side in (0, extra)])

    def _cut(self, values: Tensor) -> Tensor:
        """[b, m, d] of the completed event to [b, m, *event]."""
        cut: Tensor = values.unflatten(-1, self.completed)[(slice(None), slice(None), *map(slice, self.event))]
        return cut
