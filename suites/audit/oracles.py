"""The audit of an oracle: its rules, and every operation against all structures of small events, by the laws of `LAWS`."""

import contextlib
import functools
import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from scipy.stats import chi2
from torch import Tensor

from ...oracles import kernels, make_oracle
from ...oracles.capabilities import EnumerableOracle, KBestOracle, MarginalOracle, Oracle, ProjectionOracle, RelaxedOracle, SamplingOracle
from ...oracles.derivations import Derivations, DerivedOracle, walked
from ..problems.sized import size_names, sized_structure
from ..truth.laws import derivations_of
from .result import Check, DisagreementError, Judged, check_limits, checked, settled

__all__ = ["OracleAudit", "audit_oracle"]

MAX_STRUCTURES = 400  # structures of one event shape; brute force over them is quick
MAX_PARTS = 150  # most entries of an event if no size is given

SCALES = (0.05, 1.0, 10.0, 50.0)
ROWS = 6
DRAWS = 20_000

Comparison = tuple[str, Tensor, Tensor, float]  # name, found, expected, and the absolute tolerance


@dataclass(frozen=True)
class OracleAudit(Judged):
    """The result of testing an oracle: tested shapes, checks, and the capabilities that it does not have."""

    subject: str
    events: tuple[str, ...]
    checks: tuple[Check, ...]
    lacking: tuple[str, ...]
    alpha: float


def audit_oracle(  # noqa: PLR0913
    subject: Oracle | str,
    *,
    events: Sequence[tuple[int, ...]] = (),
    alpha: float = 1e-3,
    seed: int = 0,
    quick: bool = False,
    seconds: float = 60.0,
) -> OracleAudit:
    """Test an oracle against all of its structures.

    Args:
        subject: an oracle or its name, such as ``./file.py:Class`` or, with sizes to test one event, ``subset[n=5,k=2]``.
        events: shapes to test; by default the smallest one, and the one with the most structures up to 400, of small sizes.
        alpha: the chance that an oracle without a fault is called wrong. Exact laws have none.
        seed: seed of scores and samples.
        quick: test one event, only at scores of scale 1 and with forbidden parts.
        seconds: time after which no new law is tested. The first scores, for which kernels are compiled, do not count.

    Raises:
        ValueError: an unknown name, an event that the oracle refuses, or an oracle without a small event.

    Example:
        >>> audit_oracle("subset[n=4,k=2]").verdict
        'right'
    """
    check_limits("audit_oracle", alpha, seed)
    oracle, chosen = subject, list(events)
    if isinstance(oracle, str):
        try:
            oracle, sized = sized_structure(oracle)
            chosen = chosen or [sized]
        except ValueError:  # options alone
            oracle = make_oracle(oracle)
    chosen = (chosen or small_events(oracle))[-1 if quick else 0 :]
    for event in chosen:
        oracle.check_event("argmax", event)
    checks: list[Check] = []
    scenes: list[Scene] = []
    until = math.inf

    def rules(event: tuple[int, ...]) -> Iterator[Check]:
        scenes.append(listed(oracle, event))
        yield from check_rules(scenes[-1], oracle.derivations(event) if isinstance(oracle, DerivedOracle) else None)

    for event in chosen:
        of_rules = list(checked("derivations", f"{oracle.name} {'x'.join(map(str, event))}", functools.partial(rules, event)))
        checks += of_rules
        if any(check.status != "holds" for check in of_rules):
            break  # operations by wrong rules are wrong too
        for scene in scenes[-1].with_scores(seed, quick=quick):
            in_reach = not isinstance(oracle, MarginalOracle) or oracle.sums_in_reach(scene.event)
            for capability, name, law in LAWS:
                if isinstance(oracle, capability) and (in_reach or name in ("argmax", "batches")):
                    checks += checked(name, str(scene), functools.partial(compared, scene, name, law), until)
            until = min(until, time.monotonic() + seconds)
    checks, _ = settled(checks, alpha)
    sources = tuple(f"{'x'.join(map(str, one.event))}: {len(one.structures)} structures, by {one.source}" for one in scenes)
    lacking = tuple(kind.__name__ for kind in dict.fromkeys(kind for kind, _, _ in LAWS) if not isinstance(oracle, kind))
    return OracleAudit(subject if isinstance(subject, str) else oracle.name, sources, tuple(checks), lacking, alpha)


