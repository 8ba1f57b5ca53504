"""The capabilities of a structure oracle.

An oracle is a finite set of structures ``z``: tensors of 0/1 parts that share one event shape. Scores ``θ`` of the same shape give the
structure ``z`` the score ``⟨θ, z⟩``. What an oracle can compute is what it inherits: an estimator names the capabilities that it needs, and
the pairing check is ``isinstance``.

Contracts that every operation keeps:

* scores are ``[*batch, *event]``, float32 or float64 (half precision is computed in float32), on any device;
* a forbidden part has score ``-inf``; an infeasible item, every structure of which has a forbidden part, has the zero tensor as its
  structure, indices that are all -1, 0 as marginals, projection and entropy, and the log-partition ``-inf``;
* an *ignored* entry (see `Oracle.read_mask`) is never read and is 0 in every result;
* ``lengths`` (optional, int ``[*batch]``) says how much of the first event axis an item uses: what lies beyond is never read, and is 0 in
  every result;
* rows that `Tensor.expand` made (stride 0) are computed once and shared;
* with ``as_indices`` structures are given, or come, in compact form, int64 ``[*batch, *index]``: see `Oracle.indices`;
* ties go to the lowest index; randomness comes from an explicit `torch.Generator` alone;
* `torch.func` and `torch.compile` see one step (see `structgrad.oracles.transforms`).
"""

import abc
import math
from typing import Any, ClassVar, final

import torch
from torch import Tensor
from torch._C._functorch import unwrap_if_dead
from torch.compiler import is_compiling

from .. import kernels
from ..magnitudes import beyond_memory
from ..numerics import grown, in_single, total
from ..tensor_kinds import check_dense, signed
from ..transforms import operation, transforming
from .calls import INTEGERS, LARGEST
from .derivatives import score, unsqueeze_event
from .indices import IndexedStructures, check_batches

NEARLY_INFINITE = 3e38
"""Finite scores are below it, in float32 too."""

FORBIDDEN = -1e100
"""Stands for -inf where structures with forbidden parts must stay comparable."""

Mask = Tensor | tuple[Tensor, ...]
"""A mask of items or of parts, or a mask for each length of an item: see `Oracle.masked`."""


