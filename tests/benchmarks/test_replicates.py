"""10⁵ replicates of every estimator in one launch: of 5 of 10 parts, of 10 bits, of a chain or of a policy, whichever it serves first."""

from __future__ import annotations

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture
from torch import Tensor

from structgrad.estimators import ESTIMATORS, make_estimator
from structgrad.oracles import ShiftReduce
from tests.asv_benchmarks.cases import HOMES
from tests.asv_benchmarks.tasks import structure

pytestmark = pytest.mark.benchmark

REPLICATES, MOST = 100_000, 10.0
QUICK = {"reinforce": 1.0, "ste": 1.0, "imle": 1.0}
"""Seconds that are asked for; `MOST` for the others."""

SPACES = (*map(structure, HOMES[:-1]), (ShiftReduce("local"), (5, 5, 2)))
"""Where asv measures them, but a policy over four words: over five its gradients take too long."""


@pytest.mark.parametrize("name", ESTIMATORS)
def test_replicates(benchmark: BenchmarkFixture, name: str) -> None:
    torch.set_num_threads(1)
    estimator, generator = make_estimator(name), torch.Generator().manual_seed(0)
    oracle, event = next(space for space in SPACES if estimator.incompatibility(*space) is None)
    drawn = torch.randn(2, *event, generator=generator, dtype=torch.float64)

    def loss(z: Tensor) -> Tensor:
        return (z - drawn[1]).square().flatten(z.ndim - oracle.event_ndim).sum(-1)

    def launch(rows: int) -> Tensor:
        return estimator.gradient(loss, oracle, drawn[0].expand(rows, *event), generator=generator)

    launch(64)
    benchmark.group = oracle.name
    estimates = benchmark.pedantic(launch, args=(REPLICATES,), rounds=2)
    assert estimates.shape == (REPLICATES, *event)
    assert benchmark.stats.stats.min < QUICK.get(name, MOST)
