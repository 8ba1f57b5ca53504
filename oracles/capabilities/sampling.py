"""Exact samples, and the kinds of oracles that estimators for special structures name as what they need."""

import abc
import math
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from ..numerics import share_rows
from ..random_streams import inner_uniform, random_uniform
from ..transforms import operation, transforming, uncompiled
from .calls import LARGEST, are_large
from .marginals import MarginalOracle


class SamplingOracle(MarginalOracle):
    """An oracle that draws exact samples of its Gibbs distribution."""

    _draws_from_the_last: ClassVar[bool] = False
    """Whether samples are built from the last place, which then takes the last uniform, and the first place the first one."""

    _nodes_of_a_uniform: ClassVar[int] = 1
    """The number of successive nodes of a derivation that take the same uniform."""

    @abc.abstractmethod
    def _sample(self, rows: Tensor, uniforms: Tensor) -> Tensor:
        """Structures [s, b, *event] from rows [b, *event] and float64 uniforms [s, b, `_noise_size`]; 0 for an infeasible row."""

    @abc.abstractmethod
    def _noise_size(self, event_shape: tuple[int, ...]) -> int:
        """How many uniforms one sample takes."""

    @operation(leading="num_samples")
    def sample(
        self,
        scores: Tensor,
        num_samples: int | None = None,
        *,
        generator: torch.Generator,
        lengths: Tensor | None = None,
        as_indices: bool = False,
    ) -> Tensor:
        """Exact samples: ``[*batch, *event]``, or ``[num_samples, *batch, *event]``; not differentiable (see `log_prob`).

        Uniforms are drawn in float64 whatever the scores' dtype: float32 uniforms would make rare structures impossible.
        Indices take less time: of a long chain, a dense structure is most of it.

        Example:
            >>> from structgrad.oracles import LinearChain
            >>> scores = LinearChain.from_potentials(torch.tensor([[0.0, 9.0], [9.0, 0.0], [9.0, 0.0]]))
            >>> LinearChain().sample(scores, 2, generator=torch.Generator().manual_seed(0), as_indices=True)
            tensor([[1, 0, 0],
                    [1, 0, 0]])
        """
        if num_samples is not None and (not isinstance(num_samples, int) or isinstance(num_samples, bool) or num_samples < 1):
            raise ValueError(f"`sample` got num_samples={num_samples}; expected at least 1, or None for one sample without that dimension")
        parameters, inside = self._parameters("sample", scores, lengths, sums=True, as_indices=as_indices)
        parameters, dims = parameters.detach(), scores.ndim - self.event_ndim
        batch, event = tuple(scores.shape)[:dims], tuple(parameters.shape)[dims:]
        noise = (num_samples or 1, self._noise_size(event))
        uniforms = random_uniform(batch, noise, generator=generator, device=scores.device)
        plain = len(batch) == 1 and (batch[0] == 1 or parameters.stride(0) != 0)
        if not plain:
            # Expanded dimensions join the samples, so that tables are built once per distinct row.
            expanded = [dim for dim, size in enumerate(batch) if size > 1 and parameters.stride(dim) == 0]
            order = [*(dim for dim in range(dims) if dim not in expanded), dims, *expanded]
            parameters, shuffled = share_rows(parameters, self.event_ndim).reshape(-1, *event), uniforms.permute(*order, dims + 1)
            uniforms = shuffled.reshape(len(parameters), shuffled.shape[dims - len(expanded) : -1].numel(), noise[1])
        uniforms = uniforms.flip(-1) if self._draws_from_the_last else uniforms
        if self._nodes_of_a_uniform > 1:
            uniforms = uniforms.repeat_interleave(self._nodes_of_a_uniform, -1)
        output = (uniforms.shape[1],), None
        drawn = self._chosen("sample", parameters, self._reference_draw, uniforms, output=output, as_indices=as_indices)
        if plain:
            structures = drawn.transpose(0, 1)
        else:
            drawn = drawn.reshape(*shuffled.shape[:-1], *drawn.shape[2:])
            structures = drawn.permute(*(order.index(dim) for dim in [dims, *range(dims)]), *range(dims + 1, drawn.ndim))
        structures = structures[0] if num_samples is None else structures
        if inside is None and (as_indices or structures.dtype == scores.dtype):
            return structures
        return self._cut_indices(structures, inside, event) if as_indices else self._cut(structures, inside, scores.dtype)

    def _reference_draw(self, rows: Tensor, uniforms: Tensor) -> Tensor:
        """Structures [b, s, *event] of natural parameters [b, *event] and uniforms [b, s, noise]."""
        return self._sample(self._cleaned(rows), uniforms.transpose(0, 1)).transpose(0, 1)


class FactorisedOracle(SamplingOracle):
    """One or more independent categories: along the last event dimension, every structure uses exactly one part.

    The Gibbs law is the product of the softmax along that dimension, so that a Gumbel race, a conditional law or an antithetic pair has a
    closed form. A category of two parts is a bit.

    Example:
        >>> from structgrad.oracles import Categorical, Subset
        >>> isinstance(Categorical(), FactorisedOracle), isinstance(Subset(1), FactorisedOracle)
        (True, False)
    """


class SubsetOracle(SamplingOracle):
    """Exactly ``k`` of n parts, any of them: event ``[n]``.

    Example:
        >>> from structgrad.oracles import Subset
        >>> isinstance(Subset(3), SubsetOracle), Subset(3).k
        (True, 3)
    """

    k: int


