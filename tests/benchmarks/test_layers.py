"""Training time of every layer, compared with its calls of the oracle and its draws of noise, in the same run.

The limit is on the oracle's calls and the draws of noise together: 64 × 21 × 21 random numbers in float64 take as long as the best trees.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture
from torch import Tensor

from structgrad.estimators import Noise, PathwiseEstimator, make_estimator
from structgrad.oracles import SpanningTree
from tests.benchmarks.operations import CASES
from tests.estimator_cases import PATHWISE

pytestmark = pytest.mark.benchmark

CASE, BATCH, ROUNDS, MOST = CASES["spanning_tree 20"], 64, 60, 1.3
ABOVE = {
    **dict.fromkeys(("ste", "ste_sample", "blackbox", "perturb_and_map", "imle", "aimle", "perturbed_optimizer"), 2.0),
    **dict.fromkeys(("identity", "identity_perturbed", "perturbed_multiplicative"), 3.5),
}
"""What does not keep the limit, and what it keeps: its oracle calls take half a millisecond, autograd's round trip a quarter."""

OPERATIONS = ("argmax", "marginals", "sample", "project")
LAYERS = [name for name in PATHWISE if "[" not in name and make_estimator(name).incompatibility(CASE.oracle, CASE.event) is None]
Call = Callable[[], Any]


def recorded(call: Call, gamma: Tensor) -> tuple[list[Call], list[Call]]:
    """The calls of the oracle on the same inputs, each with its backward if the layer has one, and the draws of noise."""
    calls: list[Call] = []
    draws: list[Call] = []

    def drawing(noise: Noise, oracle: Any, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        draws.append(lambda: noise.draw(oracle, scores.detach(), generator=generator))
        return draw(noise, oracle, scores, generator=generator)

    draw = Noise.draw
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Noise, "draw", drawing)
        for name in OPERATIONS:
            patch.setattr(SpanningTree, name, keeping(getattr(SpanningTree, name), calls, gamma))
        call()
    return calls, draws


def keeping(original: Any, calls: list[Call], gamma: Tensor) -> Any:
    """The operation, which appends a call of itself on the scores that it was given."""

    def operation(oracle: Any, scores: Tensor, *rest: Any, **named: Any) -> Any:
        def bare() -> None:
            leaf = scores.detach().requires_grad_(scores.requires_grad)
            result = original(oracle, leaf, *rest, **named)
            values = getattr(result, "mean", None) if original.__name__ == "project" else result
            if values.requires_grad:
                torch.autograd.grad(values, leaf, gamma)

        calls.append(bare)
        return original(oracle, scores, *rest, **named)

    return operation


def seconds(call: Call) -> float:
    """CPU seconds of this process, without other processes."""
    start = time.process_time()
    call()
    return time.process_time() - start


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_costs_what_its_oracle_costs(benchmark: BenchmarkFixture, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    torch.set_num_threads(1)
    estimator, generator = make_estimator(name), torch.Generator().manual_seed(0)
    assert isinstance(estimator, PathwiseEstimator)
    scores, gamma = CASE.scores(BATCH).requires_grad_(), torch.randn(BATCH, *CASE.event, generator=generator)

    def layer() -> None:
        structure = estimator.structure(CASE.oracle, scores, generator=generator)
        torch.autograd.grad(structure, scores, gamma)

    calls, draws = recorded(layer, gamma)
    times = [(seconds(layer), seconds(lambda: made(calls)), seconds(lambda: made(draws))) for _ in range(ROUNDS)]
    ours, asked, drawn = (statistics.median(column) for column in zip(*times[5:], strict=True))
    benchmark.extra_info["ratio to the bare oracle calls"] = ours / asked
    with capsys.disabled():
        print(f"\n{name}: {1e3 * ours:.2f} ms, {ours / asked:.2f} × its oracle calls, {ours / (asked + drawn):.2f} × these and its noise")  # noqa: T201
    benchmark.pedantic(layer, rounds=5)
    assert ours <= ABOVE.get(name, MOST) * (asked + drawn)


def made(calls: list[Call]) -> None:
    """Every call once."""
    for call in calls:
        call()
