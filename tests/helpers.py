"""Tables of cases that the law tests share, and brute force over all structures, written with itertools and numpy alone."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chi2
from torch import Tensor

from structgrad.oracles import (
    Alignment,
    Assignment,
    Categorical,
    Constituency,
    IndependentCategoricals,
    LinearChain,
    ProjectiveTree,
    ShiftReduce,
    SpanningTree,
    Subset,
    TiedChain,
    kernels,
)
from tests.derived_cases import BY_NAME, DERIVED_CASES


@dataclass(frozen=True)
class OracleCase:
    """An oracle at one event shape, and its structures as an independent list of 0/1 arrays, by default that of `LISTERS`.

    ``potentials`` turns one row of scores into natural parameters, p(z) ∝ exp⟨θ', z⟩, where they are not the scores themselves. It takes
    complex rows too, for exact derivatives. Of the cases of a ``group``, a law that is thinned takes one of each kind.
    """

    oracle: Any
    event: tuple[int, ...]
    listed: Callable[[Any, tuple[int, ...]], Iterator[np.ndarray]] = None  # type: ignore[assignment]
    potentials: Callable[[np.ndarray], np.ndarray] | None = None
    group: str = ""

    def __post_init__(self) -> None:
        if self.listed is None:
            object.__setattr__(self, "listed", LISTERS[type(self.oracle)])
            object.__setattr__(self, "potentials", shift_reduce_policy if self.oracle == ShiftReduce("local") else None)

    @property
    def stands_for(self) -> str:
        return self.group or str(self)

    def __str__(self) -> str:
        return f"{self.oracle!r}-{'x'.join(map(str, self.event))}"


def one_hots(oracle: Categorical, event: tuple[int, ...]) -> Iterator[np.ndarray]:
    for i in range(event[0]):
        structure = np.zeros(event)
        structure[i] = 1
        yield structure


def products(oracle: IndependentCategoricals, event: tuple[int, ...]) -> Iterator[np.ndarray]:
    for chosen in itertools.product(range(event[1]), repeat=event[0]):
        yield np.eye(event[1])[list(chosen)]


def subsets(oracle: Subset, event: tuple[int, ...]) -> Iterator[np.ndarray]:
    for chosen in itertools.combinations(range(event[0]), oracle.k):
        structure = np.zeros(event)
        structure[list(chosen)] = 1
        yield structure


def tag_sequences(oracle: LinearChain, event: tuple[int, ...]) -> Iterator[np.ndarray]:
    for tags in itertools.product(range(event[1]), repeat=event[0]):
        structure = np.zeros(event)
        structure[0, 0, tags[0]] = 1
        for i in range(1, event[0]):
            structure[i, tags[i - 1], tags[i]] = 1
        yield structure


def tied_tag_sequences(oracle: TiedChain, event: tuple[int, ...]) -> Iterator[np.ndarray]:
    length = event[0] - event[1]
    for tags in itertools.product(range(event[1]), repeat=length):
        structure = np.zeros(event)
        for i, tag in enumerate(tags):
            structure[i, tag] = 1
            if i > 0:
                structure[length + tags[i - 1], tag] += 1
        yield structure


def permutations(oracle: Assignment, event: tuple[int, ...]) -> Iterator[np.ndarray]:
    for columns in itertools.permutations(range(event[0])):
        yield np.eye(event[0])[list(columns)]


def derivations(oracle: ShiftReduce, event: tuple[int, ...]) -> Iterator[np.ndarray]:
    for actions in itertools.product((0, 1), repeat=2 * event[0] - 3):
        structure, shifts, depth = np.zeros(event), 0, 0
        for action in actions:
            if (depth < 2) if action else (shifts == event[0] - 1):
                break
            structure[shifts, depth, action] = 1
            shifts, depth = (shifts, depth - 1) if action else (shifts + 1, depth + 1)
        else:
            if depth == 1:
                yield structure


def shift_reduce_policy(row: np.ndarray) -> np.ndarray:
    """Log-softmax at each state over the actions from which the end can be reached."""
    leaves, policy = len(row) - 1, np.zeros_like(row)
    completable = {(leaves, 1)}
    for shifts in range(leaves, -1, -1):
        for depth in range(min(shifts, 1), shifts + 1):
            following = {0: (shifts + 1, depth + 1), 1: (shifts, depth - 1 if depth > 1 else -1)}
            possible = [a for a in (0, 1) if following[a] in completable and row[shifts, depth, a].real > -math.inf]
            completable |= {(shifts, depth)} if possible else set()
            policy[shifts, depth] = -math.inf
            if possible:
                moved = row[shifts, depth, possible] - row[shifts, depth, possible].real.max()
                policy[shifts, depth, possible] = moved - np.log(np.exp(moved).sum())
    return policy


def binary_trees(oracle: Constituency, event: tuple[int, ...]) -> Iterator[np.ndarray]:
    def spans(first: int, last: int) -> Iterator[tuple[tuple[int, int], ...]]:
        if first == last:
            yield ((first, last),)
        for middle in range(first, last):
            for left, right in itertools.product(list(spans(first, middle)), list(spans(middle + 1, last))):
                yield ((first, last), *left, *right)

    for chosen in spans(0, event[0] - 1):
        structure = np.zeros(event)
        structure[tuple(zip(*chosen, strict=True))] = 1
        yield structure


def monotone_paths(oracle: Alignment, event: tuple[int, ...]) -> Iterator[np.ndarray]:
    def walks(i: int, j: int) -> Iterator[tuple[tuple[int, int], ...]]:
        if (i, j) == (event[0] - 1, event[1] - 1):
            yield ((i, j),)
        for following in ((i, j + 1), (i + 1, j), (i + 1, j + 1)):
            if following[0] < event[0] and following[1] < event[1]:
                for rest in walks(*following):
                    yield ((i, j), *rest)

    for cells in walks(0, 0):
        structure = np.zeros(event)
        structure[tuple(zip(*cells, strict=True))] = 1
        yield structure


def projective_trees(oracle: ProjectiveTree, event: tuple[int, ...]) -> Iterator[np.ndarray]:
    """Trees by their decisions from the top: the farthest child, the cut of the words under its arc, and so on below."""
    size = event[0]

    def under(heads: tuple[int, ...], word: int, top: int) -> bool:
        return any(word == top or (word := heads[word]) == top for _ in range(size))

    def decisions(heads: tuple[int, ...], leftward: bool, first: int, last: int) -> tuple[int, ...]:
        if first == last:
            return ()
        head, words = (last, range(first, last)) if leftward else (first, range(last, first, -1))
        child = next(word for word in words if heads[word] == head)
        low, high = sorted((head, child))
        seam = max(word for word in range(low, high) if under(heads, word, child) == leftward)
        beyond = decisions(heads, leftward, *((first, child) if leftward else (child, last)))
        return (child, seam, *decisions(heads, False, low, seam), *decisions(heads, True, seam + 1, high), *beyond)

    trees = []
    for heads in itertools.product(range(size), repeat=size - 1):
        whole = (0, *heads)
        arcs = [sorted(arc) for arc in enumerate(whole)][1:]
        crossing = any(a < c < b < d for a, b in arcs for c, d in arcs)
        roots = heads.count(0)
        if not crossing and (roots == 1 or not oracle.single_root) and all(under(whole, word, 0) for word in range(size)):
            trees.append(whole)
    for whole in sorted(trees, key=lambda heads: decisions(heads, False, 0, size - 1)):
        structure = np.zeros(event)
        structure[whole[1:], range(1, size)] = 1
        yield structure


def spanning_trees(oracle: SpanningTree, event: tuple[int, ...]) -> Iterator[np.ndarray]:
    words = range(1, event[0])
    for heads in itertools.product(range(event[0]), repeat=len(words)):
        reached = {0}
        for _ in words:
            reached |= {word for word in words if heads[word - 1] in reached}
        if len(reached) == event[0] and (heads.count(0) == 1 or not oracle.single_root):
            structure = np.zeros(event)
            structure[heads, words] = 1
            yield structure


LISTERS: dict[type, Callable[[Any, tuple[int, ...]], Iterator[np.ndarray]]] = {
    Categorical: one_hots,
    IndependentCategoricals: products,
    Subset: subsets,
    LinearChain: tag_sequences,
    TiedChain: tied_tag_sequences,
    Alignment: monotone_paths,
    Constituency: binary_trees,
    ShiftReduce: derivations,
    Assignment: permutations,
    ProjectiveTree: projective_trees,
    SpanningTree: spanning_trees,
    **{type(row.oracle): row.listed for row in DERIVED_CASES},
}

EVENTS: tuple[tuple[Any, tuple[tuple[int, ...], ...]], ...] = (
    (Categorical(), ((1,), (2,), (6,))),
    (IndependentCategoricals(), ((1, 1), (1, 4), (3, 1), (4, 2), (2, 3))),
    (Subset(1), ((1,), (4,))),
    (Subset(4), ((4,), (7,))),
    (Subset(2), ((5,),)),
    (LinearChain(), ((1, 1, 1), (1, 3, 3), (4, 1, 1), (2, 2, 2), (5, 2, 2), (3, 3, 3))),
    (TiedChain(), ((2, 1), (4, 3), (5, 1), (4, 2), (7, 2), (6, 3))),
    (Alignment(), ((1, 1), (1, 4), (3, 2), (4, 4), (3, 4))),
    (Constituency(), ((1, 1), (2, 2), (3, 3), (6, 6), (4, 4))),
    (ShiftReduce(), ((2, 2, 2), (7, 7, 2), (4, 4, 2))),
    (ShiftReduce("local"), ((2, 2, 2), (4, 4, 2), (5, 5, 2))),
    (Assignment(), ((1, 1), (2, 2), (5, 5), (4, 4))),
    (ProjectiveTree(), ((2, 2), (3, 3), (5, 5))),
    (ProjectiveTree(single_root=False), ((2, 2), (5, 5), (4, 4))),
    (SpanningTree(single_root=False), ((3, 3), (5, 5))),
    (SpanningTree(), ((2, 2), (5, 5), (4, 4))),
    *((row.oracle, row.events) for row in DERIVED_CASES),
)

ORACLE_CASES = tuple(OracleCase(oracle, event) for oracle, events in EVENTS for event in events)
"""Every law about oracles holds for every row of this table."""

GENERIC_CASES = tuple(
    OracleCase(oracle, events[-1], group="derived" if oracle.name in BY_NAME else "")
    for oracle, events in EVENTS
    if oracle not in (Subset(1), Subset(4), SpanningTree(single_root=False))
)
"""One row per oracle, for laws that cost more. Those that state their derivations run the same algorithms, and take turns."""

SCALES = (0.05, 1.0, 10.0, 50.0)
REGIMES = (*SCALES, "ties", "equal", "masked", "masked_ties")
"""What scores look like: Gaussian of a scale; many ties; all equal; forbidden parts, with an infeasible row."""


def make_scores(case: OracleCase, regime: float | str, rows: int = 6, seed: int = 0) -> Tensor:
    """Float64 scores [rows, *event] of a regime; in the masked ones row 0 is infeasible and row 1 has no forbidden part."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(rows, *case.event, generator=generator, dtype=torch.float64)
    forbidden = torch.rand(rows, *case.event, generator=generator) < 0.3
    if isinstance(regime, float):
        return regime * noise
    # What every structure uses is forbidden in row 0 alone: else few rows were feasible.
    forbidden &= ~(structures(case) > 0).all(0)
    forbidden[0], forbidden[1:2] = True, False
    scores = {"ties": noise.round(), "equal": torch.zeros_like(noise), "masked": 3 * noise, "masked_ties": noise.round()}[regime]
    return scores.masked_fill(forbidden, -math.inf) if regime.startswith("masked") else scores


