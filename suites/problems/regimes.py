"""Item sets, and the built-in ones: random scores of every structure, scaled until they are as peaked as those of a real model.

Gold and loss of an item do not depend on the stage, so stages differ in the scores alone. Nothing random depends on order: every stream is
keyed by names.
"""

import abc
import hashlib
import itertools
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import elementwise
from torch import Tensor

from ... import oracles
from ...oracles.capabilities import MarginalOracle, Oracle, SamplingOracle
from ...oracles.capabilities.derivatives import unsqueeze_event
from ...oracles.derivations import DerivedOracle
from ..base import ProblemLoss
from .losses import Downstream

STAGES = ("init", "early", "final")  # stages of training: before the first step, after a few, and at the end
NUM_REDRAWS = 1000  # samples that replace one without parts

ENTROPY_STAGES = ("h=0.95", "h=0.7", "h=0.4", "h=0.1")
"""The default grid of normalised entropies, from nearly uniform to nearly certain; any ``h=<number>`` in (0, 1) is a stage."""

AGREEMENT = 0.5
"""Share of the final direction in the early one. Early in training, a model already prefers its final structures; with this share, gold has
about the log-probability that it has in the real sets."""

USUAL_ENTROPIES = (0.95, 0.7, 0.1)  # entropies of a structure without real scores of a similar one


def number_of(stage: str, key: str, most: float = math.inf) -> float | None:
    """The number of a stage ``key=<number>`` with 0 < number < most; None for any other stage."""
    name, _, text = stage.partition("=")
    with suppress(ValueError):
        return number if name == key and 0 < (number := float(text)) < most else None
    return None


