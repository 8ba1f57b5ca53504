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
* ties go to the lowest index; randomness comes from an explicit `torch.Generator` alone;
* `torch.func` and `torch.compile` see one step (see `structgrad.oracles.transforms`).
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal, final

import torch
from torch import Tensor

from .. import kernels
from ..active_set import solver
from ..active_set.solution import Projection, SparseSolution
from ..magnitudes import beyond_memory, counted
from ..numerics import cut, log_sum_exp, share_rows, sparse_max, zero_ignored
from ..options import Configured
from ..random_streams import check_generator, random_uniform, standard_gumbel
from ..transforms import operation, refuse_duals, transforming, uncompiled
from .derivatives import LogPartition, Marginals, reference_covariance_product, reference_marginals, unsqueeze_event

Maximum = Callable[[Tensor, int], Tensor]
"""A maximum along a dimension, or what smooths it."""

RowArgmax = Callable[[Tensor, Tensor], Tensor]
"""MAP of directions [i, *event] that belong to the rows of these indices [i]."""

FORBIDDEN = -1e100
"""Stands for -inf where structures with forbidden parts must stay comparable."""

MAX_RANK = 2**62
"""The largest number of structures that can be unranked: ranks are int64."""


class Oracle(Configured, abc.ABC):
    """A finite set of structures with a MAP solver.

    A subclass is a frozen dataclass that holds options (never tensors), and implements `count`, `_check_event` and `_argmax`; the public
    methods validate, share expanded rows and restore dtype and shape, once, here. Where ``kernel`` names a folder of
    `structgrad.oracles`, the functions of its ``cpu.py`` serve the operations that they are named after on the CPU, and those of its
    ``gpu.py`` on CUDA devices; the underscored methods are their references in torch, for everything else.
    ``version`` is raised when a change moves measured values.
    """

    name: ClassVar[str]
    event_ndim: ClassVar[int]
    references: ClassVar[tuple[str, ...]] = ()
    kernel: ClassVar[str | None] = None
    version: ClassVar[int] = 1
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

    @final
    @operation()
    def argmax(self, scores: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        """The highest-scoring structure (MAP), ties to the lowest index: ``[*batch, *event]`` of 0/1, dtype of the scores."""
        valid, inside = self._prepared("argmax", scores, lengths)
        return self._cut(self._rowwise(lambda rows: self._best(self.natural_parameters(rows)), valid), inside)

    @final
    @operation()
    def score(self, z: Tensor, scores: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        """``⟨η, z⟩``: ``[*batch]``, differentiable in the scores; ``-inf`` for a structure with a forbidden part.

        It is what `argmax` maximises and what `kbest` ranks by: ``⟨θ, z⟩``, for a policy that is normalised locally the log-probability.
        ``z`` and ``scores`` broadcast against each other, so that many structures may share one row of scores.
        """
        valid, inside = self._prepared("score", scores, lengths)
        return self._score("score", z, self.natural_parameters(at_least_single(valid)), inside).to(scores.dtype)

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
        return (
            not transforming()
            and scores.device.type == "cpu"
            and scores.numel() > 0
            and kernels.least(share_rows(scores.detach(), self.event_ndim)) > -math.inf
        )

    @final
    def all_free(self, scores: Tensor) -> bool:
        """Whether every entry is a part, and none is forbidden for certain: then nothing has to be masked."""
        return not self._ignores_entries and self.forbids_nothing(scores)

    @final
    @operation()
    def free_parts(self, scores: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        """Boolean ``[*batch, *event]``: parts that are read and not forbidden. Only these carry noise and gradient."""
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
        return self._cut(values, inside.expand(*inside.shape[: inside.ndim - self.event_ndim], *event_shape))

    @final
    def check_event(self, call: str, event_shape: tuple[int, ...]) -> None:
        """Raise ValueError, in the name of a call, where no score tensor of this oracle has such a shape."""
        self._check_sizes(call, event_shape)

    @final
    def argmax_of(self, parameters: Tensor) -> Tensor:
        """The best structure ``[b, *event]`` of natural parameters η of that shape, in their dtype; `argmax` makes them of scores."""
        return self._best(parameters).to(parameters.dtype)

    @final
    def reference_argmax(self, rows: Tensor) -> Tensor:
        """The best structure ``[b, *event]`` of natural parameters, always in plain torch, which can be compiled and transformed."""
        return self._reference_argmax(rows)[0].to(rows.dtype)

    # What a subclass implements: rows are [b, *event], valid, floating, with ignored entries set to 0 (only kernels get them as they are).

    @abc.abstractmethod
    def _check_event(self, call: str, event_shape: tuple[int, ...]) -> None:
        """Raise ValueError where no score tensor of this oracle has such a shape."""

    @abc.abstractmethod
    def _argmax(self, rows: Tensor) -> Tensor: ...

    def _score(self, call: str, z: Tensor, parameters: Tensor, inside: Tensor | None) -> Tensor:
        """⟨η, z⟩ of natural parameters: what is inside, without ignored entries."""
        natural = self._cut(self._cleaned(parameters), inside)
        if not isinstance(z, Tensor):
            raise ValueError(f"`{call}` got a structure of type {type(z).__name__}; expected a torch.Tensor [*batch, *event] of 0/1")
        if z.shape[z.ndim - self.event_ndim :] != natural.shape[natural.ndim - self.event_ndim :]:
            raise ValueError(
                f"`{call}` got a structure of shape {tuple(z.shape)} for scores of shape {tuple(natural.shape)}; "
                f"expected the same last {self.event_ndim} dimension(s)"
            )
        return inner(self._cut(z, inside), natural, self.event_ndim)

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

    def _parts_inside(self, event_shape: tuple[int, ...], inside: Tensor) -> Tensor:
        """Of what is inside, which are parts: those of the whole event, but for structures whose parts depend on the length."""
        return inside & self.read_mask(event_shape, inside.device)

    def _complete(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """Scores ``[*batch, *event]`` with the one free completion in their padding; the event may grow, results are cut back."""
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
        limits = self.length_limits(self._event(scores))
        one = () if len(limits) == 1 else (len(limits),)
        batch = scores.shape[: scores.ndim - self.event_ndim]
        if not isinstance(lengths, Tensor) or lengths.is_floating_point() or lengths.shape not in ((*batch, *one), one):
            got = f"{lengths.dtype} of shape {tuple(lengths.shape)}" if isinstance(lengths, Tensor) else type(lengths).__name__
            each = "one length" if len(limits) == 1 else f"{len(limits)} lengths"
            raise ValueError(f"`{call}` got lengths: {got}; expected an integer tensor of shape {(*batch, *one)}, {each} per item")
        # Values are looked at on the CPU alone, and the limits brought to no other device: either would make the host wait.
        if lengths.device.type == "cpu" and not bool(((lengths >= 1) & (lengths <= torch.tensor(limits if one else limits[0]))).all()):
            allowed = " and ".join(f"1 to {limit}" for limit in limits)
            raise ValueError(f"`{call}` got lengths from {int(lengths.min())} to {int(lengths.max())}; expected {allowed}")

    def _checked(self, call: str, scores: Tensor) -> Tensor:
        """The scores, or ValueError. Values are looked at on the CPU alone: elsewhere it would synchronise."""
        self._check_tensor(call, scores)
        if scores.device.type == "cpu" and scores.numel():
            distinct = share_rows(scores.detach(), self.event_ndim)
            # One cheap pass first: what is wrong in an ignored entry is nobody's business, and rare.
            if not kernels.greatest(distinct) < math.inf:
                bad = ~(distinct < math.inf) & self.read_mask(self._event(scores), scores.device)
                if bool(bad.any()):
                    raise ValueError(f"`{call}` got scores with NaN or +inf; expected finite scores, or -inf for a forbidden part")
        return scores

    def _cleaned(self, scores: Tensor) -> Tensor:
        """Scores with ignored entries at 0."""
        return zero_ignored(scores, self.read_mask(self._event(scores), scores.device)) if self._ignores_entries else scores

    def _cut(self, values: Tensor, inside: Tensor | None) -> Tensor:
        """Results for what is inside, 0 elsewhere, without what `_complete` added to the event; leading dimensions as they are."""
        if inside is None:
            return values
        for dim in range(-self.event_ndim, 0):
            values = values.narrow(dim, 0, inside.shape[dim])
        return torch.where(inside, values, 0)

    def _check_tensor(self, call: str, scores: Tensor) -> None:
        if not isinstance(scores, Tensor) or not scores.is_floating_point():
            got, do = (
                (f"dtype {scores.dtype}", "scores.float()")
                if isinstance(scores, Tensor)
                else (type(scores).__name__, "torch.as_tensor(scores)")
            )
            raise ValueError(f"`{call}` got scores of {got}; expected a floating-point torch.Tensor, as {do} gives")
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

    def _rowwise(self, compute: Callable[[Tensor], Tensor], scores: Tensor) -> Tensor:
        """Run ``compute`` on distinct rows [b, *event] and give its result back as [*batch, ...] in the dtype of the scores."""
        return self._rowwise_all(lambda rows: (compute(rows),), scores)[0]

    def _rowwise_all(self, compute: Callable[[Tensor], tuple[Tensor, ...]], scores: Tensor) -> list[Tensor]:
        batch = scores.shape[: scores.ndim - self.event_ndim]
        shared = share_rows(scores.detach(), self.event_ndim)
        distinct = shared.shape[: len(batch)]
        results = [result.to(scores.dtype) for result in compute(at_least_single(shared.reshape(-1, *self._event(scores))))]
        if len(batch) != 1:
            results = [result.reshape((*distinct, *result.shape[1:])) for result in results]
        if distinct != batch:
            results = [result.expand((*batch, *result.shape[len(batch) :])) for result in results]
        return results

    def _kernel(self, operation: str, rows: Tensor) -> kernels.AnyKernel | None:
        """The compiled kernel of an operation where it applies to these rows."""
        return kernels.find(self.kernel, operation, rows, self.kernel_options())

    def _best(self, rows: Tensor) -> Tensor:
        """MAP of rows, compiled where that applies."""
        kernel = self._kernel("argmax", rows)
        if kernel is None:
            return self._reference_argmax(rows)[0]
        structures = kernel.results(tuple(rows.shape), rows)
        kernel.run((rows.contiguous(),), (structures,), self._reference_argmax)
        return structures

    def _holds_empty(self, event_shape: tuple[int, ...]) -> bool:
        """Whether having no part is a structure, which is then feasible whatever is forbidden."""
        return False

    def _reference_argmax(self, rows: Tensor) -> tuple[Tensor]:
        return (self._argmax(self._cleaned(rows)),)


class MarginalOracle(Oracle):
    """An oracle of the Gibbs distribution ``p(z) ∝ exp⟨η, z⟩``.

    Its natural parameters η are the scores θ themselves, unless they are normalised locally: then η are the log-probabilities of a policy,
    and differ from θ. A subclass implements `_log_partition` in differentiable torch that is safe at ``-inf``; marginals, their exact
    Jacobian, entropy and log-probabilities follow from it, because ``∂A/∂η = μ`` and ``∂²A/∂η² = Cov(z)`` (Wainwright & Jordan 2008,
    section 3), and from the derivative of η in θ.

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

    def _holds_empty(self, event_shape: tuple[int, ...]) -> bool:
        if not self.sums_in_reach(event_shape):
            return False
        with torch.no_grad():
            rows = self._cleaned(torch.full((1, *event_shape), -math.inf, dtype=torch.float64))
            return bool(self._log_partition(rows) > -math.inf)

    def check_marginals(self, call: str, event_shape: tuple[int, ...]) -> None:
        """Raise ValueError where the log-partition of scores of such a shape is out of reach."""

    @final
    def reference_log_partition(self, rows: Tensor) -> Tensor:
        """``A``: [b] of scores ``[b, *event]``, always in plain torch, which can be compiled and transformed."""
        return self._reference_log_partition(self.natural_parameters(rows))

    @final
    def sums_in_reach(self, event_shape: tuple[int, ...]) -> bool:
        """Whether log-partition, marginals and samples of scores of such a shape can be had."""
        try:
            self.check_marginals("sums_in_reach", event_shape)
        except ValueError:
            return False
        return True

    @final
    @operation()
    def log_partition(self, scores: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        """``A = log Σ_z exp⟨η, z⟩``: ``[*batch]``; ``-inf`` where no structure is feasible.

        Its gradient is `marginals` where η is θ; of a policy that is normalised locally it is constantly 0, and so is its gradient.
        """
        return self._log_partition_of(self._parameters("log_partition", scores, lengths)[0]).to(scores.dtype)

    @final
    @operation()
    def marginals(self, scores: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        """``μ(θ) = E[z]``: ``[*batch, *event]`` in [0, 1]; differentiable, with the exact Jacobian; 0 for an infeasible item.

        The Jacobian is ``Cov(z) ∂η/∂θ``: ``Cov(z)`` where η is θ.
        """
        valid, inside = self._parameters("marginals", scores, lengths)
        return self._cut(self._marginals_of(valid)[0], inside).to(scores.dtype)

    @final
    @operation()
    def feasible(self, scores: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        """Boolean ``[*batch]``: whether any structure has a score above ``-inf``."""
        return self._log_partition_of(self._parameters("feasible", scores, lengths)[0].detach()) > -math.inf

    @final
    @operation()
    def log_prob(self, z: Tensor, scores: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        """``log p(z) = ⟨η, z⟩ − A``: ``[*batch]``, differentiable in the scores; ``-inf`` for a structure with a forbidden part.

        ``z`` and ``scores`` broadcast against each other, so that many samples may share one row of scores.
        """
        single, inside = self._parameters("log_prob", scores, lengths)
        total = self._score("log_prob", z, single, inside)
        log_partition = self._log_partition_of(single)
        return torch.where(log_partition > -math.inf, total - log_partition, -math.inf).to(scores.dtype)

    @final
    @operation()
    def entropy(self, scores: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        """``H = A − ⟨η, μ⟩`` in nats: ``[*batch]``, differentiable; 0 for an infeasible item."""
        single = self._parameters("entropy", scores, lengths)[0]
        marginals, log_partition = self._marginals_of(single)
        expected = inner(marginals, single, self.event_ndim)
        return torch.where(log_partition > -math.inf, log_partition - expected, 0).to(scores.dtype)

    @final
    @operation()
    def kl(self, scores: Tensor, other: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        """``KL(p_θ ‖ p_η)`` in nats, of the law of ``scores`` from that of ``other``: ``[*batch]``, differentiable in both.

        ``inf`` where the other law forbids what this one allows; 0 for an item that is infeasible under ``scores``.
        """
        here, there = (self._parameters("kl", theta, lengths)[0] for theta in (scores, other))
        marginals, log_partition = self._marginals_of(here)
        # Allowed here, forbidden there: left out of the sum, whose gradient would be NaN, and made infinite at the end.
        blocked = (marginals > 0) & (there == -math.inf)
        expected = inner(marginals, here, self.event_ndim) - inner(marginals, there.masked_fill(blocked, 0), self.event_ndim)
        divergence = self._log_partition_of(there) - log_partition + expected
        divergence = torch.where(blocked.flatten(blocked.ndim - self.event_ndim).any(-1), math.inf, divergence)
        return torch.where(log_partition > -math.inf, divergence, 0).to(scores.dtype)

    def _parameters(self, call: str, scores: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Natural parameters, at least float32, with their padding completed, and which entries are inside (None for all)."""
        valid, inside = self._prepared(call, scores, lengths)
        self.check_marginals(call, self._event(scores))
        return self.natural_parameters(at_least_single(valid)), inside

    def _log_partition_of(self, valid: Tensor) -> Tensor:
        if not (valid.requires_grad and torch.is_grad_enabled()):
            return self._compute_log_partition(valid)
        result: Tensor = LogPartition.apply(valid, self)  # type: ignore[no-untyped-call]
        return result

    def _marginals_of(self, valid: Tensor) -> tuple[Tensor, Tensor]:
        if not (valid.requires_grad and torch.is_grad_enabled()):
            return self._compute_marginals(valid)
        result: tuple[Tensor, Tensor] = Marginals.apply(valid, self)  # type: ignore[no-untyped-call]
        return result

    # What `derivatives` differentiates: kernels where they apply, the reference elsewhere and for rows whose range a kernel cannot certify.

    def _compute_log_partition(self, scores: Tensor) -> Tensor:
        def reference(rows: Tensor) -> tuple[Tensor]:
            return (self._reference_log_partition(rows),)

        def compute(rows: Tensor) -> Tensor:
            kernel = self._kernel("log_partition", rows)
            if kernel is None:
                return self._reference_log_partition(rows)
            log_partition = kernel.results((rows.shape[0],), rows, torch.float64)
            kernel.run_certified((rows.contiguous(),), (log_partition,), reference)
            return log_partition

        return self._rowwise(compute, scores)

    def _compute_marginals(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        def compute(rows: Tensor) -> tuple[Tensor, Tensor]:
            kernel = self._kernel("marginals", rows)
            if kernel is None:
                return self._reference_marginals(rows)
            marginals = kernel.results(tuple(rows.shape), rows)
            log_partition = kernel.results((rows.shape[0],), rows, torch.float64)
            kernel.run_certified((rows.contiguous(),), (marginals, log_partition), self._reference_marginals)
            return marginals, log_partition

        marginals, log_partition = self._rowwise_all(compute, scores)
        return marginals, log_partition

    def _compute_covariance_product(self, scores: Tensor, direction: Tensor) -> Tensor:
        def reference(rows: Tensor, along: Tensor) -> tuple[Tensor]:
            return (self._reference_covariance_product(rows, along),)

        rows = at_least_single(scores.detach().reshape(-1, *self._event(scores)))
        along = direction.detach().to(rows.dtype).reshape(rows.shape)
        kernel = self._kernel("covariance_product", rows)
        if kernel is None:
            product = self._reference_covariance_product(rows, along)
        else:
            product = kernel.results(tuple(rows.shape), rows)
            kernel.run_certified((rows.contiguous(), along.contiguous()), (product,), reference)
        return product.reshape(scores.shape).to(scores.dtype)

    def _reference_log_partition(self, scores: Tensor) -> Tensor:
        rows = at_least_single(self._cleaned(scores)).reshape(-1, *self._event(scores))
        return self._log_partition(rows).reshape(scores.shape[: scores.ndim - self.event_ndim])

    def _reference_marginals(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return reference_marginals(self._reference_log_partition, rows)

    def _reference_covariance_product(self, rows: Tensor, along: Tensor) -> Tensor:
        return reference_covariance_product(
            self._reference_log_partition, rows.detach().clone().requires_grad_(), along, differentiable=False
        )


class SamplingOracle(MarginalOracle):
    """An oracle that draws exact samples of its Gibbs distribution."""

    @abc.abstractmethod
    def _sample(self, rows: Tensor, uniforms: Tensor) -> Tensor:
        """Structures [s, b, *event] from rows [b, *event] and float64 uniforms [s, b, `_noise_size`]; 0 for an infeasible row."""

    @abc.abstractmethod
    def _noise_size(self, event_shape: tuple[int, ...]) -> int:
        """How many uniforms one sample takes."""

    @operation(leading="num_samples")
    def sample(
        self, scores: Tensor, num_samples: int | None = None, *, generator: torch.Generator, lengths: Tensor | None = None
    ) -> Tensor:
        """Exact samples: ``[*batch, *event]``, or ``[num_samples, *batch, *event]``; not differentiable (see `log_prob`).

        Uniforms are drawn in float64 whatever the scores' dtype: float32 uniforms would make rare structures impossible.
        An infeasible item gives the zero tensor.
        """
        check_generator("sample", generator)
        if num_samples is not None and not (isinstance(num_samples, int) and num_samples >= 1):
            raise ValueError(f"`sample` got num_samples={num_samples}; expected at least 1, or None for one sample without that dimension")
        valid, inside = self._prepared("sample", scores, lengths)
        self.check_marginals("sample", self._event(scores))
        valid, event = valid.detach(), self._event(valid)
        batch = tuple(scores.shape[: scores.ndim - self.event_ndim])
        leading = 1 if num_samples is None else num_samples
        uniforms = random_uniform(batch, (leading, self._noise_size(event)), generator=generator, device=scores.device)
        # Expanded dimensions join the samples, so that tables are built once per distinct row.
        expanded = [dim for dim, size in enumerate(batch) if size > 1 and valid.stride(dim) == 0]
        distinct = [dim for dim in range(len(batch)) if dim not in expanded]
        order = [*distinct, len(batch), *expanded]
        rows = at_least_single(share_rows(valid, self.event_ndim).reshape(-1, *event))
        shuffled = uniforms.permute(*order, len(batch) + 1)
        repeats = math.prod(shuffled.shape[len(distinct) : -1])
        drawn = self._draw(self.natural_parameters(rows), shuffled.reshape(rows.shape[0], repeats, shuffled.shape[-1]))
        drawn = drawn.reshape(*shuffled.shape[:-1], *event).to(scores.dtype)
        back = [order.index(dim) for dim in [len(batch), *range(len(batch))]]
        structures = drawn.permute(*back, *range(len(back), len(back) + self.event_ndim))
        return self._cut(structures[0] if num_samples is None else structures, inside)

    def _draw(self, rows: Tensor, uniforms: Tensor) -> Tensor:
        """Structures [b, s, *event] from rows [b, *event] and uniforms [b, s, noise]: compiled where that applies."""

        def reference(rows: Tensor, uniforms: Tensor) -> tuple[Tensor]:
            return (self._reference_draw(rows, uniforms),)

        kernel = self._kernel("sample", rows)
        if kernel is None:
            return self._reference_draw(rows, uniforms)
        structures = kernel.results((*uniforms.shape[:2], *rows.shape[1:]), rows)
        kernel.run_certified((rows.contiguous(), uniforms.contiguous()), (structures,), reference)
        return structures

    def _reference_draw(self, rows: Tensor, uniforms: Tensor) -> Tensor:
        return self._sample(self._cleaned(rows), uniforms.transpose(0, 1)).transpose(0, 1)


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

    def _project(self, rows: Tensor, argmax: RowArgmax, inside: Tensor | None) -> Projection:
        """The projection of float64 rows [b, *event], without gradients, which `SparseSolution` adds: by the active set, or a closed form.

        ``inside`` [b, *event] is False in the padding of shorter items (None where there is none): padding is forbidden in the rows, and is
        0 in every atom, which is a structure of the item alone. ``argmax(direction, items)`` is `_argmax` for some rows, so cut.
        """
        return solver.solve(argmax, rows, empty=lambda: self._holds_empty(self._event(rows)))

    @final
    @uncompiled
    def project(self, scores: Tensor, *, lengths: Tensor | None = None) -> SparseSolution:
        """``argmin_{μ ∈ conv Z} ½‖μ − θ‖²``: the sparse mean with its atoms and weights, differentiable, with a certified gap.

        Forbidden parts (``-inf``) are 0 in every atom. An infeasible item gives mean 0, weights 0 and gap ``inf``. Computed in float64.
        """
        if transforming():
            return self._project_transformed(scores, lengths)
        refuse_duals("project", scores)
        self._check_tensor("project", scores)
        inside = None if lengths is None else self._prepared("project", scores, lengths)[1]
        if inside is None:
            valid = self._cleaned(self._checked("project", scores))
        else:
            beyond = self._cleaned(torch.full_like(scores, -math.inf))
            valid = torch.where(self._parts_inside(self._event(scores), inside), scores, beyond)
        batch = scores.shape[: scores.ndim - self.event_ndim]
        shared = share_rows(valid.detach(), self.event_ndim)
        rows = at_least_single(shared.reshape(-1, *self._event(scores))).double()
        sizes = None if lengths is None else self._row_lengths(lengths, tuple(batch), self._event(scores))
        projection = self._project_rows(rows, sizes)
        return SparseSolution(projection, valid, tuple(shared.shape[: len(batch)]), self.event_ndim)

    def _project_transformed(self, scores: Tensor, lengths: Tensor | None) -> SparseSolution:
        """The solution under a transform, whose gradients are those of two operations: each of them solves anew."""
        mean, gap = self._projected(scores, lengths)
        batch = tuple(scores.shape[: scores.ndim - self.event_ndim])

        def decompose() -> tuple[Tensor, Tensor]:
            atoms, weights = self._decomposed(scores, lengths)
            return atoms.reshape(-1, *atoms.shape[len(batch) :]), weights.reshape(-1, *weights.shape[len(batch) :])

        projection = Projection(gap=gap.reshape(-1), decompose=decompose, mean=mean.reshape(-1, *self._event(scores)))
        return SparseSolution(projection, scores.detach(), batch, self.event_ndim)

    @operation()
    def _projected(self, scores: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        solution = self.project(scores, lengths=lengths)
        return solution.mean, solution.gap

    @operation()
    def _decomposed(self, scores: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        solution = self.project(scores, lengths=lengths)
        return solution.atoms, solution.weights

    def _project_rows(self, rows: Tensor, lengths: Tensor | None) -> Projection:
        kernel = self._kernel("project", rows)
        inside = None if lengths is None else self._inside(self._event(rows), lengths).expand_as(rows)

        def argmax(direction: Tensor, items: Tensor) -> Tensor:
            return self._argmax_inside(direction, None if lengths is None else lengths[items])

        if kernel is None:
            return self._project(rows, argmax, inside)
        completed = rows if lengths is None else self._complete(rows, lengths)
        if isinstance(kernel, kernels.Kernel):
            return solver.solve_compiled(kernel, completed, inside)
        return solver.solve_on_device(kernel, completed, inside, lambda: self._project(rows, argmax, inside), self._best)

    def _row_lengths(self, lengths: Tensor, batch: tuple[int, ...], event: tuple[int, ...]) -> Tensor:
        """Lengths of every row: [b], or [b, several]."""
        several = tuple(lengths.shape[lengths.ndim - 1 :]) if len(self.length_limits(event)) > 1 else ()
        return lengths.expand((*batch, *several)).reshape(math.prod(batch), *several)

    def _argmax_inside(self, rows: Tensor, lengths: Tensor | None) -> Tensor:
        if lengths is None:
            return self._best(rows)
        return self._cut(self._best(self._complete(rows, lengths)), self._inside(self._event(rows), lengths).expand_as(rows))


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
        return self._listed(ranks, event_shape)

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
        return self._listed(ranks, tuple(event_shape)).to(dtype or torch.get_default_dtype())

    def _listed(self, ranks: Tensor, event_shape: tuple[int, ...]) -> Tensor:
        """What `_unrank` gives, by a kernel where there is one."""

        def reference(ranks: Tensor) -> tuple[Tensor]:
            return (self._unrank(ranks, event_shape),)

        kernel = kernels.find_unranking(self.kernel, ranks, event_shape, self.kernel_options())
        if kernel is None:
            return self._unrank(ranks, event_shape)
        structures = kernel.results((len(ranks), *event_shape), ranks, torch.uint8)
        kernel.run((ranks,), (structures,), reference)
        return structures

    def _check_enumerable(self, call: str, event_shape: tuple[int, ...]) -> int:
        """The number of structures, or ValueError where ranks would not fit."""
        self._check_sizes(call, event_shape)
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
    def kbest(self, scores: Tensor, k: int, *, lengths: Tensor | None = None) -> Tensor:
        """The ``k`` highest-scoring structures, best first: ``[k, *batch, *event]``; the zero tensor where fewer are feasible.

        Raises:
            ValueError: k is not within ``1 .. count``.
        """
        valid, inside = self._prepared("kbest", scores, lengths)
        total = self.count(self._event(scores))
        if not isinstance(k, int) or not 1 <= k <= total:
            raise ValueError(f"`kbest` got k={k}; expected 1 <= k <= {total}, the number of structures")
        self._check_memory(f"`kbest` got k={k}", 8 * k * share_rows(valid, self.event_ndim).numel(), "choose a smaller k")

        def best(rows: Tensor) -> Tensor:
            rows = self._cleaned(self.natural_parameters(rows))
            # A forbidden part costs more than any sum of scores, so that what uses one comes last, and is still a structure.
            structures = self._kbest(torch.where(rows > -math.inf, rows.double(), FORBIDDEN), k)
            used = (structures != 0) & (rows == -math.inf)
            feasible = ~used.flatten(2).any(-1)
            return (structures * unsqueeze_event(feasible, self.event_ndim)).movedim(0, 1)

        listed = self._rowwise(best, valid)
        return self._cut(listed.movedim(scores.ndim - self.event_ndim, 0), inside)


class RelaxedOracle(MarginalOracle):
    """An oracle whose dynamic programme can be relaxed: every maximum of its recursion smoothed (Mensch & Blondel 2018).

    Example:
        >>> from structgrad.oracles import LinearChain
        >>> scores = LinearChain.from_potentials(torch.tensor([[0.0, 0.4], [3.0, 0.0]]), torch.zeros(2, 2))
        >>> LinearChain().relax(scores, "l2")[0, 0]
        tensor([0.3000, 0.7000])
    """

    @abc.abstractmethod
    def _value(self, rows: Tensor, maximum: Maximum) -> Tensor:
        """The best score [b] of rows [b, *event], by a recursion whose every maximum is ``maximum(values, dim)``."""

    def _log_partition(self, rows: Tensor) -> Tensor:
        return self._value(rows, log_sum_exp)

    @final
    @operation()
    def relax(self, scores: Tensor, omega: Literal["entropy", "l2"] = "entropy", *, lengths: Tensor | None = None) -> Tensor:
        """The gradient of the smoothed recursion in its natural parameters: ``[*batch, *event]`` in [0, 1], differentiable.

        It is the expected structure of a walk whose every step is drawn from a regularised maximum of the recursion: with ``"entropy"``
        that is the Gibbs law, so the result is `marginals`; with ``"l2"`` (``Ω(p) = ½‖p‖²``) every step is a
        sparsemax, and the result sparse. 0 for an infeasible item.

        References:
            Mensch & Blondel 2018, "Differentiable dynamic programming for structured prediction and attention", sections 3 and 4.
        """
        if self._is_entropy("relax", omega):
            return self.marginals(scores, lengths=lengths)
        valid, inside = self._prepared("relax", scores, lengths)
        differentiable = torch.is_grad_enabled() and valid.requires_grad
        with torch.inference_mode(False), torch.enable_grad():
            theta = self.natural_parameters(valid if differentiable else valid.detach().clone().requires_grad_())
            value = self._sparse_value(theta)
            (expected,) = torch.autograd.grad(value.sum(), theta, create_graph=differentiable)
        return self._cut(expected.to(scores.dtype), inside)

    @final
    @operation()
    def relaxed_value(self, scores: Tensor, omega: Literal["entropy", "l2"] = "entropy", *, lengths: Tensor | None = None) -> Tensor:
        """The smoothed recursion itself, a convex function of the natural parameters whose gradient is `relax`: ``[*batch]``.

        With ``"entropy"`` it is `log_partition`. With ``"l2"`` a maximum takes ½ off where there is no choice, in padding too: a constant.
        ``-inf``, with gradient 0, for an infeasible item.
        """
        if self._is_entropy("relaxed_value", omega):
            return self.log_partition(scores, lengths=lengths)
        valid = self._prepared("relaxed_value", scores, lengths)[0]
        return self._sparse_value(self.natural_parameters(valid)).reshape(scores.shape[: scores.ndim - self.event_ndim]).to(scores.dtype)

    def _sparse_value(self, scores: Tensor) -> Tensor:
        """[b], every maximum of the recursion a sparsemax."""
        return self._value(self._cleaned(at_least_single(scores)).reshape(-1, *self._event(scores)), sparse_max)

    @staticmethod
    def _is_entropy(call: str, omega: str) -> bool:
        if omega not in ("entropy", "l2"):
            raise ValueError(f'`{call}` got omega={omega!r}; expected "entropy" or "l2"')
        return omega == "entropy"

    @final
    @operation()
    def relaxed_sample(
        self, scores: Tensor, temperature: float = 1.0, *, hard: bool = False, generator: torch.Generator, lengths: Tensor | None = None
    ) -> Tensor:
        """A relaxed sample of the Gibbs law (Fu et al. 2020): ``[*batch, *event]`` in [0, 1], differentiable; 0 for an infeasible item.

        The walk that draws a sample from the recursion chooses at every maximum, with probabilities that the values there give. Each choice
        is a Gumbel-softmax here, and the result is the expected structure of the relaxed walk: for ``temperature`` → 0 an exact sample. It
        depends on the scores through the choices, whose values are those of the exact recursion.

        Args:
            scores: [*batch, *event].
            temperature: of every Gumbel-softmax, positive.
            hard: take every choice as it is, which makes the result an exact sample; the derivative remains that of the softmaxes.
            generator: the only source of randomness.
            lengths: int [*batch], how much of the event an item uses.
        """
        check_generator("relaxed_sample", generator)
        if not temperature > 0:
            raise ValueError(f"`relaxed_sample` got temperature={temperature}; expected a positive number")
        valid, inside = self._prepared("relaxed_sample", scores, lengths)
        batch = tuple(scores.shape[: scores.ndim - self.event_ndim])
        rows = self._cleaned(self.natural_parameters(at_least_single(valid))).reshape(-1, *self._event(valid))
        choices: list[tuple[Tensor, Tensor]] = []

        def choose(values: Tensor, dim: int) -> Tensor:
            """The exact recursion, which leaves a choice behind at every maximum."""
            drawn = standard_gumbel(batch, tuple(values.shape[1:]), generator=generator, device=values.device)
            choices.append(_gumbel_softmax(values, drawn.reshape(values.shape).to(values.dtype), dim, temperature, hard=hard))
            return log_sum_exp(values, dim)

        self._value(rows, choose)
        return self._cut(self._walked(rows, choices).reshape(valid.shape).to(scores.dtype), inside)

    def _walked(self, rows: Tensor, choices: list[tuple[Tensor, Tensor]]) -> Tensor:
        """The expected structures of walks of known choices: with the maxima replaced by means, the recursion is linear in the scores."""
        remaining = iter(choices)

        def mean(values: Tensor, dim: int) -> Tensor:
            weights, allowed = next(remaining)
            return (weights * torch.where(allowed, values, 0)).sum(dim)

        with torch.enable_grad():
            origin = torch.zeros_like(rows, requires_grad=True)
            total = self._value(origin, mean).sum()
            differentiable = any(weights.requires_grad for weights, _ in choices)
            (expected,) = torch.autograd.grad(total, origin, create_graph=differentiable, materialize_grads=True)
        return expected


def _gumbel_softmax(values: Tensor, gumbel: Tensor, dim: int, temperature: float, *, hard: bool) -> tuple[Tensor, Tensor]:
    """Weights along a dimension, all 0 where every value is -inf, and which values are above -inf."""
    allowed = values > -math.inf
    some = allowed.any(dim, keepdim=True)
    noisy = torch.where(some, values + gumbel, 0) / temperature
    soft = torch.where(some, noisy.softmax(dim), 0)
    if not hard:
        return soft, allowed
    chosen = torch.zeros_like(soft).scatter_(dim, noisy.argmax(dim, keepdim=True), 1)
    return torch.where(some, chosen, 0) + (soft - soft.detach()), allowed


def inner(structure: Tensor, scores: Tensor, event_ndim: int) -> Tensor:
    """``⟨θ, z⟩`` over the event dimensions, where a part that is 0 adds 0 even at score -inf."""
    product = structure * torch.where(structure != 0, scores, 0)
    return product.flatten(product.ndim - event_ndim).sum(-1)


def at_least_single(rows: Tensor) -> Tensor:
    """Half precision is computed in float32."""
    return rows.float() if rows.dtype in (torch.float16, torch.bfloat16) else rows
