"""Cases of an audit: small structures, scores of several kinds, losses that separate mistakes, and counts of calls."""

import copy
import functools
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor

from ...estimators import Estimator, Loss
from ...estimators.own import FunctionEstimator
from ...oracles import Alignment, Categorical, IndependentCategoricals, LinearChain, ShiftReduce, SpanningTree, Subset, capabilities
from ...oracles.capabilities import EnumerableOracle, Oracle
from ...oracles.registry import unknown
from ..base import Instance, ProblemLoss, pairing
from ..measures.draws import Sampling
from ..measures.suite import Effort
from ..problems.named import own_loss
from ..problems.sized import is_sized, refuse_unsized, sized_structure
from ..statistics.seeds import generator
from ..tasks.own import imported_loss
from ..truth import Target, exact_truth
from ..truth.loss_checks import examine_loss
from ..truth.replay import hooked
from .result import Check, Subject

FLAT, USUAL, PEAKED, EXTREME = 0.3, 1.0, 3.0, 50.0
"""Standard deviations of scores. Tests need flat ones, where no structure is rare; exact means are compared at peaked ones too."""

MAX_STRUCTURES = 100  # largest number of structures if a structure is named with its size

OPERATIONS: tuple[tuple[type[Oracle], str, str], ...] = (  # capability, operation, and the field of `Evaluations` that counts it
    (Oracle, "argmax", "argmax"),
    (capabilities.MarginalOracle, "marginals", "marginals"),
    (capabilities.MarginalOracle, "log_partition", "marginals"),
    (capabilities.MarginalOracle, "log_prob", "marginals"),
    (capabilities.MarginalOracle, "entropy", "marginals"),
    (capabilities.PolicyOracle, "step_log_probs", "marginals"),
    (capabilities.KBestOracle, "kbest", "kbest"),
    (capabilities.RelaxedOracle, "relax", "relaxations"),
    (capabilities.RelaxedOracle, "relaxed_sample", "relaxations"),
    (capabilities.SamplingOracle, "sample", "samples"),
    (capabilities.ProjectionOracle, "project", "projections"),
    (capabilities.EnumerableOracle, "enumerate", "enumerated"),
)

COUNTED: dict[str, str] = {
    "losses": "structures that the loss is shown",
    "loss_gradients": "structures in which the loss is differentiated",
}
"""Meaning of the counted fields of `Evaluations`; the others are passes of a size that depends on the structure, or noise."""
for _, _name, _field in OPERATIONS[:-1]:
    COUNTED[_field] = f"{COUNTED[_field]}, `{_name}`" if _field in COUNTED else f"rows given to `{_name}`"
COUNTED |= {"samples": "structures that `sample` draws", "kbest": "structures that `kbest` lists"}


@dataclass(frozen=True)
class Structure:
    """An oracle at a size at which everything can be listed, and an event of it with a single structure."""

    name: str
    oracle: Any
    event: tuple[int, ...]
    single: tuple[int, ...] = ()
    loss: Any = None  # of one's own, in place of the smooth one of `AuditLoss`


STRUCTURES: dict[str, Structure] = {
    structure.name: structure
    for structure in (
        Structure("categorical", Categorical(), (4,), (1,)),
        Structure("subset", Subset(2), (4,), (2,)),
        Structure("linear_chain", LinearChain(), (3, 2, 2), (2, 1, 1)),
        Structure("spanning_tree", SpanningTree(), (4, 4), (2, 2)),
        Structure("categories", IndependentCategoricals(), (2, 3), (2, 1)),
        Structure("bits", IndependentCategoricals(), (3, 2)),
        Structure("alignment", Alignment(), (3, 2), (1, 3)),
        Structure("shift_reduce", ShiftReduce("local"), (4, 4, 2), (3, 3, 2)),
    )
}
"""In the order in which they are chosen."""


def structures_for(estimator: Estimator[Any], names: tuple[str, ...] = (), most: int | None = None) -> list[Structure]:
    """The structures that an estimator supports, of `STRUCTURES` or of names; any structure with its size is a name, also a user's own."""
    chosen = [_structure(name) for name in names or STRUCTURES]
    reasons = [estimator.incompatibility(structure.oracle, structure.event) for structure in chosen]
    supported = [structure for structure, reason in zip(chosen, reasons, strict=True) if reason is None]
    if not supported:
        raise ValueError(f"`audit` found no structure that {estimator.name} supports: {reasons[0]}")
    return supported if names else supported[:most]


def _structure(name: str) -> Structure:
    if name in STRUCTURES:
        return STRUCTURES[name]
    if not is_sized(name):
        refuse_unsized(name)
        raise ValueError(f"`audit` {unknown(name, STRUCTURES, 'structure')}")
    oracle, event = sized_structure(name)
    count = oracle.count(event) if isinstance(oracle, EnumerableOracle) else None
    if count is None or not 2 <= count <= MAX_STRUCTURES:
        found = "structures that cannot be listed" if count is None else f"{count} structures"
        raise ValueError(
            f"`audit` got {name!r}, of {found}; expected 2 to {MAX_STRUCTURES}, which are compared one by one: take other sizes"
        )
    return Structure(f"{oracle.name} {'x'.join(map(str, event))}", oracle, event)


