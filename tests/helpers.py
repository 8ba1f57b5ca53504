"""Cases that the laws of oracles share, their scores, and brute force over all structures, in numpy alone."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chi2
from torch import Tensor

from structgrad.oracles import ShiftReduce, SpanningTree, Subset, kernels
from tests.oracle_cases import TABLE


@dataclass(frozen=True)
class OracleCase:
    """An oracle at one event shape. Of the cases of a ``group``, a law takes one by default."""

    oracle: Any
    event: tuple[int, ...]
    group: str = field(default="", compare=False)

    @property
    def potentials(self) -> Callable[[np.ndarray], np.ndarray] | None:
        """The natural parameters of a row of scores, p(z) ∝ exp⟨θ', z⟩, where they are not these; of complex rows too, for derivatives."""
        return shift_reduce_policy if self.oracle == ShiftReduce("local") else None

    @property
    def stands_for(self) -> str:
        return self.group or str(self)

    def __str__(self) -> str:
        return f"{self.oracle!r}-{'x'.join(map(str, self.event))}"


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


LISTERS = {type(row.oracle): row.listed for row in TABLE}

ORACLE_CASES = tuple(
    OracleCase(row.oracle, event, repr(row.oracle) if event == row.events[-1] else f"small {'derived' if row.derived else row.oracle.name}")
    for row in TABLE
    for event in row.events
)
"""Every law about oracles holds for every row of the table, at every size."""

GENERIC_CASES = tuple(
    OracleCase(row.oracle, row.events[-1], "derived" if row.derived else "")
    for row in TABLE
    if row.oracle not in (Subset(1), Subset(4), SpanningTree(single_root=False))
)
"""One row per oracle, for laws that cost more. Those that state their derivations run the same algorithms, and take turns."""

RAGGED_CASES = tuple(OracleCase(row.oracle, row.ragged) for row in TABLE if row.ragged)
"""Events with room for shorter items."""

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
    return torch.from_numpy(np.stack(list(LISTERS[type(case.oracle)](case.oracle, case.event))))


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
