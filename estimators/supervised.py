"""Losses of scores against a known structure, for supervised heads: Fenchel–Young losses.

Each maps ``(oracle, scores, target)`` to ``[*batch]``. The target is a structure, ``[*batch, *event]``, that broadcasts against the scores.
The gradient in the scores is ``ŷ(θ) − y``, exactly, with the prediction ŷ of the loss; minimise.

| loss | prediction ŷ | regulariser Ω |
|---|---|---|
| `structured_perceptron` | argmax | 0 |
| `crf_loss` | marginals | minus the entropy of the Gibbs law |
| `sparsemap_loss` | SparseMAP | ½‖μ‖² |
| `margin_perceptron`, `margin_sparsemap_loss` | the same at ``θ + ρ`` | the same, minus the Hamming cost |
| `PerturbedFenchelYoung` | mean of argmax at noisy scores | the conjugate of the expected maximum |

Forbidden parts carry no gradient. A row where nothing is feasible has loss 0, and one whose target holds a forbidden part ``inf``, both
with gradient 0. For a policy that is normalised locally, ⟨θ, z⟩ is the log-probability of z in all but the SparseMAP losses, which take the
scores as they are; ŷ − y is then the gradient in the log-probabilities of the actions, the scores get what follows from it, and the
perceptrons are not convex.
"""

import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from ..oracles.capabilities import MarginalOracle, Oracle, ProjectionOracle
from ..oracles.capabilities.calls import are_large
from ..oracles.capabilities.derivatives import unsqueeze_event
from ..oracles.numerics import in_single
from ..oracles.options import Configured, Count
from ..oracles.tensor_kinds import naming
from ..oracles.transforms import operation
from .base import check_call
from .noise import AnyNoise, Gumbel
from .surrogates import expand_samples

F = TypeVar("F", bound=Callable[..., Tensor])


def _loss(called: str, need: Any = Oracle, known: str = "target") -> Callable[[F], F]:
    """Check the arguments of a loss, whose errors name this call, and compute it in float32 at least, in float64 at scores above `LARGEST`.

    It is a small difference of large numbers, and is rounded once. Values are looked at on the CPU alone. The oracle must have the
    capability that is needed.
    """

    def decorate(loss: F) -> F:
        parameters = list(inspect.signature(loss).parameters)

        @naming(called)
        @functools.wraps(loss)
        def computed(*args: Any, **named: Any) -> Tensor:
            given = dict(zip(parameters, args, strict=False)) | named
            (oracle,) = check_call(called, oracle=given["oracle"])
            scores, target = given["scores"], given[known]
            oracle.check_scores(called, scores)
            event = scores.shape[scores.ndim - oracle.event_ndim :]
            if not isinstance(target, Tensor) or target.shape[target.ndim - len(event) :] != event:
                got = f"shape {tuple(target.shape)}" if isinstance(target, Tensor) else type(target).__name__
                raise ValueError(f"`{called}` got {known} of {got} for scores of shape {tuple(scores.shape)}; expected a tensor like them")
            if given.get("lengths") is not None:
                oracle.check_lengths(called, scores, given["lengths"])
            if not isinstance(oracle, need):
                raise ValueError(f"`{called}` needs {need.__name__}, which the oracle {oracle.name} does not offer; choose another pair")
            single = in_single(scores, len(event))
            if single.dtype == torch.float32 and are_large(single):
                single = single.double()
            value = loss(**given | {"oracle": oracle, "scores": single})
            return value if single is scores else value.to(scores.dtype)

        computed.__name__ = called
        return cast(F, computed)

    return decorate


