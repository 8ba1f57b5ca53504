"""Adaptive sampling: when it stops, that it goes on after a kill, and that stopping keeps coverage."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from structgrad.suites.statistics.adaptive import Budget, sample_until, write_whole
from structgrad.suites.statistics.metrics import estimated_metrics
from structgrad.suites.statistics.moments import BATCHES, Moments
from structgrad.suites.statistics.seeds import BLOCK

GRADIENT = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64)


class Draws:
    """Exponential noise around a mean, by block, and how often it was asked."""

    def __init__(self, noise: float = 3.0, seed: int = 0, bias: float = 0.0, fail_at: int | None = None) -> None:
        self.noise, self.seed, self.bias, self.fail_at = noise, seed, bias, fail_at
        self.looks: list[int] = []

    def __call__(self, moments: Moments, stop: int) -> None:
        if self.fail_at is not None and stop > self.fail_at:
            raise KeyboardInterrupt
        self.looks.append(stop)
        for block in range(moments.total // BLOCK, stop // BLOCK):
            generator = torch.Generator().manual_seed(1000 * self.seed + block)
            noise = torch.empty(BLOCK, 4, dtype=torch.float64).exponential_(generator=generator) - 1
            moments.add(GRADIENT + self.bias * GRADIENT.flip(0) + self.noise * noise, block % BATCHES)


def sampled(draws: Draws, budget: Budget, checkpoint: Path | None = None):
    return sample_until(Moments.empty(GRADIENT), draws, estimated_metrics, budget=budget, checkpoint=checkpoint)


@pytest.mark.parametrize(
    ("budget", "looks"),
    [
        (Budget(4096, 65536), [4096, 8192, 16384, 32768, 65536]),
        (Budget(4096, 4096), [4096]),
        (Budget(1000, 5000), [1024, 2048, 4096, 5120]),
        (Budget(4096, 100), [4096]),
    ],
)
def test_looks_double_and_end_at_the_budget(budget, looks):
    assert list(budget.looks()) == looks


def test_stops_at_the_first_look_where_everything_is_narrow():
    easy, hard = Draws(noise=0.05), Draws(noise=3.0)
    assert sampled(easy, Budget(4096, 65536)).status == "converged"
    assert easy.looks == [4096]
    # Replicates that are all the same have an interval of no width, and are no reason to stop: events may be rare.
    for waits in (hard, Draws(noise=0.0)):
        assert sampled(waits, Budget(4096, 16384)).status == "budget"
        assert waits.looks == [4096, 8192, 16384]


def test_more_replicates_are_what_one_look_would_have_given():
    twice = sampled(Draws(), Budget(4096, 8192)).moments
    once = sampled(Draws(), Budget(8192, 8192)).moments
    assert torch.equal(twice.mean, once.mean)
    assert torch.equal(twice.comoment, once.comoment)


def test_seconds_are_counted_between_looks(monkeypatch):
    """Each look takes as long as all before it: with 10 s of budget, 4 s + 4 s are spent, and no further 8 s are begun."""
    clock = {"now": 0.0}
    draws = Draws()

    def slow(moments: Moments, stop: int) -> None:
        clock["now"] += (stop - moments.total) / 1024
        draws(moments, stop)

    monkeypatch.setattr("structgrad.suites.statistics.adaptive.time.monotonic", lambda: clock["now"])
    found = sample_until(Moments.empty(GRADIENT), slow, estimated_metrics, budget=Budget(4096, 65536, seconds=10))
    assert found.status == "budget"
    assert draws.looks == [4096, 8192]


def test_a_killed_run_goes_on_to_the_same_bits(tmp_path):
    checkpoint, budget = tmp_path / "cell" / "moments.pt", Budget(4096, 16384)
    with pytest.raises(KeyboardInterrupt):
        sampled(Draws(fail_at=8192), budget, checkpoint)
    resumed = Draws()
    found = sampled(resumed, budget, checkpoint)
    assert resumed.looks == [16384]
    assert torch.equal(found.moments.mean, sampled(Draws(), budget).moments.mean)
    again = Draws()
    assert sampled(again, budget, checkpoint).status == "budget"
    assert again.looks == []


def test_a_write_that_fails_leaves_the_last_look(tmp_path, monkeypatch):
    file = tmp_path / "moments.pt"
    write_whole(file, 1)
    monkeypatch.setattr("structgrad.suites.statistics.adaptive.os.fsync", lambda *given: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_whole(file, 2)
    assert torch.load(file) == 1
    assert list(tmp_path.iterdir()) == [file]
