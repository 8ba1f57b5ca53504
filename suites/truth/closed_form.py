"""The exact gradient of ``E L`` at any size, if the loss has a form and the structures have sums in closed form; and of other objectives.

These are the objectives that estimators really have:

- ``perturbed``: ``E_ε L(argmax(θ + ε))``, by ``E (L − b) ν(ε)`` over independent blocks of noise, with an error of its own.
- ``relaxed``: ``L(μ(θ))``, or the loss at another point inside the hull, by derivatives.

The gradient of ``L(argmax θ)`` is 0 almost everywhere, and no reference.
"""

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor

from ...estimators import Estimator, Loss
from ...estimators.noise import Gumbel, SmoothNoise
from ...estimators.surrogates import evaluate
from ...oracles import SpanningTree
from ...oracles.capabilities import EnumerableOracle, FactorisedOracle, MarginalOracle, Oracle
from ...oracles.magnitudes import counted
from ...oracles.numerics import zero_ignored
from ..device_memory import launched
from ..problems.losses import CountForm, LinearForm, LossForm, PointForm, QuadraticForm
from ..statistics.metrics import NoisyGradient
from ..statistics.seeds import BLOCK, seed_blocks, seed_sequence
from .enumeration import CAP, ROUNDOFF, UNKNOWN, Truth, exact_truth, pulled_back
from .laws import GibbsLaw, Law, derivations_of, law_of
from .loss_checks import examine_loss

Kind = Literal["expected", "perturbed", "relaxed", "argmax"]

BLOCKS_PER_LAUNCH = 32  # blocks at a time; no number depends on it
MIN_BLOCKS = 8  # the fewest blocks whose spread gives an error
STEP = 1e-4  # step of differences: a fourth of the digits for the derivative's curvature, the others against rounding


class UnknownTruthError(ValueError):
    """An unknown exact gradient: too many structures, and no closed form."""


SAFETY = 4  # the error bound, as a multiple of the sum of first-order terms
MAX_RANGE = 2**20  # the largest number of values of all counts together


class Count(NamedTuple):
    """A function of one count: ``values[⟨weights, z⟩]``, int64 [*event] and float64 [size]."""

    weights: Tensor
    values: Tensor