def fenchel_young(conjugate: Tensor, regulariser: Tensor | float, target_score: Tensor) -> Tensor:
    """The Fenchel–Young loss ``Ω*(θ) + Ω(y) − ⟨θ, y⟩``: ``[*batch]``, convex in θ, at least 0, and 0 exactly where ``ŷ_Ω(θ) = y``.

    ``Ω*(θ) = max_μ ⟨θ, μ⟩ − Ω(μ)``, and ŷ_Ω(θ), where that is attained, is its gradient.

    Args:
        conjugate: ``Ω*(θ)``, differentiable; ``-inf`` where nothing is feasible, and there the loss is 0.
        regulariser: ``Ω(y)``.
        target_score: ``⟨θ, y⟩``, differentiable; ``-inf`` where the target is forbidden, and there the loss is ``inf``.

    References:
        Blondel, Martins & Niculae 2020, "Learning with Fenchel-Young losses", definition 2 and proposition 2.

    Example:
        >>> scores, target = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
        >>> fenchel_young(scores.logsumexp(-1), 0.0, scores @ target), -scores.log_softmax(-1)[1]
        (tensor(1.3133), tensor(1.3133))
    """
    feasible, allowed = conjugate > -math.inf, target_score > -math.inf
    # Both replaced, so that no difference of infinities has a gradient.
    value = torch.where(feasible, conjugate, 0) + regulariser - torch.where(allowed, target_score, 0)
    return torch.where(feasible & allowed, value, torch.where(feasible, math.inf, 0.0).to(value))


@operation(gives="batch")
@_loss("structured_perceptron")
def structured_perceptron(oracle: Oracle, scores: Tensor, target: Tensor, *, lengths: Tensor | None = None) -> Tensor:
    """The structured perceptron loss ``max_z ⟨θ, z⟩ − ⟨θ, y⟩``, of gradient ``argmax θ − y``.

    0 where the target is a best structure; that needs no margin, and scores of 0 attain it.

    Cost: one argmax.

    Args:
        oracle: any.
        scores: ``[*batch, *event]``.
        target: structures.
        lengths: of the items, where the oracle takes them.

    References:
        Collins 2002, "Discriminative training methods for hidden Markov models", section 2; Blondel, Martins & Niculae 2020, section 3.2.

    Example:
        >>> from structgrad.oracles import Subset
        >>> scores, target = torch.tensor([1.0, 0.6, 0.2], requires_grad=True), torch.tensor([0.0, 1.0, 1.0])
        >>> loss = structured_perceptron(Subset(2), scores, target)
        >>> loss.backward()
        >>> loss.detach(), scores.grad
        (tensor(0.8000), tensor([ 1.,  0., -1.]))
    """
    best = oracle.argmax(scores.detach(), lengths=lengths)
    return _difference(oracle, scores, target, best, lengths=lengths)


def _difference(  # noqa: PLR0913
    oracle: Oracle, scores: Tensor, target: Tensor, point: Tensor, *, lengths: Tensor | None, curvature: float = 0.0
) -> Tensor:
    """``⟨η, x⟩ − c/2 ‖x‖²`` at the point where it is greatest minus that at the target; 0 in an infeasible item, inf at a forbidden target.

    Differences of structures are taken first, then sums. Scores are taken relative to one of them, so that a number that is added to all
    scores takes no digits. The gradient of a maximum is the point where it is attained, which may so be held fixed.
    """
    event = oracle.event_ndim
    feasible = point.flatten(point.ndim - event).any(-1)
    if curvature or (scores.dtype == torch.float64 and type(oracle).natural_parameters is Oracle.natural_parameters):
        free = oracle.free_parts(scores.detach(), lengths=lengths)
        y = torch.where(free, target.to(scores.dtype), 0)
        gap = torch.where(free, point - y, 0)
        allowed = oracle.score(target, scores.detach(), lengths=lengths) > -math.inf
        reference = torch.where(gap != 0, scores.detach(), -math.inf).flatten(-event).amax(-1)
        reference = torch.where(reference > -math.inf, reference, 0)
        relative = torch.where(free, scores - unsqueeze_event(reference, event), 0) - curvature / 2 * (point + y)
        size, eps = gap.flatten(-event).sum(-1, dtype=torch.float64), torch.finfo(scores.dtype).eps
        # Structures with as many parts each: what is left of the difference is rounding, which a large reference would blow up.
        size = torch.where(size.abs() <= 4 * eps * (point + y).flatten(-event).sum(-1), 0, size)
        value = (relative * gap).flatten(-event).sum(-1, dtype=torch.float64) + size * reference
    else:  # scores of float32 are summed in float64
        value = oracle.score(point - target.to(scores.dtype), scores, lengths=lengths)
        allowed = value < math.inf
    value.detach().clamp_(min=0)  # What rounding leaves below it, under the same derivative.
    constant = torch.where(feasible, math.inf, 0.0).to(scores)
    return torch.where(feasible & allowed, value.to(scores.dtype), constant)


