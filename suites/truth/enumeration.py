"""The exact gradient of ``E_{z∼p_θ} L(z)``, by enumeration in float64.

All sums are over deviations from the best structure, the mode: ``∇ E L = Cov(L, z)``, and a covariance does not change when a constant is
subtracted from either side. Its rounding error does: the plain formula ``E[L z] − E[L] E[z]`` loses up to 12 digits if the scores are
peaked or the loss has a large offset.
"""

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from ...estimators import Loss
from ...estimators.base import check_call
from ...oracles.capabilities import EnumerableOracle, MarginalOracle, Oracle
from ...oracles.capabilities.enumeration import MAX_RANK
from ...oracles.magnitudes import counted, duration
from ..device_memory import available, launched
from ..statistics.metrics import Geometry
from .loss_checks import checked, examine_loss, values

CAP = 2_000_000  # the largest space that is enumerated unless a caller asks for more
UNKNOWN = "none"  # the method of a truth without a gradient
ROUNDOFF = 2.0**-53  # half the distance of 1 from the next float64
MAX_PARTS = 512  # the most parts of an event whose matrix of products of parts is computed
TYPICAL_RATE = 1e6  # structures that one core enumerates per second with a cheap loss
MAX_CHUNK = 8192  # the most structures of a chunk on the CPU; more do not fit the cache of one core
CHUNK_PARTS = 2**18  # parts of a chunk's structures together on the CPU, for the same reason
BYTES_PER_PART = 80  # memory of a part of a structure on a device: itself, its deviation, the loss's copy, estimates and powers
MAX_REFINEMENTS = 40  # steps that refine the mean of the losses; each gains 15 digits, one or two suffice unless scores are very peaked

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Truth:
    """Exact properties of one instance, all in float64.

    Attributes:
        gradient: ``∇ E L``, ``[*event]``.
        value: ``E L``; nan if unknown. ``loss_variance``: ``Var L``, as well.
        log_partition: A(θ). ``entropy``: in nats. ``marginals``: μ, ``[*event]``.
        count: number of structures. ``support``: number of structures of positive probability; nan if unknown.
        kurtosis: of the score-function estimate with baseline ``E L``, by part, ``[*event]``; ``inf`` without variance, or if unknown.
        kurtosis_along: the same along the gradient. If a kurtosis is large, few samples carry the variance and a t-test misleads.
        method: ``enumeration``, the closed form, or `UNKNOWN` (the gradient is then 0).
        error: a bound on ‖computed − exact gradient‖, for the losses as the loss computes them; ``inf`` if unknown.
    """

    gradient: Tensor
    log_partition: float
    entropy: float
    marginals: Tensor
    count: int
    support: float
    kurtosis: Tensor
    kurtosis_along: float = math.inf
    value: float = math.nan
    loss_variance: float = math.nan
    method: str = "enumeration"
    error: float = math.inf
    memo: dict[str, Any] = field(init=False, default_factory=dict, repr=False)
    """Other properties of the instance, computed on first use."""

    @property
    def loss_deviation(self) -> float:
        """The standard deviation of the loss; 0 if unknown."""
        return math.sqrt(self.loss_variance) if self.loss_variance > 0 else 0.0


@dataclass(frozen=True, eq=False)
class Target:
    """An instance with a known exact gradient, on which estimators are measured; scores ``[*event]`` in the dtype that these run in."""

    oracle: Any
    loss: Loss
    scores: Tensor
    truth: Truth


def exact_truth(loss: Loss, oracle: EnumerableOracle | str, scores: Tensor, *, cap: int = CAP) -> Truth:
    """Enumerate all structures for the exact gradient, the law of the structures, and the kurtosis of the score function.

    The error bound is to first order in the unit roundoff u (Higham 2002, "Accuracy and stability of numerical algorithms", section 3.3).
    It is ``u ‖E[(κ + N) |L − E L| |d|] + E[(κ + N) |L − E L|] E|d|‖``. Here κ(z) is the relative error of the weight of a structure, N the
    number of terms of a sum, and d the deviation from the mode. Memory grows by about 100 bytes a structure.

    Args:
        loss: ``[..., *event] -> [...]``; evaluated once, in float64, on structures only.
        oracle: an enumerable oracle or its name.
        scores: ``[*event]``.
        cap: refuse spaces that are larger.

    Raises:
        ValueError: more structures than the cap, or no feasible structure.

    Example:
        >>> from structgrad.oracles import Categorical
        >>> losses = torch.tensor([1.0, -0.5, 2.0], dtype=torch.float64)
        >>> truth = exact_truth(lambda z: z @ losses, Categorical(), torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64))
        >>> truth.gradient
        tensor([-0.0390, -0.3454,  0.3843], dtype=torch.float64)
        >>> round(truth.value, 4), truth.count, truth.error < 1e-13
        (1.1102, 3, True)
    """
    loss, structures, scores = check_call("exact_truth", loss=loss, oracle=oracle, scores=scores)
    return Enumeration(loss, structures, scores, cap=cap).truth()