@cache
def structures(case: OracleCase) -> Tensor:
    """All structures of a case: float64 [count, *event]."""
    return torch.from_numpy(np.stack(list(case.listed(case.oracle, case.event))))


def read_parts(case: OracleCase) -> Tensor:
    """Boolean [*event]: the parts that some structure uses."""
    return structures(case).sum(0) > 0


def natural_parameters(case: OracleCase, scores: Tensor) -> Tensor:
    """Float64 ``θ'`` with p(z) ∝ exp⟨θ', z⟩ for scores [*batch, *event]."""
    if case.potentials is None:
        return scores.double()
    rows = [case.potentials(row.numpy()) for row in scores.double().reshape(-1, *case.event)]
    return torch.from_numpy(np.stack(rows)).reshape(scores.shape)


def pulled_back(case: OracleCase, scores: Tensor, gradient: Tensor) -> Tensor:
    """Gradients in the scores from gradients in the natural parameters [b, *event], by complex steps."""
    if case.potentials is None:
        return gradient
    result = torch.zeros_like(gradient)
    for row, part in ((b, part) for b in range(len(scores)) for part in read_parts(case).nonzero().tolist()):
        if scores[row][tuple(part)] > -math.inf:
            moved = scores[row].numpy().astype(complex)
            moved[tuple(part)] += 1e-30j
            rates = np.imag(case.potentials(moved)) / 1e-30
            result[row][tuple(part)] = (torch.from_numpy(rates) * gradient[row]).sum()
    return result