def with_loss(structure: Structure, name: str, estimator: Estimator[Any]) -> Structure:
    """The structure with a loss of one's own, examined; its instance has flat scores and the loss of the audit."""
    scores = random_scores(structure, FLAT, 1)[0]
    imported_loss(name, "expected a function of structures")  # what is wrong with it on every structure
    try:
        loss = own_loss(name, Instance(structure.name, scores, cast("ProblemLoss", AuditLoss(structure))), structure.oracle)
        examine_loss(loss, structure.oracle, scores)
    except ValueError as error:
        raise ValueError(f"{error} (on {structure.name}; name the structures of this loss by --oracle)") from None
    # Nothing is declared of a function: it may need values alone.
    if not isinstance(estimator, FunctionEstimator) and (reason := pairing(estimator, structure.oracle, loss, structure.event)):
        raise ValueError(f"`audit` got a loss that does not fit: {reason}")
    return replace(structure, loss=loss)


def random_scores(structure: Structure, scale: float, rows: int, *key: str) -> Tensor:
    """Float64 ``[rows, *event]``: normal of a standard deviation, the same for every estimator."""
    return scale * torch.randn(rows, *structure.event, generator=generator(0, "audit", "scores", structure.name, *key), dtype=torch.float64)


def masked_scores(structure: Structure, rows: int) -> Tensor:
    """Scores with another forbidden part in each row; every row keeps a structure."""
    scores, listed = random_scores(structure, USUAL, rows, "masked"), all_structures(structure)
    use = listed.mean(0)
    optional = ((use > 0) & (use < 1)).nonzero()
    for row in range(rows):
        scores[(row, *optional[row % len(optional)].tolist())] = -math.inf
    return scores


@functools.cache
def all_structures(structure: Structure) -> Tensor:
    """Float64 ``[count, *event]``."""
    return structure.oracle.enumerate(structure.event, dtype=torch.float64)  # type: ignore[no-any-return]


def off_structures(points: Tensor, structure: Structure) -> bool:
    """Whether any of some points is no structure."""
    flat = points.reshape(-1, 1, *structure.event).double()
    distances = (flat - all_structures(structure)).flatten(2).abs().amax(-1)
    return bool((distances.amin(-1) > 1e-9).any())


class AuditLoss:
    """A quadratic form of the parts through a sine, an exponential and an offset; or its linear term alone.

    Every entry counts, ignored ones too, and a constant of 1 makes a missing baseline show. The linear term is multiplied by ``shift``
    ``[*batch]``, the data of each row of a batch, and by ``weight`` ``[]``, a parameter of the loss.
    """

    def __init__(self, structure: Structure, kind: str = "smooth", *, shift: Tensor | None = None, weight: Tensor | None = None) -> None:
        stream = generator(0, "audit", "loss", structure.name)
        size = math.prod(structure.event)
        self.kind, self.shift, self.ndim, self.weight, self.own = kind, shift, len(structure.event), weight, structure.loss
        self.linear = torch.randn(size, generator=stream, dtype=torch.float64)
        # The first structure may be the empty one.
        parts = all_structures(structure)[0].sum().clamp(min=1)
        self.matrix = torch.randn(size, size, generator=stream, dtype=torch.float64) / parts

    def __call__(self, z: Tensor) -> Tensor:
        """``[..., *batch, *event] -> [..., *batch]``."""
        flat = z.flatten(z.ndim - self.ndim)
        own = self.own if self.kind == "smooth" else None
        # It may hold float64 tensors, and estimates in single precision are held to their dtype.
        along = (flat * self.linear.to(flat)).sum(-1) if own is None else own(z.double()).to(flat)
        for factor in (self.shift, self.weight):
            along = along if factor is None else along * factor.to(flat)
        if self.kind == "linear" or own is not None:
            return along
        quadratic = along + (flat * (flat @ self.matrix.to(flat))).sum(-1)
        return quadratic.sin() + (0.3 * quadratic.clamp(max=20)).exp() + 1


def target(structure: Structure, loss: Loss, scores: Tensor, scale: float = 1.0) -> Target:
    """An instance ``[*event]`` with its exact gradient, or a multiple of it; kurtoses do not depend on scales."""
    truth = exact_truth(loss, structure.oracle, scores)
    return Target(structure.oracle, loss, scores, replace(truth, gradient=scale * truth.gradient) if scale != 1 else truth)


def seeded(seed: int, *names: str) -> torch.Generator:
    """A plain generator for one purpose."""
    return generator(seed, "audit", *names)