@operation(gives="batch")
@_loss("crf_loss", MarginalOracle)
def crf_loss(oracle: MarginalOracle, scores: Tensor, target: Tensor, *, lengths: Tensor | None = None) -> Tensor:
    """The negative log-likelihood ``−log p(y) = A(θ) − ⟨θ, y⟩`` of the Gibbs law, of gradient ``μ(θ) − y``.

    The Fenchel–Young loss of minus the entropy. It falls towards 0 and attains it at no finite scores.

    Cost: one log-partition, and the marginals for the backward. Arguments are those of `structured_perceptron`.

    References:
        Lafferty, McCallum & Pereira 2001, "Conditional random fields", section 3; Blondel, Martins & Niculae 2020, section 7.

    Example:
        A tagger learns a sentence:

        >>> from structgrad.oracles import LinearChain
        >>> scores, target = torch.zeros(4, 3, 3, requires_grad=True), LinearChain.structure(torch.tensor([0, 2, 1, 1]), 3)
        >>> optimiser = torch.optim.SGD([scores], lr=1.0)
        >>> for _ in range(20):
        ...     optimiser.zero_grad()
        ...     loss = crf_loss("linear_chain", scores, target)
        ...     loss.backward()
        ...     optimiser.step()
        >>> loss.detach()  # 4.39 at first
        tensor(0.0578)
    """
    loss = 0 - oracle.log_prob(target, scores, lengths=lengths)
    impossible = loss == math.inf
    if loss.is_cpu and not bool(impossible.any()):
        return loss
    # A forbidden target has no gradient, and neither has an item in which nothing is feasible.
    constant = torch.where(oracle.feasible(scores.detach(), lengths=lengths), math.inf, 0.0).to(loss)
    return torch.where(impossible, constant, loss)


@operation(gives="batch")
@_loss("sparsemap_loss", ProjectionOracle)
def sparsemap_loss(oracle: ProjectionOracle, scores: Tensor, target: Tensor, *, lengths: Tensor | None = None) -> Tensor:
    """The SparseMAP loss ``max_μ (⟨θ, μ⟩ − ½‖μ‖²) + ½‖y‖² − ⟨θ, y⟩``, of gradient ``μ − y`` with the projection μ of θ.

    The Fenchel–Young loss of ½‖·‖². It attains 0, at finite scores, where the projection is the target.

    Cost: one projection. Arguments are those of `structured_perceptron`.

    References:
        Niculae et al. 2018, "SparseMAP: differentiable sparse structured inference", section 4; Blondel et al. 2020, section 7.

    Example:
        >>> from structgrad.oracles import Categorical
        >>> scores, target = torch.tensor([1.0, 0.8, -1.0], requires_grad=True), torch.tensor([1.0, 0.0, 0.0])
        >>> loss = sparsemap_loss(Categorical(), scores, target)
        >>> loss.backward()
        >>> loss.detach(), scores.grad
        (tensor(0.1600), tensor([-0.4000,  0.4000,  0.0000]))
        >>> sparsemap_loss(Categorical(), torch.tensor([2.0, 0.8, -1.0]), target)
        tensor(0.)
    """
    mean = oracle.project(scores.detach(), lengths=lengths).mean
    return _difference(oracle, scores, target, mean, lengths=lengths, curvature=1.0)


def hamming(target: Tensor, cost: float = 1.0) -> Tensor:
    """``ρ = cost·(1 − 2y)``: added to scores, it rewards every part in which z differs from y: ``⟨ρ, z⟩ = cost·(‖z − y‖² − ‖y‖²)``.

    Example:
        >>> hamming(torch.tensor([0.0, 1.0]))
        tensor([ 1., -1.])
    """
    values = target if target.is_floating_point() else target.to(torch.get_default_dtype())  # small integers would overflow
    return cost * (1 - 2 * values)


