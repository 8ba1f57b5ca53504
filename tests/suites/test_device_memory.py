"""Launches fit the memory of a device; if it runs out, half as many rows are launched, and no estimate changes."""

from __future__ import annotations

import contextvars
import dataclasses
import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from structgrad.estimators import LeaveOneOut
from structgrad.estimators.base import Loss
from structgrad.estimators.noise import Gumbel
from structgrad.oracles import Subset
from structgrad.oracles.magnitudes import GIB
from structgrad.suites import device_memory
from structgrad.suites.device_memory import Gauge, Launches, allot, available, free, ran_out, remembering
from structgrad.suites.measures import draws as measuring_draws
from structgrad.suites.measures.bias import Sampling, draw_moments
from structgrad.suites.measures.draws import FILLING, Draws, estimates, launches_of
from structgrad.suites.measures.suite import Context, Effort
from structgrad.suites.running.runner import run
from structgrad.suites.truth import Target, enumeration, exact_truth
from structgrad.suites.truth.enumeration import fitting_chunk
from structgrad.suites.truth.references import perturbed_gradient
from structgrad.suites.truth.replay import replay
from tests.suites import broken_estimators
from tests.suites.cases import quadratic, scores_of, target_of
from tests.suites.running_cases import HERE, SMALL, broken

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
MOST = 150
"""Rows that there is memory for."""


def refuse_beyond(most: int, rows: int) -> None:
    if rows > most:
        raise torch.OutOfMemoryError(f"CUDA out of memory: {rows} rows")


class Work:
    """A launch that has memory for so many rows, and records its calls."""

    def __init__(self, most: int) -> None:
        self.most, self.asked = most, list[tuple[int, int]]()

    def __call__(self, first: int, count: int) -> range:
        self.asked.append((first, count))
        refuse_beyond(self.most, count)
        return range(first, first + count)


def covered(launches: Iterator[tuple[int, range]]) -> list[int]:
    return [row for first, found in launches for row in found if first == found.start]


def test_half_of_the_rows_are_launched_from_where_memory_runs_out() -> None:
    work = Work(300)
    assert covered(Launches("it", 1024, CPU, block=128).over(128, 2000, work)) == list(range(128, 2000))
    assert work.asked[:4] == [(128, 1024), (128, 512), (128, 256), (384, 256)]
    assert {count for _, count in work.asked[2:-1]} == {256}


def test_blocks_are_never_parted() -> None:
    work = Work(200)
    assert covered(Launches("it", 384, CPU, block=128).over(0, 300, work)) == list(range(300))
    assert work.asked == [(0, 300), (0, 128), (128, 128), (256, 44)]


def test_what_was_learned_holds_for_a_cell_and_for_its_kind() -> None:
    it, other, work = Launches("it", 512, CPU), Launches("other", 512, CPU), Work(64)
    for learned in (nullcontext(), remembering()):
        with learned:
            list(it.over(0, 512, work))
            del work.asked[:]
            list(dataclasses.replace(it, rows=256).over(512, 1024, work))
            assert work.asked[0] == ((512, 256) if isinstance(learned, nullcontext) else (512, 64))
            del work.asked[:]
            list(other.over(0, 512, work))
            assert work.asked[0] == (0, 512)


