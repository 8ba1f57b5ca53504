"""Tables of cases that the law tests share, and brute force over all structures, written with itertools and numpy alone."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from scipy.stats import chi2
from torch import Tensor

from structgrad.oracles import Categorical, LinearChain, Subset


@dataclass(frozen=True)
class OracleCase:
    """An oracle at one event shape, and its structures as an independent list of 0/1 arrays."""

    oracle: Any
    event: tuple[int, ...]
    listed: Callable[[Any, tuple[int, ...]], Iterator[np.ndarray]]

    def __str__(self) -> str:
        return f"{self.oracle!r}-{'x'.join(map(str, self.event))}"


def one_hots(oracle: Categorical, event: tuple[int, ...]) -> Iterator[np.ndarray]:
    for i in range(event[0]):
        structure = np.zeros(event)
        structure[i] = 1
        yield structure


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


ORACLE_CASES = (
    OracleCase(Categorical(), (1,), one_hots),
    OracleCase(Categorical(), (2,), one_hots),
    OracleCase(Categorical(), (6,), one_hots),
    OracleCase(Subset(1), (1,), subsets),
    OracleCase(Subset(1), (4,), subsets),
    OracleCase(Subset(2), (5,), subsets),
    OracleCase(Subset(4), (4,), subsets),
    OracleCase(Subset(4), (7,), subsets),
    OracleCase(LinearChain(), (1, 1, 1), tag_sequences),
    OracleCase(LinearChain(), (1, 3, 3), tag_sequences),
    OracleCase(LinearChain(), (4, 1, 1), tag_sequences),
    OracleCase(LinearChain(), (2, 2, 2), tag_sequences),
    OracleCase(LinearChain(), (3, 3, 3), tag_sequences),
    OracleCase(LinearChain(), (5, 2, 2), tag_sequences),
)
"""Every law about oracles holds for every row of this table."""

GENERIC_CASES = tuple(case for case in ORACLE_CASES if str(case) in {"Categorical()-6", "Subset(k=2)-5", "LinearChain()-3x3x3"})
"""One row per oracle, for laws that cost more."""

SCALES = (0.05, 1.0, 5.0, 50.0)
REGIMES = (*SCALES, "ties", "equal", "masked", "masked_ties")
"""What scores look like: Gaussian of a scale; many ties; all equal; forbidden parts, with an infeasible row."""


def make_scores(case: OracleCase, regime: float | str, rows: int = 6, seed: int = 0) -> Tensor:
    """Float64 scores [rows, *event] of a regime; in the masked ones row 0 is infeasible and row 1 has no forbidden part."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(rows, *case.event, generator=generator, dtype=torch.float64)
    forbidden = torch.rand(rows, *case.event, generator=generator) < 0.3
    if isinstance(regime, float):
        return regime * noise
    forbidden[0], forbidden[1:2] = True, False
    scores = {"ties": noise.round(), "equal": torch.zeros_like(noise), "masked": 3 * noise, "masked_ties": noise.round()}[regime]
    return scores.masked_fill(forbidden, -math.inf) if regime.startswith("masked") else scores


@cache
def structures(case: OracleCase) -> Tensor:
    """All structures of a case: float64 [count, *event]."""
    return torch.from_numpy(np.stack(list(case.listed(case.oracle, case.event))))


def parts_per_structure(case: OracleCase) -> int:
    return int(structures(case)[0].sum())


def read_parts(case: OracleCase) -> Tensor:
    """Boolean [*event]: the parts that some structure uses."""
    return structures(case).sum(0) > 0


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
    """Everything about p(z) ∝ exp⟨θ, z⟩ by looping over rows and structures in numpy."""
    flat = structures(case).flatten(1).numpy()
    rows = scores.double().reshape(-1, flat.shape[1]).numpy()
    totals = np.array([[row[z > 0].sum() for z in flat] for row in rows]).reshape(len(rows), len(flat))
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
    hits = (flat @ known.T == parts_per_structure(case)) & (flat.sum(-1, keepdim=True) == parts_per_structure(case))
    assert bool((hits.sum(-1) == 1).all()), "a sample is no structure"
    assert bool(((flat == 0) | (flat == 1)).all()), "a sample is not 0/1"
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