def reduced(form: CountForm, oracle: Oracle, parameters: Tensor) -> Count | LinearForm | None:
    """The simplest form that is the same on all structures feasible at natural parameters [*event]; None with too many values of counts."""
    read, allowed = oracle.read_mask(tuple(parameters.shape), parameters.device), parameters > -math.inf
    joint, size, ranges = torch.zeros_like(parameters, dtype=torch.int64), 1, []
    for count in form.counts:
        weights = torch.where(read, count.to(parameters.device).round().long(), 0)
        # The least and the greatest value over the feasible structures.
        rows = torch.stack([torch.where(allowed, sign * weights, -math.inf).to(parameters) for sign in (-1, 1)])
        low, high = (int((best * weights).sum()) for best in oracle.argmax_of(rows))
        ranges.append((low, high, size))
        if low < high:
            joint, size = joint + size * weights, size * (high + 1)
        if size > MAX_RANGE:
            return None
    # The counts of joint ones, clamped to the range of structures; constant ones as they are.
    every = torch.arange(size, device=parameters.device)
    counts = [(every // unit % (high + 1)).clamp(low, high) if low < high else torch.full_like(every, high) for low, high, unit in ranges]
    values = form.function(*counts).double().expand(size)
    several = [(low, high) for low, high, _ in ranges if low < high]
    if not several:
        return LinearForm(torch.zeros_like(parameters), float(values[0]))
    if len(several) == 1:
        low, high = several[0]
        slope = (values[high] - values[low]) / (high - low)
        line = values[low] + slope * torch.arange(high - low + 1, device=values.device)
        rounding = 8 * torch.finfo(values.dtype).eps * values[low : high + 1].abs().max()
        if bool(((values[low : high + 1] - line).abs() <= rounding).all()):
            return LinearForm(slope * joint, float(values[low] - slope * low))
    return Count(joint, values)


MAX_TABLE = 2**25  # the most numbers in a table of counts by node


def expectation(law: Law, form: Count | LossForm, parameters: Tensor) -> tuple[str, float, Tensor, float, float]:
    """The expectation of a loss of a form under a law with these natural parameters.

    Returns the kind of the form, ``E L``, its gradient [d] in the natural parameters, ``Var L`` (nan if unknown), and the size that its
    rounding is relative to.
    """
    if isinstance(form, PointForm):
        # One value at z*, another elsewhere: ∇ p(z*) = p(z*) (z* − μ).
        structure = _flat(form.structure)
        taken = (structure * torch.where(structure > 0, parameters.flatten(), 0)).sum()  # a part that is counted as often as it is
        p, step = math.exp(min(float(taken) - law.log_partition, 0.0)), form.here - form.elsewhere
        gradient = step * p * (structure - law.marginals)
        return "point", form.elsewhere + step * p, gradient, step**2 * p * (1 - p), abs(step) * p
    if isinstance(form, QuadraticForm):
        # By the first two moments of A z about a structure; the variance would take four.
        (centre, mean, half), kind = law.moments(_flat(form.matrix, 1)), "quadratic"
        offset = centre - _flat(form.target)
        with torch.enable_grad():
            change = (2 * offset * mean + 2 * half).sum()
        value, variance = offset @ offset, math.nan
        square = 2 * half.detach()
        magnitude = float(2 * offset.abs() @ square.clamp(min=0).sqrt() + square.sum())
    else:
        if isinstance(form, Count):
            assert isinstance(law, GibbsLaw), "trees have no law of a count"
            kind, ((value, change, half), magnitude) = "count", law.count(form.weights, form.values)
        else:
            assert isinstance(form, LinearForm), "other counts are reduced"
            kind, (centre, mean, half) = "linear", law.moments(_flat(form.weights).unsqueeze(0))
            value, change, magnitude = centre[0] + form.constant, mean[0], math.sqrt(max(2 * float(half.detach()), 0.0))
        variance = max(2 * float(half.detach()) - float(change.detach()) ** 2, 0.0)
    return kind, float(value) + float(change.detach()), law.gradient(change), variance, magnitude


def _flat(tensor: Tensor, leading: int = 0) -> Tensor:
    """Weights in float64, with one dimension for the event."""
    return tensor.detach().to(torch.float64).flatten(leading)


def analytic_truth(loss: Any, oracle: MarginalOracle, scores: Tensor) -> Truth | None:
    """The truth without enumeration: O(polynomial) for all structures but permutations, whose sums take O(2ⁿ n).

    The gradient is ``Cov(L, z)``. For a linear loss it is ``Cov(z) c``. A quadratic loss needs the first two moments of ``A z``, and a
    function of a count the law of the count; see `structgrad.suites.truth.laws`. Its kurtoses are unknown (inf: trust no test that needs
    them). The loss variance is nan for a quadratic loss, and the support is a rounded sum if parts are forbidden.

    None if the loss has no form, the oracle no sums in closed form, or the tables do not fit.

    References:
        Chiang & Li 2009, "First- and second-order expectation semirings with applications to minimum-risk training", sections 3 and 4
        (moments over derivations).
    """
    theta = scores.detach().double()
    simple = _simplest(getattr(loss, "form", None), oracle, theta)
    if simple is None:
        return None
    parameters = _parameters(oracle, theta)
    law = law_of(oracle, parameters)
    assert law is not None, "there is none of another form"
    if law.log_partition == -math.inf:
        raise ValueError("`analytic_truth` got scores that forbid every structure; expected at least one feasible structure")
    examine_loss(loss, oracle, theta)
    kind, value, gradient, variance, magnitude = expectation(law, simple, parameters)
    allowed, best = torch.where(parameters > -math.inf, parameters, 0).flatten(), oracle.argmax_of(parameters.unsqueeze(0))[0].flatten()
    event = tuple(theta.shape)
    count = oracle.count(event)
    # No structure has more parts than its event has rows and columns.
    bound = SAFETY * ROUNDOFF * law.roundings * math.sqrt(sum(event)) * magnitude
    gradient, error = pulled_back(oracle, theta, gradient.reshape(event), bound)
    return Truth(
        gradient=gradient,
        value=value + getattr(loss, "offset", 0.0),
        loss_variance=variance,
        log_partition=law.log_partition,
        # A(θ) − ⟨θ, μ⟩, both relative to the best structure.
        entropy=law.log_partition - float(allowed @ best) - float(allowed @ (law.marginals - best)),
        marginals=law.marginals.reshape(event),
        count=count,
        support=_support(oracle, parameters, count),
        kurtosis=torch.full_like(theta, math.inf),
        method=f"analytic:{kind}",
        error=error,
    )


def unknown_because(loss: Any, oracle: Any, scores: Tensor, *, cap: int = CAP) -> str | None:
    """The reason why `known_truth` has no answer, found without computing it; None if it has one."""
    count, form = oracle.count(tuple(scores.shape)), getattr(loss, "form", None)
    listed = isinstance(oracle, EnumerableOracle)
    if (listed and count <= cap) or _simplest(form, oracle, scores.detach().double()) is not None:
        return None
    size = f"more than the {counted(cap)} that are enumerated" if listed else "which cannot be enumerated"
    hint = "a smaller structure: the form of this loss has a closed expectation, and its tables do not fit, or the oracle has none"
    if form is None:
        hint = "a loss that declares a form (linear, low-rank quadratic, a function of a count, exact match), whose truth has no such limit"
    return f"no exact gradient of {counted(count)} structures is known: they are {size}, and there is no closed form; take {hint}"


def _simplest(form: LossForm | None, oracle: Any, theta: Tensor) -> Count | LossForm | None:
    """The form of the loss at its simplest; None if its expectation over these structures has no closed form that fits."""
    event = tuple(theta.shape)
    derivations = derivations_of(oracle, event)
    if form is None or not isinstance(oracle, MarginalOracle) or (derivations is None and not isinstance(oracle, SpanningTree)):
        return None
    if not isinstance(form, CountForm):
        return form
    found = reduced(form, oracle, _parameters(oracle, theta))
    fits = not isinstance(found, Count) or (derivations is not None and derivations.nodes * len(found.values) <= MAX_TABLE)
    return found if fits else None


def _parameters(oracle: Any, theta: Tensor) -> Tensor:
    """Natural parameters with 0 at ignored entries."""
    return zero_ignored(oracle.natural_parameters(theta), oracle.read_mask(tuple(theta.shape), theta.device))


def _support(oracle: MarginalOracle, parameters: Tensor, count: int) -> float:
    """The number of structures without a forbidden part: all, or the sum over those at score 0, rounded; nan if unknown."""
    forbidden = parameters == -math.inf
    if not bool(forbidden.any()):
        return count
    law = law_of(oracle, torch.zeros_like(parameters).masked_fill(forbidden, -math.inf))
    if law is None:
        return math.nan
    return round(math.exp(law.log_partition)) if law.log_partition < 700 else count


def known_truth(loss: Any, oracle: Any, scores: Tensor, *, cap: int = CAP) -> Truth:
    """The exact truth: by enumeration up to the cap, which also gives kurtoses, and by the form of the loss beyond."""
    if isinstance(oracle, EnumerableOracle) and oracle.count(tuple(scores.shape)) <= cap:
        return exact_truth(loss, oracle, scores, cap=cap)
    truth = analytic_truth(loss, oracle, scores) if isinstance(oracle, MarginalOracle) else None
    if truth is None:
        raise UnknownTruthError(f"`known_truth` got the oracle {oracle.name}: {unknown_because(loss, oracle, scores, cap=cap)}")
    return truth


def law_alone(oracle: Any, scores: Tensor) -> Truth:
    """The law of the structures, as far as its sums are in reach, for a loss without a known gradient (0, of infinite error)."""
    theta = scores.detach().double()
    count = oracle.count(tuple(theta.shape))
    log_partition, entropy, marginals = math.nan, math.nan, torch.full_like(theta, math.nan)
    if isinstance(oracle, MarginalOracle) and oracle.sums_in_reach(tuple(theta.shape)):
        log_partition, entropy, marginals = float(oracle.log_partition(theta)), float(oracle.entropy(theta)), oracle.marginals(theta)
    return Truth(
        gradient=torch.zeros_like(theta),
        log_partition=log_partition,
        entropy=entropy,
        marginals=marginals,
        count=count,
        support=_support(oracle, _parameters(oracle, theta), count),
        kurtosis=torch.full_like(theta, math.inf),
        method=UNKNOWN,
    )


def own_reference(estimator: Estimator[Any]) -> Kind | None:
    """The objective whose gradient an estimator estimates, with or without bias; None if it is none of the four.

    Random relaxations and sums over a sparse support have no objective apart from the computed value.
    """
    if estimator.objective in ("sparse", "supervised") or (estimator.objective == "relaxed" and not estimator.deterministic):
        return None
    return cast("Kind", estimator.objective)


def central_difference(value: Callable[[float], Tensor]) -> tuple[Tensor, Tensor]:
    """The derivative of a function of a step at 0, by differences of two sizes, extrapolated; and by how much these disagree."""
    near, far = ((value(size) - value(-size)) / (2 * size) for size in (STEP, 2 * STEP))
    return (4 * near - far) / 3, near - far


def relaxed_gradient(oracle: Any, loss: Loss, scores: Tensor, point: Callable[[Tensor], Tensor] | None = None) -> NoisyGradient:
    """The gradient of the loss at the marginals, or at another ``point`` of the scores, [*event], in float64.

    The derivative of another point is taken by central differences with two steps, extrapolated, so that an estimator's own backward pass
    can be compared with it. The difference of the two is the error, which is large near a kink.
    """
    theta = scores.detach().double()
    if point is not None:
        directions = torch.eye(theta.numel(), dtype=theta.dtype, device=theta.device).reshape(-1, *theta.shape)
        with torch.no_grad():
            gradient, doubt = central_difference(lambda size: evaluate(loss, point(theta + size * directions), theta.ndim).double())
        return NoisyGradient(gradient.reshape(theta.shape), float(doubt.square().sum()))
    if not isinstance(oracle, MarginalOracle):
        raise ValueError(f"`relaxed_gradient` got the oracle {oracle.name} without marginals; expected another, or point=")
    with torch.enable_grad():
        leaf = theta.clone().requires_grad_()
        value = evaluate(loss, oracle.marginals(leaf), oracle.event_ndim)
        if not value.requires_grad:
            raise ValueError("`relaxed_gradient` got a loss without a gradient in the structure; expected a differentiable one")
        (gradient,) = torch.autograd.grad(value, leaf)
    return NoisyGradient(gradient, 0.0)


def perturbed_gradient(  # noqa: PLR0913 - an instance, a law, and two numbers of its sampling
    oracle: Any, loss: Loss, scores: Tensor, law: SmoothNoise, *, key: tuple[str, ...], replicates: int
) -> NoisyGradient:
    """The gradient of the loss at the best structure under noise: ``E (L − b) ν(ε)`` with ``ν = −(log f)'`` of the density of the noise.

    It is exact for Gumbel noise on small categories. Else a block of n draws gives ``Σ (L_i − L̄) ν(ε_i) / (n − 1)``: the score function
    with the mean of the other losses as the baseline of each draw. It has no bias. Blocks are independent, so their spread gives the
    error; there are at least `MIN_BLOCKS`.
    """
    theta, listed = scores.detach().double(), isinstance(oracle, FactorisedOracle) and isinstance(oracle, EnumerableOracle)
    if isinstance(law, Gumbel) and listed and oracle.count(tuple(theta.shape)) <= CAP:
        # The best parts of ``θ + sG`` are an exact sample of the law at ``θ/s``, whose truth is the reference.
        return NoisyGradient(exact_truth(loss, oracle, theta / law.scale).gradient / law.scale, 0.0)
    blocks = max(-(-replicates // BLOCK), MIN_BLOCKS)
    seeds = seed_sequence(0, *key, "perturbed", repr(law))

    def launch(first: int, count: int) -> Tensor:
        """Estimates ``[count, *event]`` of blocks."""
        streams = seed_blocks(seeds, first * BLOCK, count * BLOCK, theta.device)
        with torch.no_grad():
            noise = law.draw(oracle, theta.expand(count * BLOCK, *theta.shape), generator=streams)
            losses = evaluate(loss, oracle.argmax(theta + noise), oracle.event_ndim).double().reshape(count, BLOCK)
        centred = losses - losses.mean(-1, keepdim=True)
        slopes = law.score(noise).reshape(count, BLOCK, *theta.shape)
        return torch.einsum("cb,cb...->c...", centred, slopes) / (BLOCK - 1)

    name = f"`perturbed_gradient` with {BLOCK} draws a row and scores of shape {tuple(theta.shape)}"
    estimates = torch.cat([part for _, part in launched(name, BLOCKS_PER_LAUNCH, theta.device, (0, blocks), launch)])
    moving, gradient = oracle.free_parts(theta), estimates.mean(0)
    noise = float((estimates - gradient).square().sum(0)[moving].sum()) / (blocks - 1) / blocks
    return NoisyGradient(torch.where(moving, gradient, 0), noise)
