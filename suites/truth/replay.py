"""Exact moments of an estimator, from every possible sample.

An estimator that draws structures through its oracle alone is a function of these structures. Here a script replaces the oracle's sampler
and deals all of them. Weighted by their exact probabilities, the estimates give the mean and the covariance of the *shipped code* without
sampling error: a gradient that is off by a factor of 0.98 is found.
"""

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar, cast

import torch
from torch import Tensor

from ...estimators import Estimator, Loss
from ...estimators.score_function import scores_of
from ...estimators.without_replacement import draw_set, log_mass_of_others, race
from ...oracles.capabilities import DistinctSamplingOracle, DrawnSet, KBestOracle, MarginalOracle, SamplingOracle
from ...oracles.random_streams import RowGenerator
from ..device_memory import launched
from ..statistics.metrics import Summary, summarise
from ..statistics.moments import Moments
from .enumeration import Enumeration, Target
from .loss_checks import values

REPLAY_CAP = 200_000  # the largest number of tuples of samples that is dealt out, unless an effort says otherwise
CHUNK = 4096  # tuples per launch
TUPLES = 64  # tuples of samples that an estimate is fitted to
MAX_SAMPLES = 1024  # samples of an estimate at most, whose tuples fit the memory
MAX_WEIGHTED_SAMPLES = 8  # samples of an estimate at most for which each has weights of its own
AGREEMENT = 1e-9  # relative distance of an estimate from its form that is rounding

T = TypeVar("T")


def hooked(value: T, methods: Iterable[str], hook: Callable[..., Any], *capabilities: type) -> T:
    """Copy an object, usually an oracle, so that some of its methods go through a hook.

    The copy shares the attributes of the object, and has the hook as its attribute ``hook``. Its class is a subclass of the object's, so
    that capabilities and kernels stay the same. Calls within a call reach the hook too. It is called as
    ``hook(name, operation, *args, **named)``, where ``operation(*args, **named)`` is the original call. The copy is an instance of the
    ``capabilities`` too.
    """
    kind: Any = type(value)
    twin: Any = object.__new__(_hooked_class(kind, tuple(methods), capabilities))
    twin.__dict__.update(vars(value), hook=hook)
    return twin  # type: ignore[no-any-return]


@functools.lru_cache(maxsize=128)
def _hooked_class(kind: type, methods: tuple[str, ...], capabilities: tuple[type, ...]) -> type:
    def through_hook(name: str) -> Callable[..., Any]:
        operation = getattr(kind, name, None)  # an abstract method of a capability has none

        def call(self: Any, *args: Any, **named: Any) -> Any:
            return self.hook(name, functools.partial(operation, self) if operation else None, *args, **named)

        return functools.wraps(operation)(call) if operation else call

    bases = (kind, *(one for one in capabilities if not issubclass(kind, one)))
    made: Any = type(kind)(kind.__name__, bases, {name: through_hook(name) for name in methods})
    made.__abstractmethods__ = frozenset()
    return made  # type: ignore[no-any-return]


@dataclass
class Script:
    """Samples that replace those of an oracle, and a record of the calls."""

    oracle: Any
    samples: Tensor | None = None  # [slots, rows, *event], dealt slot by slot; None deals the best structure and counts
    drawn_set: DrawnSet | None = None  # the result of every `sample_distinct`; None draws a fixed one
    law: Tensor | None = None  # the scores [*event] that samples must be drawn from; None allows all
    taken: int = 0
    set_sizes: list[int] = field(default_factory=list)
    strayed: bool = False  # whether a call had other scores, or another generator

    def __call__(self, name: str, _: Any, scores: Tensor, size: int | None = None, **named: Any) -> Any:
        """Answer a call of `sample` or of `sample_distinct`."""
        event_ndim = self.oracle.event_ndim
        # Samples of a generator of the estimator's own share random numbers; rows repeated by hand are several samples of one call.
        batch = scores.shape[: scores.ndim - event_ndim]
        own = isinstance(named["generator"], RowGenerator) or len(batch) > 1 or batch.numel() > 1
        self.strayed |= self.law is not None and (own or not bool((scores == self.law).all()))
        if name == "sample":
            count = named.get("num_samples", size)
            first, self.taken = self.taken, self.taken + (1 if count is None else count)
            if self.samples is None:
                dealt = self.oracle.argmax(scores).expand(self.taken - first, *scores.shape)
            else:
                dealt = self.samples[first : self.taken].to(scores.dtype)
            result = dealt[0] if count is None else dealt
            return self.oracle.indices(result) if named.get("as_indices", False) else result
        k = named["k"] if size is None else size
        self.set_sizes.append(min(k, self.oracle.count(tuple(scores.shape[scores.ndim - event_ndim :]))))
        if self.drawn_set is not None:
            return replace(self.drawn_set, structures=self.drawn_set.structures.to(scores.dtype))
        fixed = torch.Generator(scores.device).manual_seed(0)
        if isinstance(self.oracle, DistinctSamplingOracle):
            return self.oracle.sample_distinct(scores, k, generator=fixed)
        return draw_set(self.oracle, scores, k, generator=fixed)