class PolicyOracle(SamplingOracle):
    """Structures that are built by a sequence of decisions: every part is an action at a state, the last event dimension the choice there.

    A structure passes a state at most once, and uses exactly one action at each state that it passes.

    Example:
        >>> from structgrad.oracles import ShiftReduce
        >>> ShiftReduce("local").steps((4, 4, 2))[2, 2]  # after two shifts, with a stack of two: the third decision
        tensor([2, 2])
    """

    @abc.abstractmethod
    def step_log_probs(self, scores: Tensor, *, lengths: Tensor | None = None) -> Tensor:
        """Log-probability of each action at its state, ``[*batch, *event]``; ``-inf`` where impossible; differentiable."""

    @abc.abstractmethod
    def steps(self, event_shape: tuple[int, ...], device: torch.device | None = None) -> Tensor:
        """Int64 ``[*event]``: how many decisions come before the state of each part; -1 for an ignored entry."""


@dataclass(frozen=True, eq=False)
class DrawnSet:
    """k structures without replacement: each the next draw of the Gibbs law of those that are left.

    Where fewer are feasible, the first structure fills the other slots, with log-probability ``-inf``.

    Attributes:
        structures: ``[k, *batch, *event]``, in the order in which they were drawn.
        log_probs: float64 ``[*batch, k]``.
        log_rest: float64 ``[*batch]``: the log-probability of all other structures together.
        threshold: float64 ``[*batch]``: the greatest perturbed log-probability among the others; ``-inf`` where there are none.
    """

    structures: Tensor
    log_probs: Tensor
    log_rest: Tensor
    threshold: Tensor


class DistinctSamplingOracle(SamplingOracle):
    """An oracle that draws structures without replacement, however many there are: it lists none of them.

    Example:
        >>> from structgrad.oracles import Subset
        >>> scores, generator = torch.linspace(-1, 1, 100, dtype=torch.float64), torch.Generator().manual_seed(0)
        >>> drawn = Subset(20).sample_distinct(scores, 3, generator=generator)  # of 5·10²⁰
        >>> drawn.structures.sum(-1), drawn.structures.unique(dim=0).shape
        (tensor([20., 20., 20.], dtype=torch.float64), torch.Size([3, 100]))
    """

    @abc.abstractmethod
    def _distinct_noise_size(self, event_shape: tuple[int, ...], k: int) -> int:
        """How many uniforms k structures take."""

    @abc.abstractmethod
    def _sample_distinct(self, rows: Tensor, items: Tensor, k: int, uniforms: Tensor) -> DrawnSet:
        """A set of each of the walks ``[w]``, each on the row ``[b, *event]`` that ``items`` names, by uniforms ``[w, noise]``."""

    @final
    @uncompiled
    def sample_distinct(self, scores: Tensor, k: int, *, generator: torch.Generator, lengths: Tensor | None = None) -> DrawnSet:
        """k structures without replacement (all, where there are fewer), as those of the k largest ``log p(z) + Gumbel``.

        The set has the law of a race of all structures, and knows the mass of those outside, which is added up and never subtracted.
        Not differentiable.

        Cost: one log-partition, and for each structure about what a sample takes.

        Raises:
            ValueError: k below 1; a call under a transform of ``torch.func``.

        References:
            Kool, van Hoof & Welling 2019, "Stochastic beams and where to find them".
        """
        if not isinstance(k, int) or isinstance(k, bool) or k < 1:
            raise ValueError(f"`sample_distinct` got k={k!r}; expected an integer >= 1, how many structures to draw")
        if transforming():
            raise ValueError(
                "`sample_distinct` got called under a transform of torch.func; expected plain tensors: batch its scores instead"
            )
        scores = scores.detach() if isinstance(scores, Tensor) else scores
        parameters, inside = self._parameters("sample_distinct", scores, lengths, sums=True)
        event, batch = self._event(parameters), tuple(scores.shape[: scores.ndim - self.event_ndim])
        k = min(k, self.count(event))
        uniforms = inner_uniform(batch, (self._distinct_noise_size(event, k),), generator=generator, device=scores.device)
        shared = share_rows(parameters, self.event_ndim)
        distinct = shared.shape[: shared.ndim - self.event_ndim]
        items = torch.arange(math.prod(distinct), device=scores.device).reshape(distinct).expand(batch).flatten()
        rows = self._cleaned(shared.reshape(-1, *event).double())
        drawn = self._sample_distinct(rows, items, k, uniforms.reshape(len(items), uniforms.shape[-1]))
        structures = self._cut(drawn.structures.reshape(k, *batch, *event), inside, scores.dtype)
        log_probs, log_rest = drawn.log_probs.reshape(*batch, k), drawn.log_rest.reshape(batch)
        if are_large(rows):  # Walks add up log-weights, which lose digits.
            large = ((rows.abs() > LARGEST) & (rows > -math.inf)).flatten(1).any(1)[items].reshape(batch)
            raw = self._parameters("sample_distinct", scores, lengths, raw=True)[0]  # a policy in float32 is rounded already
            exact = self.log_prob(drawn.structures.reshape(k, *batch, *event), raw.double()).movedim(0, -1)
            log_probs = torch.where(large.unsqueeze(-1) & (log_probs > -math.inf), exact, log_probs)
            rest = 1 - log_probs.exp().sum(-1)
            rest = torch.where(rest > 1e-9, rest.log(), log_rest.clamp(max=math.log(1e-9)))
            log_rest = torch.where(large & (log_rest > -math.inf), rest, log_rest)
        return DrawnSet(structures, log_probs, log_rest, drawn.threshold.reshape(batch))
