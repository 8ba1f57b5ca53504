"""Problems by name: real score files, built-in regimes that match them in entropy, and a user's own file.

A problem is an item set (scores at a stage, gold structures) and a loss per item. Gold and loss do not depend on the stage, so that stages
differ in the scores alone; and nothing random depends on order: every stream is keyed by names.
"""

from __future__ import annotations

import abc
import hashlib
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from scipy.optimize import brentq
from torch import Tensor

from ...oracles import Categorical, LinearChain, Subset
from ...oracles.base import MarginalOracle, Oracle, SamplingOracle
from ...oracles.registry import unknown
from ..base import Instance, Problem, ProblemLoss
from .losses import LOSSES, Downstream, make_loss
from .score_files import Arrays, ScoreFile, ScoreTables, read_arrays

STAGES = ("init", "early", "final")

REAL_PROBLEMS: dict[str, str] = {
    "tagging_coarse5": "English sentences of 2 to 6 words, 5 coarse tags: scores of a linear-chain CRF",
    "subset_fsdd_downstream": "3 of 12 frames of a spoken digit: scores and classifier of a model trained end to end",
    "categorical_fsdd": "spoken digits: logits of a classifier of 10 classes",
}

BUILT_IN_PROBLEMS: dict[str, str] = {
    "categorical_regimes": "random scores of 10 classes, as peaked as those of categorical_fsdd",
    "subset_regimes": "random scores of 3 of 12 with a random downstream classifier, as peaked as those of subset_fsdd_downstream",
    "chain_regimes": "random scores of chains of 3 to 6 with 5 tags, as peaked as those of tagging_coarse5",
}

PROBLEMS: dict[str, str] = {**REAL_PROBLEMS, **BUILT_IN_PROBLEMS}
"""Every problem that has a name, and one line on it."""

DATA_VARIABLE = "STRUCTGRAD_DATA"

DATA_FOLDERS: tuple[str, ...] = (f"${DATA_VARIABLE}", "./data/scores", "../shared/data/scores")
"""Where the real score files are looked for, in this order."""


def default_data() -> str | None:
    """The first of `DATA_FOLDERS` that exists; None where there is none.

    Raises:
        ValueError: the environment variable names no folder; going on to the next one would measure other scores in silence.
    """
    chosen = os.environ.get(DATA_VARIABLE)
    if chosen and not Path(chosen).is_dir():
        raise ValueError(f"{DATA_VARIABLE} is {chosen!r}, which is no folder; set it to the folder of the score files, or unset it")
    folders = [chosen or "" if folder == f"${DATA_VARIABLE}" else folder for folder in DATA_FOLDERS]
    return next((folder for folder in folders if folder and Path(folder).is_dir()), None)


def available(data: str | None) -> tuple[str, ...]:
    """The default suite: the real problems whose files the folder holds, and the built-in ones where it holds none."""
    found = () if data is None else tuple(name for name in REAL_PROBLEMS if (Path(data) / f"{name}.npz").is_file())
    return found or tuple(BUILT_IN_PROBLEMS)


def load(name: str, stage: str, *, instances: int, data: str | None, loss: str | None = None, seed: int = 0) -> Problem:  # noqa: PLR0913
    """A named problem: float64 scores on the CPU, and one loss per instance.

    Args:
        name: a key of `PROBLEMS`.
        stage: ``init``, ``early`` or ``final``.
        instances: how many. Of a real set they are spread evenly over its items by length; built-in ones are numbered from 0.
        data: the folder of the real score files; not read for a built-in problem.
        loss: a key of `LOSSES`; None for the problem's own.
        seed: of everything random: built-in scores, drawn gold structures and random losses.

    Raises:
        ValueError: an unknown name, stage or loss, more instances than there are items, or no file to read.

    Example:
        >>> problem = load("subset_regimes", "final", instances=2, data=None)
        >>> problem.oracle, [instance.name for instance in problem.instances]
        (Subset(k=3), ['subset_regimes-0', 'subset_regimes-1'])
    """
    if name not in PROBLEMS:
        raise ValueError(unknown(name, PROBLEMS, "problem"))
    if stage not in STAGES:
        raise ValueError(unknown(stage, STAGES, "stage"))
    items = _BUILT_IN[name](name, seed) if name in _BUILT_IN else _REAL[name](name, seed, _read(name, data))
    return _problem(items, stage, instances, loss)


