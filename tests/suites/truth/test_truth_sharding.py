"""Ranges in worker processes: the serial result, whatever the workers, also after a worker died."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest
import torch
from torch import Tensor

from structgrad.oracles import LinearChain, Subset
from structgrad.suites.truth import Truth, exact_truth, sharded_truth
from structgrad.suites.truth.sharding import content_key, ranges
from structgrad.suites.truth.space import Space

ORACLE = Subset(4)
SCORES = torch.randn(12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def linear(z: Tensor) -> Tensor:
    return z @ torch.arange(12, dtype=z.dtype)


@dataclasses.dataclass(frozen=True)
class Deadly:
    """A loss that kills its process at the last subset, until a file is there; but not the process that asks."""

    saved: Path
    caller: int = dataclasses.field(default_factory=os.getpid)

    def __call__(self, z: Tensor) -> Tensor:
        if os.getpid() != self.caller and bool((z[:, -4:].sum(-1) == 4).any()) and not self.saved.exists():
            os._exit(7)
        return linear(z)


def worse(z: Tensor) -> Tensor:
    if len(z) < 40:
        raise ArithmeticError("no number for these")
    return linear(z)


def assert_same(one: Truth, other: Truth, tolerance: float = 1e-12) -> None:
    assert (one.gradient - other.gradient).norm() <= tolerance * one.gradient.norm()
    for name in ("value", "loss_variance", "log_partition", "entropy"):
        assert getattr(one, name) == pytest.approx(getattr(other, name), rel=tolerance)
    torch.testing.assert_close(one.marginals, other.marginals, rtol=tolerance, atol=tolerance)
    assert (one.count, one.support, one.chunk) == (other.count, other.support, other.chunk)


@pytest.mark.parametrize("shards", [1, 2, 7, 495, None])
def test_any_number_of_ranges_gives_the_serial_result(shards: int | None) -> None:
    serial = exact_truth(linear, ORACLE, SCORES, kurtosis=False)
    assert_same(serial, sharded_truth(linear, ORACLE, SCORES, jobs=0, shards=shards))


def test_ranges_cover_the_space() -> None:
    assert ranges(10, 3) == [(0, 3), (3, 6), (6, 10)]
    assert ranges(3, 9) == [(0, 1), (1, 2), (2, 3)]
    assert len(ranges(2**30)) == 2**12


@pytest.mark.sweep
def test_workers_change_no_digit(tmp_path: Path) -> None:
    """As one worker does not either, until it dies, in the test of that."""
    here = sharded_truth(linear, ORACLE, SCORES, jobs=0)
    there = sharded_truth(linear, ORACLE, SCORES, jobs=2, directory=tmp_path)
    assert torch.equal(here.gradient, there.gradient)
    assert (here.value, here.error, here.entropy) == (there.value, there.error, there.entropy)
    assert len(list(tmp_path.glob("*/*.pt"))) == 16


def test_finished_ranges_are_not_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[tuple[int, int]] = []
    original = Space.sums

    def counting(self: Space, start: int, stop: int) -> object:
        computed.append((start, stop))
        return original(self, start, stop)

    monkeypatch.setattr(Space, "sums", counting)
    whole = sharded_truth(linear, ORACLE, SCORES, jobs=0, shards=5, directory=tmp_path)
    files = sorted(tmp_path.glob("*/*.pt"))
    assert len(files) == len(computed) == 5
    files[1].unlink()
    computed.clear()
    again = sharded_truth(linear, ORACLE, SCORES, jobs=0, shards=5, directory=tmp_path)
    assert f"{computed[0][0]}-{computed[0][1]}.pt" == files[1].name
    assert len(computed) == 1
    assert torch.equal(whole.gradient, again.gradient)
    assert not [path for path in tmp_path.glob("*/*") if path.suffix != ".pt"]


def test_a_worker_that_dies_loses_only_what_it_was_at(tmp_path: Path) -> None:
    loss = Deadly(tmp_path / "saved")
    with pytest.raises(
        RuntimeError, match=r"`sharded_truth` lost the worker of structures 433 to 495 \(exit code 7\); finished ranges are in "
    ):
        sharded_truth(loss, ORACLE, SCORES, jobs=1, shards=8, directory=tmp_path)
    assert len(list(tmp_path.glob("*/*.pt"))) == 7
    loss.saved.touch()
    resumed = sharded_truth(loss, ORACLE, SCORES, jobs=0, shards=8, directory=tmp_path)
    here = sharded_truth(linear, ORACLE, SCORES, jobs=0, shards=8)
    assert torch.equal(resumed.gradient, here.gradient)
    assert (resumed.value, resumed.error, resumed.entropy) == (here.value, here.error, here.entropy)


@pytest.mark.parametrize("jobs", [0, pytest.param(1, marks=pytest.mark.sweep)])
def test_an_error_of_the_loss_is_named(jobs: int) -> None:
    with pytest.raises(ValueError, match="the loss raised ArithmeticError: no number for these; expected a function"):
        sharded_truth(worse, ORACLE, SCORES, jobs=jobs, shards=16)


def test_refuses_a_loss_that_no_worker_could_get() -> None:
    with pytest.raises(
        ValueError, match=r"`sharded_truth` got a loss that cannot be sent to workers .*; expected a function of a module, or"
    ):
        sharded_truth(lambda z: z.sum(-1), ORACLE, SCORES, jobs=1)


def test_any_loss_with_a_key_will_do_here() -> None:
    found = sharded_truth(lambda z: linear(z), ORACLE, SCORES, jobs=0, key="linear")
    assert_same(found, exact_truth(linear, ORACLE, SCORES, kurtosis=False))


@pytest.mark.parametrize(("jobs", "shards"), [(-1, 2), (0, 0)])
def test_refuses_numbers_that_make_no_sense(jobs: int, shards: int) -> None:
    with pytest.raises(ValueError, match=f"`sharded_truth` got jobs={jobs}, shards={shards}; expected jobs >= 0 and shards >= 1"):
        sharded_truth(linear, ORACLE, SCORES, jobs=jobs, shards=shards)


def test_refuses_a_space_beyond_the_cap() -> None:
    with pytest.raises(ValueError, match=r"`sharded_truth` got a space of 495 structures; expected at most 100"):
        sharded_truth(linear, ORACLE, SCORES, jobs=0, cap=100)


def test_a_folder_belongs_to_oracle_scores_loss_and_chunk() -> None:
    def doubled(z: Tensor) -> Tensor:
        return 2 * linear(z)

    base = Space(linear, ORACLE, SCORES)
    others = [
        Space(linear, Subset(3), SCORES),
        Space(linear, ORACLE, SCORES + 1e-15),
        Space(negative, ORACLE, SCORES),
        Space(linear, ORACLE, SCORES, 17),
        Space(lambda z: z.flatten(1) @ torch.ones(12).double(), LinearChain(), torch.zeros(3, 2, 2)),
    ]
    keys = [content_key(base), *(content_key(space, None if space.loss in (linear, negative) else "other") for space in others)]
    assert len(set(keys)) == len(keys)
    assert content_key(base) == content_key(Space(linear, ORACLE, SCORES.clone()))
    assert content_key(base, "a") != content_key(base, "b")
    assert content_key(Space(doubled, ORACLE, SCORES), "a") == content_key(base, "a")


def negative(z: Tensor) -> Tensor:
    return -linear(z)
