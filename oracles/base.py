"""The capabilities of a structure oracle.

An oracle is a finite set of structures ``z``: tensors of 0/1 parts that share one event shape. Scores ``θ`` of the same shape give the
structure ``z`` the score ``⟨θ, z⟩``. What an oracle can compute is what it inherits: an estimator names the capabilities that it needs, and
the pairing check is ``isinstance``.

Contracts that every operation keeps:

* scores are ``[*batch, *event]``, float32 or float64 (half precision is computed in float32), on any device;
* a forbidden part has score ``-inf``; an *ignored* entry (see `Oracle.read_mask`) is never read and is 0 in every result;
* ``lengths`` (optional, int ``[*batch]``) says how much of the first event axis an item uses: what lies beyond is never read, and is 0 in
  every result;
* rows that `Tensor.expand` made (stride 0) are computed once and shared;
* ties go to the lowest index; randomness comes from an explicit `torch.Generator` alone.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal, final

import torch
from torch import Tensor

from .masking import cut, share_rows, zero_ignored
from .random_streams import random_uniform
from .sparse_solution import Projection, SparseSolution

RowArgmax = Callable[[Tensor, Tensor], Tensor]
"""MAP of directions [i, *event] that belong to the rows of these indices [i]."""

FORBIDDEN = -1e100
"""Stands for -inf where structures with forbidden parts must stay comparable."""

MAX_RANK = 2**62
"""The largest number of structures that can be unranked: ranks are int64."""


class Oracle(abc.ABC):
    """A finite set of structures with a MAP solver.

    A subclass is a frozen dataclass that holds options (never tensors), and implements `count`, `_check_event` and `_argmax`; the public
    methods validate, share expanded rows and restore dtype and shape, once, here.
    """

    name: ClassVar[str]
    event_ndim: ClassVar[int]
    references: ClassVar[tuple[str, ...]] = ()
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
        return tuple(sizes[name] for name in names)

    @abc.abstractmethod
    def count(self, event_shape: tuple[int, ...]) -> int:
        """The exact number of structures, as a Python integer."""

    def read_mask(self, event_shape: tuple[int, ...], device: torch.device | None = None) -> Tensor:
        """Boolean ``[*event]``: which entries are parts. The others are ignored: never read, and 0 in every result."""
        return torch.ones(event_shape, dtype=torch.bool, device=device)

    @final
    def argmax(self, scores: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        """The highest-scoring structure (MAP), ties to the lowest index: ``[*batch, *event]`` of 0/1, dtype of the scores."""
        valid, inside = self._prepared("argmax", scores, lengths)
        return cut(self._rowwise(self._argmax, valid), inside)

    @final
    def pad(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """Scores whose padding holds one free completion: every structure of an item goes on there in one way only, of score 0.

        So log-partition, entropy and the law of the parts inside are those of the item alone. The operations do this themselves when they
        are given ``lengths``; estimators take padded scores.
        """
        return self._prepared("pad", scores, lengths)[0]

    @final
    def free_parts(self, scores: Tensor) -> Tensor:
        """Boolean ``[*batch, *event]``: parts that are read and not forbidden. Only these carry noise and gradient."""
        shape = tuple(scores.shape[scores.ndim - self.event_ndim :])
        return (scores > -math.inf) & self.read_mask(shape, scores.device)

    # What a subclass implements: rows are [b, *event], valid, floating, with ignored entries set to 0.

    @abc.abstractmethod
    def _check_event(self, call: str, event_shape: tuple[int, ...]) -> None:
        """Raise ValueError where no score tensor of this oracle has such a shape."""

    @abc.abstractmethod
    def _argmax(self, rows: Tensor) -> Tensor: ...

    def _inside(self, event_shape: tuple[int, ...], lengths: Tensor) -> Tensor:
        """Boolean ``[*batch, *event]``, broadcastable: what an item of these lengths uses."""
        positions = torch.arange(event_shape[0], device=lengths.device)
        return unsqueeze_event(positions < lengths.unsqueeze(-1), len(event_shape) - 1)

    def _complete(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """Scores ``[*batch, *event]`` with the one free completion in their padding."""
        return torch.where(self._inside(self._event(scores), lengths), scores, -math.inf)

    # Shared plumbing.

    def _prepared(self, call: str, scores: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Valid scores with their padding completed, and which entries are inside (None for all)."""
        if lengths is None:
            return self._checked(call, scores), None
        self._check_tensor(call, scores)
        self._check_lengths(call, scores, lengths)
        inside = self._inside(self._event(scores), lengths).expand_as(scores)
        return self._complete(self._checked(call, cut(scores, inside)), lengths), inside

    def _check_lengths(self, call: str, scores: Tensor, lengths: Tensor) -> None:
        batch, most = scores.shape[: scores.ndim - self.event_ndim], self._event(scores)[0]
        if not isinstance(lengths, Tensor) or lengths.is_floating_point() or lengths.shape not in (batch, ()):
            got = f"{lengths.dtype} of shape {tuple(lengths.shape)}" if isinstance(lengths, Tensor) else type(lengths).__name__
            raise ValueError(f"`{call}` got lengths: {got}; expected an integer tensor of shape {tuple(batch)}, one length per item")
        if lengths.device.type == "cpu" and not bool(((lengths >= 1) & (lengths <= most)).all()):
            raise ValueError(f"`{call}` got lengths from {int(lengths.min())} to {int(lengths.max())}; expected 1 to {most}")

    def _checked(self, call: str, scores: Tensor) -> Tensor:
        """Scores with ignored entries at 0, or ValueError. Values are looked at on the CPU alone: elsewhere it would synchronise."""
        self._check_tensor(call, scores)
        event = self._event(scores)
        mask = self.read_mask(event, scores.device)
        distinct = share_rows(scores, self.event_ndim)
        if scores.device.type == "cpu" and not bool(((distinct < math.inf) | ~mask).all()):
            raise ValueError(f"`{call}` got scores with NaN or +inf; expected finite scores, or -inf for a forbidden part")
        return zero_ignored(scores, mask) if self._ignores_entries else scores

    def _check_tensor(self, call: str, scores: Tensor) -> None:
        if not isinstance(scores, Tensor) or not scores.is_floating_point():
            got = f"dtype {scores.dtype}" if isinstance(scores, Tensor) else type(scores).__name__
            raise ValueError(f"`{call}` got scores of {got}; expected a floating-point torch.Tensor")
        if scores.ndim < self.event_ndim:
            raise ValueError(
                f"`{call}` got scores of shape {tuple(scores.shape)}; expected [*batch, *event] with {self.event_ndim} event dimension(s)"
            )
        self._check_sizes(call, self._event(scores))

    def _check_sizes(self, call: str, event: tuple[int, ...]) -> None:
        if 0 in event:
            raise ValueError(f"`{call}` got event shape {event}; expected at least one part in every dimension")
        self._check_event(call, event)

    def _event(self, scores: Tensor) -> tuple[int, ...]:
        return tuple(scores.shape[scores.ndim - self.event_ndim :])

    def _rowwise(self, compute: Callable[[Tensor], Tensor], scores: Tensor) -> Tensor:
        """Run ``compute`` on distinct rows [b, *event] and give its result back as [*batch, ...] in the dtype of the scores."""
        batch = scores.shape[: scores.ndim - self.event_ndim]
        shared = share_rows(scores.detach(), self.event_ndim)
        rows = shared.reshape(-1, *self._event(scores))
        result = compute(at_least_single(rows))
        result = result.reshape((*shared.shape[: len(batch)], *result.shape[1:])).to(scores.dtype)
        return result.expand((*batch, *result.shape[len(batch) :]))


