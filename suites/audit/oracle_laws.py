"""Laws of oracles: every operation against all structures of a small event, at every scale of scores.

A law yields comparisons ``(name, found, expected, tolerance)``. The table `LAWS` has one record per law.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from scipy.stats import chi2
from torch import Tensor

from ...oracles import kernels
from ...oracles.capabilities import EnumerableOracle, KBestOracle, MarginalOracle, Oracle, ProjectionOracle, RelaxedOracle, SamplingOracle
from .result import Check, DisagreementError

SCALES = (0.05, 1.0, 10.0, 50.0)
ROWS = 6
DRAWS = 20_000

Comparison = tuple[str, Tensor, Tensor, float]
"""Name, found, expected, and the absolute tolerance."""


@dataclass(frozen=True, eq=False)
class Scene:
    """The structures of an event shape, and scores of one kind.

    Attributes:
        oracle: their oracle.
        event: the shape.
        structures: float64 ``[n, d]``.
        source: how they were found.
        kind: of the scores.
        scores: ``[b, *event]``.
    """

    oracle: Any
    event: tuple[int, ...]
    structures: Tensor
    source: str
    kind: str = ""
    scores: Tensor = torch.empty(0)

    def __str__(self) -> str:
        return f"{self.oracle.name} {'x'.join(map(str, self.event))}" + (f", {self.kind}" if self.kind else "")

    @property
    def size(self) -> float:
        """The largest sum of scores that a structure may have, roughly; at least 1."""
        finite = self.scores[self.scores > -math.inf].abs()
        return max(1.0, float(finite.max()) * self.scores[0].numel()) if finite.numel() else 1.0

    def totals(self, scores: Tensor | None = None) -> Tensor:
        """⟨η, z⟩ of every structure ``[b, n]``, η the natural parameters: differentiable; -inf if it is forbidden."""
        parameters = self.oracle.natural_parameters(self.scores if scores is None else scores).flatten(1).double()
        allowed = parameters > -torch.inf
        sums = torch.where(allowed, parameters, 0) @ self.structures.mT
        return torch.where((~allowed).double() @ self.structures.mT > 0, -torch.inf, sums)

    def probabilities(self, scores: Tensor | None = None) -> Tensor:
        """Probabilities of every structure, ``[b, n]``; 0 if none is feasible."""
        totals = self.totals(scores)
        feasible = (totals > -torch.inf).any(1, keepdim=True)
        return torch.where(feasible, torch.where(feasible, totals, 0).softmax(1), 0)

    @property
    def batched(self) -> dict[str, Callable[..., Tensor]]:
        """Operations with a result per row, shaped like the scores."""
        names = ("argmax", "marginals") if isinstance(self.oracle, MarginalOracle) else ("argmax",)
        return {name: getattr(self.oracle, name) for name in names}

    def indices(self, name: str, found: Tensor) -> Tensor:
        """The number of each structure ``[..., *event]``; DisagreementError if one is none."""
        flat, known = found.double().reshape(-1, self.structures.shape[1]), self.structures
        # Whole numbers have exact sums; the comparison below rejects another structure with an equal sum.
        code = torch.randint(2**40, (known.shape[1],), generator=torch.Generator().manual_seed(0)).double()
        sums, order = (known @ code).sort()
        index = order[torch.searchsorted(sums, flat @ code).clamp(max=len(sums) - 1)]
        foreign = (flat != known[index]).any(1)
        if bool(foreign.any()):
            parts = flat[int(foreign.long().argmax())].nonzero().flatten().tolist()
            raise DisagreementError(f"{name} is no structure: {parts} are not parts of one")
        return index.reshape(found.shape[: found.ndim - len(self.event)])


def scenes(listing: Scene, seed: int, *, quick: bool = False) -> Iterator[Scene]:
    """Scores at every scale, with ties, with forbidden parts and one row in which everything is forbidden."""
    random = torch.Generator().manual_seed(seed)
    noise = torch.randn(ROWS, *listing.event, generator=random, dtype=torch.float64)
    forbidden = torch.rand(noise.shape, generator=random) < 0.3
    forbidden &= ~(listing.structures.reshape(-1, *listing.event) > 0).all(0)
    forbidden[0], forbidden[1] = True, False
    kinds = {f"scale {scale:g}": scale * noise for scale in ((1.0,) if quick else SCALES)} | ({} if quick else {"ties": noise.round()})
    for kind, scores in (kinds | {"forbidden parts": (3 * noise).masked_fill(forbidden, -math.inf)}).items():
        yield replace(listing, kind=kind, scores=scores)


def compare(name: str, found: Tensor, expected: Tensor, tolerance: float) -> None:
    """DisagreementError with the worst entry if two tensors differ."""
    if found.shape != expected.shape:
        raise DisagreementError(f"{name} has shape {tuple(found.shape)}; expected {tuple(expected.shape)}")
    found, expected = found.detach().double(), expected.detach().double()
    wrong = ~((found == expected) | ((found - expected).abs() <= tolerance))
    if bool(wrong.any()):
        worst = torch.where(wrong, (found - expected).abs().nan_to_num(nan=math.inf), -1.0).flatten().argmax()
        place = tuple(int(index) for index in torch.unravel_index(worst, wrong.shape))
        raise DisagreementError(f"{name} at {place} is {float(found[place]):.6g}; expected {float(expected[place]):.6g}")


def argmax(scene: Scene) -> Iterator[Comparison]:
    """A structure, and none has a higher score; zeros if all are forbidden."""
    totals, best = scene.totals(), scene.oracle.argmax(scene.scores)
    feasible = totals.amax(1) > -math.inf
    yield "`argmax` if everything is forbidden", best[~feasible], torch.zeros_like(best[~feasible]), 0.0
    chosen, totals = scene.indices("`argmax`", best[feasible]), totals[feasible]
    yield "the score of `argmax`", totals.gather(1, chosen.unsqueeze(1)).squeeze(1), totals.amax(1), 1e-12 * scene.size
    yield "`argmax` called again", scene.oracle.argmax(scene.scores), best, 0.0


def ignored(scene: Scene) -> Iterator[Comparison]:
    """Parts of no structure are not read, and 0 in results."""
    used = (scene.structures.sum(0) > 0).reshape(scene.event)
    yield "`read_mask`", scene.oracle.read_mask(scene.event).double(), used.double(), 0.0
    spoilt = torch.where(used, scene.scores, math.nan)
    for name, call in scene.batched.items():
        yield f"`{name}` with NaN at ignored entries", call(spoilt), call(scene.scores), 0.0


def batches(scene: Scene) -> Iterator[Comparison]:
    """A batch is its rows: none, several dimensions, and rows that `expand` made."""
    for name, call in scene.batched.items():
        whole = call(scene.scores)
        yield f"`{name}` of an empty batch", call(scene.scores[:0]), whole[:0], 0.0
        yield f"`{name}` of single rows", torch.stack([call(row) for row in scene.scores]), whole, 1e-12
        deep = scene.scores.reshape(2, -1, *scene.event)
        yield f"`{name}` of two batch dimensions", call(deep), whole.reshape(deep.shape), 1e-12
        yield f"`{name}` of expanded rows", call(scene.scores[:1].expand_as(scene.scores)), whole[:1].expand_as(whole), 1e-12


def lengths(scene: Scene) -> Iterator[Comparison]:
    """Whole lengths change nothing; a shorter item equals one of a smaller event, and padding is not read, and 0 in results."""
    oracle, scores = scene.oracle, scene.scores
    limits = torch.tensor(oracle.length_limits(scene.event))
    whole = limits.expand(len(scores), -1) if len(limits) > 1 else limits.expand(len(scores))
    yield "`argmax` of whole lengths", oracle.argmax(scores, lengths=whole), oracle.argmax(scores), 0.0
    shorter = (whole - 1).clamp(min=1)
    inside = oracle.length_mask(scene.event, shorter).expand_as(scores)
    if bool((limits > 1).any()) and bool(inside.all()):
        raise DisagreementError(
            f"an item of length {shorter[0].tolist()} has all parts; expected some beyond it, of length {limits.tolist()}"
        )
    calls = scene.batched
    if isinstance(oracle, MarginalOracle):
        calls["log_partition"] = oracle.log_partition
        padded = oracle.log_partition(oracle.pad(scores, shorter))
        yield "`log_partition` of padded scores", padded, oracle.log_partition(scores, lengths=shorter), 1e-9 * scene.size

    def item(values: Tensor) -> Tensor:
        """The lines of every axis that hold a part of the shorter item."""
        for axis, places in enumerate(inside[0].nonzero().unbind(1), start=1):
            values = values.index_select(axis, places.unique())
        return values

    try:
        oracle.argmax(item(scores))
    except ValueError:  # an event that small has no structure
        return
    spoilt = torch.where(inside, scores, math.nan)
    for name, call in calls.items():
        found = call(scores, lengths=shorter)
        yield f"`{name}` with NaN beyond the length", call(spoilt, lengths=shorter), found, 0.0
        alone, cut = call(item(scores)), item(found) if found.ndim > 1 else found
        if name == "argmax":  # of structures that tie, either; if all are forbidden, any
            allowed = item(scores).clamp(min=-1e100)
            alone, cut = ((best * allowed).flatten(1).sum(1) for best in (alone, cut))
            alone, cut = alone[alone > -1e90], cut[alone > -1e90]
        yield f"`{name}` of a shorter item", cut, alone, 1e-9 * scene.size
        if found.ndim > 1:
            yield f"`{name}` beyond the length", found.masked_fill(inside, 0), torch.zeros_like(found), 0.0


def derivatives(scene: Scene) -> Iterator[Comparison]:
    """Derivatives of the log-partition and of the marginals, against those of the sums."""
    weights = torch.randn(scene.scores.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    feasible = scene.oracle.feasible(scene.scores).reshape(-1, *[1] * len(scene.event))

    def gradient(call: Callable[[Tensor], Tensor], cotangents: Tensor | float) -> Tensor:
        leaf = scene.scores.clone().requires_grad_()
        value = (call(leaf).nan_to_num(neginf=0.0) * cotangents).sum()
        (found,) = torch.autograd.grad(value, leaf, allow_unused=True, materialize_grads=True)
        return found

    def summed(leaf: Tensor) -> Tensor:
        totals = scene.totals(leaf)
        return torch.where((totals > -math.inf).any(1, keepdim=True), totals, 0).logsumexp(1)

    def expected_structure(leaf: Tensor) -> Tensor:
        return (scene.probabilities(leaf) @ scene.structures).reshape(leaf.shape)

    for name, call, reference, cotangents in (
        ("the gradient of `log_partition`", scene.oracle.log_partition, summed, 1.0),
        ("the derivative of `marginals`", scene.oracle.marginals, expected_structure, weights),
    ):
        expected = torch.where(feasible, gradient(reference, cotangents).nan_to_num(), 0)
        yield name, gradient(call, cotangents), expected, 1e-8 * scene.size


def log_probability(scene: Scene) -> Iterator[Comparison]:
    """Score and log-probability of every structure."""
    structures, totals = scene.structures.reshape(-1, 1, *scene.event), scene.totals()
    feasible = (totals > -math.inf).any(1)
    yield "`score`", scene.oracle.score(structures, scene.scores).mT, totals, 1e-10 * scene.size
    found = scene.oracle.log_prob(structures, scene.scores).mT[feasible]
    yield "`log_prob`", found, totals.log_softmax(1)[feasible], 1e-10 * scene.size


def k_best(scene: Scene) -> Iterator[Comparison]:
    """The highest scores, in order, each structure once."""
    k = min(5, len(scene.structures))
    for row, (listed, totals) in enumerate(zip(scene.oracle.kbest(scene.scores, k).unbind(1), scene.totals(), strict=True)):
        allowed = min(k, int((totals > -math.inf).sum()))
        structures = scene.indices("`kbest`", listed[:allowed])
        if len(structures.unique()) < allowed:
            raise DisagreementError(f"`kbest` of k={k} names a structure twice in row {row}; expected distinct ones")
        yield f"the scores of `kbest` in row {row}", totals[structures], totals.topk(allowed).values, 1e-10 * scene.size


def enumeration(scene: Scene) -> Iterator[Comparison]:
    """All structures, each once, and the rank of each."""
    found, count = scene.oracle.enumerate(scene.event), len(scene.structures)
    distinct = len(scene.indices("`enumerate`", found).unique())
    if distinct != count or len(found) != count:
        raise DisagreementError(f"`enumerate` gives {distinct} structures; expected {count}, each once")
    try:
        ranks = scene.oracle.rank(found)
    except ValueError:  # an oracle without ranks
        return
    yield "`rank` of what `enumerate` lists", ranks.double(), torch.arange(count).double(), 0.0


def projection(scene: Scene) -> Iterator[Comparison]:
    """A point in the hull of the structures that are not forbidden, and none of them is nearer."""
    totals = scene.totals()
    feasible = (totals > -math.inf).any(1)
    solution = scene.oracle.project(scene.scores[feasible])
    scene.indices("an atom of `project`", solution.atoms[solution.weights > 0])
    theta, mean = scene.scores[feasible].nan_to_num(neginf=0.0).flatten(1), solution.mean.flatten(1)
    yield "the mean of `project`", mean, torch.einsum("bm,bmd->bd", solution.weights, solution.atoms.flatten(2)), 1e-9
    yield "the sum of its weights", solution.weights.sum(1), torch.ones(len(mean), dtype=torch.float64), 1e-9
    excess = (theta - mean) @ scene.structures.mT - ((theta - mean) * mean).sum(1, keepdim=True)
    worst = excess.masked_fill(totals[feasible] == -math.inf, -math.inf).amax(1).clamp(min=0)
    yield "the duality gap of `project`", worst, torch.zeros_like(worst), 1e-8 * scene.size


def relaxation(scene: Scene) -> Iterator[Comparison]:
    """`relax` with entropy equals the marginals; a sparse one is a point of the hull."""
    yield "`relax`", scene.oracle.relax(scene.scores), scene.oracle.marginals(scene.scores), 1e-12
    sparse = scene.oracle.relax(scene.scores, "l2")[scene.oracle.feasible(scene.scores)].flatten(1)
    directions = torch.randn(100, scene.structures.shape[1], generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    beyond = (sparse @ directions.mT - (scene.structures @ directions.mT).amax(0)).clamp(min=0)
    yield "how far `relax` with l2 lies outside of the hull", beyond, torch.zeros_like(beyond), 1e-8


def single_precision(scene: Scene) -> Iterator[Comparison]:
    """Marginals of float32 scores, up to single precision."""
    scores = scene.scores.float()
    found = scene.oracle.marginals(scores)
    if found.dtype != torch.float32:
        raise DisagreementError(f"`marginals` of float32 scores are {found.dtype}; expected torch.float32")
    yield "`marginals` in float32", found, scene.oracle.marginals(scores.double()), 1e-5


def compiled(scene: Scene) -> Iterator[Comparison]:
    """Kernels agree with plain torch; of structures that tie, either may be the best."""
    for name in ("log_partition", "marginals"):
        found = getattr(scene.oracle, name)(scene.scores)
        with kernels.disabled():
            expected = getattr(scene.oracle, name)(scene.scores)
        yield f"`{name}` of a kernel", found, expected, 1e-9 * scene.size
    with kernels.disabled():
        yield from argmax(scene)


Law = Callable[[Scene], Iterator[Comparison]]


def expectation(name: str, tolerance: float, expected: Callable[[Scene], Tensor], *others: Callable[[Scene], Tensor]) -> Law:
    """A law of an operation of the Gibbs distribution: it equals a sum over all structures."""

    def law(scene: Scene) -> Iterator[Comparison]:
        found = getattr(scene.oracle, name)(scene.scores, *(other(scene) for other in others))
        yield f"`{name}`", found, expected(scene), tolerance * scene.size

    return law


def _other_scores(scene: Scene) -> Tensor:
    return scene.scores.flip(0).clamp(min=-1e3)


def _divergence(scene: Scene) -> Tensor:
    chances = scene.probabilities()
    terms: Tensor = torch.special.xlogy(chances, chances) - chances * scene.totals(_other_scores(scene)).log_softmax(1)
    return terms.sum(1)


LAWS: tuple[tuple[Any, str, Law], ...] = (
    (Oracle, "argmax", argmax),
    (Oracle, "ignored entries", ignored),
    (Oracle, "batches", batches),
    (Oracle, "lengths", lengths),
    (MarginalOracle, "log-partition", expectation("log_partition", 1e-10, lambda scene: scene.totals().logsumexp(1))),
    (MarginalOracle, "marginals", expectation("marginals", 1e-10, lambda s: (s.probabilities() @ s.structures).reshape(s.scores.shape))),
    (MarginalOracle, "derivatives", derivatives),
    (MarginalOracle, "log-probability", log_probability),
    (MarginalOracle, "entropy", expectation("entropy", 1e-9, lambda scene: torch.special.entr(scene.probabilities()).sum(1))),
    (MarginalOracle, "kl", expectation("kl", 1e-8, _divergence, _other_scores)),
    (MarginalOracle, "float32", single_precision),
    (MarginalOracle, "kernels", compiled),
    (KBestOracle, "k best", k_best),
    (EnumerableOracle, "enumeration", enumeration),
    (ProjectionOracle, "projection", projection),
    (RelaxedOracle, "relaxation", relaxation),
)
"""Capability, name, and law."""

CAPABILITIES: dict[Any, str] = {
    MarginalOracle: "log-partition and marginals",
    SamplingOracle: "samples",
    ProjectionOracle: "projection",
    EnumerableOracle: "enumeration",
    KBestOracle: "k best",
    RelaxedOracle: "relaxation",
}
"""Names of capabilities."""


def laws_of(scene: Scene, seed: int) -> Iterator[tuple[str, Callable[[], Iterator[Check]]]]:
    """The laws of an oracle by name, as functions without arguments."""
    oracle, where = scene.oracle, str(scene)

    def compared(name: str, law: Law) -> Iterator[Check]:
        try:
            for comparison in law(scene):
                compare(*comparison)
            yield Check(name, where, "holds")
        except ValueError as error:
            if name != "lengths" or "lengths" not in str(error):
                raise
            yield Check(name, where, "skipped", str(error))

    out_of_reach = isinstance(oracle, MarginalOracle) and not oracle.sums_in_reach(scene.event)
    for capability, name, law in LAWS:
        if isinstance(oracle, capability) and (name in ("argmax", "batches") or not out_of_reach):
            yield name, functools.partial(compared, name, law)
    if isinstance(oracle, SamplingOracle) and not out_of_reach:
        yield "samples", lambda: iter([sample_test(scene, seed)])


def sample_test(scene: Scene, seed: int) -> Check:
    """Pearson's test of samples against exact probabilities, one for all rows; rare structures are pooled."""
    drawn = scene.oracle.sample(scene.scores, DRAWS, generator=torch.Generator().manual_seed(seed))
    statistic, degrees = 0.0, 0
    for row, probabilities in enumerate(scene.probabilities()):
        if float(probabilities.sum()) == 0:
            compare("`sample` where nothing is feasible", drawn[:, row], torch.zeros_like(drawn[:, row]), 0.0)
            continue
        found = torch.bincount(scene.indices("`sample`", drawn[:, row]), minlength=len(probabilities)).double()
        if bool((found[probabilities == 0] > 0).any()):
            raise DisagreementError("`sample` drew a structure of probability 0")
        expected = DRAWS * probabilities
        rare = expected < 5
        found, expected = (torch.cat([counts[~rare], counts[rare].sum()[None]]) for counts in (found, expected))
        pooled = expected >= 5
        statistic += float(((found - expected).square() / expected)[pooled].sum())
        degrees += max(int(pooled.sum()) - 1, 0)
    p_value = float(chi2.sf(statistic, degrees)) if degrees else 1.0
    detail = f"χ² {statistic:.4g} with {degrees} degrees of freedom: p = {p_value:.3g}"
    return Check("samples", str(scene), "holds", detail, "", "test", p_value)