def test_too_little_memory_for_a_block_is_said_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(100)
    with pytest.raises(
        torch.OutOfMemoryError, match=r"^`it` got no memory for 128 at a time on cpu; expected it for so few: choose"
    ) as told:
        list(Launches("`it`", 512, CPU, block=128).over(0, 512, work))
    assert "out of memory: 128 rows" in str(told.value.__cause__)
    assert [count for _, count in work.asked] == [512, 256, 128]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (GIB // 2, 80 * GIB))
    with pytest.raises(torch.OutOfMemoryError, match=r"for 1 at a time on cuda:1, where 0\.5 of 80\.0 GiB are free"):
        list(Launches("`it`", 1, torch.device("cuda:1")).over(0, 2, Work(0)))


def test_other_errors_pass() -> None:
    def wrong(first: int, count: int) -> None:
        raise RuntimeError("a mistake")

    with pytest.raises(RuntimeError, match="a mistake"):
        list(Launches("it", 4, CPU).over(0, 4, wrong))
    assert ran_out(RuntimeError("CUDA error: out of memory"))
    assert not ran_out(RuntimeError("DefaultCPUAllocator: can't allocate memory"))
    assert not ran_out(MemoryError("out of memory"))


def test_what_a_failed_launch_held_is_released_before_the_next() -> None:
    alive: list[int] = []

    class Held:
        def __init__(self) -> None:
            alive.append(0)

        def __del__(self) -> None:
            alive.pop()

    def compute(first: int, count: int) -> None:
        assert not alive
        held = Held()
        refuse_beyond(1, count)
        del held

    list(Launches("it", 8, CPU).over(0, 8, compute))


@dataclass(frozen=True)
class Measured(Gauge):
    """A device on which each row takes so many bytes."""

    work: Any = None
    each: int = 0

    def taken(self) -> int:
        return int(self.each * self.work.asked[-1][1])


@pytest.mark.parametrize(("each", "second"), [(1000, 4096), (10_000, 1024), (10**6, 512)])
def test_the_second_launch_is_as_large_as_the_first_one_shows(each: int, second: int, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(10**6)
    monkeypatch.setattr(Gauge, "of", lambda device: Measured(device, 0, work, each))
    monkeypatch.setattr(device_memory, "available", lambda device: 2.0e7)
    launches = Launches("it", 512, CUDA, block=128, filling=4096)
    with remembering():
        assert covered(launches.over(0, 10_000, work)) == list(range(10_000))
        assert [count for _, count in work.asked[:3]] == [512, second, second]
        del work.asked[:]
        list(launches.over(0, second, work))
    assert work.asked == [(0, second)]


def test_a_gauge_tells_what_was_taken_since(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Gauge.of(CPU) is None
    asked: list[str] = []
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: asked.append(f"reset {device}"))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 100)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 350)
    gauge = Gauge.of(torch.device("cuda:1"))
    assert gauge is not None
    assert asked == ["reset cuda:1"]
    assert gauge.taken() == 250


def test_a_launch_asks_for_no_more_than_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    class Scores:
        device, shape = CUDA, (2,)

        def __init__(self, numbers: int) -> None:
            self.numel = lambda: numbers

    monkeypatch.setattr(measuring_draws, "available", lambda device: float(GIB))
    assert launches_of("it", 4096, Scores(4)) == Launches("`it` on scores of shape (2,)", 4096, CUDA, 128, FILLING)  # type: ignore[arg-type]
    assert launches_of("it", 10**6, Scores(256)).rows == 8192  # type: ignore[arg-type]
    assert launches_of("it", 4096, Scores(10**7)).rows == 128  # type: ignore[arg-type]
    assert launches_of("it", 100, torch.zeros(3)).rows == 128


def test_what_is_free_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (30 * GIB, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 12 * GIB)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 2 * GIB)
    assert free("cuda:1") == 40 * GIB
    assert available(CUDA) == 20 * GIB
    assert available(CPU) == math.inf

    def allotted(amount: float) -> float:
        allot(amount)
        return available(CUDA)

    assert contextvars.copy_context().run(allotted, 22 * GIB) == 10 * GIB
    assert contextvars.copy_context().run(allotted, GIB) == 0


def test_a_chunk_of_structures_fits_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    class Scores:
        device = CUDA
        numel = staticmethod(lambda: 1024)

    for memory, chunk in ((math.inf, 2**18), (80.0 * 2**28, 2**18), (80.0 * 2**28 - 1, 2**17), (0.0, 1)):
        monkeypatch.setattr(enumeration, "available", lambda device, memory=memory: memory)
        assert fitting_chunk(Scores()) == chunk  # type: ignore[arg-type]


# Estimates and truths, where memory runs out.


