"""The way of a call: check the scores, complete their padding, select a kernel, run it or the reference, cut the results back."""

import abc
import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar, Self, final

import torch
from torch import Tensor

from .. import kernels
from ..kernels import Output, Reference
from ..numerics import in_single, share_rows, zero_ignored
from ..options import Configured
from ..tensor_kinds import check_dense
from .derivatives import unsqueeze_event

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
"""Dtypes of lengths: a mask is none, and torch cannot compare the other ones."""

FLOATING = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
"""Dtypes of scores."""

LARGEST = 1e5
"""Up to this score, sums in float64 keep nine digits behind the point. Beyond it the exact law is taken, on the CPU."""


class _Known(dict[tuple[Any, ...], Any]):
    """A cache of one oracle in one process, by shapes; it is emptied when it is full."""

    def __setitem__(self, key: tuple[Any, ...], value: Any) -> None:
        if len(self) >= 1024:
            self.clear()
        super().__setitem__(key, value)


def are_large(scores: Tensor) -> bool:
    """Whether some scores exceed `LARGEST`, where numbers can be looked at."""
    return kernels.reach(scores, LARGEST) == 2


class Calls(Configured, abc.ABC):
    """Calls of a structure's operations, on rows of scores that share an event shape.

    An operation begins with `_parameters`, lets `_run` compute, and ends with `_cut`. What a structure states for that comes first here.
    """

    name: ClassVar[str]
    event_ndim: ClassVar[int]
    axes: ClassVar[tuple[str, ...]] = ()
    size_names: ClassVar[tuple[str, ...]] = ()
    kernel: ClassVar[str | None] = None
    layout: ClassVar[str] = ""
    rooted: ClassVar[bool] = False
    _ignores_entries: ClassVar[bool] = False
    _keeps: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "axes" in vars(cls):
            if not isinstance(cls.axes, tuple) or not all(isinstance(axis, str) and axis.isidentifier() for axis in cls.axes):
                raise ValueError(f'`{cls.__name__}` got axes {cls.axes!r}; expected a tuple of names, such as ("length",)')
            cls.event_ndim = len(cls.axes)
            cls.size_names = tuple(dict.fromkeys(cls.axes))

    def _check_event(self, call: str, event_shape: tuple[int, ...]) -> None:
        """Raise ValueError where no score tensor of this oracle has such a shape."""
        size = dict(zip(self.axes, event_shape, strict=False))
        fits = len(event_shape) == self.event_ndim and all(size[axis] == got for axis, got in zip(self.axes, event_shape, strict=False))
        if not fits:
            expected = f"({', '.join(self.axes)}{',' * (self.event_ndim == 1)})" if self.axes else f"{self.event_ndim} dimension(s)"
            raise ValueError(f"`{call}` got event shape {event_shape}; expected {expected}")

    def read_mask(self, event_shape: tuple[int, ...], device: torch.device | None = None) -> Tensor:
        """Boolean ``[*event]``: which entries are parts. The others are ignored: never read, and 0 in every result."""
        return torch.ones(event_shape, dtype=torch.bool, device=device)

    def binary_mask(self, event_shape: tuple[int, ...], device: torch.device | None = None) -> Tensor:
        """Boolean ``[*event]``: which parts are 0/1, all where not overridden. The others count how often a structure uses something."""
        return torch.ones(event_shape, dtype=torch.bool, device=device)

    def kernel_options(self) -> tuple[Any, ...]:
        """The scalars that the kernels take after their arrays."""
        return ()

    def natural_parameters(self, scores: Tensor) -> Tensor:
        """Scores θ to natural parameters η, ``p(z) ∝ exp⟨η, z⟩``, differentiable: the scores themselves where not overridden."""
        return scores

    def length_limits(self, event_shape: tuple[int, ...]) -> tuple[int, ...]:
        """The greatest length of an item; several where items have several lengths, in a last dimension of ``lengths``."""
        return (event_shape[0],)

    def _inside(self, event_shape: tuple[int, ...], lengths: Tensor) -> Tensor:
        """Boolean ``[*batch, *event]``, broadcastable: what an item of these lengths uses."""
        positions = torch.arange(event_shape[0], device=lengths.device)
        return unsqueeze_event(positions < lengths.unsqueeze(-1), len(event_shape) - 1)

    def _inside_padded(self, event_shape: tuple[int, ...], lengths: Tensor) -> Tensor:
        """`_inside` of an event that `_complete` has made: the same, but where what it adds is not beyond the item by its place."""
        return self._inside(event_shape, lengths)

    def _parts_inside(self, event_shape: tuple[int, ...], inside: Tensor) -> Tensor:
        """Parts among the entries inside: those of the whole event, unless parts depend on the length."""
        return inside & self.read_mask(event_shape, inside.device)

    def _complete(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """Scores ``[*batch, *event]`` with the one free completion in their padding; the event may grow, results are cut back."""
        event = self._event(scores)
        free = torch.where(self._completion(event, lengths), 0.0, -math.inf).to(scores)
        return torch.where(self._inside(event, lengths), scores, free)

    def _padded_event(self, event_shape: tuple[int, ...]) -> tuple[int, ...]:
        """The event shape that `_complete` returns, the same for all lengths."""
        limits = self.length_limits(event_shape)
        shortest = torch.ones((len(limits),) if len(limits) > 1 else (), dtype=torch.int64)
        return tuple(self._complete(torch.zeros(event_shape), shortest).shape)

    def _completion(self, event_shape: tuple[int, ...], lengths: Tensor) -> Tensor:
        """Boolean ``[*batch, *event]``, broadcastable: the parts beyond an item that complete its structures, in one way."""
        return torch.zeros((), dtype=torch.bool, device=lengths.device)

    def check_marginals(self, call: str, event_shape: tuple[int, ...]) -> None:
        """Raise ValueError where the log-partition of scores of such a shape is out of reach."""

    # Check, and complete.

    def _parameters(  # noqa: PLR0913
        self, call: str, scores: Tensor, lengths: Tensor | None, *, sums: bool = False, raw: bool = False, as_indices: Any = False
    ) -> tuple[Tensor, Tensor | None]:
        """Natural parameters, at least float32, with their padding completed, and which entries are inside (None for all), or ValueError.

        Values are looked at on the CPU alone: elsewhere it would synchronise. With ``sums``, the log-partition of such scores must be in
        reach; ``raw`` gives scores in their dtype, in the place of natural parameters. ``as_indices`` is checked alone.
        """
        if as_indices is not True and as_indices is not False:  # most other values would be true
            raise ValueError(f"`{call}` got as_indices={as_indices!r}; expected True or False")
        # Shapes and dtypes in which nothing was found wrong are kept: to look them up takes less time than the checks.
        if not isinstance(scores, Tensor) or (scores.layout, scores.shape, scores.dtype, sums) not in self._known:
            self.check_scores(call, scores)
            if sums:
                self.check_marginals(call, self._event(scores))
            self._known[scores.layout, scores.shape, scores.dtype, sums] = True
        inside = None
        if lengths is not None:
            self.check_lengths(call, scores, lengths)
            inside = self._inside(self._event(scores), lengths).expand_as(scores)
            scores = torch.where(inside, scores, 0)
        elif scores.is_neg():  # a view of torch's that NumPy does not know
            scores = scores.resolve_neg()
        # One cheap pass first: NaN and +inf in ignored entries are allowed, and rare. They would hide the reach of the others.
        if kernels.reach(scores, LARGEST) == 3:
            if bool((~(scores < math.inf) & self.read_mask(self._event(scores))).any()):
                raise ValueError(f"`{call}` got scores with NaN or +inf; expected finite scores, or -inf for a forbidden part")
            scores = self._cleaned(scores)
        if lengths is not None:
            scores = self._complete(scores, lengths)
        if raw:
            return scores, inside
        return self.natural_parameters(in_single(scores, self.event_ndim)), inside

    def check_scores(self, call: str, scores: Tensor) -> None:
        """Raise ValueError, in the name of a call, for scores of another type or shape; their values are not looked at."""
        tensor = isinstance(scores, Tensor)
        if not tensor or scores.dtype not in FLOATING:
            got, do = (f"dtype {scores.dtype}", "scores.float()") if tensor else (type(scores).__name__, "torch.as_tensor(scores)")
            raise ValueError(f"`{call}` got scores of {got}; expected a floating-point torch.Tensor, as {do} gives")
        check_dense(call, "scores", scores)
        if scores.ndim < self.event_ndim:
            raise ValueError(
                f"`{call}` got scores of shape {tuple(scores.shape)}; expected [*batch, *event] with {self.event_ndim} event dimension(s)"
            )
        self.check_event(call, self._event(scores))

    @final
    def check_event(self, call: str, event_shape: tuple[int, ...]) -> None:
        """Raise ValueError, in the name of a call, where no score tensor of this oracle has such a shape."""
        if 0 in event_shape:
            raise ValueError(f"`{call}` got event shape {event_shape}; expected at least one part in every dimension")
        self._check_event(call, event_shape)

    def check_lengths(self, call: str, scores: Tensor, lengths: Tensor) -> None:
        """Raise ValueError for lengths that scores ``[*batch, *event]`` do not have, in the name of a call or of the argument."""
        limits = self.length_limits(self._event(scores))
        one = () if len(limits) == 1 else (len(limits),)
        batch = scores.shape[: scores.ndim - self.event_ndim]
        if not isinstance(lengths, Tensor) or lengths.dtype not in INTEGERS or lengths.shape not in ((*batch, *one), one):
            got = f"{lengths.dtype} of shape {tuple(lengths.shape)}" if isinstance(lengths, Tensor) else type(lengths).__name__
            each = "one length" if len(limits) == 1 else f"{len(limits)} lengths"
            raise ValueError(f"`{call}` got lengths: {got}; expected an integer tensor of shape {(*batch, *one)}, {each} per item")
        if lengths.device != scores.device:
            raise ValueError(
                f"`{call}` got lengths on {lengths.device} for scores on {scores.device}; expected one device: move them by "
                "lengths.to(scores.device)"
            )
        # Values are looked at on the CPU alone, and the limits brought to no other device: either would make the host wait.
        if lengths.device.type != "cpu":
            return
        wrong = (lengths < 0) | (lengths > torch.tensor(limits if one else limits[0]))
        if bool(wrong.any()):
            first = lengths.reshape(-1, *one)[wrong.reshape(-1, len(limits)).any(-1)][0].tolist()
            least, most = ([0] * len(limits), list(limits)) if one else (0, limits[0])
            raise ValueError(
                f"`lengths` must be between {least} and {most} for scores of shape {tuple(scores.shape)}, got {first}"
                + (f". {self.layout}" if self.layout else "")
            )

    # Select, and run.

    def _run(
        self, operation: str, parameters: Tensor, outputs: Sequence[Output | None], reference: Reference, *others: Tensor
    ) -> Sequence[Tensor]:
        """Results ``[*batch, ...]`` of an operation on natural parameters ``[*batch, *event]`` and others like them, without gradients.

        Rows that `Tensor.expand` made are computed once. A kernel computes what it can, and the reference everything else. An output that
        is None is like the rows.
        """
        rows = parameters.detach() if parameters.requires_grad else parameters
        plain = rows.ndim == self.event_ndim + 1 and (rows.shape[0] <= 1 or rows.stride(0) != 0)
        if not plain:
            dims, event = rows.ndim - self.event_ndim, self._event(rows)
            shared = rows if others else share_rows(rows, self.event_ndim)
            batch, distinct, rows = rows.shape[:dims], shared.shape[:dims], shared.reshape(-1, *event)
            others = tuple(other.reshape(len(rows), *other.shape[dims:]) for other in others)
        kernel = self._kernel(operation, rows)
        results: Sequence[Tensor]
        if kernel is None:
            found = zip(reference(rows, *others), (each or (rows.shape[1:], None) for each in outputs), strict=True)
            # Log-partitions stay in their dtype: differences of them are taken.
            results = [value if not shape else value.to(dtype or rows.dtype) for value, (shape, dtype) in found]
        else:
            results = kernel.computed((rows, *others), outputs, reference)
        if plain:
            return results
        return [each.reshape((*distinct, *each.shape[1:])).expand((*batch, *each.shape[1:])) for each in results]

    @final
    def _kernel(self, operation: str, rows: Tensor) -> kernels.Kernel | None:
        """The compiled kernel of an operation on rows [b, *event], or None where the torch reference is to run."""
        if rows.dtype not in kernels.FLOATING or not (rows.is_cpu and kernels.running.get()):
            return None
        key = operation, rows.shape
        if key not in self._known:
            self._known[key] = self._select(operation, rows)
        kernel: kernels.Kernel | None = self._known[key]
        return kernel

    def _select(self, operation: str, rows: Tensor) -> kernels.Kernel | None:
        """The kernel of an operation for rows of this shape."""
        return kernels.find(self.kernel, operation, rows, self.kernel_options())

    @cached_property
    def _known(self) -> _Known:
        """Shapes of scores, and of structures for scores, with nothing wrong; kernels by operation and shape; `read_mask` by arguments."""
        return _Known()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_known"}

    def _keeping(self, **kept: Any) -> Self:
        """An equal oracle, with what `ragged.of_lengths` or `WarmStart` lets it keep besides."""
        twin = object.__new__(type(self))
        vars(twin).update(vars(self), _plain=self, **kept, _keeps=True)  # what a graph must hold besides
        return twin

    def _kept_lengths(self, scores: Tensor) -> Tensor | None:
        """The lengths of the rows of scores ``[*batch, ..., *event]`` where `ragged.of_lengths` let the oracle keep them."""
        lengths: Tensor | None = vars(self).get("_lengths")
        if lengths is None:
            return None
        several, rows = len(self.length_limits(self._event(scores))) > 1, scores.shape[: scores.ndim - self.event_ndim]
        lengths = lengths.movedim(-1, 0) if several else lengths.unsqueeze(0)
        each = unsqueeze_event(lengths, len(rows) + 1 - lengths.ndim).expand(-1, *rows)
        return each.movedim(0, -1) if several else each[0]

    # Cut back.

    def _cleaned(self, scores: Tensor) -> Tensor:
        """Scores with ignored entries at 0."""
        return zero_ignored(scores, self.read_mask(self._event(scores), scores.device)) if self._ignores_entries else scores

    def _cut(self, values: Tensor, inside: Tensor | None, dtype: torch.dtype) -> Tensor:
        """Results in a dtype, 0 for what is not inside, without what `_complete` added to the event; leading dimensions as they are."""
        if inside is not None:
            for dim in range(-self.event_ndim, 0):
                values = values.narrow(dim, 0, inside.shape[dim])
            values = torch.where(inside, values, 0)
        return values if values.dtype == dtype else values.to(dtype)

    def _event(self, scores: Tensor) -> tuple[int, ...]:
        return tuple(scores.shape)[scores.ndim - self.event_ndim :]  # a slice of `torch.Size` takes longer