def scripted(oracle: Any, samples: Tensor | None = None, **script: Any) -> Any:
    """A copy of an oracle whose samples come from the `Script` of these arguments, its attribute ``hook``."""
    return hooked(oracle, ("sample", "sample_distinct"), Script(oracle, samples, **script), SamplingOracle, DistinctSamplingOracle)


def slots_of(estimator: Estimator[Any], oracle: Any, loss: Loss, scores: Tensor) -> int | None:
    """The number of structures that one estimate draws through `sample`; None if it is random in another way too."""
    drawn = draws_of(estimator, oracle, loss, scores)
    return None if drawn is None or drawn[1] else drawn[0]


def draws_of(estimator: Estimator[Any], oracle: Any, loss: Loss, scores: Tensor) -> tuple[int, int] | None:
    """Structures that an estimate draws by `sample` and by `sample_distinct`, in a trial run; None if it is random in other ways."""
    if not isinstance(oracle, SamplingOracle | MarginalOracle):
        return None
    generator = torch.Generator(scores.device).manual_seed(0)
    before = generator.get_state()
    copy = scripted(oracle, law=scores)
    script: Script = copy.hook
    estimator.gradient(loss, copy, scores.unsqueeze(0), generator=generator)
    if not torch.equal(before, generator.get_state()) or script.strayed or len(script.set_sizes) > 1:
        return None
    return script.taken, sum(script.set_sizes)


def replay(estimator: Estimator[Any], target: Target, slots: int, information: Tensor | None = None, *, repeated: bool = False) -> Summary:
    """The exact mean and covariance of one estimate, over all ``count ** slots`` tuples of samples.

    The estimator draws ``slots`` structures through the oracle and nothing else, see `draws_of`. Metrics that need Fisher's
    ``information``, [d, d], are 0 without it. If ``repeated``, only tuples of equal samples are dealt, with the probability of one.
    """
    count, dealt_slots = target.truth.count, 1 if repeated else slots
    structures = target.oracle.enumerate(tuple(target.scores.shape), dtype=torch.uint8, device=target.scores.device)
    log_weights = torch.cat([target.oracle.score(part.double(), target.scores.double()) for part in structures.split(CHUNK)])
    probabilities = (log_weights - target.truth.log_partition).exp()

    def estimates(first: int, number: int) -> tuple[Tensor, Tensor]:
        index = torch.arange(first, first + number, device=target.scores.device)
        weights, ranks = target.scores.new_ones(number, dtype=torch.float64), index.new_zeros(dealt_slots, number)
        for slot in range(dealt_slots):
            ranks[slot] = index // count**slot % count
            weights = weights * probabilities[ranks[slot]]
        dealt = structures[ranks[:, weights > 0]].double()
        return _scripted(estimator, target, dealt.expand(slots, *dealt.shape[1:])), weights[weights > 0]

    return _moments(f"`{estimator.name}` on {slots} samples", target, count**dealt_slots, estimates, information)