def from_file(file: ScoreFile) -> Problem:
    """The problem of a user's own score file, named after the file, with the stage ``file``.

    Raises:
        ValueError: one sentence that names the file.
    """
    try:
        items = _FileItems(file)
        return _problem(items, "file", len(items.lengths()) if file.instances is None else file.instances, file.loss)
    except ValueError as error:
        path = str(Path(file.path))
        raise ValueError(str(error) if str(error).startswith(path) else f"{path}: {error}") from error


def _problem(items: _Items, stage: str, instances: int, loss: str | None) -> Problem:
    chosen = tuple(_instance(items, stage, index, loss or items.default_loss) for index in items.chosen(instances))
    return Problem(items.name, stage, items.oracle, chosen, items.source)


def _instance(items: _Items, stage: str, index: int, loss: str) -> Instance:
    name = items.item_name(index)
    scores = items.scores(stage, index)
    own = items.downstream(stage, index) if loss == Downstream.name else None
    return Instance(name, scores, own or _tied_loss(items, index, loss))


def _tied_loss(items: _Items, index: int, loss: str) -> ProblemLoss:
    if loss not in LOSSES:
        raise ValueError(unknown(loss, LOSSES, "loss"))
    return make_loss(loss, items.gold(index), items.oracle, seed=items.key("loss", loss, items.item_name(index)))