class Enumeration:
    """All structures of an instance, as deviations from the mode; arguments as of `exact_truth`.

    ``probabilities`` and ``errors``, ``L − E L``, are [count], 0 for infeasible structures; ``value`` is ``E L``.
    """

    def __init__(self, loss: Loss, oracle: EnumerableOracle, scores: Tensor, *, cap: int = CAP) -> None:
        self.oracle, self.scores = oracle, scores.detach().double()
        self.event = tuple(scores.shape)
        if scores.ndim != oracle.event_ndim:
            raise ValueError(f"`exact_truth` got scores of shape {self.event}; expected one instance, [*event]")
        self.count, self.chunk = oracle.count(self.event), fitting_chunk(scores)
        potentials = oracle.natural_parameters(self.scores)
        best = oracle.argmax(potentials if potentials is self.scores else self.scores).flatten()
        forbidden = (potentials == -math.inf).flatten()
        # The structure without parts, which some oracles have, is the best one if every part costs something.
        nothing = not bool(best.any()) and bool(oracle.argmax(torch.full_like(self.scores, -1)).any())
        if nothing or not bool(oracle.free_parts(self.scores).any()):
            raise ValueError("`exact_truth` got scores that forbid every structure; expected at least one feasible structure")
        examine_loss(loss, oracle, self.scores)
        if self.count > (limit := min(cap, MAX_RANK)):
            raise ValueError(
                f"`exact_truth` got a space of {counted(self.count)} structures; expected at most {counted(limit)}, because at a typical "
                f"{TYPICAL_RATE:.2g} structures a second they take {duration(self.count, TYPICAL_RATE)}; choose smaller sizes, "
                f"{'raise cap=, ' if self.count <= MAX_RANK else ''}"
                "or a loss whose exact gradient needs no enumeration (linear, low-rank quadratic, a function of a count)"
            )
        finite = torch.where(forbidden, 0, potentials.flatten())
        best = best * oracle.binary_mask(self.event, scores.device).flatten()
        self._mode_score = finite @ best
        # Only parts that are read are summed: half of the square of a constituency tree.
        self._places = oracle.read_mask(self.event, scores.device).flatten().nonzero().squeeze(-1)
        best, forbidden, finite = best[self._places], forbidden[self._places], finite[self._places]
        self._mode, self._signs = best.to(torch.uint8), 1 - 2 * best
        # By a deviation: the change of the score, the size of that change, and how many forbidden parts come in.
        columns = torch.stack([finite * self._signs, finite.abs(), forbidden.double()], -1)

        def weigh(structures: Tensor, flips: Tensor, _: slice) -> Tensor:
            change, size, barred = (flips @ columns).unbind(-1)
            # Relative errors of exp(change): m terms err by m times their size; the rest covers exp, the scale, and computed parameters.
            slack = (flips.sum(-1) + 5) * (size + 4)
            return torch.stack([torch.where(barred > 0, -math.inf, change), slack, values(loss, structures.double(), oracle.event_ndim)])

        change, self._slack, losses = torch.cat(list(self._chunks(weigh)), -1).unbind()
        self._change, self._top = change, change.amax()
        weights = (change - self._top).exp()
        self._weight = weights.sum()
        self.feasible = change > -math.inf
        self.probabilities = weights / self._weight
        self.errors, self.value = torch.where(self.feasible, losses, 0), 0.0
        # A rounded mean is off by the mean of the remainder, which has the digits of a mean that is rare structures' alone.
        for _ in range(MAX_REFINEMENTS):
            rest = float(checked(torch.stack([self.probabilities @ self.errors]))[0])
            size = float(self.probabilities @ self.errors.abs())
            self.errors = torch.where(self.feasible, self.errors - rest, 0)
            self.value += rest
            if abs(rest) <= 4 * ROUNDOFF * size:
                break

    def _chunks(self, compute: Callable[[Tensor, Tensor, slice], T]) -> Iterator[T]:
        """Results for chunks: of structures, uint8 ``[c, *event]``, their deviations ``[c, parts]``, and the slice of their ranks."""
        name = f"`exact_truth` of structures of shape {self.event}"

        def launch(first: int, count: int) -> T:
            structures = self.oracle.enumerate(self.event, first, first + count, dtype=torch.uint8, device=self.scores.device)
            flips = (structures.flatten(1)[:, self._places] ^ self._mode).double()
            return compute(structures, flips, slice(first, first + count))

        return (found for _, found in launched(name, self.chunk, self.scores.device, (0, self.count), launch))

    def truth(self) -> Truth:
        """The exact gradient, value and moments."""
        p, errors = self.probabilities, self.errors
        variance = float(checked(torch.stack([(p @ errors.square()).sqrt()]))[0].square())
        doubt = p * (self._slack + min(self.chunk, self.count) + self.count / self.chunk + 3)
        rows = torch.stack([p, p * errors, doubt, doubt * errors.abs()])
        means, covariance, mean_doubt, doubts = self._total(lambda flips, part: rows[:, part] @ flips).unbind()
        relative = doubt.sum()
        bound = doubts + rows[3].sum() * means + covariance.abs() * (relative + 2) + mean_doubt * (p @ errors.abs())
        gradient, error = pulled_back(self.oracle, self.scores, self._spread(self._signs * covariance, 0), ROUNDOFF * float(bound.norm()))
        squares, fourths = self._powers(means, covariance)
        tails = torch.where(squares > 0, fourths / squares.square().clamp(min=1e-300), math.inf)
        return Truth(
            gradient=gradient,
            value=self.value,
            loss_variance=variance,
            log_partition=float(self._mode_score + (self._top + self._weight.log())),
            entropy=float(self._weight.log() + (self._top - p @ torch.where(self.feasible, self._change, 0))),
            marginals=self._spread(self._mode + self._signs * means, 0),
            count=self.count,
            support=int(self.feasible.sum()),
            kurtosis=self._spread(tails[:-1], math.inf),
            kurtosis_along=float(tails[-1]),
            error=error,
        )

    def _total(self, compute: Callable[[Tensor, slice], Tensor]) -> Tensor:
        return functools.reduce(torch.add, self._chunks(lambda _, flips, part: compute(flips, part)))

    def _spread(self, values: Tensor, missing: float) -> Tensor:
        """Values of the parts that are read as ``[*event]``."""
        return torch.full_like(self.scores, missing).flatten().index_copy(0, self._places, values).reshape(self.event)

    def _powers(self, means: Tensor, covariance: Tensor) -> Tensor:
        """Second and fourth central moments of ``(L − E L) ∇ log p(z)``: ``[2, p + 1]``, by part and along the gradient."""
        jacobian = self._jacobian()
        gradient = covariance if jacobian is None else covariance @ jacobian

        def powers(flips: Tensor, part: slice) -> Tensor:
            estimates = self.errors[part].unsqueeze(-1) * (flips - means) - covariance
            estimates = estimates if jacobian is None else estimates @ jacobian
            square = torch.cat([estimates, (estimates @ gradient).unsqueeze(-1)], -1).square_()
            return torch.stack([self.probabilities[part] @ square, self.probabilities[part] @ square.square()])

        return self._total(powers)

    def squared_scores(self, metric: Tensor | None) -> Tensor:
        """``E[(L − E L)ᵏ s's]`` for k = 0, 1, 2 and ``s = ∇ log p(z)``, and with a metric M [d, d] of ``s'Ms`` too: ``[1 or 2, 3]``."""
        jacobian = self._jacobian()
        kept = None if metric is None else metric[self._places][:, self._places]
        p = self.probabilities
        means = self._total(lambda flips, part: p[part] @ flips)
        weights = torch.stack([p, p * self.errors, p * self.errors.square()], -1)

        def squares(flips: Tensor, part: slice) -> Tensor:
            centred = flips - means
            scores = centred * self._signs if jacobian is None else centred @ jacobian
            forms = [scores, *([] if kept is None else [scores @ kept])]
            return torch.stack([torch.linalg.vecdot(form, scores) for form in forms]) @ weights[part]

        return self._total(squares)

    def extremes(self) -> Tensor:
        """Feasible structures of least and of greatest loss, float64 ``[2, *event]``."""
        lowest, highest = (torch.where(self.feasible, sign * self.errors, -math.inf).argmax() for sign in (-1, 1))
        return self.oracle.unrank(torch.stack([lowest, highest]), self.event).double()

    def _jacobian(self) -> Tensor | None:
        """The derivative of natural parameters, with the signs of deviations, in the scores: ``[p, p]``; None if both are the same."""
        unit = torch.zeros(len(self._places), self.scores.numel(), dtype=self.scores.dtype, device=self.scores.device)
        unit.scatter_(1, self._places.unsqueeze(-1), self._signs.to(unit).unsqueeze(-1))
        rows = _through_parameters(self.oracle, self.scores, unit.reshape(-1, *self.event))
        return None if rows is None else rows.flatten(1)[:, self._places]