def _margins(oracle: Oracle, target: Tensor, cost: float) -> Tensor:
    """`hamming`, which parts that are counted have no share in."""
    binary = oracle.binary_mask(tuple(target.shape[target.ndim - oracle.event_ndim :]), target.device)
    return torch.where(binary, hamming(target, cost), 0)


@operation(gives="batch")
@_loss("margin_perceptron")
def margin_perceptron(oracle: Oracle, scores: Tensor, target: Tensor, *, cost: float = 1.0, lengths: Tensor | None = None) -> Tensor:
    """The structured hinge loss ``max_z (⟨θ, z⟩ + c‖z − y‖²) − ⟨θ, y⟩``: the structured perceptron at ``θ + ρ``, ρ of `hamming`.

    Of gradient ``argmax(θ + ρ) − y``. It is 0 exactly where the target leads every structure by c times their Hamming distance.

    Cost: one argmax. Arguments are those of `structured_perceptron`, and ``cost`` is c, of every part that differs.

    References:
        Taskar, Guestrin & Koller 2003, "Max-margin Markov networks", section 3; Blondel et al. 2020, section 7 (cost-sensitive losses).

    Example:
        >>> from structgrad.oracles import Subset
        >>> target = torch.tensor([0.0, 1.0, 1.0])
        >>> margin_perceptron(Subset(2), torch.tensor([0.2, 0.6, 1.0]), target)  # the target leads by 0.4, where 2 is asked
        tensor(1.6000)
    """
    return structured_perceptron(oracle, scores + _margins(oracle, target.to(scores), cost), target, lengths=lengths)


@operation(gives="batch")
@_loss("margin_sparsemap_loss", ProjectionOracle)
def margin_sparsemap_loss(
    oracle: ProjectionOracle, scores: Tensor, target: Tensor, *, cost: float = 1.0, lengths: Tensor | None = None
) -> Tensor:
    """The margin SparseMAP loss ``max_μ (⟨θ, μ⟩ − ½‖μ‖² + ρ(μ, y)) + ½‖y‖² − ⟨θ, y⟩``: the SparseMAP loss at ``θ + ρ``.

    ``ρ(μ, y) = c·(⟨1 − 2y, μ⟩ + ‖y‖²)`` is the expected Hamming cost. Of gradient ``μ − y`` with the projection μ of ``θ + ρ``.

    Cost: one projection. Arguments are those of `structured_perceptron`, and ``cost`` is c, of every part that differs.

    References:
        Niculae, Martins, Blondel & Cardie 2018, "SparseMAP: differentiable sparse structured inference", section 4.

    Example:
        >>> from structgrad.oracles import Categorical
        >>> target = torch.tensor([1.0, 0.0, 0.0])
        >>> margin_sparsemap_loss(Categorical(), torch.tensor([2.0, 0.8, -1.0]), target)
        tensor(0.8100)
    """
    return sparsemap_loss(oracle, scores + _margins(oracle, target.to(scores), cost), target, lengths=lengths)


@operation(gives="batch")
@_loss("spo_plus_loss", known="rewards")
def spo_plus_loss(oracle: Oracle, scores: Tensor, rewards: Tensor, *, lengths: Tensor | None = None) -> Tensor:
    """The SPO+ loss of predicted scores θ against true rewards r: ``[*batch]``, ``max_z ⟨2θ − r, z⟩ − ⟨2θ − r, z*⟩`` with the best z* of r.

    It bounds the reward that the predicted decision ``argmax θ`` loses, ``⟨r, z* − argmax θ⟩``, and is convex in θ. For costs c to be
    minimised give ``-c`` as rewards. The gradient in the scores is ``2 (argmax(2θ − r) − z*)``.

    Cost: two argmax. Arguments are those of `structured_perceptron`, and ``rewards``, like the scores.

    References:
        Elmachtoub & Grigas 2022, "Smart "predict, then optimize"", section 3.2.

    Example:
        >>> from structgrad.oracles import Subset
        >>> rewards, scores = torch.tensor([1.0, 0.9, 0.0]), torch.tensor([0.0, 1.0, 2.0])
        >>> spo_plus_loss(Subset(1), scores, rewards), spo_plus_loss(Subset(1), rewards, rewards)
        (tensor(5.), tensor(0.))
    """
    allowed, best = (scores > -math.inf) & (rewards > -math.inf), oracle.argmax(rewards, lengths=lengths)
    relative = torch.where(allowed, 2 * scores - rewards.to(scores.dtype), -math.inf)
    return structured_perceptron(oracle, relative, best, lengths=lengths)