class Oracle(IndexedStructures):
    """A finite set of structures with a MAP solver.

    A subclass is a frozen dataclass that holds options (never tensors), and implements `count` and `_argmax`; the public methods validate,
    share expanded rows and restore dtype and shape, once, here. ``axes`` are the names of the sizes along the event, or there are
    ``event_ndim``, `event_shape` and `_check_event` instead. Where ``kernel`` names a folder of
    `structgrad.oracles`, the functions of its ``cpu.py`` serve the operations that they are named after on the CPU; the
    underscored methods are their references in torch, for everything else.
    ``version`` is raised when a change moves measured values. ``layout`` is a sentence on scores that are longer than their items;
    ``rooted`` says that their first axis begins with a root.
    """

    references: ClassVar[tuple[str, ...]] = ()
    version: ClassVar[int] = 1

    @classmethod
    def event_shape(cls, **sizes: int) -> tuple[int, ...]:
        """The shape of one score tensor, from sizes by name (``length=5, tags=3``)."""
        if not cls.axes:
            raise ValueError(f'`{cls.__name__}` has no axes; expected axes = ("length",) or the like, or an `event_shape` of its own')
        size = dict(zip(cls.size_names, cls._sizes(sizes, *cls.size_names), strict=True))
        return tuple(size[axis] for axis in cls.axes)

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

    @final
    @operation(gives="event")
    def argmax(self, scores: Tensor, *, lengths: Tensor | None = None, as_indices: bool = False) -> Tensor:
        """The highest-scoring structure (MAP), ties to the lowest index: ``[*batch, *event]`` of 0/1, dtype of the scores.

        The zero tensor for an infeasible item. With ``as_indices`` int64 ``[*batch, *index]``.
        """
        parameters, inside = self._parameters("argmax", scores, lengths, as_indices=as_indices)
        best = self._best(parameters, as_indices)
        return self._cut_indices(best, inside, self._event(parameters)) if as_indices else self._cut(best, inside, scores.dtype)

    @final
    @operation(gives="batch")
    def score(self, z: Tensor, scores: Tensor, *, lengths: Tensor | None = None, as_indices: bool = False) -> Tensor:
        """``⟨η, z⟩``: ``[*batch]``, differentiable in the scores; ``-inf`` for a structure with a forbidden part.

        `argmax` maximises it and `kbest` ranks by it: ``⟨θ, z⟩``, for a policy that is normalised locally the log-probability. ``z`` and
        ``scores`` broadcast, so that many structures may share one row of scores. Indices make nothing dense, nor does their gradient.
        """
        given = self._parameters("score", scores, lengths, as_indices=as_indices)
        score = self._score_indices if as_indices else self._score
        return score("score", z, given, kernels.reach(given[0], LARGEST) == 0).to(scores.dtype)

    @final
    @operation(gives="padded")
    def pad(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """Scores whose padding holds one free completion: every structure of an item goes on there in one way only, of score 0.

        So log-partition, entropy and the law of the parts inside are those of the item alone. The operations do this themselves when they
        are given ``lengths``; estimators take padded scores.
        """
        return self._cleaned(self._parameters("pad", scores, lengths, raw=True)[0])

    @final
    def masked(self, scores: Tensor, mask: Mask | None, *, lengths: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Scores and lengths under a boolean mask, True for what is allowed; every operation takes both.

        A mask ``[*batch, n]``, of one dimension more than the batch, is one of items, as tokenizers give it. It becomes their lengths:
        each item must be True up to its length, and False after it. For dependency trees it may include the root, ``[*batch, n + 1]``.
        Structures with two lengths take a pair of masks. Any other mask is one of parts, which broadcasts to the scores: where it is
        False, the score becomes -inf. In a batch ``[b]`` a mask ``[n, n]`` that all items share is therefore given as ``[1, n, n]``.
        For events of one dimension every mask is one of parts.

        Integers 0 and 1 count as booleans. Values are looked at on the CPU alone, and not under `torch.func` or `torch.compile`.

        Args:
            scores: ``[*batch, *event]``.
            mask: None allows everything.
            lengths: of the items, with a mask of parts.

        Example:
            >>> from structgrad.oracles import SpanningTree
            >>> attention_mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])  # of the root and three words
            >>> scores, lengths = SpanningTree().masked(torch.zeros(2, 4, 4), attention_mask)
            >>> lengths, SpanningTree().log_partition(scores, lengths=lengths).exp()
            (tensor([3, 1]), tensor([9., 1.]))
            >>> banned = torch.zeros(1, 4, 4, dtype=torch.bool)
            >>> banned[:, 1, 2] = True  # no arc from word 1 to word 2
            >>> SpanningTree().masked(torch.zeros(2, 4, 4), ~banned)[0][:, 1]
            tensor([[0., 0., -inf, 0.],
                    [0., 0., -inf, 0.]])
        """
        if mask is None:
            return scores, lengths
        self.check_scores("masked", scores)
        limits = self.length_limits(self._event(scores))
        masks: list[Any] = [*mask] if isinstance(mask, tuple | list) and all(isinstance(each, Tensor) for each in mask) else [mask]
        shape, batch = tuple(scores.shape), tuple(scores.shape)[: scores.ndim - self.event_ndim]
        allowed = [[(*batch, limit), (*batch, limit + self.rooted)] for limit in limits]  # without a root, and with it

        def wrong(do: str, such: str = "") -> ValueError:
            kinds = (f"{one.dtype} of shape {tuple(one.shape)}" if isinstance(one, Tensor) else f"a {type(one).__name__}" for one in masks)
            items = " and ".join(" or ".join(str(each) for each in dict.fromkeys(shapes)) for shapes in allowed)
            items = "" if self.event_ndim == 1 else f"{'a pair ' * (len(limits) > 1)}{items} of items, or "
            return ValueError(f"`mask` got {' and '.join(kinds)}{such}; expected booleans: {items}parts that broadcast to {shape}{do}")

        if not all(isinstance(each, Tensor) and each.dtype in (torch.bool, *INTEGERS) for each in masks):
            added = ": take mask == 0 if it is added to scores, mask.bool() if it is 0 and 1"
            raise wrong(added if isinstance(masks[0], Tensor) else ": take torch.as_tensor(mask).bool()")
        known = all(each.is_cpu for each in masks) and not (transforming() or is_compiling())
        if known and any(each.dtype != torch.bool and bool((each != each.bool()).any()) for each in masks):
            raise wrong(": give lengths as lengths=", " with other integers than 0 and 1")
        masks = [each.bool() for each in masks]
        if len(masks) == 1 and (self.event_ndim == 1 or masks[0].ndim != len(batch) + 1):
            sizes = zip(masks[0].shape[::-1], shape[::-1], strict=False)
            if self.event_ndim <= masks[0].ndim <= scores.ndim and all(size in (1, whole) for size, whole in sizes):
                return scores.masked_fill(~masks[0], -math.inf), lengths
        if len(masks) != len(limits) or any(tuple(each.shape) not in shapes for each, shapes in zip(masks, allowed, strict=True)):
            raise wrong(": take mask[None] for parts that all items share" if tuple(masks[0].shape) == self._event(scores) else "")
        if lengths is not None:
            raise wrong(": leave out lengths=, which a mask of items gives", " with lengths")
        if known and any(bool((each[..., 1:] & ~each[..., :-1]).any()) for each in masks):
            raise wrong(": pad on the right, or give a mask of parts", ", an item of which is True after False")
        counts = [each.sum(-1).sub(each.shape[-1] - limit).clamp(min=0) for each, limit in zip(masks, limits, strict=True)]
        return scores, counts[0] if len(counts) == 1 else torch.stack(counts, -1)

    @final
    def forbids_nothing(self, scores: Tensor) -> bool:
        """Whether no entry is ``-inf`` for certain. Values are looked at on the CPU alone: elsewhere it would synchronise."""
        return scores.numel() > 0 and kernels.reach(scores, NEARLY_INFINITE) == 0

    @final
    def all_free(self, scores: Tensor) -> bool:
        """Whether every entry is a part, and none is forbidden for certain: then nothing has to be masked."""
        return not self._ignores_entries and self.forbids_nothing(scores)

    @final
    @operation()
    def free_parts(self, scores: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        """Boolean ``[*batch, *event]``: parts that are read and not forbidden. Only these carry noise and gradient."""
        self.check_scores("free_parts", scores)
        inside = None if lengths is None else self._parameters("free_parts", scores, lengths, raw=True)[1]
        event = self._event(scores)
        return (scores > -math.inf) & (self.read_mask(event, scores.device) if inside is None else self._parts_inside(event, inside))

    def parts_within(self, parts: Tensor, scores: Tensor) -> Tensor:
        """Of boolean parts ``[*batch, *event]``, those inside the items: all of them, but for `ragged.of_lengths`."""
        lengths = self._kept_lengths(scores)
        return parts if lengths is None else parts & self._inside_padded(self._event(scores), lengths)

    @final
    def length_mask(self, event_shape: tuple[int, ...], lengths: Tensor) -> Tensor:
        """Boolean ``[*batch, *event]``: which entries items of these lengths use.

        Example:
            >>> from structgrad.oracles import Subset
            >>> Subset(1).length_mask((4,), torch.tensor([2, 3]))
            tensor([[ True,  True, False, False],
                    [ True,  True,  True, False]])
        """
        inside = self._inside(event_shape, lengths)
        return inside.expand(*inside.shape[: inside.ndim - self.event_ndim], *event_shape)

    @final
    def unpadded(self, values: Tensor, event_shape: tuple[int, ...], lengths: Tensor) -> Tensor:
        """Of values ``[..., *batch, *event]`` of padded scores, what items of these lengths use, and 0 elsewhere.

        An event that `pad` made larger comes back in its ``event_shape``.
        """
        return self._cut(values, self.length_mask(event_shape, lengths), values.dtype)

    def argmax_of(self, parameters: Tensor) -> Tensor:
        """The best structure ``[b, *event]`` of natural parameters η of that shape, in their dtype; `argmax` makes them of scores."""
        return self._cut(self._best(in_single(parameters, self.event_ndim)), None, parameters.dtype)

    # What a subclass implements: rows are [b, *event], valid, floating, with ignored entries set to 0 (only kernels get them as they are).

    @abc.abstractmethod
    def _argmax(self, rows: Tensor) -> Tensor: ...

    def _score(self, call: str, z: Tensor, given: tuple[Tensor, Tensor | None], finite: bool, offsets: Tensor | None = None) -> Tensor:
        """⟨η, z⟩ of what `_parameters` gave, in float64: of what is inside, without ignored entries; see `numerics.total` for offsets."""
        parameters, inside = given
        event, device = tuple(parameters.shape)[parameters.ndim - self.event_ndim :], parameters.device
        shape = parameters.shape if inside is None else inside.shape
        if not isinstance(z, Tensor) or (z.layout, z.shape, z.dtype, shape) not in self._known:
            self._check_structures(call, z, shape)
            self._known[z.layout, z.shape, z.dtype, shape] = True
        within = z if z.is_floating_point() else signed(z)
        if inside is not None:
            within = grown(self._cut(within, inside, within.dtype), event)
        if self._ignores_entries:
            if (event, device) not in self._known:
                with torch.inference_mode(False):
                    self._known[event, device] = self.read_mask(event, device)
            within = torch.where(self._known[event, device], within, 0)
        if offsets is not None:
            return total((within * torch.where(within != 0, parameters, 0)).flatten(-self.event_ndim), offsets)
        result: Tensor = score(unwrap_if_dead(parameters), within, self.event_ndim, finite)
        return result

    def _check_structures(self, call: str, z: Any, shape: torch.Size) -> None:
        """ValueError for what are no structures for scores of this shape."""
        if not isinstance(z, Tensor):
            raise ValueError(f"`{call}` got a structure of type {type(z).__name__}; expected a torch.Tensor [*batch, *event] of 0/1")
        check_dense(call, "z", z)
        if z.shape[z.ndim - self.event_ndim :] != shape[len(shape) - self.event_ndim :]:
            raise ValueError(
                f"`{call}` got a structure of shape {tuple(z.shape)} for scores of shape {tuple(shape)}; "
                f"expected the same last {self.event_ndim} dimension(s)"
            )
        check_batches(call, "a structure", z, self.event_ndim, shape[: len(shape) - self.event_ndim])

    def _check_memory(self, what: str, size: int, advice: str) -> None:
        """Refuse a result that this machine cannot hold: to begin with it would end the process, or the machine's patience."""
        if beyond := beyond_memory(size):
            raise ValueError(f"{what} of {self.name}, which take {beyond}; {advice}")

    def _holds_empty(self, event_shape: tuple[int, ...]) -> bool:
        """Whether having no part is a structure, which is then feasible whatever is forbidden."""
        return False

    def _best(self, parameters: Tensor, as_indices: bool = False) -> Tensor:
        """MAP of natural parameters ``[*batch, *event]``, or its indices."""
        return self._chosen("argmax", parameters, self._reference_argmax, as_indices=as_indices)

    def _reference_argmax(self, rows: Tensor) -> Tensor:
        """0 where the best structure has a forbidden part: then every structure has."""
        best = self._argmax(self._cleaned(rows))
        infeasible = ((best != 0) & (rows == -math.inf)).flatten(1).any(-1)
        return best.masked_fill(unsqueeze_event(infeasible, self.event_ndim), 0)


def inner(structure: Tensor, scores: Tensor, event_ndim: int) -> Tensor:
    """``⟨θ, z⟩`` over the event dimensions, where a part that is 0 adds 0 even at score -inf."""
    product = structure * torch.where(structure != 0, scores, 0)
    return product.flatten(product.ndim - event_ndim).sum(-1)