def fitting_chunk(scores: Tensor) -> int:
    """Structures of this shape per chunk: as many as the cache of a core holds, or on other devices a large launch."""
    if scores.device.type != "cpu":
        chunk = max(1, min(2**20, 2**28 // scores.numel()))
        # Halved, because the last digits of a truth depend on it: other users of the memory seldom change them.
        while chunk > 1 and BYTES_PER_PART * scores.numel() * chunk > available(scores.device):
            chunk //= 2
        return chunk
    return int(min(MAX_CHUNK, max(64, CHUNK_PARTS // scores.numel())))


def pulled_back(oracle: Oracle, scores: Tensor, gradient: Tensor, error: float) -> tuple[Tensor, float]:
    """The gradient in the scores from that in the natural parameters, and its error: another one for a locally normalised policy.

    The derivative of ``a − log Σ exp a`` at two actions has norm at most √2, and takes a handful of operations.
    """
    found = _through_parameters(oracle, scores, gradient.unsqueeze(0))
    return (gradient, error) if found is None else (found[0], 2 * error + 16 * ROUNDOFF * float(gradient.norm()))


def _through_parameters(oracle: Oracle, scores: Tensor, gradients: Tensor) -> Tensor | None:
    """Gradients ``[k, *event]`` in the natural parameters as gradients in the scores; None if both are the same."""
    with torch.enable_grad():
        leaf = scores.clone().requires_grad_()
        potentials = oracle.natural_parameters(leaf)
        if potentials is leaf:
            return None
        (found,) = torch.autograd.grad(potentials, leaf, gradients, is_grads_batched=True)
    return found


def geometry(oracle: Any, scores: Tensor, truth: Truth) -> Geometry | None:
    """The metric at scores ``[*event]``, once for a truth; None without marginals, or with more than `MAX_PARTS` parts."""
    known = truth.memo.get("geometry")
    if known is None or known[0] is not oracle:
        found = None
        if isinstance(oracle, MarginalOracle) and scores.numel() <= MAX_PARTS and oracle.sums_in_reach(tuple(scores.shape)):
            theta = scores.double()
            flat = torch.where(theta == -math.inf, theta, 0)
            found = Geometry.of(fisher_information(oracle, theta), fisher_information(oracle, flat), truth.gradient)
        known = truth.memo["geometry"] = (oracle, found)
    return cast("Geometry | None", known[1])


def fisher_information(oracle: MarginalOracle, scores: Tensor) -> Tensor:
    """``F = J' Cov(z) J``, [d, d] float64: the Hessian of ``KL(p_θ ‖ p_{θ+δ})`` at ``δ = 0``; J is the Jacobian of the natural parameters.

    J is the identity except for a policy that is normalised locally.

    Reference: Amari 1998, "Natural gradient works efficiently in learning".
    """
    size = scores.numel()
    directions = torch.eye(size, dtype=torch.float64, device=scores.device).reshape(size, *scores.shape)
    with torch.enable_grad():
        leaf = scores.detach().double().expand(size, *scores.shape).clone().requires_grad_()
        marginals = oracle.marginals(leaf)
        (jacobian,) = torch.autograd.grad(marginals, leaf, directions)
        parameters = oracle.natural_parameters(leaf)
        if parameters is not leaf:
            columns = jacobian.reshape(size, size).mT.reshape(leaf.shape)
            (jacobian,) = torch.autograd.grad(parameters, leaf, columns)
    information = jacobian.reshape(size, size)
    return (information + information.mT) / 2
