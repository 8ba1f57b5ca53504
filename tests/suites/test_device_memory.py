"""Launches fit the memory of a device; if it runs out, half as many rows are launched, and no estimate changes."""

import contextvars
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from structgrad.estimators import LeaveOneOut
from structgrad.estimators.noise import Gumbel
from structgrad.oracles import Subset
from structgrad.oracles.magnitudes import GIB
from structgrad.suites.device_memory import allot, available, launched
from structgrad.suites.measures import draws as measuring_draws
from structgrad.suites.measures.bias import Sampling, draw_moments
from structgrad.suites.measures.draws import Draws, estimates
from structgrad.suites.measures.suite import Context
from structgrad.suites.truth import enumeration, exact_truth
from structgrad.suites.truth.closed_form import perturbed_gradient
from structgrad.suites.truth.enumeration import fitting_chunk
from structgrad.suites.truth.replay import replay
from tests.suites.cases import quadratic, scores_of, target_of

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


class Work:
    """A launch that has memory for so many rows, records its calls, and holds something while it computes."""

    def __init__(self, most: int) -> None:
        self.most, self.asked, self.alive = most, list[tuple[int, int]](), [0]

    def __call__(self, first: int, count: int) -> range:
        held = Held(self.alive)
        self.asked.append((first, count))
        if count > self.most:
            raise torch.OutOfMemoryError(f"CUDA out of memory: {count} rows")
        del held
        return range(first, first + count)


class Held:
    def __init__(self, alive: list[int]) -> None:
        assert alive == [0], "the failed launch before still holds its tensors"
        self.alive, alive[0] = alive, 1

    def __del__(self) -> None:
        self.alive[0] = 0


def covered(launches: Iterator[tuple[int, range]]) -> list[int]:
    return [row for first, found in launches for row in found if first == found.start]


@pytest.mark.parametrize(
    ("most", "rows", "start", "stop", "asked"),
    [
        (300, 1024, 128, 800, [(128, 1024 - 352), (128, 256), (384, 256), (640, 160)]),
        (200, 384, 0, 300, [(0, 300), (0, 128), (128, 128), (256, 44)]),
    ],
)
def test_half_of_the_rows_are_launched_where_memory_runs_out_in_whole_blocks(
    most: int, rows: int, start: int, stop: int, asked: list[tuple[int, int]]
) -> None:
    work = Work(most)
    assert covered(launched("it", rows, CPU, (start, stop), work, block=128)) == list(range(start, stop))
    assert work.asked == asked


def test_too_little_memory_for_a_block_is_said_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(100)
    with pytest.raises(torch.OutOfMemoryError, match=r"^`it` got no memory for 128 at a time on cpu; expected it for so few: choose"):
        list(launched("`it`", 512, CPU, (0, 512), work, block=128))
    assert [count for _, count in work.asked] == [512, 256, 128]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (GIB // 2, 80 * GIB))
    with pytest.raises(torch.OutOfMemoryError, match=r"for 1 at a time on cuda:1, where 0\.5 of 80\.0 GiB are free"):
        list(launched("`it`", 1, torch.device("cuda:1"), (0, 2), Work(0)))


def test_launches_take_their_share_of_the_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (30 * GIB, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 12 * GIB)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 2 * GIB)
    assert (available(CUDA), available(CPU)) == (20 * GIB, math.inf)
    for amount, left in ((22 * GIB, 10 * GIB), (GIB, 0)):
        assert contextvars.copy_context().run(lambda amount=amount: (allot(amount), available(CUDA))[1]) == left
    monkeypatch.setattr(measuring_draws, "available", lambda device: float(2**18))
    draws = Draws(Subset(2), quadratic("subset"), torch.zeros(2, dtype=torch.float64), Context(batch_size=1000), ("it",))
    assert [len(found) for _, found in draws.launched("it", (0, 600), lambda rows, _: rows)] == [256, 256, 88]
    for memory, chunk in ((math.inf, 2**18), (80.0 * 2**28, 2**18), (80.0 * 2**28 - 1, 2**17), (0.0, 1)):
        monkeypatch.setattr(enumeration, "available", lambda device, memory=memory: memory)
        assert fitting_chunk(SimpleNamespace(device=CUDA, numel=lambda: 1024)) == chunk  # type: ignore[arg-type]


# Estimates and truths, where memory runs out.


@dataclass(frozen=True)
class Starved(LeaveOneOut):
    """REINFORCE that has memory for so many rows."""

    most: int = 150

    def surrogate(self, loss: Any, oracle: Any, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        Work(self.most)(0, len(scores))
        return super().surrogate(loss, oracle, scores, generator=generator)


@dataclass(frozen=True)
class StarvedSubset(Subset):
    """Subsets of which so many can be listed or looked for at a time."""

    most: int = 6

    def enumerate(self, event: tuple[int, ...], first: int, last: int, **options: Any) -> Tensor:
        Work(self.most)(first, last - first)
        return super().enumerate(event, first, last, **options)

    def argmax(self, scores: Tensor, **options: Any) -> Tensor:
        Work(max(self.most, 100))(0, len(scores) if scores.ndim > 1 else 1)
        return super().argmax(scores, **options)


def starved(call: Callable[[Any], Any]) -> tuple[Any, Any]:
    """Results with memory for 150 rows, and with memory for all."""
    return call(Starved(2)), call(Starved(2, most=10**9))


def test_estimates_and_truths_are_the_same() -> None:
    loss, scores = quadratic("subset"), scores_of("subset")
    target, sampling = target_of("subset"), Sampling(replicates=2048, batch_size=1024)
    few, many = starved(lambda estimator: draw_moments(estimator, target, sampling))
    # Sums of other blocks of rows are rounded in another order.
    torch.testing.assert_close((few.mean, few.comoment), (many.mean, many.comoment), rtol=1e-12, atol=1e-10)
    draws = Draws(Subset(2), loss, scores, Context(batch_size=1024), ("it",))
    assert torch.equal(*starved(lambda estimator: estimates(estimator, draws, 700)))
    few, many = (vars(found) for found in starved(lambda estimator: replay(estimator, target, 2)))
    numbers = [name for name, value in many.items() if isinstance(value, float)]
    assert [few[name] for name in numbers] == pytest.approx([many[name] for name in numbers], rel=1e-12, abs=1e-13)
    few, many = (
        perturbed_gradient(oracle, loss, scores, Gumbel(), key=("it",), replicates=2048)
        for oracle in (StarvedSubset(2, most=300), Subset(2))
    )
    assert torch.equal(few.gradient, many.gradient)
    assert few.noise == many.noise
    few, many = (exact_truth(loss, oracle, scores) for oracle in (StarvedSubset(2), Subset(2)))
    assert float((few.gradient - many.gradient).norm()) <= few.error + many.error
    torch.testing.assert_close(few.kurtosis, many.kurtosis, rtol=1e-10, atol=0)
    with pytest.raises(torch.OutOfMemoryError, match=r"`exact_truth` of structures of shape \(6,\) got no memory for 1 at a time"):
        exact_truth(loss, StarvedSubset(2, most=0), scores)