@dataclass(frozen=True)
class PerturbedFenchelYoung(Configured):
    """The perturbed Fenchel–Young loss, ``E max_z ⟨θ + ε, z⟩ − ⟨θ, y⟩`` up to a constant, of gradient ``E argmax(θ + ε) − y``.

    The mean of structured perceptrons at noisy scores, ``(1/M) Σ_m max_z ⟨θ + ε_m, z⟩ − ⟨θ + ε_m, y⟩``: at least 0, and above the formula
    by ``−⟨ε_m, y⟩``, which does not depend on θ. The gradient is unbiased for every M.

    Cost: M argmax and one noise tensor each, per row.

    Args:
        num_samples: M.
        noise: the distribution of ε, its scale included.

    References:
        Berthet, Blondel, Teboul, Cuturi, Vert & Bach 2020, "Learning with differentiable perturbed optimizers", section 4.

    Example:
        >>> target, scores = torch.tensor([0.0, 1.0, 1.0, 0.0]), torch.zeros(4, requires_grad=True)
        >>> loss, generator = PerturbedFenchelYoung(num_samples=100), torch.Generator().manual_seed(0)
        >>> optimiser, values = torch.optim.SGD([scores], lr=1.0), []
        >>> for step in range(20):
        ...     optimiser.zero_grad()
        ...     values.append(loss("subset[k=2]", scores, target, generator=generator))
        ...     values[-1].backward()
        ...     optimiser.step()
        >>> bool(values[-1] < 0.2 * values[0])
        True
    """

    num_samples: Count = 10
    noise: AnyNoise = Gumbel()

    @operation()
    @_loss("PerturbedFenchelYoung")
    def __call__(
        self, oracle: Oracle, scores: Tensor, target: Tensor, *, generator: torch.Generator, lengths: Tensor | None = None
    ) -> Tensor:
        """``[*batch]``; the generator is the only source of randomness."""
        event = oracle.event_ndim
        perturbed = self.noise.perturb(oracle, expand_samples(scores, self.num_samples, event), generator=generator)
        targets = expand_samples(target.expand_as(scores), self.num_samples, event)
        # Lengths of each sample are those of its item, or those that all items share.
        batch, item = tuple(scores.shape[: scores.ndim - event]), tuple(scores.shape[scores.ndim - event :])
        each = lengths is not None and len(batch) > 0 and tuple(lengths.shape[: len(batch)]) == batch
        if lengths is not None and each and lengths.ndim != (len(oracle.length_limits(item)) != 1):
            lengths = lengths.unsqueeze(len(batch)).expand(*batch, self.num_samples, *lengths.shape[len(batch) :])
        return structured_perceptron(oracle, perturbed, targets, lengths=lengths).mean(-1)


SUPERVISED_LOSSES: dict[str, Callable[..., Tensor]] = {
    "structured_perceptron": structured_perceptron,
    "margin_perceptron": margin_perceptron,
    "crf_loss": crf_loss,
    "sparsemap_loss": sparsemap_loss,
    "margin_sparsemap_loss": margin_sparsemap_loss,
    "perturbed_fenchel_young_loss": PerturbedFenchelYoung(),
}
"""By name, with their defaults: ``(oracle, scores, target) -> [*batch]``; the last one takes a ``generator`` besides."""
