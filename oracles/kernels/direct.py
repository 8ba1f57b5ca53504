"""Kernels bound to one shape and dtype of dense scores on the CPU: what a call needs is found out once, and not asked again.

Between the steps of a training all that a call touches comes from far memory, its code too: there a small kernel takes a tenth of its call.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

Mend = Callable[[Tensor, tuple[Tensor, ...], tuple[Tensor, ...]], None]
"""Finds the results of rows that a kernel does not certify: of their numbers, inputs and results."""


class BoundRoom(NamedTuple):
    """One result of a kernel.

    Attributes:
        shape: [*batch, ...]; None for what is like the scores.
        rows: [b, ...], as the kernel gets it.
        dtype: NumPy's.
    """

    shape: tuple[int, ...] | None
    rows: tuple[int, ...]
    dtype: Any


class Direct:
    """A kernel whose arguments are known but for their numbers.

    Args:
        function: of contiguous arrays, the results among them, certificates where there are some, and options.
        options: scalars after the arrays.
        rows: [b, *event], the shape that the function gets; None where scores have one batch dimension, and are taken as they are.
        rooms: its results.
        mend: for rows that are not certified; None where the function certifies nothing.
        complete: whether it says if all numbers are below +inf, and none is NaN, and writes every entry of its results. Else numbers are
            looked at before it is called, and results are 0.
    """

    __slots__ = ("alone", "complete", "function", "mend", "options", "rooms", "rows")

    def __init__(
        self,
        function: Callable[..., Any],
        options: tuple[Any, ...],
        rows: tuple[int, ...] | None,
        rooms: Sequence[BoundRoom],
        mend: Mend | None,
        *,
        complete: bool,
    ) -> None:
        self.function, self.options, self.rows, self.rooms = function, options, rows, tuple(rooms)
        self.mend, self.complete = mend, complete
        self.alone = self.rooms[0] if complete and rows is None and len(rooms) == 1 else None

    def __call__(self, *inputs: Tensor) -> Sequence[Tensor] | None:
        """Results for scores, and what else is like them; None where some of the scores are +inf or NaN."""
        if self.alone is not None and len(inputs) == 1:  # what follows, for most kernels of small work, in the fewest steps
            scores, (shape, _, dtype) = inputs[0], self.alone
            result, array = self._result(scores, shape, dtype)
            return (result,) if self.function(scores.numpy(), array, *self.options) else None
        arrays, results, written = [given.numpy() for given in inputs], [], []
        for shape, _, dtype in self.rooms:
            result, array = self._result(inputs[0], shape, dtype)
            results.append(result)
            written.append(array)
        if self.rows is not None:
            arrays = [array.reshape(self.rows) for array in arrays]
            written = [array.reshape(room.rows) for array, room in zip(written, self.rooms, strict=True)]
        if self.complete:
            return results if self.function(*arrays, *written, *self.options) else None
        if not _below()(arrays[0].reshape(-1)):
            return None
        if self.mend is None:
            self.function(*arrays, *written, *self.options)
            return results
        certified = np.zeros(len(arrays[0]), np.bool_)
        self.function(*arrays, *written, certified, *self.options)
        if b"\0" in certified.tobytes():  # as bytes: a reduction takes longer than a kernel of one row
            failed = torch.from_numpy((~certified).nonzero()[0])
            self.mend(failed, tuple(map(torch.from_numpy, arrays)), tuple(map(torch.from_numpy, written)))
        return results

    def _result(self, scores: Tensor, shape: tuple[int, ...] | None, dtype: Any) -> tuple[Tensor, Any]:
        """A tensor and its array: what is like the scores torch allocates in the least time, other shapes NumPy."""
        if shape is None:
            result = torch.empty_like(scores) if self.complete else torch.zeros_like(scores)
            return result, result.numpy()
        array = np.zeros(shape, dtype)
        return torch.from_numpy(array), array


@cache
def _below() -> Any:
    # Loads the compiler.
    return importlib.import_module(".bounds", __package__).below_infinity