def small_events(oracle: Oracle) -> list[tuple[int, ...]]:
    """The smallest event, and the one with most structures up to `MAX_STRUCTURES`, of first sizes up to 6 and others up to 3."""
    names = size_names(type(oracle))
    small: dict[tuple[int, ...], int] = {}
    for sizes in itertools.product(*(range(1, 7 if place == 0 else 4) for place in range(len(names)))):
        with contextlib.suppress(ValueError):  # a shape that it refuses
            event = type(oracle).event_shape(**dict(zip(names, sizes, strict=True)))
            if math.prod(event) <= MAX_PARTS and 1 <= (count := oracle.count(event)) <= MAX_STRUCTURES:
                small[event] = count
    if not small:
        example = ",".join(f"{name}=..." for name in names) or "n=..."
        raise ValueError(f"got `{oracle.name}`, of which no small event was found; give sizes, such as {oracle.name}[{example}]")
    ordered = sorted(small, key=lambda one: (small[one], math.prod(one)))
    most = min(ordered, key=lambda one: (-small[one], math.prod(one)))
    return list(dict.fromkeys((ordered[0], most)))


@dataclass(frozen=True, eq=False)
class Scene:
    """The structures ``[n, d]`` of an event shape, their source, and scores ``[b, *event]`` of one kind."""

    oracle: Any
    event: tuple[int, ...]
    structures: Tensor
    source: str
    seed: int = 0
    kind: str = ""
    scores: Tensor = torch.empty(0)

    def __str__(self) -> str:
        return f"{self.oracle.name} {'x'.join(map(str, self.event))}" + (f", {self.kind}" if self.kind else "")

    def with_scores(self, seed: int, *, quick: bool) -> Iterator[Self]:
        """Scores at every scale, with ties, with forbidden parts and one row in which everything is forbidden."""
        random = torch.Generator().manual_seed(seed)
        noise = torch.randn(ROWS, *self.event, generator=random, dtype=torch.float64)
        forbidden = torch.rand(noise.shape, generator=random) < 0.3
        forbidden &= ~(self.structures.reshape(-1, *self.event) > 0).all(0)
        forbidden[0], forbidden[1] = True, False
        kinds = {f"scale {scale:g}": scale * noise for scale in ((1.0,) if quick else SCALES)} | ({} if quick else {"ties": noise.round()})
        for kind, scores in (kinds | {"forbidden parts": (3 * noise).masked_fill(forbidden, -math.inf)}).items():
            yield replace(self, seed=seed, kind=kind, scores=scores)

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


def listed(oracle: Oracle, event: tuple[int, ...]) -> Scene:
    """All structures: the author's own list, else every derivation in plain Python, else the oracle's enumeration."""
    own = getattr(oracle, "structures", None)
    if callable(own):
        rows = [torch.as_tensor(structure, dtype=torch.float64).flatten() for structure in own(event)]
        return Scene(oracle, event, torch.stack(rows), "its own list of structures")
    if (derivations := derivations_of(oracle, event)) is not None:
        ways = walked(derivations, MAX_STRUCTURES)
        rows = [torch.bincount(torch.tensor(parts, dtype=torch.int64), minlength=derivations.parts).double() for parts in ways]
        return Scene(oracle, event, torch.stack(rows), "its derivations, walked one by one")
    if not isinstance(oracle, EnumerableOracle):
        raise ValueError(
            f"`{oracle.name}` states no derivations and lists no structures; give it `structures(event_shape)`, which yields them"
        )
    return Scene(oracle, event, oracle.enumerate(event).double().flatten(1), "its own `enumerate`, which is not independent")