def binary_parts(case: OracleCase) -> Tensor:
    """Boolean [*event]: parts that no structure has more than once."""
    return structures(case).amax(0) <= 1


@dataclass(frozen=True)
class Truth:
    """Brute force for rows of scores: float64 tensors with one row each."""

    structure_scores: Tensor
    feasible: Tensor
    log_partition: Tensor
    probabilities: Tensor
    marginals: Tensor
    entropy: Tensor
    covariance: Tensor


def enumerate_truth(case: OracleCase, scores: Tensor) -> Truth:
    """Everything about p(z) ∝ exp⟨θ, z⟩, θ the natural parameters of the scores, by looping over rows and structures in numpy."""
    flat = structures(case).flatten(1).numpy()
    rows = natural_parameters(case, scores).reshape(-1, flat.shape[1]).numpy()
    totals = np.array([[row[z > 0] @ z[z > 0] for z in flat] for row in rows]).reshape(len(rows), len(flat))
    top = totals.max(1, keepdims=True)
    feasible = top[:, 0] > -math.inf
    weights = np.exp(totals - np.where(np.isfinite(top), top, 0))
    mass = weights.sum(1)
    log_partition = np.where(feasible, np.log(np.where(feasible, mass, 1)) + np.where(feasible, top[:, 0], 0), -math.inf)
    p = weights / np.where(feasible, mass, 1)[:, None]
    marginals = p @ flat
    entropy = np.array([-sum(x * math.log(x) for x in row if x > 0) for row in p])
    centred = flat[None] - marginals[:, None]
    covariance = np.einsum("bs,bsi,bsj->bij", p, centred, centred)
    results = (totals, feasible, log_partition, p, marginals.reshape(-1, *case.event), entropy, covariance)
    return Truth(*(torch.from_numpy(np.asarray(value)) for value in results))