class Items(abc.ABC):
    """An item set: the ``name`` of its problem, the ``seed`` of everything random, and a ``source`` for people."""

    name: str
    seed: int
    source: str
    oracle: Oracle
    default_loss: str

    def key(self, *names: str) -> np.random.SeedSequence:
        """A seed that depends on names alone: the problem, the user's seed and the purpose."""
        text = "\x1f".join((self.name, str(self.seed), *names))
        return np.random.SeedSequence(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little"))

    def random(self, *names: str) -> np.random.Generator:
        """A stream for one purpose."""
        return np.random.default_rng(self.key(*names))

    def sampled(self, index: int, scores: Tensor) -> Tensor:
        """One exact sample, always the same for an item; its best structure if the oracle does not sample, or not at this size.

        The structure without parts, which some oracles have, is drawn again: losses are tied to parts.
        """
        if not isinstance(self.oracle, SamplingOracle) or not self.oracle.sums_in_reach(tuple(scores.shape)):
            return self.oracle.argmax(scores)
        state = self.key("gold", self.item_name(index)).generate_state(1, np.uint64)[0]
        generator = torch.Generator().manual_seed(int(state) >> 1)
        drawn = self.oracle.sample(scores, generator=generator)
        if bool(drawn.any()):
            return drawn
        again = self.oracle.sample(scores, NUM_REDRAWS, generator=generator)
        again = again[again.flatten(1).any(-1)]
        if not len(again):
            raise ValueError(
                f"item {self.item_name(index)}: {NUM_REDRAWS} samples have no part; expected a gold structure, or other scores"
            )
        return again[0]

    def prepare(self, stage: str, indices: Sequence[int]) -> None:  # noqa: B027, most sets have nothing to prepare
        """Compute many items at once, if that is cheaper; no number depends on it."""

    @abc.abstractmethod
    def chosen(self, instances: int) -> list[int]:
        """The indices of a number of items."""

    @abc.abstractmethod
    def item_name(self, index: int) -> str:
        """Unique in the set."""

    @abc.abstractmethod
    def scores(self, index: int, stage: str) -> Tensor:
        """Float64 ``[*event]``."""

    @abc.abstractmethod
    def gold(self, index: int) -> Tensor:
        """A structure, float64 ``[*event]`` of 0/1."""

    def downstream(self, index: int, stage: str) -> ProblemLoss | None:
        """The item's own loss ``downstream``, if it has one."""
        return None


class FileItems(Items):
    """Items of a file: a selection is spread evenly over them by length."""

    lengths: np.ndarray  # integers [items], or [items, 2] if an item has two

    def chosen(self, instances: int) -> list[int]:
        order = np.argsort(self.lengths.reshape(len(self.lengths), -1).sum(-1), kind="stable")
        if not 1 <= instances <= len(order):
            raise ValueError(f"got instances={instances}; expected 1 to {len(order)}, the number of items in {self.source}")
        return [int(order[(2 * i + 1) * len(order) // (2 * instances)]) for i in range(instances)]


@dataclass(frozen=True)
class Regime:
    """The definition of one built-in problem; ``entropies`` are those at init, early and final, as shares of the log count."""

    summary: str
    oracle: MarginalOracle
    events: tuple[tuple[int, ...], ...]  # shapes of the scores, taken in turn
    entropies: tuple[float, ...]
    loss: str = "quadratic"


MAX_SCALE = 2.0**60  # the greatest scale of the search


def entropy_scales(oracle: MarginalOracle, directions: Tensor, entropies: Tensor, *, origin: Tensor | None = None) -> Tensor:
    """The scales s ≥ 0 at which the Gibbs entropies of ``origin + s · directions`` are ``entropies`` nats: ``[items]``.

    From an origin of the uniform law, an entropy falls in s from the log count to 0 if the direction has one best structure. All items
    are searched at once. Directions are [items, *event]; the origin, [*event], has scores of the uniform law.
    """

    def excess(scales: np.ndarray, items: np.ndarray) -> np.ndarray:
        places = torch.from_numpy(items.astype(np.int64)).to(directions.device)
        scaled = unsqueeze_event(torch.from_numpy(scales).to(directions), oracle.event_ndim) * directions[places]
        return np.asarray((oracle.entropy(scaled if origin is None else scaled + origin) - entropies[places]).cpu().numpy())

    items = np.arange(len(entropies))
    low, high = np.zeros(len(entropies)), np.ones(len(entropies))
    while (flat := excess(high, items) > 0).any():
        if (high[flat] >= MAX_SCALE).any():
            unreached = float(entropies[torch.from_numpy(flat & (high >= MAX_SCALE))][0])
            raise ValueError(
                f"`entropy_scales` got entropy={unreached:g}, which no scale of the direction reaches; "
                f"expected a higher one, or a direction with one best structure"
            )
        low, high = np.where(flat, high, low), np.where(flat, 2 * high, high)
    found = elementwise.find_root(excess, (low, high), args=(items,), tolerances={"xrtol": 1e-14, "xatol": 0.0, "fatol": 0.0})
    return torch.from_numpy(np.asarray(found.x)).to(entropies)


class RegimeItems(Items):
    """Random directions, scaled to the entropy of the stage.

    The directions of init and final are drawn independently, and early lies between them. Those of ``h=…`` are one more draw, the same for
    all h. Gold is a sample of the final stage, so the best structure there is gold as often as in a calibrated trained model. It is
    independent of the directions of init and of ``h=…``.
    """

    source = "built-in"
    oracle: MarginalOracle

    def __init__(self, name: str, seed: int, regime: Regime) -> None:
        self.name, self.seed, self.regime = name, seed, regime
        self.oracle, self.default_loss = self.regime.oracle, self.regime.loss
        self._scales: dict[tuple[str, int], float] = {}

    def chosen(self, instances: int) -> list[int]:
        if instances < 1:
            raise ValueError(f"got instances={instances} of {self.name}; expected at least 1")
        return list(range(instances))

    def item_name(self, index: int) -> str:
        return f"{self.name}-{index}"

    def prepare(self, stage: str, indices: Sequence[int]) -> None:
        """Scale directions of one shape together: a search takes as many steps for hundreds as for one."""
        by_shape: dict[tuple[int, ...], list[tuple[str, int]]] = {}
        for place in itertools.product(dict.fromkeys((stage, "final")), indices):
            if place not in self._scales:
                by_shape.setdefault(self._event(place[1]), []).append(place)
        for event, places in by_shape.items():
            log_count = math.log(self.oracle.count(event))
            shares = [
                self.regime.entropies[STAGES.index(stage)] if stage in STAGES else number_of(stage, "h", 1) or 0.0 for stage, _ in places
            ]
            entropies = log_count * torch.tensor(shares, dtype=torch.float64)
            directions = torch.stack([self.direction(*place) for place in places])
            found = entropy_scales(self.oracle, directions, entropies, origin=_uniform_scores(self.oracle, event))
            # Rounded, because the last bits of an entropy depend on the number of items computed together, and scores must not.
            self._scales |= zip(places, found.float().tolist(), strict=True)

    def scores(self, index: int, stage: str) -> Tensor:
        self.prepare(stage, (index,))
        scaled, origin = self._scales[stage, index] * self.direction(stage, index), _uniform_scores(self.oracle, self._event(index))
        return scaled if origin is None else scaled + origin

    def gold(self, index: int) -> Tensor:
        return self.sampled(index, self.scores(index, "final"))

    def direction(self, stage: str, index: int) -> Tensor:
        """The direction of the scores of a stage, 0 at ignored entries."""
        if stage == "early":
            return (1 - AGREEMENT) * self.direction("init", index) + AGREEMENT * self.direction("final", index)
        random, event = self.random("scores", stage if stage in STAGES else "h", self.item_name(index)), self._event(index)
        if not isinstance(self.oracle, oracles.LinearChain | oracles.TiedChain):
            return torch.where(self.oracle.read_mask(event), torch.from_numpy(random.standard_normal(event)), 0)
        # Unary scores dominate, as in trained taggers.
        length = event[0] - (event[-1] if isinstance(self.oracle, oracles.TiedChain) else 0)
        unary, other = (torch.from_numpy(random.standard_normal((rows, event[-1]))) for rows in (length, event[-1] + 2))
        drawn = self.oracle.from_potentials(unary, other[:-2] / 4, start=other[-2] / 4, end=other[-1] / 4)
        return torch.where(self.oracle.read_mask(event), drawn, 0)

    def downstream(self, index: int, stage: str) -> ProblemLoss | None:
        """A random classifier of the mean chosen frame, one for all items of subsets; the label is the class that it gives to gold."""
        if not isinstance(self.oracle, oracles.Subset):
            return None
        shared, own, gold = self.random("classifier"), self.random("frames", self.item_name(index)), self.gold(index)
        weight, bias = torch.from_numpy(shared.standard_normal((10, 13))), torch.from_numpy(shared.standard_normal(10)) / 3
        frames = torch.from_numpy(own.standard_normal((len(gold), 13)))
        logits = Downstream(weight, bias, frames, self.oracle.k, 0).logits(gold)
        return Downstream(weight, bias, frames, self.oracle.k, int(logits.argmax()))

    def _event(self, index: int) -> tuple[int, ...]:
        return self.regime.events[index % len(self.regime.events)]


def _uniform_scores(oracle: Oracle, event: tuple[int, ...]) -> Tensor | None:
    """The scores at which all structures are equally probable: those of a locally normalised policy; None for 0."""
    if oracle != oracles.ShiftReduce("local"):
        return None
    steps = oracles.ShiftReduce().step_log_probs(torch.zeros(event, dtype=torch.float64))
    return torch.where(steps > -math.inf, steps, 0)


# Mean entropies of the real items at init, early and final, over the mean logarithm of their numbers of structures.
# 4.065 is the mean length of the tagged sentences.
_TAGGING = tuple(nats / (4.065 * math.log(5)) for nats in (6.516, 5.884, 0.973))
_DERIVATIONS = tuple(nats / 4.9209 for nats in (4.548, 4.639, 0.128))
# Speech is aligned at γ = 1 and γ = 0.1, which stand for init and final; early lies in the middle.
_ALIGNMENT = tuple(nats / 6.8979 for nats in (5.934, 3.496, 1.058))
_LEAVES, _SHAPES = "derivations of 7 to 9 leaves, normalised", ((8, 8, 2), (9, 9, 2), (10, 10, 2))


def _squares(*sizes: int) -> tuple[tuple[int, ...], ...]:
    return tuple((size, size) for size in sizes)


_BUILT_IN: tuple[tuple[str, str, str, MarginalOracle, tuple[tuple[int, ...], ...], tuple[float, ...]], ...] = (
    ("categorical", "10 classes", "categorical_fsdd", oracles.Categorical(), ((10,),), (0.990, 0.957, 0.112)),
    ("categories", "4 to 6 categories with 4 parts", "tagging_coarse5", oracles.IndependentCategoricals(), ((4, 4), (5, 4), (6, 4)),
     _TAGGING),
    ("subset", "3 of 12 with a random downstream classifier", "subset_fsdd_downstream", oracles.Subset(3), ((12,),), (0.995, 0.931, 0.347)),
    ("chain", "chains of 3 to 6 with 5 tags", "tagging_coarse5", oracles.LinearChain(), tuple((n, 5, 5) for n in (3, 4, 5, 6)), _TAGGING),
    ("alignment", "alignments of 5×5 to 7×6", "dtw_speech", oracles.Alignment(), ((5, 5), (5, 6), (6, 6), (7, 6)), _ALIGNMENT),
    ("constituency", "binary trees of 7 to 9 leaves", "binary_trees_listops", oracles.Constituency(), _squares(7, 8, 9),
     tuple(nats / 4.9209 for nats in (4.919, 1.732, 0.001))),
    ("projective_tree", "projective trees of 5 to 7 words", "dependency_en_ewt_projective", oracles.ProjectiveTree(), _squares(6, 7, 8),
     tuple(nats / 3.6189 for nats in (3.616, 3.285, 0.543))),
    ("spanning_tree", "dependency trees of 4 to 6 words", "dependency_en_ewt", oracles.SpanningTree(), _squares(5, 6, 7),
     tuple(nats / 4.6329 for nats in (4.631, 4.351, 0.779))),
    ("assignment", "permutations of 5 to 7", "assignment_alibi_fr_en", oracles.Assignment(), _squares(5, 6, 7),
     tuple(nats / 4.8322 for nats in (4.804, 4.791, 0.738))),
    ("shift_reduce", f"{_LEAVES} globally", "shift_reduce_listops", oracles.ShiftReduce(), _SHAPES, _DERIVATIONS),
)  # fmt: skip
"""Name, kind of scores, the real problem with the same entropies, oracle, shapes, and entropies at init, early and final."""

_LOSSES = {"categorical": "mlp", "categories": "mlp", "subset": Downstream.name}

REGIMES: dict[str, Regime] = {  # regimes by name
    f"{name}_regimes": Regime(
        f"random scores of {kind}, as peaked as those of {like}", oracle, events, entropies, _LOSSES.get(name, "quadratic")
    )
    for name, kind, like, oracle, events, entropies in _BUILT_IN
}

REGIMES["policy_regimes"] = Regime(f"the same with a policy: {_LEAVES} at every state", oracles.ShiftReduce("local"), _SHAPES, _DERIVATIONS)


def peaked_like(structure: str) -> Regime | None:
    """The regime of a structure by its name, whose entropies another structure takes."""
    return next((regime for regime in REGIMES.values() if regime.oracle.name == structure), None)


def with_options(text: str, options: Mapping[str, Any]) -> str:
    """``name[option=value,...]``, as `parse` reads it."""
    return f"{text}[{','.join(f'{key}={value}' for key, value in options.items())}]" if options else text


def _of_derivations(oracle: DerivedOracle) -> Regime:
    """The regime of the examples of an oracle, with the entropies of the structure that it names."""
    sizes, like = oracle.examples.small, peaked_like(oracle.examples.like)
    first, last = (with_options(oracle.name, dict(zip(oracle.size_names, size, strict=True))) for size in (sizes[0], sizes[-1]))
    summary = f"random scores of {first} to {last}" + (f", as peaked as those of {like.oracle.name}" if like else "")
    return Regime(summary, oracle, tuple(map(oracle.event_of, sizes)), like.entropies if like else USUAL_ENTROPIES)


REGIMES |= {f"{name}_regimes": _of_derivations(kind()) for name, kind in oracles.DERIVED.items()}
