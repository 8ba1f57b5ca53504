"""Gibbs distributions: log-partition, marginals and their derivatives, probabilities, entropy."""

import abc
import math
from contextlib import suppress
from typing import Any, Literal, Protocol, final

import torch
from torch import Tensor
from torch._C._functorch import unwrap_if_dead

from .. import kernels
from ..numerics import grown, in_single, share_rows
from ..transforms import operation
from .base import Oracle, inner
from .calls import LARGEST, are_large
from .derivatives import (
    LAW,
    LOG_PARTITION,
    differentiated,
    exchanged_for,
    law,
    reference_covariance_product,
    unsqueeze_event,
)


class ExactLaw(Protocol):
    """A Gibbs law of rows ``[b, *event]`` whose probabilities are right at any scale of the scores; differentiable.

    Attributes:
        offsets: ``[b, c]``, whose exact sum is the log-partition.
    """

    offsets: Tensor

    @property
    def marginals(self) -> Tensor:
        """``[b, *event]``."""

    def entropy(self) -> Tensor:
        """``[b]``."""

    def kl(self, other: Any) -> Tensor:
        """``[b]``, without what the other law forbids."""


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

    @final
    def sums_in_reach(self, event_shape: tuple[int, ...]) -> bool:
        """Whether log-partition, marginals and samples of scores of such a shape can be had."""
        try:
            self.check_marginals("sums_in_reach", event_shape)
        except ValueError:
            return False
        return True

    @final
    @operation(gives="batch")
    def log_partition(self, scores: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        """``A = log Σ_z exp⟨η, z⟩``: ``[*batch]``; ``-inf`` where no structure is feasible.

        Its gradient is `marginals` where η is θ; of a policy that is normalised locally both are 0.
        """
        log_partition: Tensor = self._law_of(self._parameters("log_partition", scores, lengths, sums=True)[0], "A")
        return log_partition.to(scores.dtype)

    @final
    @operation(gives="event")
    def marginals(self, scores: Tensor, *, lengths: Tensor | None = None, at: Tensor | None = None) -> Tensor:
        """``μ(θ) = E[z]``: ``[*batch, *event]`` in [0, 1]; differentiable, with the exact Jacobian ``Cov(z) ∂η/∂θ``.

        With ``at``, a structure like the scores, that is given in place of μ, with the Jacobian of μ as its derivative: the
        straight-through forward. μ itself is then not computed.

        Example:
            >>> from structgrad.oracles import Subset
            >>> scores = torch.tensor([0.5, 0.0, 0.0], requires_grad=True)
            >>> z = Subset(1).marginals(scores, at=Subset(1).argmax(scores))
            >>> (z * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
            >>> z.detach(), scores.grad
            (tensor([1., 0., 0.]), tensor([-0.3715,  0.0487,  0.3228]))
        """
        if at is not None and not (isinstance(at, Tensor) and isinstance(scores, Tensor) and at.shape == scores.shape):
            self._check_alike("marginals", scores, "at", at)
            scores, at = torch.broadcast_tensors(scores, at)
        parameters, inside = self._parameters("marginals", scores, lengths, sums=True)
        if at is not None:
            at = grown(at.detach().to(parameters.dtype), self._event(parameters))
        marginals: Tensor = self._law_of(parameters, "μ", at)
        return marginals if inside is None and marginals.dtype == scores.dtype else self._cut(marginals, inside, scores.dtype)

    @final
    @operation()
    def feasible(self, scores: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        """Boolean ``[*batch]``: whether any structure has a score above ``-inf``."""
        log_partition: Tensor = self._law_of(self._parameters("feasible", scores, lengths, sums=True)[0].detach(), "A")
        return log_partition > -math.inf

    @final
    @operation(gives="batch")
    def log_prob(self, z: Tensor, scores: Tensor, *, lengths: Tensor | None = None, as_indices: bool = False) -> Tensor:
        """``log p(z) = ⟨η, z⟩ − A``: ``[*batch]``, differentiable in the scores; ``-inf`` for a structure with a forbidden part.

        ``z`` and ``scores`` broadcast, as in `score`.
        """
        parameters, inside = self._parameters("log_prob", scores, lengths, sums=True, as_indices=as_indices)
        score, reach = self._score_indices if as_indices else self._score, kernels.reach(parameters, LARGEST)
        log_partition: Tensor = self._law_of(parameters, "A")
        infeasible = log_partition == -math.inf
        result = (score("log_prob", z, (parameters, inside), reach == 0) - log_partition).masked_fill(infeasible, -math.inf)
        result.detach().clamp_(max=0)  # What rounding leaves above it, under the same derivative.
        if reach == 2 and (exact := self._exact(parameters.detach())):
            large, offsets = exact[0], exact[1].offsets.reshape(*exact[0].shape, -1)
            value = score("log_prob", z.detach(), (parameters.detach().double(), inside), False, offsets)
            # Of an infeasible item the exact sums are NaN.
            result = torch.where(large & ~infeasible, exchanged_for(value, result), result)
        return result.to(scores.dtype)

    @final
    @operation(gives="batch")
    def entropy(self, scores: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        """``H = A − ⟨η, μ⟩`` in nats: ``[*batch]``, differentiable; 0 for an infeasible item."""
        double = self._parameters("entropy", scores, lengths, sums=True)[0].double()
        marginals, log_partition = self._law_of(double, "both")
        reach = kernels.reach(double, LARGEST)
        entropy: Tensor = log_partition - self._mean_score(marginals, double, reach)
        if reach == 2 and (exact := self._exact(double)):
            entropy = torch.where(exact[0], exact[1].entropy().reshape(exact[0].shape), entropy)
        entropy = entropy.masked_fill(log_partition == -math.inf, 0)
        entropy.detach().clamp_(min=0)
        return entropy.to(scores.dtype)

    @final
    @operation(gives="batch")
    def kl(self, scores: Tensor, other: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        """``KL(p_θ ‖ p_η)`` in nats, of the law of ``scores`` from that of ``other``: ``[*batch]``, differentiable in both.

        ``inf`` where the other law forbids what this one allows; 0 for an item that is infeasible under ``scores``.
        """
        self._check_alike("kl", scores, "other", other)
        here, there = (self._parameters("kl", theta, lengths, sums=True)[0].double() for theta in (scores, other))
        marginals, log_partition = self._law_of(here, "both")
        divergence: Tensor = self._law_of(there, "A") - log_partition
        reach = max(kernels.reach(each, LARGEST) for each in (here, there))
        if reach == 0:
            divergence = divergence + self._mean_score(marginals, here - there, 0)
        else:
            # Allowed here, forbidden there: left out of the sum, whose gradient would be NaN, and made infinite at the end.
            blocked = (marginals > 0) & (there == -math.inf)
            divergence = divergence + self._mean_score(marginals, here - there.masked_fill(blocked, 0), 1)
            if reach == 2 and (exact := self._exact(here, there)) and (second := self._exact(there, here)):
                divergence = torch.where(exact[0], exact[1].kl(second[1]).reshape(exact[0].shape), divergence)
            divergence = torch.where(blocked.flatten(blocked.ndim - self.event_ndim).any(-1), math.inf, divergence)
        divergence = divergence.masked_fill(log_partition == -math.inf, 0)
        divergence.detach().clamp_(min=0)
        return divergence.to(scores.dtype)

    def _mean_score(self, marginals: Tensor, parameters: Tensor, reach: int) -> Tensor:
        """⟨η, μ⟩ of parameters of such a `reach`."""
        return (marginals * parameters).flatten(-self.event_ndim).sum(-1) if reach == 0 else inner(marginals, parameters, self.event_ndim)

    def _law(self, rows: Tensor) -> ExactLaw | None:
        """The exact law of float64 natural parameters ``[b, *event]`` without ignored entries; None where there is no way to it."""
        return None

    def _exact(self, parameters: Tensor, *others: Tensor) -> tuple[Tensor, ExactLaw] | None:
        """Boolean ``[*batch]``, which rows of natural parameters or of others are large, and the exact law; None where none is.

        Asked where some are large. Without a gradient, rows that share their parameters share their law.
        """
        given = [each if differentiated(each) else share_rows(each, self.event_ndim) for each in (parameters, *others)]
        if others:
            given = torch.broadcast_tensors(*given)
        rows = [self._cleaned(each).double() for each in given]
        large = torch.stack([((each.abs() > LARGEST) & (each > -math.inf)).flatten(-self.event_ndim).any(-1) for each in rows]).any(0)
        exact = self._law(rows[0].reshape(-1, *self._event(rows[0]))) if bool(large.any()) else None
        return None if exact is None else (large, exact)

    def _law_of(self, parameters: Tensor, wanted: Literal["A", "μ", "both"], at: Tensor | None = None) -> Any:
        """A, or μ or the structure in its place, or μ and A, differentiable where a gradient may be asked for."""
        if parameters.requires_grad and torch.is_grad_enabled():
            return law(unwrap_if_dead(parameters), self, wanted, at)
        if at is not None:
            return at
        if wanted == "A":
            return self._run("log_partition", parameters, (LOG_PARTITION,), lambda rows: (self._reference_log_partition(rows),))[0]
        both = self._run("marginals", parameters, LAW, self._exact_marginals)
        return both if wanted == "both" else both[0]

    def _check_alike(self, call: str, scores: Tensor, name: str, given: Any) -> None:
        """ValueError where what is given is no tensor of events of the same size, in a batch that broadcasts against that of the scores."""
        self.check_scores(call, scores)
        if not isinstance(given, Tensor):
            raise ValueError(
                f"`{call}` got {name} of type {type(given).__name__}; expected a tensor like the scores, of shape {tuple(scores.shape)}"
            )
        if self._event(given) == self._event(scores):
            with suppress(RuntimeError):
                torch.broadcast_shapes(given.shape, scores.shape)
                return
        raise ValueError(
            f"`{call}` got {name} of shape {tuple(given.shape)} for scores of shape {tuple(scores.shape)}; expected one like them"
        )

    # What `derivatives` differentiates: kernels where they apply, the reference elsewhere and for rows whose range a kernel cannot certify.

    def _compute_covariance_product(self, parameters: Tensor, direction: Tensor) -> Tensor:
        """``Cov(z) v`` for directions v like the parameters."""
        along = direction.detach().resolve_neg().to(parameters.dtype)  # NumPy does not know torch's negative views
        reference = self._reference_covariance_product
        return self._run("covariance_product", parameters, (None,), lambda *given: (reference(*given),), along)[0]

    def _reference_log_partition(self, scores: Tensor) -> Tensor:
        rows = in_single(self._cleaned(scores), self.event_ndim).reshape(-1, *self._event(scores))
        return self._log_partition(rows).reshape(scores.shape[: scores.ndim - self.event_ndim])

    def _exact_marginals(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Marginals and log-partitions of rows in torch, right at any scale."""
        marginals, log_partition = self._reference_marginals(rows)
        if are_large(rows) and (exact := self._exact(rows.detach())):
            marginals = torch.where(unsqueeze_event(exact[0], self.event_ndim), exact[1].marginals, marginals)
        return marginals, log_partition

    def _reference_marginals(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Marginals and log-partition of rows by automatic differentiation."""
        with torch.inference_mode(False), torch.enable_grad():
            leaf = rows.detach().clone().requires_grad_()
            value = self._reference_log_partition(leaf)
            (marginals,) = torch.autograd.grad(value.sum(), leaf)
        return marginals, value.detach()

    def _reference_covariance_product(self, rows: Tensor, along: Tensor) -> Tensor:
        return reference_covariance_product(
            self._reference_log_partition, rows.detach().clone().requires_grad_(), along, differentiable=False
        )