def structure_indices(case: OracleCase, samples: Tensor) -> Tensor:
    """Which structure each sample [..., *event] is; fails where one is none."""
    known = structures(case).flatten(1).to(samples.dtype)
    flat = samples.reshape(-1, known.shape[1])
    # The square of the distance, exact for whole numbers.
    hits = flat.square().sum(-1, keepdim=True) - 2 * flat @ known.T + known.square().sum(-1) == 0
    assert bool((hits.sum(-1) == 1).all()), "a sample is no structure"
    assert bool((flat == flat.round()).all()), "a sample holds no whole numbers"
    return hits.to(torch.int8).argmax(-1).reshape(samples.shape[: samples.ndim - len(case.event)])


def chi_square_p_value(counts: Tensor, probabilities: Tensor) -> float:
    """Pearson's test of counts against exact probabilities; cells that expect fewer than 5 are pooled into one."""
    expected = probabilities.double() * counts.sum()
    rare = expected < 5
    assert counts[probabilities == 0].sum() == 0, "a structure of probability 0 was drawn"
    observed = [*counts[~rare].tolist(), counts[rare].sum().item()]
    predicted = [*expected[~rare].tolist(), expected[rare].sum().item()]
    if predicted[-1] < 5:
        observed = observed[:-1]
        predicted = predicted[:-1]
    statistic = sum((o - e) ** 2 / e for o, e in zip(observed, predicted, strict=True))
    return float(chi2.sf(statistic, max(len(predicted) - 1, 1)))


def seeded(seed: int = 0, device: torch.device | str = "cpu") -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


def launched_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the number of rows of each kernel that is launched from now on."""
    sizes: list[int] = []
    original = kernels.launch

    def counted(function: Any, tensors: tuple[Tensor, ...], *rest: Any) -> None:
        sizes.append(len(tensors[0]))
        original(function, tensors, *rest)

    monkeypatch.setattr(kernels, "launch", counted)
    return sizes