def replay_samples(estimator: Estimator[Any], target: Target, slots: int, cap: int, information: Tensor | None = None) -> Summary | None:
    """The exact mean and variance of an estimate of N independent samples, from single structures instead of tuples.

    Two forms have an algebra. ``L_i`` are the losses and ``s_i = ∇ log p(z_i)`` the scores of the samples.

    - ``Σ_ij A_ij (L_i − E L) s_j + Σ_j κ_j s_j``: REINFORCE with any baseline that does not change with the samples, leave-one-out,
      VarGrad.
    - The average of the estimates that N equal samples give.

    Neither is a claim of the estimator. A and κ are fitted to the returned estimates of random tuples of samples, likely and rare ones.
    Every one of them has to agree. Moments other than the mean and the variance are NaN. None if neither form holds, the second has more
    than ``cap / N`` structures, or the truth enumerated none.

    Reference: Hoeffding 1948, "A class of statistics with asymptotically normal distribution", section 5, for the variance.
    """
    if target.truth.method != "enumeration" or slots > MAX_SAMPLES or not isinstance(target.oracle, SamplingOracle):
        return None
    tuples = _Tuples.of(estimator, target, slots)
    if bool((tuples.losses == tuples.losses[0, 0]).all()):
        return None
    weights = tuples.weights()
    if weights is not None:
        return _bilinear(*weights, target, information)
    if slots < 2 or target.truth.count * slots > cap or not tuples.is_average(estimator, target):
        return None
    one = replay(estimator, target, slots, information, repeated=True)
    mean, informed = one.error + one.gradient, one.informed
    if information is not None and informed is not None:
        square = mean @ information @ mean
        informed = square + (informed - square) / slots
    return _summary(target, one.error, one.trace / slots, informed)


def replay_outside(estimator: Estimator[Any], target: Target, draws: int, cap: int, information: Tensor | None = None) -> Summary | None:
    """The exact moments of an estimate of n structures without replacement that depends on the first one outside the n − 1 best alone.

    The law of that structure is ``p(z) / (1 − q)``, q the mass of the best, independent of the draws before it: sum-and-sample. The
    estimates of `TUPLES` random draws, likely and rare ones, have to agree with this form. None if they do not, or with more structures
    than the cap.
    """
    if target.truth.method != "enumeration" or draws < 2 or target.truth.count > cap or not isinstance(target.oracle, KBestOracle):
        return None
    oracle: Any = target.oracle
    scores = target.scores
    space = oracle.enumerate(tuple(scores.shape), dtype=torch.uint8, device=scores.device)
    log_probs = torch.cat([oracle.log_prob(part.double(), scores.double()) for part in space.split(CHUNK)]).log_softmax(0)
    listed = oracle.kbest(scores, draws - 1)
    best = oracle.rank(listed[(listed != 0).flatten(1).any(-1)])
    outside = log_probs.index_fill(0, best, -math.inf)
    # If none is outside, or too few are feasible, an infeasible one fills the slot.
    others, nothing = (outside > -math.inf).nonzero().squeeze(-1), log_probs.argmin()
    others = others if len(others) else nothing.unsqueeze(0)
    weights = outside[others].softmax(0).nan_to_num(1)

    def estimates(ranks: Tensor) -> Tensor:
        chosen = log_probs[ranks]
        ranks = torch.where(chosen > -math.inf, ranks, ranks[:, :1])
        rest = log_mass_of_others(log_probs, ranks)
        drawn = DrawnSet(space[ranks.T], chosen, rest, torch.full_like(rest, math.nan))
        rows = scores.expand(len(ranks), *scores.shape)
        return estimator.gradient(target.loss, scripted(oracle, drawn_set=drawn), rows, generator=torch.Generator(scores.device))

    def after_best(first: Tensor) -> Tensor:
        filled = nothing.expand(len(first), draws - 1 - len(best))
        return torch.cat([best.expand(len(first), -1), first.unsqueeze(-1), filled], -1)

    generator = torch.Generator(scores.device).manual_seed(draws)
    laws = (log_probs, torch.where(log_probs > -math.inf, 0, log_probs))
    tuples = torch.cat([race(law, (TUPLES,), draws, generator)[1] for law in laws])
    free = outside[tuples] > -math.inf
    first = torch.where(free.any(-1), tuples.gather(-1, free.int().argmax(-1, keepdim=True)).squeeze(-1), others[0])
    one, other = (estimates(dealt).flatten(1).double() for dealt in (tuples, after_best(first)))
    size = values(target.loss, space[tuples].double(), oracle.event_ndim).abs().amax(-1)
    if not bool(((one - other).norm(dim=-1) <= AGREEMENT * other.norm(dim=-1) + _floor(size, target)).all()):
        return None

    def outcomes(start: int, number: int) -> tuple[Tensor, Tensor]:
        part = slice(start, start + number)
        return estimates(after_best(others[part])), weights[part]

    return _moments(f"`{estimator.name}` on {draws} samples", target, len(others), outcomes, information)


