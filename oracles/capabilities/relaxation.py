"""Dynamic programmes with a smoothed maximum."""

import abc
import math
from collections.abc import Callable
from typing import Literal, final

import torch
from torch import Tensor

from ..numerics import log_sum_exp, sparse_max
from ..random_streams import standard_gumbel
from ..transforms import operation
from .marginals import MarginalOracle

Maximum = Callable[[Tensor, int], Tensor]
"""A maximum along a dimension, or what smooths it."""


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
    @operation(gives="event")
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
        parameters, inside = self._parameters("relax", scores, lengths)
        differentiable = torch.is_grad_enabled() and parameters.requires_grad
        with torch.inference_mode(False), torch.enable_grad():
            theta = parameters if differentiable else parameters.detach().clone().requires_grad_()
            value = self._sparse_value(theta)
            (expected,) = torch.autograd.grad(value.sum(), theta, create_graph=differentiable)
        return self._cut(expected, inside, scores.dtype)

    @final
    @operation(gives="batch")
    def relaxed_value(self, scores: Tensor, omega: Literal["entropy", "l2"] = "entropy", *, lengths: Tensor | None = None) -> Tensor:
        """The smoothed recursion itself, a convex function of the natural parameters whose gradient is `relax`: ``[*batch]``.

        With ``"entropy"`` it is `log_partition`. With ``"l2"`` a maximum takes ½ off where there is no choice, in padding too: a constant.
        ``-inf``, with gradient 0, for an infeasible item.
        """
        if self._is_entropy("relaxed_value", omega):
            return self.log_partition(scores, lengths=lengths)
        value = self._sparse_value(self._parameters("relaxed_value", scores, lengths)[0])
        return value.reshape(scores.shape[: scores.ndim - self.event_ndim]).to(scores.dtype)

    def _sparse_value(self, parameters: Tensor) -> Tensor:
        """[b], every maximum of the recursion a sparsemax."""
        return self._value(self._cleaned(parameters).reshape(-1, *self._event(parameters)), sparse_max)

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
        is a Gumbel-softmax of this ``temperature`` > 0 here, and the result is the expected structure of the relaxed walk: for
        ``temperature`` → 0 an exact sample. It depends on the scores through the choices, whose values are those of the exact recursion.
        With ``hard`` every choice is taken as it is: an exact sample, whose derivative remains that of the softmaxes.
        """
        if not temperature > 0:
            raise ValueError(f"`relaxed_sample` got temperature={temperature}; expected a positive number")
        parameters, inside = self._parameters("relaxed_sample", scores, lengths)
        batch = tuple(scores.shape[: scores.ndim - self.event_ndim])
        rows = self._cleaned(parameters).reshape(-1, *self._event(parameters))
        choices: list[tuple[Tensor, Tensor]] = []

        def choose(values: Tensor, dim: int) -> Tensor:
            """The exact recursion, which leaves a choice behind at every maximum."""
            drawn = standard_gumbel(batch, tuple(values.shape[1:]), generator=generator, device=values.device)
            allowed = values > -math.inf
            some = allowed.any(dim, keepdim=True)
            noisy = torch.where(some, values + drawn.reshape(values.shape).to(values.dtype), 0) / temperature
            weights = torch.where(some, noisy.softmax(dim), 0)
            if hard:
                chosen = torch.zeros_like(weights).scatter_(dim, noisy.argmax(dim, keepdim=True), 1)
                weights = torch.where(some, chosen, 0) + (weights - weights.detach())
            choices.append((weights, allowed))
            return log_sum_exp(values, dim)

        learning = torch.is_grad_enabled()
        with torch.inference_mode(False), torch.set_grad_enabled(learning):  # the walk asks autograd
            self._value(rows, choose)
            walked = self._walked(rows, choices)
        return self._cut(walked.reshape(parameters.shape), inside, scores.dtype)

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