@dataclass(frozen=True)
class Starved(LeaveOneOut):
    """REINFORCE that has memory for so many rows."""

    most: int = MOST

    def surrogate(self, loss: Loss, oracle: Any, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        refuse_beyond(self.most, len(scores))
        return super().surrogate(loss, oracle, scores, generator=generator)


@dataclass(frozen=True)
class StarvedSubset(Subset):
    """Subsets of which so many can be listed or looked for at a time."""

    most: int = 6

    def enumerate(self, event: tuple[int, ...], first: int, last: int, **options: Any) -> Tensor:
        refuse_beyond(self.most, last - first)
        return super().enumerate(event, first, last, **options)

    def argmax(self, scores: Tensor, **options: Any) -> Tensor:
        refuse_beyond(max(self.most, 100), len(scores) if scores.ndim > 1 else 1)
        return super().argmax(scores, **options)


def starved(most: int, call: Callable[[Any], Any]) -> tuple[Any, Any]:
    """Results with memory for so many rows, and with memory for all."""
    return call(Starved(2, most=most)), call(Starved(2, most=10**9))


def test_replicates_are_the_same() -> None:
    target, sampling = target_of("subset"), Sampling(replicates=2048, batch_size=1024)
    few, many = starved(MOST, lambda estimator: draw_moments(estimator, target, sampling))
    # Sums of other blocks of rows are rounded in another order.
    torch.testing.assert_close((few.mean, few.comoment), (many.mean, many.comoment), rtol=1e-12, atol=1e-10)
    draws = Draws(Subset(2), quadratic("subset"), scores_of("subset"), Context(batch_size=1024), ("it",))
    assert torch.equal(*starved(MOST, lambda estimator: estimates(estimator, draws, 700)))


def test_tuples_that_are_dealt_are_the_same() -> None:
    few, many = starved(MOST, lambda estimator: replay(estimator, target_of("subset"), 2))
    for name, value in vars(many).items():
        if isinstance(value, float):
            assert getattr(few, name) == pytest.approx(value, rel=1e-12, abs=1e-13)


def test_perturbed_references_are_the_same() -> None:
    def found(oracle: Subset) -> tuple[Any, ...]:
        return perturbed_gradient(oracle, quadratic("subset"), scores_of("subset"), Gumbel(), key=("it",), replicates=2048)

    (few, *numbers), (many, *expected) = found(StarvedSubset(2, most=300)), found(Subset(2))
    assert torch.equal(few, many)
    assert numbers == expected


def test_structures_that_are_enumerated_are_the_same() -> None:
    scores, loss = scores_of("subset"), quadratic("subset")
    found, expected = (exact_truth(loss, oracle, scores) for oracle in (StarvedSubset(2), Subset(2)))
    assert float((found.gradient - expected.gradient).norm()) <= found.error + expected.error
    torch.testing.assert_close(found.kurtosis, expected.kurtosis, rtol=1e-10, atol=0)
    with pytest.raises(torch.OutOfMemoryError, match=r"`exact_truth` of structures of shape \(6,\) got no memory for 1 at a time"):
        exact_truth(loss, StarvedSubset(2, most=0), scores)


def test_a_cell_goes_on(tmp_path: Path) -> None:
    """Cells continue with half of their rows, or fail with a reason if one block does not fit."""
    effort = Effort(replicates=512, most_replicates=2048)
    plan = dataclasses.replace(SMALL, tier="mc", estimators=broken("Starved", "Famished"), instances=1, effort=effort)
    rows = run(plan, tmp_path, machine=HERE)
    by = {name: [row for row in rows if row.estimator.endswith(name)] for name in ("Starved", "Famished")}
    assert {row.status for row in by["Starved"]} == {"ok"}
    assert max(row.replicates or 0 for row in by["Starved"]) == 2048
    assert broken_estimators.Starved.refused == [512, 256, 512, 256, 128]
    (failed,) = by["Famished"]
    assert (failed.status, failed.error_type) == ("oom", "OutOfMemoryError")
    assert "on scores of shape" in failed.reason
    assert "got no memory for 128 at a time on cpu" in failed.reason
    plenty = run(dataclasses.replace(plan, estimators=("reinforce",)), tmp_path / "plenty", machine=HERE)
    numbers = [{(row.metric, row.instance): row.value for row in found} for found in (by["Starved"], plenty)]
    assert numbers[0] == numbers[1]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_replicates_are_the_same_with_little_memory_of_a_device() -> None:
    """The first launch does not fit."""
    oracle, scores = Subset(2), scores_of("subset").to(CUDA)
    weights = torch.randn(6, dtype=torch.float64, device=CUDA)
    target = Target(oracle, lambda z: z @ weights, scores, exact_truth(lambda z: z @ weights, oracle, scores))
    sampling = Sampling(replicates=2**16, batch_size=2**16)
    plenty = draw_moments(LeaveOneOut(64), target, sampling)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    whole = torch.cuda.mem_get_info()[1]
    try:
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 2**27) / whole)
        with remembering():
            little = draw_moments(LeaveOneOut(64), target, sampling)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert torch.cuda.max_memory_allocated() < 2**28
    torch.testing.assert_close(little.mean, plenty.mean, rtol=1e-12, atol=1e-14)