@dataclass(frozen=True, eq=False)
class _Tuples:
    dealt: Tensor  # [N, r, *event]
    estimates: Tensor  # [r, d]
    losses: Tensor  # L − E L, [N, r]
    scores: Tensor  # [N, r, d]
    floor: Tensor  # [r], the rounding of losses and scores in an estimate

    @classmethod
    def of(cls, estimator: Estimator[Any], target: Target, slots: int) -> Self:
        """Tuples of the best structure, of the law and of the flat law, so that rare structures occur. Some samples are equal."""
        oracle, scores, rows = target.oracle, target.scores, max(16, min(TUPLES, 4096 // slots))
        generator = torch.Generator(scores.device).manual_seed(slots)
        flat = torch.where(scores == -math.inf, scores, 0)
        drawn = [oracle.sample(law, TUPLES, generator=generator) for law in (scores, flat)]
        # The best one often: sum-and-sample takes the second sample if the first is the best.
        pool = torch.cat([oracle.argmax(scores).expand_as(drawn[0]), *drawn, drawn[1]])
        if len(values(target.loss, pool.double(), oracle.event_ndim).unique()) < 3:
            # If all losses are equal, many forms hold: only the structure to be found may have another one.
            extremes = Enumeration(target.loss, oracle, scores, cap=target.truth.count).extremes().to(pool.dtype)
            pool = torch.cat([pool, extremes.repeat_interleave(TUPLES, 0)])
        dealt = pool[torch.randint(len(pool), (slots, rows), generator=generator, device=scores.device)].double()
        dealt[:, 0] = pool[0]
        losses = values(target.loss, dealt, oracle.event_ndim)
        single = scores_of(oracle, dealt, scores.double().expand(rows, *scores.shape)).flatten(2)
        estimates = _scripted(estimator, target, dealt).flatten(1).double()
        return cls(dealt, estimates, losses - target.truth.value, single, _floor(losses.abs().amax(0), target))

    def weights(self) -> tuple[Tensor, Tensor] | None:
        """A [N, N] and κ [N], equal for all samples if possible; None if no such weights give the estimates."""
        slots = len(self.losses)
        one, each = self.losses.new_ones(slots), torch.eye(slots, dtype=torch.float64, device=self.losses.device)
        # Own losses, those of others, and no loss: one weight for all samples, or one for each.
        bases = [[(each, 0 * one), *([(1 - each, 0 * one)] if slots > 1 else []), (0 * each, one)]]
        if 1 < slots <= MAX_WEIGHTED_SAMPLES:
            bases.append([(torch.outer(i, j), 0 * one) for i in each for j in each] + [(0 * each, j) for j in each])
        for basis in bases:
            pairs, alone = (torch.stack(parts) for parts in zip(*basis, strict=True))
            columns = torch.einsum("kij,ir,jrd->rdk", pairs, self.losses, self.scores) + torch.einsum("kj,jrd->rdk", alone, self.scores)
            sizes = columns.flatten(0, 1).norm(dim=0)
            if not bool(columns.isfinite().all() & self.estimates.isfinite().all() & (sizes > 0).all()):
                return None
            found = torch.linalg.lstsq((columns / sizes).flatten(0, 1).cpu(), self.estimates.flatten().unsqueeze(-1).cpu(), driver="gelsd")
            if int(found.rank) < len(basis):
                return None
            solution = found.solution.squeeze(-1).to(sizes) / sizes
            matrix, vector = torch.einsum("k,kij->ij", solution, pairs), solution @ alone
            terms = torch.einsum("ij,ir,jr->r", matrix.abs(), self.losses.abs(), self.scores.norm(dim=-1))
            terms += vector.abs() @ self.scores.norm(dim=-1)
            if self._agree(columns @ solution, terms):
                return matrix, vector
        return None

    def is_average(self, estimator: Estimator[Any], target: Target) -> bool:
        """Whether an estimate is the average of those of N equal samples."""
        equal = torch.stack([_scripted(estimator, target, slot.expand_as(self.dealt)).flatten(1).double() for slot in self.dealt])
        return self._agree(equal.mean(0), equal.norm(dim=-1).mean(0))

    def _agree(self, others: Tensor, sizes: Tensor) -> bool:
        """Compare row by row: likely rows may be small, and matter most."""
        return bool(((self.estimates - others).norm(dim=-1) <= AGREEMENT * sizes + self.floor).all())


def _bilinear(matrix: Tensor, vector: Tensor, target: Target, information: Tensor | None) -> Summary:
    """The moments of ``Σ_ij A_ij (L_i − E L) s_j + Σ_j κ_j s_j``.

    Let ``l = L − E L``. The terms of one sample have the covariance ``A_ii² Cov(ls) + A_ii κ_i 2 E[l ss'] + κ_i² E[ss']``. The terms of two
    are uncorrelated with all others, and have the covariance ``(A_ij² + A_ji²) Var L · E[ss'] + 2 A_ij A_ji gg'``.
    """
    truth, own = target.truth, matrix.diagonal()
    gradient, squares = truth.gradient.flatten(), _squared_scores(target, information)
    both = torch.stack([gradient @ gradient, *([] if information is None else [gradient @ information @ gradient])])
    alone = vector.square().sum() + truth.loss_variance * (matrix.square().sum() - own.square().sum())
    pairs = (matrix * matrix.T).sum() - own.square().sum()
    plain, crossed, squared = squares.unbind(-1)
    traces = own.square().sum() * (squared - both) + 2 * (own @ vector) * crossed + alone * plain + pairs * both
    gain = own.sum()
    informed = None if information is None else gain.square() * both[1] + traces[1]
    return _summary(target, (gain - 1) * gradient, traces[0].clamp(min=0), informed)


def _squared_scores(target: Target, information: Tensor | None) -> Tensor:
    """`Enumeration.squared_scores`, once for a truth and an information: all estimators of an instance share them."""
    known = target.truth.memo.get("squared_scores")
    if known is None or known[0] is not information:
        space = Enumeration(target.loss, target.oracle, target.scores, cap=target.truth.count)
        known = target.truth.memo["squared_scores"] = (information, space.squared_scores(information))
    return cast("Tensor", known[1])


def _summary(target: Target, error: Tensor, trace: Tensor, informed: Tensor | None) -> Summary:
    unknown = torch.full_like(trace, math.nan)
    others: dict[str, Any] = dict.fromkeys(("zero", "nonzero", "descent", "cosine", "quartic", "agreeing", "signed"), unknown)
    return Summary(target.truth.gradient.flatten(), error, trace, torch.full_like(trace, math.inf), **others, informed=informed)


def _floor(losses: Tensor, target: Target) -> Tensor:
    """The rounding of an estimate of losses up to these."""
    return 1e-14 * (losses + abs(target.truth.value)) * math.sqrt(target.scores.numel())


def _scripted(estimator: Estimator[Any], target: Target, dealt: Tensor) -> Tensor:
    """Estimates ``[rows, *event]`` for samples ``[slots, rows, *event]``."""
    rows = target.scores.expand(dealt.shape[1], *target.scores.shape)
    return estimator.gradient(target.loss, scripted(target.oracle, dealt), rows, generator=torch.Generator(target.scores.device))


def _moments(
    name: str, target: Target, total: int, outcomes: Callable[[int, int], tuple[Tensor, Tensor]], information: Tensor | None
) -> Summary:
    """The exact moments of estimates and weights that are computed for ranges (first, number) of all outcomes."""
    totals = Moments.empty(target.truth.gradient.flatten(), information, batches=1)
    name = f"{name} of shape {tuple(target.scores.shape)}"
    for _, (estimates, weights) in launched(name, CHUNK, target.scores.device, (0, total), outcomes):
        if len(weights):
            totals.add(estimates, weights=weights)
    return summarise(totals, exact=True)