@dataclass(frozen=True)
class AuditEffort(Effort):
    """Limits of one test, before the correction for many; a bias of at most 5 % of the target, by its 95 % bound, counts as none."""

    most_replicates: int = 262_144
    seconds: float = 5.0
    equivalence: float = 0.05
    seed: int = 0
    structures: int = 5  # the most structures of an audit

    def sampling(self, *key: str) -> Sampling:
        """Replicates of one purpose."""
        return Sampling(replicates=self.replicates, seed=self.seed, key=("audit", *key))


@dataclass
class CallCounts:
    """Calls per row of a batch by the field of `Evaluations`, used capabilities, arguments of the loss, and the estimates."""

    rows: int
    event_ndim: int
    counts: Counter[str] = field(default_factory=Counter)
    used: set[type[Oracle]] = field(default_factory=set)
    points: list[Tensor] = field(default_factory=list)
    estimate: Tensor = field(default_factory=lambda: torch.empty(0))
    inside: bool = False

    @property
    def loss_evaluations(self) -> float:
        """Losses of one estimate; a gradient counts as two more."""
        return float(self.counts["losses"] + 2 * self.counts["loss_gradients"])

    def add(self, kind: str, structures: Tensor) -> None:
        """Count the rows ``[..., *event]`` of a tensor."""
        self.counts[kind] += structures.shape[: structures.ndim - self.event_ndim].numel() / self.rows  # type: ignore[assignment]

    def loss(self, loss: Loss) -> Loss:
        """The loss, with its calls and its gradients counted."""

        def call(z: Tensor) -> Tensor:
            self.points.append(z.detach())
            self.add("losses", z)
            shown = z.clone()
            if shown.requires_grad:
                shown.register_hook(lambda gradient: self.add("loss_gradients", gradient))
            return loss(shown)

        return call

    def oracle(self, oracle: Any) -> Any:
        """The oracle with its public operations counted. Calls inside of one are part of it."""
        rows = {name: (capability, kind) for capability, name, kind in OPERATIONS if isinstance(oracle, capability)}

        def call(name: str, original: Callable[..., Any], *args: Any, **named: Any) -> Any:
            if self.inside:
                return original(*args, **named)
            self.inside = True
            try:
                result = original(*args, **named)
            finally:
                self.inside = False
            capability, kind = rows[name]
            self.used.add(capability)
            if kind == "enumerated":
                self.counts[kind] += len(result)
            elif kind in ("samples", "kbest"):
                self.add(kind, result)
            else:
                position = 1 if name == "log_prob" else 0
                self.add(kind, named.get("scores", args[position] if len(args) > position else result))
            return result

        return hooked(oracle, tuple(rows), call)


@dataclass(frozen=True)
class Case:
    """One structure of an audit; ``random`` ignores that the estimator declares to be deterministic."""

    subject: Subject
    structure: Structure
    effort: AuditEffort
    random: bool = False

    def fresh(self) -> Estimator[Any]:
        """A copy of the estimator, which a law may change; some objects cannot be copied."""
        try:
            estimator = copy.deepcopy(self.subject.estimator)
        except Exception:  # the estimator may hold anything
            return self.subject.estimator
        if self.random:
            object.__setattr__(estimator, "deterministic", False)
        return estimator

    def scores(self, scale: float, rows: int, *key: str) -> Tensor:
        """Random scores ``[rows, *event]``."""
        return random_scores(self.structure, scale, rows, *key)

    def gradient(
        self, scores: Tensor, stream: str | torch.Generator, loss: Any = None, estimator: Estimator[Any] | None = None, oracle: Any = None
    ) -> Tensor:
        """Estimates of a fresh copy, unless one is given, with a named stream."""
        generator = seeded(1, stream) if isinstance(stream, str) else stream
        own = estimator or self.fresh()
        return own.gradient(loss or AuditLoss(self.structure), oracle or self.structure.oracle, scores, generator=generator)

    def check(self, law: str, good: str, bad: str = "", cause: str = "", remedy: str = "") -> Check:
        """A check that holds if ``bad`` is empty; else it has a cause or a remedy."""
        if not bad:
            return Check(law, self.structure.name, "holds", good)
        return Check(law, self.structure.name, "violated", bad, cause, remedy=remedy)

    def observed(self, scores: Tensor | None = None, stream: str = "declarations") -> CallCounts:
        """The calls of one estimate per row, and the estimates; by default of four flat rows."""
        scores = self.scores(FLAT, 4) if scores is None else scores
        counts = CallCounts(scores.shape[: scores.ndim - len(self.structure.event)].numel(), len(self.structure.event))
        loss, oracle = counts.loss(AuditLoss(self.structure)), counts.oracle(self.structure.oracle)
        counts.estimate = self.gradient(scores, stream, loss, oracle=oracle)
        return counts
