"""Structures by rank, and the k best."""

import abc
import math
from typing import final

import torch
from torch import Tensor

from .. import kernels
from ..magnitudes import counted
from ..numerics import share_rows
from ..tensor_kinds import signed, with_plain_default
from ..transforms import operation
from .base import FORBIDDEN, NEARLY_INFINITE, Oracle
from .derivatives import unsqueeze_event

MAX_RANK = 2**62
"""The largest number of structures that can be unranked: ranks are int64."""


class EnumerableOracle(Oracle):
    """An oracle whose structures can be listed by rank, at constant memory.

    Example:
        >>> from structgrad.oracles import Subset
        >>> Subset(2).enumerate((4,), start=4, stop=6)
        tensor([[0., 1., 0., 1.],
                [0., 0., 1., 1.]])
    """

    @abc.abstractmethod
    def _unrank(self, ranks: Tensor, event_shape: tuple[int, ...]) -> Tensor:
        """The structures of int64 ranks [c]: boolean or integer [c, *event]."""

    def _rank(self, structures: Tensor) -> Tensor:
        """The inverse of `_unrank`: int64 [c] from structures [c, *event]; without it, `rank` says that it is missing."""
        raise ValueError(f"`rank` is not offered by the oracle {self.name}; implement `_rank`, the inverse of its `_unrank`")

    @final
    def unrank(self, ranks: Tensor, event_shape: tuple[int, ...]) -> Tensor:
        """The structures of int64 ranks ``[c]`` below `count`, the inverse of `rank`: 0/1, boolean or integer, ``[c, *event]``.

        Example:
            >>> from structgrad.oracles import Subset
            >>> Subset(2).unrank(torch.tensor([4, 0]), (4,)).int()
            tensor([[0, 1, 0, 1],
                    [1, 1, 0, 0]], dtype=torch.int32)
        """
        total = self._check_enumerable("unrank", tuple(event_shape))
        if ranks.is_cpu and ranks.numel() and not (0 <= int(ranks.min()) <= int(ranks.max()) < total):
            raise ValueError(f"`unrank` got ranks from {int(ranks.min())} to {int(ranks.max())}; expected 0 <= rank < {total}")
        return self._unrank(ranks, tuple(event_shape))

    @final
    @operation()
    def rank(self, z: Tensor) -> Tensor:
        """The place of structures in the order of `enumerate`: int64 ``[*batch]`` from ``[*batch, *event]``.

        What is no structure of this oracle gets some number.
        """
        if not isinstance(z, Tensor) or z.ndim < self.event_ndim:
            got = f"shape {tuple(z.shape)}" if isinstance(z, Tensor) else type(z).__name__
            raise ValueError(f"`rank` got structures of {got}; expected a torch.Tensor [*batch, *event] of 0/1")
        event = self._event(z)
        self._check_enumerable("rank", event)
        return self._rank(signed(z).reshape(-1, *event)).reshape(z.shape[: z.ndim - self.event_ndim])

    @final
    def enumerate(
        self,
        event_shape: tuple[int, ...],
        start: int = 0,
        stop: int | None = None,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Tensor:
        """Structures ``start`` to ``stop`` (exclusive; all when None) in a fixed order: ``[stop − start, *event]`` of 0/1.

        Raises:
            ValueError: where the range is not within ``0 .. count`` or the count exceeds 2**62.
        """
        if not isinstance(event_shape, tuple | list) or not all(isinstance(size, int) for size in event_shape):
            raise ValueError(
                f"`enumerate` got event_shape={event_shape!r}; expected a tuple of integers, such as {self.name}.event_shape gives"
            )
        total = self._check_enumerable("enumerate", tuple(event_shape))
        last = total if stop is None else stop
        if not 0 <= start <= last <= total:
            raise ValueError(f"`enumerate` got start={start}, stop={stop}; expected 0 <= start <= stop <= {total}")
        bytes_each = (dtype or torch.get_default_dtype()).itemsize * math.prod(event_shape)
        self._check_memory(
            f"`enumerate` got {counted(last - start)} structures", (last - start) * bytes_each, "take ranges, by start= and stop="
        )
        ranks = torch.arange(start, last, dtype=torch.int64, device=device)
        return with_plain_default(self._unrank, (ranks, tuple(event_shape)), {}).to(dtype or torch.get_default_dtype())

    def _check_enumerable(self, call: str, event_shape: tuple[int, ...]) -> int:
        """The number of structures, or ValueError where ranks would not fit."""
        self.check_event(call, event_shape)
        total = self.count(event_shape)
        if total > MAX_RANK:
            raise ValueError(f"`{call}` got a space of {counted(total)} structures; expected at most 2**62, choose smaller sizes")
        return total


class KBestOracle(Oracle):
    """An oracle that lists the best structures.

    Example:
        >>> from structgrad.oracles import Subset
        >>> Subset(2).kbest(torch.tensor([1.0, 0.6, 0.2, -3.0]), 2)
        tensor([[1., 1., 0., 0.],
                [1., 0., 1., 0.]])
    """

    @abc.abstractmethod
    def _kbest(self, rows: Tensor, k: int) -> Tensor:
        """Distinct structures [k, b, *event] of float64 rows without -inf, best first; k is at most their number."""

    @final
    @operation(leading="k")
    def kbest(self, scores: Tensor, k: int, *, lengths: Tensor | None = None, as_indices: bool = False) -> Tensor:
        """The ``k`` highest-scoring structures, best first: ``[k, *batch, *event]``; the zero tensor, or -1, where fewer are feasible.

        Raises:
            ValueError: k is not within ``1 .. count``.
        """
        given = scores.detach() if isinstance(scores, Tensor) else scores
        parameters, inside = self._parameters("kbest", given, lengths, as_indices=as_indices)
        total, event = self.count(self._event(scores)), self._event(parameters)
        if not isinstance(k, int) or isinstance(k, bool) or not 1 <= k <= total:
            raise ValueError(f"`kbest` got k={k}; expected 1 <= k <= {total}, the number of structures")
        shared, dims = share_rows(parameters, self.event_ndim), scores.ndim - self.event_ndim
        size = 8 * k * shared.shape[:dims].numel() * math.prod(self.index_shape(event) if as_indices else event)
        self._check_memory(f"`kbest` got k={k}", size, "choose a smaller k")
        # In float64, whatever the dtype.
        double, output = shared.double(), ((k,), parameters.dtype)
        listed = self._chosen("kbest", double, lambda rows: self._reference_kbest(rows, k), output=output, as_indices=as_indices)
        found = listed.expand(*parameters.shape[:dims], *listed.shape[dims:]).movedim(dims, 0)
        return self._cut_indices(found, inside, event) if as_indices else self._cut(found, inside, scores.dtype)

    def _reference_kbest(self, rows: Tensor, k: int) -> Tensor:
        """[b, k, *event] of float64 parameters [b, *event]."""
        if self._kernel("kbest_parts", rows):  # the structure's kernel lists parts alone, in a half to a fifth of the time
            return self._list_best(rows, k)
        rows = self._cleaned(rows)
        # A forbidden part costs more than any sum of scores, so that what uses one comes last, and is still a structure.
        if kernels.reach(rows, NEARLY_INFINITE) == 0:  # every structure is feasible
            return self._kbest(rows, k).movedim(0, 1)
        listed = self._kbest(torch.where(rows > -math.inf, rows, FORBIDDEN), k)
        used = (listed != 0) & (rows == -math.inf)
        return (listed * unsqueeze_event(~used.flatten(2).any(-1), self.event_ndim)).movedim(0, 1)

    def _list_best(self, rows: Tensor, k: int) -> Tensor:
        """[b, k, *event] of float64 rows [b, *event] on any device, by the structure's kernel that lists parts."""
        event, output = self._event(rows), ((k, self._written_parts(self._event(rows))), torch.int64)
        numbers = kernels.search(self.kernel or "", "kbest_parts", rows, output, self.kernel_options())
        flat = torch.zeros(len(rows), k, 1 + math.prod(event), device=rows.device).scatter_(-1, numbers, 1)
        structures: Tensor = flat[..., 1:].unflatten(-1, event)
        return structures
