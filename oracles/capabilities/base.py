"""The capabilities of a structure oracle.

An oracle is a finite set of structures ``z``: tensors of 0/1 parts that share one event shape. Scores ``θ`` of the same shape give the
structure ``z`` the score ``⟨θ, z⟩``. What an oracle can compute is what it inherits: an estimator names the capabilities that it needs, and
the pairing check is ``isinstance``.

Contracts that every operation keeps:

* scores are ``[*batch, *event]``, float32 or float64 (half precision is computed in float32), on any device;
* a forbidden part has score ``-inf``; an infeasible item, every structure of which has a forbidden part, has the zero tensor (indices -1)
  as its structure; an *ignored* entry (see `Oracle.read_mask`) is never read and is 0 in every result;
* ``lengths`` (optional, int ``[*batch]``) says how much of the first event axis an item uses: what lies beyond is never read, and is 0 in
  every result;
* rows that `Tensor.expand` made (stride 0) are computed once and shared;
* ties go to the lowest index; randomness comes from an explicit `torch.Generator` alone;
* `torch.func` and `torch.compile` see one step (see `structgrad.oracles.transforms`).
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from .. import kernels
from ..kernels.gpu.first_use import Output, Reference
from ..kernels.switch import SERVING
from ..magnitudes import beyond_memory
from ..numerics import HALF, Total, in_single, share_rows, zero_ignored
from ..options import Configured
from ..tensor_kinds import check_dense, signed
from ..transforms import operation, transforming
from .derivatives import differentiated, score_of, unsqueeze_event
from .indices import IndexedStructures, check_batches, wants_indices

LARGEST = 1e5
"""Up to this score, sums in float64 keep nine digits behind the point. Beyond it the exact law is taken, on the CPU."""

FORBIDDEN = -1e100
"""Stands for -inf where structures with forbidden parts must stay comparable."""


INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
"""What lengths may be: a mask is none, and torch cannot compare the other ones."""

FLOATING = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
"""What scores may be."""

MOST_KNOWN = 1024
"""Shapes of scores that an oracle keeps in mind."""


class Oracle(IndexedStructures, Configured, abc.ABC):
    """A finite set of structures with a MAP solver.

    A subclass is a frozen dataclass that holds options (never tensors), and implements `count`, `_check_event` and `_argmax`; the public
    methods validate, share expanded rows and restore dtype and shape, once, here. Where ``kernel`` names a folder of
    `structgrad.oracles`, the functions of its ``cpu.py`` serve the operations that they are named after on the CPU; the
    underscored methods are their references in torch, for everything else.
    ``version`` is raised when a change moves measured values. ``layout`` is a sentence on scores that are longer than their items.
    """

    name: ClassVar[str]
    event_ndim: ClassVar[int]
    references: ClassVar[tuple[str, ...]] = ()
    kernel: ClassVar[str | None] = None
    version: ClassVar[int] = 1
    layout: ClassVar[str] = ""
    _ignores_entries: ClassVar[bool] = False

    @classmethod
    @abc.abstractmethod
    def event_shape(cls, **sizes: int) -> tuple[int, ...]:
        """The shape of one score tensor, from sizes by name (``length=5, tags=3``)."""

    @classmethod
    def _sizes(cls, sizes: dict[str, int], *names: str) -> tuple[int, ...]:
        """The named sizes in order, or ValueError where others were given."""
        if set(sizes) != set(names):
            raise ValueError(f"`{cls.name}.event_shape` got sizes {', '.join(sizes) or 'nothing'}; expected {', '.join(names)}")
        for name, size in sizes.items():
            if not isinstance(size, int) or size < 1:
                raise ValueError(f"`{cls.name}.event_shape` got {name}={size!r}; expected an integer >= 1")
        return tuple(sizes[name] for name in names)

    @abc.abstractmethod
    def count(self, event_shape: tuple[int, ...]) -> int:
        """The exact number of structures, as a Python integer."""

    def read_mask(self, event_shape: tuple[int, ...], device: torch.device | None = None) -> Tensor:
        """Boolean ``[*event]``: which entries are parts. The others are ignored: never read, and 0 in every result."""
        return torch.ones(event_shape, dtype=torch.bool, device=device)

    def binary_mask(self, event_shape: tuple[int, ...], device: torch.device | None = None) -> Tensor:
        """Boolean ``[*event]``: which parts are 0/1, all where not overridden. The others count how often a structure uses something."""
        return torch.ones(event_shape, dtype=torch.bool, device=device)

    @final
    @operation()
    def argmax(self, scores: Tensor, *, lengths: Tensor | None = None, as_indices: bool = False) -> Tensor:
        """The highest-scoring structure (MAP), ties to the lowest index: ``[*batch, *event]`` of 0/1, dtype of the scores.

        An infeasible item, every structure of which has a forbidden part, gives the zero tensor, as in `sample`, `kbest` and `project`.
        With ``as_indices`` the same structure in compact form, int64 ``[*batch, *index]``, all -1 for an infeasible item: see `indices`.
        """
        compact = wants_indices("argmax", as_indices)
        parameters, inside = self._parameters("argmax", scores, lengths)
        best = self._best(parameters, compact)
        return self._cut_indices(best, inside, self._event(parameters)) if compact else self._cut(best, inside, scores.dtype)

    @final
    @operation()
    def score(self, z: Tensor, scores: Tensor, *, lengths: Tensor | None = None, as_indices: bool = False) -> Tensor:
        """``⟨η, z⟩``: ``[*batch]``, differentiable in the scores; ``-inf`` for a structure with a forbidden part.

        It is what `argmax` maximises and what `kbest` ranks by: ``⟨θ, z⟩``, for a policy that is normalised locally the log-probability.
        ``z`` and ``scores`` broadcast against each other, so that many structures may share one row of scores. With ``as_indices`` z is
        given in compact form, ``[*batch, *index]``, and neither it nor the gradient is ever made dense for every structure.
        """
        parameters, inside = self._parameters("score", scores, lengths)
        score = self._score_indices if wants_indices("score", as_indices) else self._score
        return score("score", z, parameters, inside, Total(self.reach(parameters) == 0)).to(scores.dtype)

    @final
    @operation()
    def pad(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """Scores whose padding holds one free completion: every structure of an item goes on there in one way only, of score 0.

        So log-partition, entropy and the law of the parts inside are those of the item alone. The operations do this themselves when they
        are given ``lengths``; estimators take padded scores.
        """
        return self._cleaned(self._prepared("pad", scores, lengths)[0])

    @final
    def forbids_nothing(self, scores: Tensor) -> bool:
        """Whether no entry is ``-inf`` for certain. Values are looked at on the CPU alone: elsewhere it would synchronise."""
        if transforming() or not scores.is_cpu or not scores.numel():
            return False
        return kernels.reach(share_rows(scores.detach(), self.event_ndim)) == 0

    @final
    def all_free(self, scores: Tensor) -> bool:
        """Whether every entry is a part, and none is forbidden for certain: then nothing has to be masked."""
        return not self._ignores_entries and self.forbids_nothing(scores)

    @final
    @operation()
    def free_parts(self, scores: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        """Boolean ``[*batch, *event]``: parts that are read and not forbidden. Only these carry noise and gradient."""
        self.check_scores("free_parts", scores)
        inside = None if lengths is None else self._prepared("free_parts", scores, lengths)[1]
        event = self._event(scores)
        return (scores > -math.inf) & (self.read_mask(event, scores.device) if inside is None else self._parts_inside(event, inside))

    def parts_within(self, parts: Tensor, scores: Tensor) -> Tensor:
        """Of boolean parts ``[*batch, *event]``, those inside the items: all of them, but for `ragged.of_lengths`."""
        return parts

    @final
    def length_mask(self, event_shape: tuple[int, ...], lengths: Tensor) -> Tensor:
        """Boolean ``[*batch, *event]``, broadcastable to it: which entries items of these lengths use.

        Example:
            >>> from structgrad.oracles import Subset
            >>> Subset(1).length_mask((4,), torch.tensor([2, 3]))
            tensor([[ True,  True, False, False],
                    [ True,  True,  True, False]])
        """
        return self._inside(event_shape, lengths)

    @final
    def unpadded(self, values: Tensor, event_shape: tuple[int, ...], lengths: Tensor) -> Tensor:
        """Of values ``[..., *batch, *event]`` of padded scores, what items of these lengths use, and 0 elsewhere.

        An event that `pad` made larger comes back in its ``event_shape``.
        """
        inside = self._inside(event_shape, lengths)
        return self._cut(values, inside.expand(*inside.shape[: inside.ndim - self.event_ndim], *event_shape), values.dtype)

    @final
    def check_event(self, call: str, event_shape: tuple[int, ...]) -> None:
        """Raise ValueError, in the name of a call, where no score tensor of this oracle has such a shape."""
        self._check_sizes(call, event_shape)

    def check_marginals(self, call: str, event_shape: tuple[int, ...]) -> None:
        """Raise ValueError where the log-partition of scores of such a shape is out of reach."""

    def argmax_of(self, parameters: Tensor) -> Tensor:
        """The best structure ``[b, *event]`` of natural parameters η of that shape, in their dtype; `argmax` makes them of scores."""
        return self._cut(self._best(at_least_single(parameters)), None, parameters.dtype)

    # What a subclass implements: rows are [b, *event], valid, floating, with ignored entries set to 0 (only kernels get them as they are).

    @abc.abstractmethod
    def _check_event(self, call: str, event_shape: tuple[int, ...]) -> None:
        """Raise ValueError where no score tensor of this oracle has such a shape."""

    @abc.abstractmethod
    def _argmax(self, rows: Tensor) -> Tensor: ...

    def reach(self, parameters: Tensor) -> int:
        """0 if no parameter exceeds `LARGEST`, 1 if some are -inf besides, 2 if some are larger; 1 where numbers cannot be looked at.

        Values are looked at on the CPU alone: elsewhere it would synchronise.
        """
        if transforming() or not parameters.is_cpu:
            return 1
        return min(kernels.reach(share_rows(parameters.detach(), self.event_ndim), LARGEST), 2)

    def _score(self, call: str, z: Tensor, parameters: Tensor, inside: Tensor | None, total: Total) -> Tensor:
        """⟨η, z⟩ of natural parameters, or what the total makes of it: what is inside, without ignored entries."""
        free = total.free and inside is None and not (isinstance(z, Tensor) and z.requires_grad)
        natural = parameters if free else self._cut(self._cleaned(parameters), inside, parameters.dtype)
        if not isinstance(z, Tensor):
            raise ValueError(f"`{call}` got a structure of type {type(z).__name__}; expected a torch.Tensor [*batch, *event] of 0/1")
        check_dense(call, "z", z)
        if z.shape[z.ndim - self.event_ndim :] != natural.shape[natural.ndim - self.event_ndim :]:
            raise ValueError(
                f"`{call}` got a structure of shape {tuple(z.shape)} for scores of shape {tuple(natural.shape)}; "
                f"expected the same last {self.event_ndim} dimension(s)"
            )
        check_batches(call, "a structure", z, self.event_ndim, natural.shape[: natural.ndim - self.event_ndim])
        within = signed(z)
        within = self._cut(within, inside, within.dtype)
        if not free:
            natural = torch.where(within != 0, natural, 0)
        elif self._ignores_entries:  # A part that is 0 adds 0 by itself, in the gradient of the scores too.
            within = torch.where(self.read_mask(self._event(natural), natural.device), within, 0)
        if differentiated(natural) and not within.requires_grad:
            return score_of(natural, within, self.event_ndim, total.log_partition)
        return total((within * natural).flatten(-self.event_ndim))

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
        """Of what is inside, which are parts: those of the whole event, but for structures whose parts depend on the length."""
        return inside & self.read_mask(event_shape, inside.device)

    def _complete(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """Scores ``[*batch, *event]`` with the one free completion in their padding; the event may grow, results are cut back."""
        return torch.where(self._inside(self._event(scores), lengths), scores, -math.inf)

    # Shared plumbing.

    def _parameters(self, call: str, scores: Tensor, lengths: Tensor | None, *, sums: bool = False) -> tuple[Tensor, Tensor | None]:
        """Natural parameters, at least float32, with their padding completed, and which entries are inside (None for all), or ValueError.

        With ``sums``, ValueError also where the log-partition of such scores is out of reach.
        """
        valid, inside = self._prepared(call, scores, lengths, sums=sums)
        return self.natural_parameters(in_single(valid, self.event_ndim) if valid.dtype in HALF else valid), inside

    def _prepared(self, call: str, scores: Tensor, lengths: Tensor | None, *, sums: bool = False) -> tuple[Tensor, Tensor | None]:
        """Valid scores with their padding completed, and which entries are inside (None for all), or ValueError.

        Values are looked at on the CPU alone: elsewhere it would synchronise.
        """
        # Shapes and dtypes in which nothing was found wrong are kept: to look them up takes less time than the checks.
        if not isinstance(scores, Tensor) or (scores.layout, scores.shape, scores.dtype, sums) not in self._fitting:
            self.check_scores(call, scores)
            if sums:
                self.check_marginals(call, self._event(scores))
            if len(self._fitting) == MOST_KNOWN:
                self._fitting.clear()
            self._fitting.add((scores.layout, scores.shape, scores.dtype, sums))
        inside = None
        if lengths is not None:
            self.check_lengths(call, scores, lengths)
            inside = self._inside(self._event(scores), lengths).expand_as(scores)
            scores = torch.where(inside, scores, 0)
        elif scores.is_neg():  # a view of torch's that NumPy does not know
            scores = scores.resolve_neg()
        if scores.is_cpu:
            plain = scores.detach() if scores.requires_grad else scores
            # One cheap pass first: errors in ignored entries are allowed, and rare.
            if kernels.reach(share_rows(plain, self.event_ndim) if 0 in plain.stride() else plain) == 3:
                bad = ~(plain < math.inf) & self.read_mask(self._event(scores), scores.device)
                if bool(bad.any()):
                    raise ValueError(f"`{call}` got scores with NaN or +inf; expected finite scores, or -inf for a forbidden part")
        return scores if lengths is None else self._complete(scores, lengths), inside

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
        inside = (lengths >= 1) & (lengths <= torch.tensor(limits if one else limits[0]))
        if not bool(inside.all()):
            wrong = lengths[~inside] if not one else lengths.reshape(-1, *one)[~inside.reshape(-1, *one).all(-1)]
            least, most = ([1] * len(limits), list(limits)) if one else (1, limits[0])
            raise ValueError(
                f"`lengths` must be between {least} and {most} for scores of shape {tuple(scores.shape)}, got {wrong[0].tolist()}"
                + (f". {self.layout}" if self.layout else "")
            )

    @cached_property
    def _fitting(self) -> set[tuple[Any, ...]]:
        """Layouts, shapes and dtypes of scores in which nothing was found wrong, and whether their sums are within reach."""
        return set()

    @cached_property
    def _kernels(self) -> dict[tuple[str, torch.Size], kernels.Kernel | None]:
        """The kernels on the CPU that were selected before, by operation and shape of rows."""
        return {}

    def __getstate__(self) -> dict[str, Any]:
        """Options: caches stay in their process."""
        return {name: value for name, value in vars(self).items() if name not in ("_fitting", "_kernels")}

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

    def check_scores(self, call: str, scores: Tensor) -> None:
        """Raise ValueError, in the name of a call, for scores of another type or shape; their values are not looked at."""
        if not isinstance(scores, Tensor) or scores.dtype not in FLOATING:
            got, do = (
                (f"dtype {scores.dtype}", "scores.float()")
                if isinstance(scores, Tensor)
                else (type(scores).__name__, "torch.as_tensor(scores)")
            )
            raise ValueError(f"`{call}` got scores of {got}; expected a floating-point torch.Tensor, as {do} gives")
        check_dense(call, "scores", scores)
        if scores.ndim < self.event_ndim:
            raise ValueError(
                f"`{call}` got scores of shape {tuple(scores.shape)}; expected [*batch, *event] with {self.event_ndim} event dimension(s)"
            )
        self._check_sizes(call, self._event(scores))

    def _check_sizes(self, call: str, event: tuple[int, ...]) -> None:
        if 0 in event:
            raise ValueError(f"`{call}` got event shape {event}; expected at least one part in every dimension")
        self._check_event(call, event)

    def _check_memory(self, what: str, size: int, advice: str) -> None:
        """Refuse a result that this machine cannot hold: to begin with it would end the process, or the machine's patience."""
        if beyond := beyond_memory(size):
            raise ValueError(f"{what} of {self.name}, which take {beyond}; {advice}")

    def _event(self, scores: Tensor) -> tuple[int, ...]:
        return tuple(scores.shape[scores.ndim - self.event_ndim :])

    def _rows(self, values: Tensor) -> Tensor:
        """[*batch, *event] -> [b, *event]; a reshape takes a microsecond where nothing is to be done."""
        return values if values.ndim == self.event_ndim + 1 else values.reshape(-1, *self._event(values))

    # One way of a call: every operation selects its kernel and runs here.

    def _run(
        self, operation: str, parameters: Tensor, outputs: Sequence[Output], reference: Reference, *others: Tensor
    ) -> Sequence[Tensor]:
        """Results ``[*batch, ...]`` of an operation on natural parameters ``[*batch, *event]`` and others like them, without gradients.

        Rows that `Tensor.expand` made are computed once. A kernel computes what it can, and the reference everything else.
        """
        rows = parameters.detach() if parameters.requires_grad else parameters
        plain = rows.ndim == self.event_ndim + 1 and (rows.shape[0] <= 1 or rows.stride(0) != 0)
        batch = distinct = rows.shape[: rows.ndim - self.event_ndim]
        if not plain:
            shared = rows if others else share_rows(rows, self.event_ndim)
            distinct, rows = shared.shape[: len(batch)], shared.reshape(-1, *self._event(rows))
            others = tuple(other.reshape(len(rows), *other.shape[len(batch) :]) for other in others)
        kernel = self._kernel(operation, rows)
        results: Sequence[Tensor]
        if kernel is None:
            found = zip(reference(rows, *others), outputs, strict=True)
            # Log-partitions stay in their dtype: differences of them are taken.
            results = [value if not shape else kernels.converted(value, dtype or rows.dtype) for value, (shape, dtype) in found]
        else:
            kernel = kernel.drawing(*others) if operation.startswith("sample") else kernel
            results = kernel.computed((rows, *others), outputs, reference)
        if plain:
            return results
        return [each.reshape((*distinct, *each.shape[1:])).expand((*batch, *each.shape[1:])) for each in results]

    @final
    def _kernel(self, operation: str, rows: Tensor) -> kernels.AnyKernel | None:
        """The compiled kernel of an operation on rows [b, *event], or None where the torch reference is to run."""
        if not SERVING.get() or rows.dtype not in kernels.FLOATING:
            return None
        if not rows.is_cpu or kernels.gpu.interpreting():
            return self._device_kernel(operation, rows)
        key = operation, rows.shape
        if key not in self._kernels:
            if len(self._kernels) == MOST_KNOWN:
                self._kernels.clear()
            self._kernels[key] = self._select(operation, rows)
        return self._kernels[key]

    def _select(self, operation: str, rows: Tensor) -> kernels.Kernel | None:
        """The kernel of an operation on the CPU for rows of this shape."""
        return kernels.find(self.kernel, operation, rows, self.kernel_options())

    def _device_kernel(self, operation: str, rows: Tensor) -> kernels.AnyKernel | None:
        """The kernel of an operation on a GPU."""
        return None

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

        Args:
            operation: the name of kernels for structures; those for indices have ``_parts`` behind it.
            parameters: natural parameters.
            reference: structures [b, *leading, *event] of rows and others.
            others: as in `_run`.
            output: the leading dimensions, and the dtype of structures.
            as_indices: which of both.
        """
        event, (leading, dtype) = self._event(parameters), output
        if not as_indices:
            dense = (*leading, *event), dtype
            return self._run(operation, parameters, (dense,), lambda *rows: (reference(*rows),), *others)[0]

        def numbered(*given: Tensor) -> tuple[Tensor]:
            """By whatever computes dense structures."""
            structures = self._chosen(operation, given[0], reference, *given[1:], output=output)
            return (self._parts(self._of_dense(structures), event)[..., : self._written_parts(event)] + 1,)

        # Kernels write 1 + part, and leave 0 where there is none.
        written = (*leading, self._written_parts(event)), torch.int64
        shared = parameters if others else share_rows(parameters, self.event_ndim)
        (numbers,) = self._run(f"{operation}_parts", shared, (written,), numbered, *others)
        indices = self._from_parts(numbers - 1, event)
        batch = parameters.shape[: parameters.ndim - self.event_ndim]
        return indices.expand((*batch, *indices.shape[len(batch) :]))

    def _best(self, parameters: Tensor, as_indices: bool = False) -> Tensor:
        """MAP of natural parameters ``[*batch, *event]``, or its indices."""
        return self._chosen("argmax", parameters, self._reference_argmax, as_indices=as_indices)

    def _holds_empty(self, event_shape: tuple[int, ...]) -> bool:
        """Whether having no part is a structure, which is then feasible whatever is forbidden."""
        return False

    def _reference_argmax(self, rows: Tensor) -> Tensor:
        return self._feasible_or_zero(self._argmax(self._cleaned(rows)), rows)

    def _feasible_or_zero(self, best: Tensor, rows: Tensor) -> Tensor:
        """The best structures of rows [b, *event], 0 where one has a forbidden part: then every structure has."""
        infeasible = ((best != 0) & (rows == -math.inf)).flatten(1).any(-1)
        return best.masked_fill(unsqueeze_event(infeasible, self.event_ndim), 0)


def inner(structure: Tensor, scores: Tensor, event_ndim: int) -> Tensor:
    """``⟨θ, z⟩`` over the event dimensions, where a part that is 0 adds 0 even at score -inf."""
    product = structure * torch.where(structure != 0, scores, 0)
    return product.flatten(product.ndim - event_ndim).sum(-1)


def at_least_single(rows: Tensor) -> Tensor:
    """Half precision is computed in float32."""
    return rows.float() if rows.dtype in HALF else rows
