"""Micro-benchmarks of every oracle operation; the group of an operation also holds a peer, so that a ratio can be read off one run."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import scipy.optimize
import torch
from pytest_benchmark.fixture import BenchmarkFixture
from torch import Tensor

from structgrad.oracles import Categorical, LinearChain, Subset

pytestmark = pytest.mark.benchmark
BATCH = 64
ORACLES = {"categorical": Categorical(), "subset": Subset(10), "linear_chain": LinearChain()}
EVENTS = {"categorical": (1000,), "subset": (100,), "linear_chain": (12, 8, 8)}


def random_scores(name: str) -> Tensor:
    return torch.randn(BATCH, *EVENTS[name], generator=torch.Generator().manual_seed(0))


def sampled(name: str, scores: Tensor) -> Tensor:
    return ORACLES[name].sample(scores, generator=torch.Generator().manual_seed(0))


def marginals_backward(name: str, scores: Tensor) -> Tensor:
    leaf = scores.requires_grad_()
    return torch.autograd.grad(ORACLES[name].marginals(leaf).square().sum(), leaf)[0]


OPERATIONS: dict[str, Callable[[str, Tensor], Tensor]] = {
    "argmax": lambda name, scores: ORACLES[name].argmax(scores),
    "log_partition": lambda name, scores: ORACLES[name].log_partition(scores),
    "marginals": lambda name, scores: ORACLES[name].marginals(scores),
    "marginals_backward": marginals_backward,
    "sample": sampled,
    "project": lambda name, scores: ORACLES[name].project(scores).mean,
}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("name", ORACLES)
def test_operation(benchmark: BenchmarkFixture, name: str, operation: str) -> None:
    benchmark.group = f"{name} {operation}"
    result = benchmark(OPERATIONS[operation], name, random_scores(name))
    assert torch.isfinite(result).all()


def softmax_backward(scores: Tensor) -> Tensor:
    leaf = scores.requires_grad_()
    return torch.autograd.grad(leaf.softmax(-1).square().sum(), leaf)[0]


def categorical_sample(scores: Tensor) -> Tensor:
    return torch.nn.functional.one_hot(torch.multinomial(scores.softmax(-1), 1).squeeze(-1), scores.shape[-1])


def topk(scores: Tensor) -> Tensor:
    return torch.zeros_like(scores).scatter_(-1, scores.topk(10).indices, 1)


def elementary_symmetric_loop(scores: Tensor) -> Tensor:
    """The log-partition of k-subsets, one item and one part at a time, in numpy."""
    totals = []
    for row in scores.double().numpy():
        table = np.zeros(11)
        table[0] = 1
        for weight in np.exp(row):
            table[1:] = table[1:] + weight * table[:-1]
        totals.append(np.log(table[10]))
    return torch.tensor(np.array(totals)).to(scores.dtype)


def capped_simplex_by_root(scores: Tensor) -> Tensor:
    """The projection of k-subsets by bracketing its threshold, one item at a time, with scipy."""
    rows = scores.double().numpy()

    def project(row: np.ndarray) -> np.ndarray:
        threshold = scipy.optimize.brentq(lambda shift: np.clip(row - shift, 0, 1).sum() - 10, row.min() - 1, row.max())
        return np.clip(row - threshold, 0, 1)

    return torch.tensor(np.stack([project(row) for row in rows])).to(scores.dtype)


def viterbi_loop(scores: Tensor) -> Tensor:
    """The Viterbi recursion one item at a time, in numpy."""
    structures = np.zeros(tuple(scores.shape), dtype=np.float32)
    for row, structure in zip(scores.numpy(), structures, strict=True):
        best, pointers = row[0, 0], []
        for step in row[1:]:
            candidates = best[:, None] + step
            pointers.append(candidates.argmax(0))
            best = candidates.max(0)
        tags = [int(best.argmax())]
        for pointer in reversed(pointers):
            tags.append(int(pointer[tags[-1]]))
        tags.reverse()
        structure[0, 0, tags[0]] = 1
        structure[range(1, len(tags)), tags[:-1], tags[1:]] = 1
    return torch.tensor(structures)


def forward_loop(scores: Tensor) -> Tensor:
    """The forward recursion one item at a time, in torch."""
    totals = []
    for row in scores:
        total = row[0, 0]
        for step in row[1:]:
            total = torch.logsumexp(total.unsqueeze(-1) + step, 0)
        totals.append(total.logsumexp(-1))
    return torch.stack(totals)


PEERS: dict[tuple[str, str], Callable[[Tensor], Tensor]] = {
    ("categorical", "argmax"): lambda scores: torch.nn.functional.one_hot(scores.argmax(-1), scores.shape[-1]).to(scores.dtype),
    ("categorical", "log_partition"): lambda scores: scores.logsumexp(-1),
    ("categorical", "marginals"): lambda scores: scores.softmax(-1),
    ("categorical", "marginals_backward"): softmax_backward,
    ("categorical", "sample"): categorical_sample,
    ("subset", "argmax"): topk,
    ("subset", "log_partition"): elementary_symmetric_loop,
    ("subset", "project"): capped_simplex_by_root,
    ("linear_chain", "argmax"): viterbi_loop,
    ("linear_chain", "log_partition"): forward_loop,
}


@pytest.mark.parametrize(("name", "operation"), PEERS)
def test_peer(benchmark: BenchmarkFixture, name: str, operation: str) -> None:
    benchmark.group = f"{name} {operation}"
    scores = random_scores(name)
    result = benchmark(PEERS[name, operation], scores.clone())
    if operation != "sample":
        torch.testing.assert_close(result, OPERATIONS[operation](name, scores), rtol=1e-4, atol=1e-5)