def check_rules(scene: Scene, derivations: Derivations | None) -> Iterator[Check]:
    """Whether derivations are those of the structures, each once; and whether the count agrees."""
    where, structures, oracle = str(scene), scene.structures, scene.oracle
    distinct, binary = len(torch.unique(structures, dim=0)), oracle.binary_mask(scene.event).flatten()
    if repeated := len(structures) - distinct:
        yield Check("derivations", where, "violated", f"{len(structures)} structures are listed, and {repeated} of them twice")
    if not bool(((structures == 0) | (structures == 1) | ~binary).all()):
        yield Check("derivations", where, "violated", "a structure holds other numbers than 0 and 1")
    if derivations is not None:
        ways = walked(derivations, 10 * MAX_STRUCTURES)
        bad = next(_wrong_derivations(scene, ways, binary), "")
        yield Check("derivations", where, "violated" if bad else "holds", bad or f"{len(ways)} derivations of as many structures")
    count = oracle.count(scene.event)
    yield Check("count", where, "holds" if count == distinct else "violated", f"`count` is {count}; expected {distinct}")


def _wrong_derivations(scene: Scene, ways: Sequence[Sequence[int]], binary: Tensor) -> Iterator[str]:
    def named(parts: Sequence[int]) -> str:
        return ", ".join(str(tuple(int(index) for index in torch.unravel_index(torch.tensor(part), scene.event))) for part in parts)

    for way in ways:
        for part, times in Counter(way).items():
            if binary[part] and times > 1:
                yield f"a derivation takes {named([part])} twice; expected every part at most once"
    sets = Counter(tuple(sorted(way)) for way in ways)
    for one, count in sets.items():
        if count > 1:
            yield f"{{{named(one)}}} has {count} derivations; expected exactly one for each structure"
    every = torch.arange(scene.structures.shape[1])
    wanted = {tuple(every.repeat_interleave(row.long()).tolist()) for row in scene.structures}
    for found, said in ((wanted - set(sets), "has no derivation"), (set(sets) - wanted, "is derived and is no structure")):
        if found:
            yield f"{{{named(min(found))}}} {said}, as {len(found) - 1} more"


Law = Callable[[Scene], Iterator[Any]]  # comparisons, or one check if it is a test


def compared(scene: Scene, name: str, law: Law, *, precision: float = 1.0) -> Iterator[Check]:
    """The check of a law; ``precision`` is the share of its tolerances that is granted."""
    try:
        last: Any = None
        for last in law(scene):
            if not isinstance(last, Check):
                text, found, expected, tolerance = last
                _compare(text, found, expected, precision * tolerance)
        yield last if isinstance(last, Check) else Check(name, str(scene), "holds")
    except ValueError as error:
        if name != "lengths" or "lengths" not in str(error):
            raise
        yield Check(name, str(scene), "skipped", str(error))


def _compare(name: str, found: Tensor, expected: Tensor, tolerance: float) -> None:
    """DisagreementError with the worst entry if two tensors differ."""
    if found.shape != expected.shape:
        raise DisagreementError(f"{name} has shape {tuple(found.shape)}; expected {tuple(expected.shape)}")
    found, expected = found.detach().double(), expected.detach().double()
    wrong = ~((found == expected) | ((found - expected).abs() <= tolerance))
    if bool(wrong.any()):
        worst = torch.where(wrong, (found - expected).abs().nan_to_num(nan=math.inf), -1.0).flatten().argmax()
        place = tuple(int(index) for index in torch.unravel_index(worst, wrong.shape))
        raise DisagreementError(f"{name} at {place} is {float(found[place]):.6g}; expected {float(expected[place]):.6g}")


def _argmax(scene: Scene) -> Iterator[Comparison]:
    """A structure, and none has a higher score; zeros if all are forbidden."""
    totals, best = scene.totals(), scene.oracle.argmax(scene.scores)
    feasible = totals.amax(1) > -math.inf
    yield "`argmax` if everything is forbidden", best[~feasible], torch.zeros_like(best[~feasible]), 0.0
    chosen, totals = scene.indices("`argmax`", best[feasible]), totals[feasible]
    yield "the score of `argmax`", totals.gather(1, chosen.unsqueeze(1)).squeeze(1), totals.amax(1), 1e-12 * scene.size
    yield "`argmax` called again", scene.oracle.argmax(scene.scores), best, 0.0


def _ignored(scene: Scene) -> Iterator[Comparison]:
    """Parts of no structure are not read, and 0 in results."""
    used = (scene.structures.sum(0) > 0).reshape(scene.event)
    yield "`read_mask`", scene.oracle.read_mask(scene.event).double(), used.double(), 0.0
    spoilt = torch.where(used, scene.scores, math.nan)
    for name, call in scene.batched.items():
        yield f"`{name}` with NaN at ignored entries", call(spoilt), call(scene.scores), 0.0


