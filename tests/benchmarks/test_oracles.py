"""Time every operation of every oracle next to every installed peer library, in groups whose rows compare."""

from typing import Any

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from tests.asv_benchmarks.tasks import Inputs
from tests.benchmarks.operations import CASES, OPERATIONS, operations
from tests.benchmarks.peers import PEERS

pytestmark = pytest.mark.benchmark
BATCHES = (1, 64)

PAIRS = [(case.name, operation) for case in CASES.values() for operation in operations(case)]


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("contender", ["structgrad", *(name for name, peer in PEERS.items() if peer.installed)])
@pytest.mark.parametrize(("name", "operation"), PAIRS)
def test_operation(benchmark: BenchmarkFixture, name: str, operation: str, contender: str, batch: int) -> None:
    torch.set_num_threads(1)
    case = CASES[name]
    scores = case.scores(batch)
    benchmark.group = f"{name} {operation} batch {batch}"
    if contender == "structgrad":
        result: Any = benchmark(OPERATIONS[operation], case.oracle, Inputs(scores, scores, scores, torch.Generator()))
        assert torch.isfinite(result).all()
        return
    call = PEERS[contender].prepare(case, operation, scores)
    if call is None:
        pytest.skip(f"{contender} does not offer {operation} of {case.structure}")
    benchmark(call)
