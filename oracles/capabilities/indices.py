"""Compact structures: integer indices in place of 0/1 parts.

What one dense structure says with an event of numbers, its indices say with one integer for each thing that is decided: the tag of every
place, the head of every word, the column of every row. Where no such form is stated, indices are the parts that the structure has, in
ascending order. In every form -1 says that there is none: beyond an item's length, behind the last part, and everywhere where a dense
result would be the zero tensor.
"""

import math
from collections.abc import Callable
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from ..kernels import Output
from ..numerics import share_rows, total
from ..tensor_kinds import check_dense, signed
from ..transforms import operation, transforming
from .calls import Calls

NONE = -1
"""No index."""


class IndexedStructures(Calls):
    """The compact form of an oracle's structures: what it is, and the ways from and to parts.

    A subclass whose structures have indices of a better form than sorted parts sets ``_indices_are_parts`` to False, and overrides
    `index_shape`, `_index_limit`, `_parts`, `_from_parts` and `_indices_of`, which state that form alone; everything else follows.
    """

    index_ndim: ClassVar[int] = 1
    """How many dimensions the indices of one structure have."""
    _indices_are_parts: ClassVar[bool] = True

    def index_shape(self, event_shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of one structure's indices, where scores have this event shape: ``(p,)``, p parts at most, where not overridden.

        Example:
            >>> from structgrad.oracles import Alignment, LinearChain
            >>> LinearChain().index_shape((5, 3, 3)), Alignment().index_shape((2, 3))
            ((5,), (4,))
        """
        return (self._most_parts(event_shape),)

    @final
    @operation()
    def indices(self, structures: Tensor) -> Tensor:
        """Structures ``[..., *event]`` in compact form: int64 ``[..., *index]``, the inverse of `dense`.

        Example:
            >>> from structgrad.oracles import LinearChain, Subset
            >>> Subset(2).indices(torch.tensor([0.0, 1.0, 0.0, 1.0]))
            tensor([1, 3])
            >>> chain = LinearChain()
            >>> chain.indices(chain.argmax(torch.tensor([[[0.0, 1.0], [0.0, 0.0]], [[0.0, 0.0], [2.0, 0.0]]])))
            tensor([1, 0])

        Raises:
            ValueError: an entry is no whole number, or what is counted has no compact form. Values are looked at on the CPU alone.
        """
        if not isinstance(structures, Tensor) or structures.ndim < self.event_ndim:
            got = f"shape {tuple(structures.shape)}" if isinstance(structures, Tensor) else type(structures).__name__
            raise ValueError(f"`indices` got structures of {got}; expected a torch.Tensor [..., *event] of 0/1")
        check_dense("indices", "structures", structures)
        event = tuple(structures.shape[structures.ndim - self.event_ndim :])
        self.check_event("indices", event)
        self._check_countless("indices", event)
        if structures.is_cpu and structures.is_floating_point() and not bool((structures == structures.round()).all()):
            raise ValueError(
                "`indices` got entries that are no whole numbers; expected structures, such as `sample` and `argmax` give: "
                "points between structures have no indices"
            )
        read = signed(structures) != 0
        if self._ignores_entries:
            read = read & self.read_mask(event, structures.device)
        return self._indices_of(read)

    @final
    @operation()
    def dense(self, indices: Tensor, event_shape: tuple[int, ...], *, dtype: torch.dtype | None = None) -> Tensor:
        """Structures ``[..., *event]`` of integers ``[..., *index]``: the inverse of `indices`; the zero tensor where all are -1.

        The event is that of one score tensor, and torch's default dtype that of the result where none is given.

        Example:
            >>> from structgrad.oracles import Assignment
            >>> Assignment().dense(torch.tensor([2, 0, 1]), (3, 3))
            tensor([[0., 0., 1.],
                    [1., 0., 0.],
                    [0., 1., 0.]])
        """
        event = tuple(event_shape)
        self.check_event("dense", event)
        self._check_indices("dense", indices, event)
        size, parts = math.prod(event), self._parts(indices.long(), event)
        at = torch.where(parts < 0, size, parts)
        flat = torch.zeros((*at.shape[:-1], size + 1), dtype=dtype or torch.get_default_dtype(), device=at.device)
        structures: Tensor = flat.scatter_add_(-1, at, torch.ones_like(at, dtype=flat.dtype))[..., :size].unflatten(-1, event)
        return structures

    # The form. Batches have any dimensions.

    def _most_parts(self, event_shape: tuple[int, ...]) -> int:
        """The largest number of parts that a structure has; all there are where not overridden."""
        return max(1, int(self.read_mask(event_shape).sum()))

    def _index_limit(self, event_shape: tuple[int, ...]) -> int:
        """Indices lie below it."""
        return math.prod(event_shape)

    def _written_parts(self, event_shape: tuple[int, ...]) -> int:
        """How many parts of a structure kernels write at most: one for each index where not overridden."""
        return math.prod(self.index_shape(event_shape))

    def _parts(self, indices: Tensor, event_shape: tuple[int, ...]) -> Tensor:
        """The parts ``[..., p]``, by their place in a flat event, or -1: first one for each index, then whatever follows from several."""
        return indices

    def _from_parts(self, parts: Tensor, event_shape: tuple[int, ...]) -> Tensor:
        """Indices of parts ``[..., p]`` that kernels give: those of every index alone, in its place, where a form does not say otherwise.

        Where indices are parts, they ascend; the executor of derivations gives them so whatever the form.
        """
        return parts

    def _indices_of(self, structures: Tensor) -> Tensor:
        """Indices of boolean structures ``[..., *event]``, False in ignored entries."""
        event = tuple(structures.shape[structures.ndim - self.event_ndim :])
        used, (most,) = structures.flatten(structures.ndim - self.event_ndim), self.index_shape(event)
        place = torch.where(used, (used.cumsum(-1) - 1).clamp(max=most), most)
        parts = torch.arange(used.shape[-1], device=used.device).expand_as(place)
        return torch.full((*used.shape[:-1], most + 1), NONE, device=used.device).scatter_(-1, place, parts)[..., :most]

    def _cut_indices(self, indices: Tensor, inside: Tensor | None, event_shape: tuple[int, ...]) -> Tensor:
        """What lies inside ``[*batch, *event]``, -1 elsewhere, of indices ``[..., *batch, *index]`` of an event that may have grown."""
        if inside is None:
            return indices
        event = tuple(inside.shape[inside.ndim - self.event_ndim :])
        own = self._parts(indices, event_shape)[..., : math.prod(self.index_shape(event_shape))]  # one part for each index
        moved, within, rest, stride = own, own >= 0, own, 1
        if event_shape != event:  # its beginning along every axis
            moved = torch.zeros_like(own)
            for size, least in zip(reversed(event_shape), reversed(event), strict=True):
                place, rest = rest % size, rest // size
                moved, within, stride = moved + place * stride, within & (place < least), stride * least
            moved = torch.where(within, moved, NONE)
        kept = within & looked_up(inside.flatten(inside.ndim - self.event_ndim), moved)
        if not self._indices_are_parts:
            return torch.where(kept.reshape((*kept.shape[:-1], *self.index_shape(event_shape))), indices, NONE)
        # Parts that are left come first, in their order.
        last = torch.iinfo(torch.int64).max
        parts = torch.where(kept, moved, last).sort(-1).values
        parts = torch.where(parts == last, NONE, parts)
        (most,) = self.index_shape(event)
        return torch.nn.functional.pad(parts, (0, most - parts.shape[-1]), value=NONE)[..., :most]

    def _score_indices(
        self, call: str, indices: Tensor, given: tuple[Tensor, Tensor | None], finite: bool, offsets: Tensor | None = None
    ) -> Tensor:
        """`Oracle._score` of indices ``[*batch, *index]``: sums of looked-up parts."""
        parameters, inside = given
        natural = self._cut(self._cleaned(parameters), inside, parameters.dtype)
        event, batch = self._event(natural), natural.shape[: natural.ndim - self.event_ndim]
        self._check_indices(call, indices, event)
        check_batches(call, "indices", indices, self.index_ndim, batch)
        parts = self._parts(self._cut_indices(indices.long(), inside, event), event)
        return total(torch.where(parts < 0, 0, looked_up(natural.flatten(len(batch)), parts)), offsets)

    def _check_indices(self, call: str, indices: Any, event_shape: tuple[int, ...]) -> None:
        if not isinstance(indices, Tensor) or indices.is_floating_point() or indices.dtype == torch.bool:
            got = str(indices.dtype) if isinstance(indices, Tensor) else type(indices).__name__
            raise ValueError(
                f"`{call}` got indices of type {got}; expected an integer torch.Tensor, such as `sample` gives with as_indices=True"
            )
        shape = self.index_shape(event_shape)
        if indices.ndim < len(shape) or tuple(indices.shape[indices.ndim - len(shape) :]) != shape:
            raise ValueError(
                f"`{call}` got indices of shape {tuple(indices.shape)} for an event of shape {event_shape}; expected [..., *index] "
                f"with index shape {shape}"
            )
        self._check_countless(call, event_shape)
        # Values are looked at on the CPU alone: elsewhere it would synchronise.
        if indices.is_cpu and indices.numel() and not transforming():
            least, most, limit = int(signed(indices).min()), int(signed(indices).max()), self._index_limit(event_shape)
            if least < NONE or most >= limit:
                raise ValueError(f"`{call}` got indices from {least} to {most}; expected -1 (none) to {limit - 1}")

    def _check_countless(self, call: str, event_shape: tuple[int, ...]) -> None:
        """ValueError where parts are counted, and nothing but parts is stated: a list of them would say what is used, not how often."""
        if self._indices_are_parts and not bool(self.binary_mask(event_shape).all()):
            raise ValueError(
                f"`{call}` got the oracle {self.name}, which counts parts and states no compact form; expected 0/1 parts: use dense "
                "structures, or override `index_shape`, `_parts`, `_from_parts` and `_indices_of`"
            )

    # What operations share.

    def _chosen(
        self,
        operation: str,
        parameters: Tensor,
        reference: Callable[..., Tensor],
        *others: Tensor,
        output: Output = ((), None),
        as_indices: bool = False,
    ) -> Tensor:
        """The structures ``[*batch, *leading, *event]`` that an operation chooses, or their indices ``[*batch, *leading, *index]``.

        Of rows and others, as in `_run`, the reference gives structures [b, *leading, *event]. The output says the leading dimensions, and
        the dtype of structures. Kernels for indices have the name of the operation with ``_parts`` behind it.
        """
        event, (leading, dtype) = tuple(parameters.shape)[parameters.ndim - self.event_ndim :], output
        if not as_indices:
            dense = (*leading, *event), dtype
            return self._run(operation, parameters, (dense,), lambda *rows: (reference(*rows),), *others)[0]

        def numbered(*given: Tensor) -> tuple[Tensor]:
            """Indices of dense structures, which are 0 in ignored entries."""
            structures = self._chosen(operation, given[0], reference, *given[1:], output=output)
            self._check_countless("as_indices", event)
            return (self._parts(self._indices_of(structures != 0), event)[..., : self._written_parts(event)] + 1,)

        # Kernels write 1 + part, and leave 0 where there is none.
        written = (*leading, self._written_parts(event)), torch.int64
        shared = parameters if others else share_rows(parameters, self.event_ndim)
        (numbers,) = self._run(f"{operation}_parts", shared, (written,), numbered, *others)
        indices, dims = self._from_parts(numbers.sub_(1), event), parameters.ndim - self.event_ndim
        return indices if shared is parameters else indices.expand((*parameters.shape[:dims], *indices.shape[dims:]))


class PartOfEachRow(IndexedStructures):
    """Structures with indices ``[n]``: of an event ``[n, m]`` the place of the part of every row, and of ``[n, m, m]`` the tag."""

    _indices_are_parts: ClassVar[bool] = False

    def index_shape(self, event_shape: tuple[int, ...]) -> tuple[int, ...]:
        return event_shape[:1]

    def _index_limit(self, event_shape: tuple[int, ...]) -> int:
        return event_shape[1]

    def _parts(self, indices: Tensor, event_shape: tuple[int, ...]) -> Tensor:
        rows, size = event_shape
        return torch.where(indices < 0, NONE, torch.arange(rows, device=indices.device) * size + indices)

    def _from_parts(self, parts: Tensor, event_shape: tuple[int, ...]) -> Tensor:
        """The entries along the last axis; -1 where there is none, whose remainder is itself."""
        return parts.fmod(event_shape[1]) if event_shape[1] > 1 else parts.clamp(max=0)

    def _indices_of(self, structures: Tensor) -> Tensor:
        return chosen(structures, -1)


def looked_up(values: Tensor, parts: Tensor) -> Tensor:
    """``values[..., part]``, ``[*batch, p]``, of values ``[*batch, d]`` and parts ``[..., *batch, p]`` whose batches broadcast; any at -1.

    Values that many structures share are not written out, and neither is their gradient: all that look in one row do so together.
    """
    ndim = max(values.ndim, parts.ndim)
    values, parts = (each.reshape(*[1] * (ndim - each.ndim), *each.shape) for each in (values, parts.clamp(min=0)))
    dims = range(ndim - 1)
    parts = parts.expand(
        *(max(parts.shape[dim], values.shape[dim]) if 0 not in (parts.shape[dim], values.shape[dim]) else 0 for dim in dims), -1
    )
    shared = [dim for dim in dims if values.shape[dim] == 1]
    kept = [dim for dim in dims if values.shape[dim] != 1]
    moved = parts.permute(*kept, *shared, ndim - 1)
    found = values.permute(*kept, *shared, ndim - 1).flatten(len(kept)).gather(-1, moved.flatten(len(kept)))
    order = [*kept, *shared]
    return found.reshape(moved.shape).permute(*(order.index(dim) for dim in dims), ndim - 1)


def chosen(structures: Tensor, dim: int) -> Tensor:
    """Which entry along a dimension is True, -1 where none is."""
    most, place = structures.to(torch.uint8).max(dim)
    return torch.where(most > 0, place, NONE)


def check_batches(call: str, what: str, given: Tensor, ndim: int, batch: torch.Size) -> None:
    """ValueError where what is given for items of so many dimensions does not broadcast against a batch of scores."""
    own = given.shape[: given.ndim - ndim]
    if own != batch:
        try:
            torch.broadcast_shapes(own, batch)
        except RuntimeError:
            raise ValueError(
                f"`{call}` got {what} with the batch {tuple(own)} for scores with the batch {tuple(batch)}; expected batches that broadcast"
            ) from None


def placed(values: Tensor, places: Tensor, size: int) -> Tensor:
    """``[..., size]``: values ``[..., p]`` at their places, of which those from ``size`` on are left out; -1 where no value comes."""
    wider = torch.full((*values.shape[:-1], size + 1), NONE, device=values.device)
    return wider.scatter_(-1, places.clamp(max=size), values)[..., :size]