class _Items(abc.ABC):
    """An item set: scores by stage and index, gold structures by index, and a downstream loss where there is one."""

    name: str
    seed: int
    source: str
    oracle: Oracle
    default_loss: str

    def key(self, *names: str) -> np.random.SeedSequence:
        """A seed that depends on names alone: on the problem, the user's seed and what it is for."""
        text = "\x1f".join((self.name, str(self.seed), *names))
        return np.random.SeedSequence(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little"))

    def random(self, *names: str) -> np.random.Generator:
        return np.random.default_rng(self.key(*names))

    def sampled(self, index: int, scores: Tensor) -> Tensor:
        """One exact sample, always the same for an item."""
        if not isinstance(self.oracle, SamplingOracle):
            return self.oracle.argmax(scores)
        state = self.key("gold", self.item_name(index)).generate_state(1, np.uint64)[0]
        return self.oracle.sample(scores, generator=torch.Generator().manual_seed(int(state) >> 1))

    @abc.abstractmethod
    def chosen(self, instances: int) -> list[int]: ...

    @abc.abstractmethod
    def item_name(self, index: int) -> str: ...

    @abc.abstractmethod
    def scores(self, stage: str, index: int) -> Tensor: ...

    @abc.abstractmethod
    def gold(self, index: int) -> Tensor: ...

    def downstream(self, stage: str, index: int) -> ProblemLoss | None:
        return None


# Real items.


class _FoundItems(_Items):
    """Items of a file: a selection is spread evenly over them by length."""

    @abc.abstractmethod
    def lengths(self) -> np.ndarray: ...

    def chosen(self, instances: int) -> list[int]:
        order = np.argsort(self.lengths(), kind="stable")
        if not 1 <= instances <= len(order):
            raise ValueError(f"got instances={instances}; expected 1 to {len(order)}, the number of items in {self.source}")
        return [int(order[(2 * i + 1) * len(order) // (2 * instances)]) for i in range(instances)]


class _RealItems(_FoundItems):
    arrays: Arrays
    id_key: ClassVar[str] = "small_id"

    def __init__(self, name: str, seed: int, arrays: Arrays) -> None:
        self.name, self.seed, self.arrays, self.source = name, seed, arrays, f"{name}.npz"

    def item_name(self, index: int) -> str:
        return str(self.array(self.id_key)[index])

    def lengths(self) -> np.ndarray:
        return self.array("small_length")

    def array(self, key: str) -> np.ndarray:
        if key not in self.arrays:
            raise ValueError(f"{self.source}: holds no array {key!r}; expected the score file of {self.name}, not another one of that name")
        return self.arrays[key]

    def double(self, key: str) -> Tensor:
        return torch.from_numpy(self.array(key).astype(np.float64))


class _Tagging(_RealItems):
    oracle = LinearChain()
    default_loss = "quadratic"

    def scores(self, stage: str, index: int) -> Tensor:
        unary = self.double(f"small_unary_{stage}")[index, : self.lengths()[index]]
        transition, start, end = (self.double(f"{part}_{stage}") for part in ("transition", "start", "end"))
        return LinearChain.from_potentials(unary, transition, start=start, end=end)

    def gold(self, index: int) -> Tensor:
        tags = torch.from_numpy(self.array("small_gold_tags"))[index, : self.lengths()[index]]
        return LinearChain.structure(tags, len(self.array("tags")), torch.float64)


class _SpokenSubset(_RealItems):
    oracle = Subset(3)
    default_loss = Downstream.name

    def scores(self, stage: str, index: int) -> Tensor:
        return self.double(f"small_score_{stage}")[index]

    def gold(self, index: int) -> Tensor:
        """Nobody annotated the frames: a sample of the trained model stands in."""
        return self.sampled(index, self.scores("final", index))

    def downstream(self, stage: str, index: int) -> ProblemLoss:
        weight, bias = self.double(f"small_clf_weight_{stage}"), self.double(f"small_clf_bias_{stage}")
        return Downstream(weight, bias, self.double("small_frames")[index], 3, int(self.array("small_label")[index]))


class _SpokenDigits(_RealItems):
    id_key = "id"
    oracle = Categorical()
    default_loss = "mlp"

    def lengths(self) -> np.ndarray:
        return np.full(len(self.array("id")), 10)

    def scores(self, stage: str, index: int) -> Tensor:
        return self.double(f"logits_{stage}")[index]

    def gold(self, index: int) -> Tensor:
        return torch.nn.functional.one_hot(torch.tensor(int(self.array("gold")[index])), 10).double()


def _read(name: str, data: str | None) -> Arrays:
    if data is None:
        raise ValueError(
            f"`load` got the problem {name!r} without a folder of score files; "
            f"set {DATA_VARIABLE}, or take one of {', '.join(BUILT_IN_PROBLEMS)}, which need none"
        )
    return read_arrays(Path(data) / f"{name}.npz")


# Built-in regimes.


class _Regime(_Items):
    """Random directions, scaled until the entropy is that of a real model at the same stage.

    Attributes:
        entropies: by stage, entropy / log count, the mean over the items of the real set.
        agreement: share of the final direction in the early one. A model that has begun to learn already prefers what it will end up with;
            this share gives gold about the log-probability that it has in the real sets.
    """

    entropies: ClassVar[dict[str, float]]
    agreement: ClassVar[float] = 0.5
    source = "built-in"
    oracle: MarginalOracle

    def __init__(self, name: str, seed: int) -> None:
        self.name, self.seed = name, seed
        self.scaled: dict[tuple[str, int], Tensor] = {}

    def chosen(self, instances: int) -> list[int]:
        if instances < 1:
            raise ValueError(f"got instances={instances} of {self.name}; expected at least 1")
        return list(range(instances))

    def item_name(self, index: int) -> str:
        return f"{self.name}-{index}"

    @abc.abstractmethod
    def drawn(self, random: np.random.Generator, index: int) -> Tensor:
        """A random direction for an item."""

    def direction(self, stage: str, index: int) -> Tensor:
        if stage == "early":
            return (1 - self.agreement) * self.direction("init", index) + self.agreement * self.direction("final", index)
        return self.drawn(self.random("scores", stage, self.item_name(index)), index)

    def scores(self, stage: str, index: int) -> Tensor:
        if (stage, index) not in self.scaled:
            direction = self.direction(stage, index)
            target = self.entropies[stage] * math.log(self.oracle.count(tuple(direction.shape)))
            self.scaled[stage, index] = direction * entropy_scale(self.oracle, direction, target)
        return self.scaled[stage, index]

    def gold(self, index: int) -> Tensor:
        """A sample of the final stage, so that the best structure is gold as often as in a calibrated trained model."""
        return self.sampled(index, self.scores("final", index))


class _CategoricalRegimes(_Regime):
    oracle = Categorical()
    default_loss = "mlp"
    entropies: ClassVar[dict[str, float]] = {"init": 0.990, "early": 0.957, "final": 0.112}

    def drawn(self, random: np.random.Generator, index: int) -> Tensor:
        return torch.from_numpy(random.standard_normal(10))


class _SubsetRegimes(_Regime):
    oracle = Subset(3)
    default_loss = Downstream.name
    entropies: ClassVar[dict[str, float]] = {"init": 0.995, "early": 0.931, "final": 0.347}

    def drawn(self, random: np.random.Generator, index: int) -> Tensor:
        return torch.from_numpy(random.standard_normal(12))

    def downstream(self, stage: str, index: int) -> ProblemLoss:
        """One random classifier for all items; the label is the class that it gives to the gold frames."""
        shared, own = self.random("classifier"), self.random("frames", self.item_name(index))
        weight, bias = torch.from_numpy(shared.standard_normal((10, 13))), torch.from_numpy(shared.standard_normal(10)) / 3
        frames = torch.from_numpy(own.standard_normal((12, 13)))
        logits = Downstream(weight, bias, frames, 3, 0).logits(self.gold(index))
        return Downstream(weight, bias, frames, 3, int(logits.argmax()))


class _ChainRegimes(_Regime):
    oracle = LinearChain()
    default_loss = "quadratic"
    # 6.516, 5.884 and 0.973 nats; the mean length of the items is 4.065, so their mean log count is 4.065 log 5.
    entropies: ClassVar[dict[str, float]] = {
        stage: nats / (4.065 * math.log(5)) for stage, nats in (("init", 6.516), ("early", 5.884), ("final", 0.973))
    }

    def drawn(self, random: np.random.Generator, index: int) -> Tensor:
        """As in trained taggers, unary scores dominate."""
        length = 3 + index % 4
        unary, other = torch.from_numpy(random.standard_normal((length, 5))), torch.from_numpy(random.standard_normal((7, 5))) / 4
        return LinearChain.from_potentials(unary, other[:5], start=other[5], end=other[6])


def entropy_scale(oracle: MarginalOracle, direction: Tensor, entropy: float) -> float:
    """The scale s ≥ 0 at which the Gibbs entropy of ``s · direction`` is ``entropy`` nats, to machine precision.

    The entropy falls in s from the log count to 0, where ``direction`` (float64 [*event]) has one best structure.
    """

    def excess(scale: float) -> float:
        return float(oracle.entropy(scale * direction.unsqueeze(0))) - entropy

    high = 1.0
    while excess(high) > 0:
        high *= 4
        if high > 2.0**60:
            raise ValueError(f"`entropy_scale` got entropy={entropy}, which no scale of the direction reaches; expected a higher one")
    return float(brentq(excess, 0.0, high, xtol=1e-14 * high, rtol=1e-14))


_REAL: dict[str, Callable[[str, int, Arrays], _Items]] = {
    "tagging_coarse5": _Tagging,
    "subset_fsdd_downstream": _SpokenSubset,
    "categorical_fsdd": _SpokenDigits,
}

_BUILT_IN: dict[str, Callable[[str, int], _Items]] = {
    "categorical_regimes": _CategoricalRegimes,
    "subset_regimes": _SubsetRegimes,
    "chain_regimes": _ChainRegimes,
}


# A user's own file.


class _FileItems(_FoundItems):
    def __init__(self, file: ScoreFile) -> None:
        self.name, self.seed, self.source = Path(file.path).stem, file.seed, Path(file.path).name
        self.default_loss = file.loss
        self.tables = ScoreTables(file)
        self.oracle = self.tables.oracle

    def item_name(self, index: int) -> str:
        return str(index)

    def lengths(self) -> np.ndarray:
        return self.tables.lengths

    def scores(self, stage: str, index: int) -> Tensor:
        return self.tables.scores(index)

    def gold(self, index: int) -> Tensor:
        annotated = self.tables.gold(index)
        return self.sampled(index, self.tables.scores(index)) if annotated is None else annotated
