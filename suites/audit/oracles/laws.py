"""Laws of oracles: every operation against all structures of a small event, at every scale of scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from scipy.stats import chi2
from torch import Tensor

from ....oracles import kernels
from ....oracles.capabilities import EnumerableOracle, KBestOracle, MarginalOracle, Oracle, ProjectionOracle, RelaxedOracle, SamplingOracle
from ..result import Check
from .listing import Listing

SCALES = (0.05, 1.0, 10.0, 50.0)
ROWS = 6
DRAWS = 20_000


class DisagreementError(Exception):
    """What an operation got, and what it should be, in one sentence."""


@dataclass(frozen=True, eq=False)
class Scene:
    """Scores [b, *event] of one kind, beside all structures."""

    listing: Listing
    kind: str
    scores: Tensor

    def __str__(self) -> str:
        return f"{self.listing}, {self.kind}"

    def size(self) -> float:
        """The largest sum of scores that a structure may have, roughly; at least 1."""
        finite = self.scores[self.scores > -math.inf].abs()
        return max(1.0, float(finite.max()) * self.scores[0].numel()) if finite.numel() else 1.0


def scenes(listing: Listing, seed: int, *, quick: bool = False) -> Iterator[Scene]:
    """Scores at every scale, with ties, with forbidden parts and one row in which everything is forbidden."""
    random = torch.Generator().manual_seed(seed)
    noise = torch.randn(ROWS, *listing.event, generator=random, dtype=torch.float64)
    for scale in (1.0,) if quick else SCALES:
        yield Scene(listing, f"scale {scale:g}", scale * noise)
    if not quick:
        yield Scene(listing, "ties", noise.round())
    forbidden = torch.rand(noise.shape, generator=random) < 0.3
    forbidden &= ~(listing.structures.reshape(-1, *listing.event) > 0).all(0)
    forbidden[0], forbidden[1] = True, False
    yield Scene(listing, "forbidden parts", (3 * noise).masked_fill(forbidden, -math.inf))


def asked(oracle: Oracle) -> dict[str, Callable[[Scene], None]]:
    """The laws of what an oracle can do, by name."""
    kinds: dict[Any, dict[str, Callable[[Scene], None]]] = {
        Oracle: {"argmax": argmax, "ignored entries": ignored, "batches": batches, "lengths": lengths},
        MarginalOracle: {
            "log-partition": log_partition,
            "marginals": marginals,
            "derivatives": derivatives,
            "log-probability": log_probability,
            "entropy": entropy,
            "kl": divergence,
            "float32": single_precision,
            "kernels": compiled,
        },
        KBestOracle: {"k best": k_best},
        EnumerableOracle: {"enumeration": enumeration},
        ProjectionOracle: {"projection": projection},
        RelaxedOracle: {"relaxation": relaxation},
    }
    return {name: law for kind, laws in kinds.items() if isinstance(oracle, kind) for name, law in laws.items()}


def lacking(oracle: Oracle) -> list[str]:
    """Capabilities that an oracle does not have, in words."""
    words: dict[Any, str] = {
        MarginalOracle: "log-partition and marginals",
        SamplingOracle: "samples",
        ProjectionOracle: "projection",
        EnumerableOracle: "enumeration",
        KBestOracle: "k best",
        RelaxedOracle: "relaxation",
    }
    return [word for kind, word in words.items() if not isinstance(oracle, kind)]


def _same(what: str, found: Tensor, expected: Tensor, tolerance: float) -> None:
    """DisagreementError with the worst entry where they differ."""
    if found.shape != expected.shape:
        raise DisagreementError(f"{what} has shape {tuple(found.shape)}; expected {tuple(expected.shape)}")
    found, expected = found.detach().double(), expected.detach().double()
    wrong = ~((found == expected) | ((found - expected).abs() <= tolerance))
    if bool(wrong.any()):
        worst = torch.where(wrong, (found - expected).abs().nan_to_num(nan=math.inf), -1.0).flatten().argmax()
        place = tuple(int(index) for index in torch.unravel_index(worst, wrong.shape))
        raise DisagreementError(f"{what} at {place} is {float(found[place]):.6g}; expected {float(expected[place]):.6g}")


def _structures_of(what: str, scene: Scene, found: Tensor) -> Tensor:
    """Which structure each of [..., *event] is; DisagreementError where one is none."""
    flat, known = found.double().reshape(-1, scene.listing.structures.shape[1]), scene.listing.structures
    # Whole numbers, so that sums are exact; which of two structures with the same sum is meant, the comparison below would tell.
    code = torch.randint(2**40, (known.shape[1],), generator=torch.Generator().manual_seed(0)).double()
    sums, order = (known @ code).sort()
    index = order[torch.searchsorted(sums, flat @ code).clamp(max=len(sums) - 1)]
    foreign = (flat != known[index]).any(1)
    if bool(foreign.any()):
        parts = flat[int(foreign.long().argmax())].nonzero().flatten().tolist()
        raise DisagreementError(f"{what} is no structure: {parts} are not parts of one")
    return index.reshape(found.shape[: found.ndim - len(scene.listing.event)])


def argmax(scene: Scene) -> None:
    """A structure, and none has a higher score; zeros if all are forbidden."""
    totals = scene.listing.totals(scene.scores)
    best = scene.listing.oracle.argmax(scene.scores)
    feasible = totals.amax(1) > -math.inf
    _same("`argmax` if everything is forbidden", best[~feasible], torch.zeros_like(best[~feasible]), 0.0)
    chosen, totals = _structures_of("`argmax`", scene, best[feasible]), totals[feasible]
    _same("the score of `argmax`", totals.gather(1, chosen.unsqueeze(1)).squeeze(1), totals.amax(1), 1e-12 * scene.size())
    _same("`argmax` called again", scene.listing.oracle.argmax(scene.scores), best, 0.0)


def ignored(scene: Scene) -> None:
    """Parts of no structure are not read, and 0 in results."""
    oracle, used = scene.listing.oracle, (scene.listing.structures.sum(0) > 0).reshape(scene.listing.event)
    _same("`read_mask`", oracle.read_mask(scene.listing.event).double(), used.double(), 0.0)
    if not bool(used.all()):
        spoilt = torch.where(used, scene.scores, math.nan)
        _same("`argmax` with NaN at ignored entries", oracle.argmax(spoilt), oracle.argmax(scene.scores), 0.0)
        if isinstance(oracle, MarginalOracle):
            _same("`marginals` with NaN at ignored entries", oracle.marginals(spoilt), oracle.marginals(scene.scores), 0.0)


def batches(scene: Scene) -> None:
    """A batch is its rows; none, several dimensions, and rows that `expand` made."""
    calls: dict[str, Callable[[Tensor], Tensor]] = {"argmax": scene.listing.oracle.argmax}
    if isinstance(scene.listing.oracle, MarginalOracle):
        calls["marginals"] = scene.listing.oracle.marginals
    for name, call in calls.items():
        whole = call(scene.scores)
        _same(f"`{name}` of an empty batch", call(scene.scores[:0]), whole[:0], 0.0)
        _same(f"`{name}` of single rows", torch.stack([call(row) for row in scene.scores]), whole, 1e-12)
        deep = scene.scores.reshape(2, -1, *scene.listing.event)
        _same(f"`{name}` of two batch dimensions", call(deep), whole.reshape(deep.shape), 1e-12)
        _same(f"`{name}` of expanded rows", call(scene.scores[:1].expand_as(scene.scores)), whole[:1].expand_as(whole), 1e-12)


def lengths(scene: Scene) -> None:
    """Whole lengths change nothing; a shorter item is one of a smaller event, and what is beyond it is not read, and 0 in results."""
    oracle = scene.listing.oracle
    limits = torch.tensor(oracle.length_limits(scene.listing.event))
    whole = limits.expand(len(scene.scores), -1) if len(limits) > 1 else limits.expand(len(scene.scores))
    _same("`argmax` of whole lengths", oracle.argmax(scene.scores, lengths=whole), oracle.argmax(scene.scores), 0.0)
    shorter = (whole - 1).clamp(min=1)
    inside = oracle.length_mask(scene.listing.event, shorter).expand_as(scene.scores)
    if bool((limits > 1).any()) and bool(inside.all()):
        raise DisagreementError(
            f"an item of length {shorter[0].tolist()} has all parts; expected some beyond it, of length {limits.tolist()}"
        )
    spoilt = torch.where(inside, scene.scores, math.nan)
    calls: dict[str, Callable[..., Tensor]] = {"argmax": oracle.argmax}
    if isinstance(oracle, MarginalOracle):
        calls |= {"marginals": oracle.marginals, "log_partition": oracle.log_partition}
        one_way = oracle.log_partition(oracle.pad(scene.scores, shorter))
        _same("`log_partition` of padded scores", one_way, oracle.log_partition(scene.scores, lengths=shorter), 1e-9 * scene.size())
    for name, call in calls.items():
        found = call(scene.scores, lengths=shorter)
        _same(f"`{name}` with NaN beyond the length", call(spoilt, lengths=shorter), found, 0.0)
        alone, cut = call(_item(inside[0], scene.scores)), _item(inside[0], found) if found.ndim > 1 else found
        if name == "argmax":  # of structures that tie, either; where all are forbidden, any
            allowed = _item(inside[0], scene.scores).clamp(min=-1e100)
            alone, cut = ((best * allowed).flatten(1).sum(1) for best in (alone, cut))
            alone, cut = alone[alone > -1e90], cut[alone > -1e90]
        _same(f"`{name}` of a shorter item", cut, alone, 1e-9 * scene.size())
        if found.ndim > 1:
            _same(f"`{name}` beyond the length", found.masked_fill(inside, 0), torch.zeros_like(found), 0.0)


def _item(inside: Tensor, values: Tensor) -> Tensor:
    """Of values [b, *event], those of an item alone that has the parts inside [*event]: the lines of every axis that hold one."""
    for axis, places in enumerate(inside.nonzero().unbind(1), start=1):
        values = values.index_select(axis, places.unique())
    return values


def log_partition(scene: Scene) -> None:
    """The logarithm of a sum over all structures."""
    expected = scene.listing.totals(scene.scores).logsumexp(1)
    _same("`log_partition`", scene.listing.oracle.log_partition(scene.scores), expected, 1e-10 * scene.size())


def marginals(scene: Scene) -> None:
    """The expected structure."""
    expected = scene.listing.probabilities(scene.scores) @ scene.listing.structures
    _same("`marginals`", scene.listing.oracle.marginals(scene.scores), expected.reshape(scene.scores.shape), 1e-9 * math.sqrt(scene.size()))


def derivatives(scene: Scene) -> None:
    """Of the log-partition and of the marginals, against those of the sums."""
    oracle, random = scene.listing.oracle, torch.Generator().manual_seed(1)
    weights = torch.randn(scene.scores.shape, generator=random, dtype=torch.float64)

    def gradients(log_partition: Callable[[Tensor], Tensor], marginals: Callable[[Tensor], Tensor]) -> Iterator[Tensor]:
        for call, cotangents in ((log_partition, 1.0), (marginals, weights)):
            leaf = scene.scores.clone().requires_grad_()
            value = (call(leaf).nan_to_num(neginf=0.0) * cotangents).sum()
            (gradient,) = torch.autograd.grad(value, leaf, allow_unused=True, materialize_grads=True)
            yield gradient

    def expected_structure(leaf: Tensor) -> Tensor:
        return (scene.listing.probabilities(leaf) @ scene.listing.structures).reshape(leaf.shape)

    def summed(leaf: Tensor) -> Tensor:
        totals = scene.listing.totals(leaf)
        feasible = (totals > -math.inf).any(1, keepdim=True)
        return torch.where(feasible, totals, 0).logsumexp(1)

    names = ("the gradient of `log_partition`", "the derivative of `marginals`")
    for name, found, expected in zip(
        names, gradients(oracle.log_partition, oracle.marginals), gradients(summed, expected_structure), strict=True
    ):
        feasible = oracle.feasible(scene.scores).reshape(-1, *[1] * len(scene.listing.event))
        _same(name, found, torch.where(feasible, expected.nan_to_num(), 0), 1e-8 * scene.size())


def log_probability(scene: Scene) -> None:
    """Of every structure."""
    oracle, structures = scene.listing.oracle, scene.listing.structures.reshape(-1, 1, *scene.listing.event)
    totals = scene.listing.totals(scene.scores)
    feasible = (totals > -math.inf).any(1)
    _same("`score`", oracle.score(structures, scene.scores).mT, totals, 1e-10 * scene.size())
    found, expected = oracle.log_prob(structures, scene.scores).mT[feasible], totals.log_softmax(1)[feasible]
    _same("`log_prob`", found, expected, 1e-10 * scene.size())


def entropy(scene: Scene) -> None:
    """Of the Gibbs distribution."""
    chances = scene.listing.probabilities(scene.scores)
    _same("`entropy`", scene.listing.oracle.entropy(scene.scores), torch.special.entr(chances).sum(1), 1e-9 * scene.size())


def divergence(scene: Scene) -> None:
    """From the same structure under other scores."""
    other = scene.scores.flip(0).clamp(min=-1e3)
    chances = scene.listing.probabilities(scene.scores)
    logs = scene.listing.totals(other).log_softmax(1)
    expected = (torch.special.xlogy(chances, chances) - chances * logs).sum(1)
    _same("`kl`", scene.listing.oracle.kl(scene.scores, other), expected, 1e-8 * scene.size())


def k_best(scene: Scene) -> None:
    """The highest scores, in order, each structure once."""
    k = min(5, len(scene.listing.structures))
    found, totals = scene.listing.oracle.kbest(scene.scores, k), scene.listing.totals(scene.scores)
    for row, (listed, scores) in enumerate(zip(found.unbind(1), totals, strict=True)):
        allowed = min(k, int((scores > -math.inf).sum()))
        structures = _structures_of("`kbest`", scene, listed[:allowed])
        if len(structures.unique()) < allowed:
            raise DisagreementError(f"`kbest` of k={k} names a structure twice in row {row}; expected distinct ones")
        _same(f"the scores of `kbest` in row {row}", scores[structures], scores.topk(allowed).values, 1e-10 * scene.size())


def enumeration(scene: Scene) -> None:
    """All structures, each once, and the rank of each."""
    oracle, found = scene.listing.oracle, scene.listing.oracle.enumerate(scene.listing.event)
    structures = _structures_of("`enumerate`", scene, found)
    if len(structures.unique()) != len(scene.listing.structures) or len(structures) != len(scene.listing.structures):
        raise DisagreementError(
            f"`enumerate` gives {len(structures.unique())} structures; expected {len(scene.listing.structures)}, each once"
        )
    try:
        ranks = oracle.rank(found)
    except ValueError:  # an oracle without ranks says so
        return
    _same("`rank` of what `enumerate` lists", ranks.double(), torch.arange(len(found)).double(), 0.0)


def projection(scene: Scene) -> None:
    """In the hull of the structures that are not forbidden, and none of them is nearer."""
    totals = scene.listing.totals(scene.scores)
    feasible = (totals > -math.inf).any(1)
    solution = scene.listing.oracle.project(scene.scores[feasible])
    used = solution.atoms[solution.weights > 0]
    _structures_of("an atom of `project`", scene, used)
    theta, mean = scene.scores[feasible].nan_to_num(neginf=0.0).flatten(1), solution.mean.flatten(1)
    mixed = torch.einsum("bm,bmd->bd", solution.weights, solution.atoms.flatten(2))
    _same("the mean of `project`", mean, mixed, 1e-9)
    _same("the sum of its weights", solution.weights.sum(1), torch.ones(len(mean), dtype=torch.float64), 1e-9)
    excess = (theta - mean) @ scene.listing.structures.mT - ((theta - mean) * mean).sum(1, keepdim=True)
    worst = excess.masked_fill(totals[feasible] == -math.inf, -math.inf).amax(1)
    _same("the duality gap of `project`", worst.clamp(min=0), torch.zeros_like(worst), 1e-8 * scene.size())


def relaxation(scene: Scene) -> None:
    """With entropy the marginals; sparse, a point of the hull."""
    oracle, structures = scene.listing.oracle, scene.listing.structures
    _same("`relax`", oracle.relax(scene.scores), oracle.marginals(scene.scores), 1e-12)
    feasible = oracle.feasible(scene.scores)
    sparse = oracle.relax(scene.scores, "l2")[feasible].flatten(1)
    directions = torch.randn(100, structures.shape[1], generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    beyond = (sparse @ directions.mT - (structures @ directions.mT).amax(0)).clamp(min=0)
    _same("how far `relax` with l2 lies outside of the hull", beyond, torch.zeros_like(beyond), 1e-8)


def single_precision(scene: Scene) -> None:
    """The same in float32, to its digits."""
    scores = scene.scores.float()
    expected = scene.listing.oracle.marginals(scores.double())
    found = scene.listing.oracle.marginals(scores)
    if found.dtype != torch.float32:
        raise DisagreementError(f"`marginals` of float32 scores are {found.dtype}; expected torch.float32")
    _same("`marginals` in float32", found, expected, 1e-5)


def compiled(scene: Scene) -> None:
    """What kernels compute is what plain torch computes; of structures that tie, either may be the best."""
    oracle = scene.listing.oracle
    for name in ("log_partition", "marginals"):
        found = getattr(oracle, name)(scene.scores)
        with kernels.disabled():
            expected = getattr(oracle, name)(scene.scores)
        _same(f"`{name}` of a kernel", found, expected, 1e-9 * scene.size())
    with kernels.disabled():
        argmax(scene)


def sample_check(scene: Scene, seed: int) -> Check:
    """Pearson's test of samples against exact probabilities, one for all rows; rare structures are pooled."""
    oracle, chances = scene.listing.oracle, scene.listing.probabilities(scene.scores)
    drawn = oracle.sample(scene.scores, DRAWS, generator=torch.Generator().manual_seed(seed))
    statistic, degrees = 0.0, 0
    for row, probabilities in enumerate(chances):
        if float(probabilities.sum()) == 0:
            _same("`sample` where nothing is feasible", drawn[:, row], torch.zeros_like(drawn[:, row]), 0.0)
            continue
        found = torch.bincount(_structures_of("`sample`", scene, drawn[:, row]), minlength=len(probabilities)).double()
        if bool((found[probabilities == 0] > 0).any()):
            raise DisagreementError("`sample` drew a structure of probability 0")
        expected = DRAWS * probabilities
        common = expected >= 5
        pairs = [*zip(found[common].tolist(), expected[common].tolist(), strict=True)]
        rest = float(found[~common].sum()), float(expected[~common].sum())
        pairs += [rest] if rest[1] >= 5 else []
        statistic += sum((got - wanted) ** 2 / wanted for got, wanted in pairs)
        degrees += max(len(pairs) - 1, 0)
    p_value = float(chi2.sf(statistic, degrees)) if degrees else 1.0
    return Check(
        "samples", str(scene), "holds", f"χ² {statistic:.4g} with {degrees} degrees of freedom: p = {p_value:.3g}", "", "test", p_value
    )