class MarginalOracle(Oracle):
    """An oracle of the Gibbs distribution ``p(z) ∝ exp⟨θ, z⟩``.

    A subclass implements `_log_partition` in differentiable torch that is safe at ``-inf``; marginals, their exact Jacobian, entropy and
    log-probabilities follow from it, because ``∇A(θ) = μ`` and ``∇²A(θ) = Cov(z)`` (Wainwright & Jordan 2008, section 3).

    Example:
        >>> from structgrad.oracles import Subset
        >>> oracle, scores = Subset(2), torch.tensor([0.5, 0.0, -math.inf, 0.0], requires_grad=True)
        >>> oracle.log_partition(scores).backward()
        >>> scores.grad
        tensor([0.7673, 0.6163, 0.0000, 0.6163])
        >>> oracle.log_prob(torch.tensor([1.0, 1.0, 0.0, 0.0]), scores).exp()
        tensor(0.3837, grad_fn=<ExpBackward0>)
    """

    @abc.abstractmethod
    def _log_partition(self, rows: Tensor) -> Tensor:
        """[b, *event] -> [b], differentiable to any order; -inf for an infeasible row, with gradient 0."""

    def _marginals(self, rows: Tensor) -> Tensor:
        with torch.inference_mode(False), torch.enable_grad():
            leaf = rows.detach().clone().requires_grad_()
            (marginals,) = torch.autograd.grad(self._log_partition(leaf).sum(), leaf)
        return marginals

    @final
    def log_partition(self, scores: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        """``A(θ) = log Σ_z exp⟨θ, z⟩``: ``[*batch]``; ``-inf`` where no structure is feasible. Its gradient is `marginals`."""
        return self._log_partition_of(self._prepared("log_partition", scores, lengths)[0])

    @final
    def marginals(self, scores: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        """``μ(θ) = E[z]``: ``[*batch, *event]`` in [0, 1]; differentiable, with the exact Jacobian ``Cov(z)``; 0 for an infeasible item."""
        valid, inside = self._prepared("marginals", scores, lengths)
        return cut(self._marginals_of(valid), inside)

    @final
    def feasible(self, scores: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        """Boolean ``[*batch]``: whether any structure has a score above ``-inf``."""
        return self.log_partition(scores, lengths=lengths) > -math.inf

    @final
    def log_prob(self, z: Tensor, scores: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        """``log p(z) = ⟨θ, z⟩ − A(θ)``: ``[*batch]``, differentiable in the scores; ``-inf`` for a structure with a forbidden part.

        ``z`` and ``scores`` broadcast against each other, so that many samples may share one row of scores.
        """
        valid, inside = self._prepared("log_prob", scores, lengths)
        single = at_least_single(valid)
        if z.shape[z.ndim - self.event_ndim :] != scores.shape[scores.ndim - self.event_ndim :]:
            raise ValueError(
                f"`log_prob` got a structure of shape {tuple(z.shape)} for scores of shape {tuple(scores.shape)}; "
                f"expected the same last {self.event_ndim} dimension(s)"
            )
        log_partition = self._log_partition_of(single)
        total = inner(cut(z, inside), single, self.event_ndim)
        return torch.where(log_partition > -math.inf, total - log_partition, -math.inf).to(scores.dtype)

    @final
    def entropy(self, scores: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        """``H = A(θ) − ⟨θ, μ⟩`` in nats: ``[*batch]``, differentiable; 0 for an infeasible item."""
        single = at_least_single(self._prepared("entropy", scores, lengths)[0])
        log_partition = self._log_partition_of(single)
        expected = inner(self._marginals_of(single), single, self.event_ndim)
        return torch.where(log_partition > -math.inf, log_partition - expected, 0).to(scores.dtype)

    @final
    def kl(self, scores: Tensor, other: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        """``KL(p_θ ‖ p_η)`` in nats, of the law of ``scores`` from that of ``other``: ``[*batch]``, differentiable in both.

        ``inf`` where the other law forbids what this one allows; 0 for an item that is infeasible under ``scores``.
        """
        here, there = (at_least_single(self._prepared("kl", theta, lengths)[0]) for theta in (scores, other))
        marginals, log_partition = self._marginals_of(here), self._log_partition_of(here)
        # Allowed here, forbidden there: left out of the sum, whose gradient would be NaN, and made infinite at the end.
        blocked = (marginals > 0) & (there == -math.inf)
        expected = inner(marginals, here, self.event_ndim) - inner(marginals, there.masked_fill(blocked, 0), self.event_ndim)
        divergence = self._log_partition_of(there) - log_partition + expected
        divergence = torch.where(blocked.flatten(blocked.ndim - self.event_ndim).any(-1), math.inf, divergence)
        return torch.where(log_partition > -math.inf, divergence, 0).to(scores.dtype)

    def _log_partition_of(self, valid: Tensor) -> Tensor:
        result: Tensor = _LogPartition.apply(valid, self)  # type: ignore[no-untyped-call]
        return result

    def _marginals_of(self, valid: Tensor) -> Tensor:
        result: Tensor = _Marginals.apply(valid, self)  # type: ignore[no-untyped-call]
        return result


class SamplingOracle(MarginalOracle):
    """An oracle that draws exact samples of its Gibbs distribution."""

    @abc.abstractmethod
    def _sample(self, rows: Tensor, uniforms: Tensor) -> Tensor:
        """Structures [s, b, *event] from rows [b, *event] and float64 uniforms [s, b, `_noise_size`]; 0 for an infeasible row."""

    @abc.abstractmethod
    def _noise_size(self, event_shape: tuple[int, ...]) -> int:
        """How many uniforms one sample takes."""

    def sample(
        self, scores: Tensor, num_samples: int | None = None, *, generator: torch.Generator, lengths: Tensor | None = None
    ) -> Tensor:
        """Exact samples: ``[*batch, *event]``, or ``[num_samples, *batch, *event]``; not differentiable (see `log_prob`).

        Uniforms are drawn in float64 whatever the scores' dtype: float32 uniforms would make rare structures impossible.
        An infeasible item gives the zero tensor.
        """
        if num_samples is not None and num_samples < 1:
            raise ValueError(f"`sample` got num_samples={num_samples}; expected at least 1, or None for one sample without that dimension")
        padded, inside = self._prepared("sample", scores, lengths)
        valid, event = padded.detach(), self._event(scores)
        batch = tuple(scores.shape[: scores.ndim - self.event_ndim])
        leading = 1 if num_samples is None else num_samples
        uniforms = random_uniform(batch, (leading, self._noise_size(event)), generator=generator, device=scores.device)
        # Expanded dimensions join the samples, so that tables are built once per distinct row.
        expanded = [dim for dim, size in enumerate(batch) if size > 1 and valid.stride(dim) == 0]
        distinct = [dim for dim in range(len(batch)) if dim not in expanded]
        order = [len(batch), *expanded, *distinct]
        rows = share_rows(valid, self.event_ndim).reshape(-1, *event)
        shuffled = uniforms.permute(*order, len(batch) + 1)
        repeats = math.prod(shuffled.shape[: 1 + len(expanded)])
        drawn = self._sample(at_least_single(rows), shuffled.reshape(repeats, rows.shape[0], shuffled.shape[-1])).to(scores.dtype)
        drawn = drawn.reshape(*shuffled.shape[:-1], *event)
        back = [order.index(dim) for dim in [len(batch), *range(len(batch))]]
        structures = drawn.permute(*back, *range(len(back), len(back) + self.event_ndim))
        return cut(structures[0] if num_samples is None else structures, inside)


class ProjectionOracle(Oracle):
    """An oracle that projects on the marginal polytope: SparseMAP (Niculae et al. 2018).

    Example:
        >>> from structgrad.oracles import Subset
        >>> solution = Subset(2).project(torch.tensor([1.0, 0.6, 0.2, -3.0]))
        >>> solution.mean
        tensor([1.0000, 0.7000, 0.3000, 0.0000])
        >>> int(solution.support), float(solution.gap) < 1e-12
        (2, True)
    """

    @abc.abstractmethod
    def _project(self, rows: Tensor, argmax: RowArgmax) -> Projection:
        """The projection of float64 rows [b, *event], without gradients, which `SparseSolution` adds.

        Padding is forbidden in the rows; ``argmax(direction, items)`` is `_argmax` for some of them, with 0 in the padding.
        """

    @final
    def project(self, scores: Tensor, *, lengths: Tensor | None = None) -> SparseSolution:
        """``argmin_{μ ∈ conv Z} ½‖μ − θ‖²``: the sparse mean with its atoms and weights, differentiable, with a certified gap.

        Forbidden parts (``-inf``) are 0 in every atom. An infeasible item gives mean 0, weights 0 and gap ``inf``. Computed in float64.
        """
        completed, inside = self._prepared("project", scores, lengths)
        valid = completed if inside is None else torch.where(inside, completed, -math.inf)
        batch = scores.shape[: scores.ndim - self.event_ndim]
        shared = share_rows(valid.detach(), self.event_ndim)
        rows = at_least_single(shared.reshape(-1, *self._event(scores))).double()
        sizes = None if lengths is None else lengths.expand(batch).flatten()
        projection = self._project(rows, lambda direction, items: self._argmax_inside(direction, None if sizes is None else sizes[items]))
        return SparseSolution(projection, valid, tuple(shared.shape[: len(batch)]), self.event_ndim)

    def _argmax_inside(self, rows: Tensor, lengths: Tensor | None) -> Tensor:
        if lengths is None:
            return self._argmax(rows)
        return cut(self._argmax(self._complete(rows, lengths)), self._inside(self._event(rows), lengths))


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
    def rank(self, z: Tensor) -> Tensor:
        """The place of structures in the order of `enumerate`: int64 ``[*batch]`` from ``[*batch, *event]``.

        What is no structure of this oracle gets some number.
        """
        event = self._event(z)
        self._check_enumerable("rank", event)
        return self._rank(z.reshape(-1, *event)).reshape(z.shape[: z.ndim - self.event_ndim])

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
        total = self._check_enumerable("enumerate", tuple(event_shape))
        last = total if stop is None else stop
        if not 0 <= start <= last <= total:
            raise ValueError(f"`enumerate` got start={start}, stop={stop}; expected 0 <= start <= stop <= {total}")
        ranks = torch.arange(start, last, dtype=torch.int64, device=device)
        return self._unrank(ranks, tuple(event_shape)).to(dtype or torch.get_default_dtype())

    def _check_enumerable(self, call: str, event_shape: tuple[int, ...]) -> int:
        """The number of structures, or ValueError where ranks would not fit."""
        self._check_sizes(call, event_shape)
        total = self.count(event_shape)
        if total > MAX_RANK:
            size = f"about 10**{math.log10(total):.0f}"
            raise ValueError(f"`{call}` got a space of {size} structures; expected at most 2**62, choose smaller sizes")
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
    def kbest(self, scores: Tensor, k: int, *, lengths: Tensor | None = None) -> Tensor:
        """The ``k`` highest-scoring structures, best first: ``[k, *batch, *event]``; the zero tensor where fewer are feasible.

        Raises:
            ValueError: k is not within ``1 .. count``.
        """
        valid, inside = self._prepared("kbest", scores, lengths)
        total = self.count(self._event(scores))
        if not 1 <= k <= total:
            raise ValueError(f"`kbest` got k={k}; expected 1 <= k <= {total}, the number of structures")

        def best(rows: Tensor) -> Tensor:
            # A forbidden part costs more than any sum of scores, so that what uses one comes last, and is still a structure.
            structures = self._kbest(torch.where(rows > -math.inf, rows.double(), FORBIDDEN), k)
            used = (structures != 0) & (rows == -math.inf)
            feasible = ~used.flatten(2).any(-1)
            return (structures * unsqueeze_event(feasible, self.event_ndim)).movedim(0, 1)

        listed = self._rowwise(best, valid)
        return cut(listed.movedim(scores.ndim - self.event_ndim, 0), inside)


class RelaxedOracle(Oracle):
    """An oracle with a differentiable dynamic programme (Mensch & Blondel 2018)."""

    @abc.abstractmethod
    def relax(self, scores: Tensor, omega: Literal["entropy", "l2"] = "entropy") -> Tensor:
        """The expected structure under the locally regularised recursion: ``[*batch, *event]``."""


def inner(structure: Tensor, scores: Tensor, event_ndim: int) -> Tensor:
    """``⟨θ, z⟩`` over the event dimensions, where a part that is 0 adds 0 even at score -inf."""
    product = structure * torch.where(structure != 0, scores, 0)
    return product.flatten(product.ndim - event_ndim).sum(-1)


def at_least_single(rows: Tensor) -> Tensor:
    """Half precision is computed in float32."""
    return rows.float() if rows.dtype in (torch.float16, torch.bfloat16) else rows


class _LogPartition(torch.autograd.Function):
    """A(θ) on distinct rows, with a gradient for every row."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, oracle: MarginalOracle) -> Tensor:
        ctx.oracle = oracle
        ctx.save_for_backward(scores)
        return oracle._rowwise(oracle._log_partition, scores)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (scores,) = ctx.saved_tensors
        oracle: MarginalOracle = ctx.oracle
        return unsqueeze_event(grads[0], oracle.event_ndim) * oracle._marginals_of(scores), None


class _Marginals(torch.autograd.Function):
    """μ(θ) on distinct rows; its backward is Cov(z)·v, written with differentiable operations, so exact to any order."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, oracle: MarginalOracle) -> Tensor:
        ctx.oracle = oracle
        ctx.save_for_backward(scores)
        return oracle._rowwise(oracle._marginals, scores)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (scores,) = ctx.saved_tensors
        oracle: MarginalOracle = ctx.oracle
        higher = torch.is_grad_enabled()
        with torch.enable_grad():
            theta = scores if scores.requires_grad else scores.detach().requires_grad_()
            rows = at_least_single(theta.reshape(-1, *oracle._event(scores)))
            log_partition = oracle._log_partition(rows).sum()
            (marginals,) = torch.autograd.grad(log_partition, theta, create_graph=True)
            (product,) = torch.autograd.grad(marginals, theta, grads[0], create_graph=higher, allow_unused=True, materialize_grads=True)
        return product, None


def unsqueeze_event(values: Tensor, event_ndim: int) -> Tensor:
    """[*batch] -> [*batch, 1, ...], to weigh whole structures."""
    return values.reshape(*values.shape, *([1] * event_ndim))