def _batches(scene: Scene) -> Iterator[Comparison]:
    """A batch is its rows: none, several dimensions, and rows that `expand` made."""
    for name, call in scene.batched.items():
        whole = call(scene.scores)
        yield f"`{name}` of an empty batch", call(scene.scores[:0]), whole[:0], 0.0
        yield f"`{name}` of single rows", torch.stack([call(row) for row in scene.scores]), whole, 1e-12
        deep = scene.scores.reshape(2, -1, *scene.event)
        yield f"`{name}` of two batch dimensions", call(deep), whole.reshape(deep.shape), 1e-12
        yield f"`{name}` of expanded rows", call(scene.scores[:1].expand_as(scene.scores)), whole[:1].expand_as(whole), 1e-12


def _lengths(scene: Scene) -> Iterator[Comparison]:
    """Whole lengths change nothing; a shorter item equals one of a smaller event; padding is not read, and 0 in results."""
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


def _derivatives(scene: Scene) -> Iterator[Comparison]:
    weights = torch.randn(scene.scores.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    feasible = scene.oracle.feasible(scene.scores).reshape(-1, *[1] * len(scene.event))

    def gradient(call: Callable[[Tensor], Tensor], cotangents: Tensor | float) -> Tensor:
        leaf = scene.scores.clone().requires_grad_()
        value = (call(leaf).nan_to_num(neginf=0.0) * cotangents).sum()
        return torch.autograd.grad(value, leaf, allow_unused=True, materialize_grads=True)[0]

    def summed(leaf: Tensor) -> Tensor:
        totals = scene.totals(leaf)
        return torch.where((totals > -math.inf).any(1, keepdim=True), totals, 0).logsumexp(1)

    for name, call, reference, cotangents in (
        ("the gradient of `log_partition`", scene.oracle.log_partition, summed, 1.0),
        ("the derivative of `marginals`", scene.oracle.marginals, lambda leaf: _expected_structure(scene, leaf), weights),
    ):
        expected = torch.where(feasible, gradient(reference, cotangents).nan_to_num(), 0)
        yield name, gradient(call, cotangents), expected, 1e-8 * scene.size


def _log_probability(scene: Scene) -> Iterator[Comparison]:
    structures, totals = scene.structures.reshape(-1, 1, *scene.event), scene.totals()
    feasible = (totals > -math.inf).any(1)
    yield "`score`", scene.oracle.score(structures, scene.scores).mT, totals, 1e-10 * scene.size
    found = scene.oracle.log_prob(structures, scene.scores).mT[feasible]
    yield "`log_prob`", found, totals.log_softmax(1)[feasible], 1e-10 * scene.size


def _k_best(scene: Scene) -> Iterator[Comparison]:
    k = min(5, len(scene.structures))
    for row, (best, totals) in enumerate(zip(scene.oracle.kbest(scene.scores, k).unbind(1), scene.totals(), strict=True)):
        allowed = min(k, int((totals > -math.inf).sum()))
        structures = scene.indices("`kbest`", best[:allowed])
        if len(structures.unique()) < allowed:
            raise DisagreementError(f"`kbest` of k={k} names a structure twice in row {row}; expected distinct ones")
        yield f"the scores of `kbest` in row {row}", totals[structures], totals.topk(allowed).values, 1e-10 * scene.size


def _enumeration(scene: Scene) -> Iterator[Comparison]:
    found, count = scene.oracle.enumerate(scene.event), len(scene.structures)
    distinct = len(scene.indices("`enumerate`", found).unique())
    if distinct != count or len(found) != count:
        raise DisagreementError(f"`enumerate` gives {distinct} structures; expected {count}, each once")
    with contextlib.suppress(ValueError):  # an oracle without ranks
        yield "`rank` of what `enumerate` lists", scene.oracle.rank(found).double(), torch.arange(count).double(), 0.0


def _projection(scene: Scene) -> Iterator[Comparison]:
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
    yield "what its `gap` leaves out", (worst - solution.gap).clamp(min=0), torch.zeros_like(worst), 1e-9 * scene.size
    yield "a weight below 0", solution.weights.clamp(max=0), torch.zeros_like(solution.weights), 0.0


def _compiled(scene: Scene) -> Iterator[Comparison]:
    """Kernels agree with plain torch; of structures that tie, either may be the best."""
    for name in ("log_partition", "marginals"):
        found = getattr(scene.oracle, name)(scene.scores)
        with kernels.disabled():
            yield f"`{name}` of a kernel", found, getattr(scene.oracle, name)(scene.scores), 1e-9 * scene.size
    with kernels.disabled():
        yield from _argmax(scene)


def _expected_structure(scene: Scene, scores: Tensor) -> Tensor:
    return (scene.probabilities(scores) @ scene.structures).reshape(scores.shape)


def _gibbs(scene: Scene) -> Iterator[Comparison]:
    """Operations of the Gibbs distribution equal sums over all structures."""
    oracle, scores, chances = scene.oracle, scene.scores, scene.probabilities()
    yield "`log_partition`", oracle.log_partition(scores), scene.totals().logsumexp(1), 1e-10 * scene.size
    yield "`marginals`", oracle.marginals(scores), _expected_structure(scene, scores), 1e-10 * scene.size
    yield "`entropy`", oracle.entropy(scores), torch.special.entr(chances).sum(1), 1e-9 * scene.size
    others = scores.flip(0).clamp(min=-1e3)
    divergence = torch.special.xlogy(chances, chances) - chances * scene.totals(others).log_softmax(1)
    yield "`kl`", oracle.kl(scores, others), divergence.sum(1), 1e-8 * scene.size


def _samples(scene: Scene) -> Iterator[Comparison | Check]:
    """Pearson's test of samples against exact probabilities, one for all rows; rare structures are pooled."""
    drawn = scene.oracle.sample(scene.scores, DRAWS, generator=torch.Generator().manual_seed(scene.seed))
    statistic, degrees = 0.0, 0
    for row, probabilities in enumerate(scene.probabilities()):
        if float(probabilities.sum()) == 0:
            yield "`sample` where nothing is feasible", drawn[:, row], torch.zeros_like(drawn[:, row]), 0.0
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
    yield Check("samples", str(scene), "holds", detail, p_value=p_value)


def _relaxation(scene: Scene) -> Iterator[Comparison]:
    """`relax` with entropy equals the marginals; a sparse one is a point of the hull."""
    yield "`relax`", scene.oracle.relax(scene.scores), scene.oracle.marginals(scene.scores), 1e-12
    sparse = scene.oracle.relax(scene.scores, "l2")[scene.oracle.feasible(scene.scores)].flatten(1)
    directions = torch.randn(100, scene.structures.shape[1], generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    beyond = (sparse @ directions.mT - (scene.structures @ directions.mT).amax(0)).clamp(min=0)
    yield "how far `relax` with l2 lies outside of the hull", beyond, torch.zeros_like(beyond), 1e-8


def _single_precision(scene: Scene) -> Iterator[Comparison]:
    scores = scene.scores.float()
    found = scene.oracle.marginals(scores)
    if found.dtype != torch.float32:
        raise DisagreementError(f"`marginals` of float32 scores are {found.dtype}; expected torch.float32")
    yield "`marginals` in float32", found, scene.oracle.marginals(scores.double()), 1e-5


LAWS: tuple[tuple[Any, str, Law], ...] = (  # capability, name, and law
    (Oracle, "argmax", _argmax),
    (Oracle, "ignored entries", _ignored),
    (Oracle, "batches", _batches),
    (Oracle, "lengths", _lengths),
    (MarginalOracle, "sums", _gibbs),
    (MarginalOracle, "derivatives", _derivatives),
    (MarginalOracle, "log-probability", _log_probability),
    (MarginalOracle, "kernels", _compiled),
    (MarginalOracle, "float32", _single_precision),
    (KBestOracle, "k best", _k_best),
    (EnumerableOracle, "enumeration", _enumeration),
    (ProjectionOracle, "projection", _projection),
    (RelaxedOracle, "relaxation", _relaxation),
    (SamplingOracle, "samples", _samples),
)
