"""Adaptive sampling stops where it should and continues after a kill; numbers follow names, blocks and rows alone."""

from pathlib import Path
from typing import Any

import pytest
import torch

from structgrad.estimators import LeaveOneOut, Normal, PerturbAndMAP, Reinforce, Simple
from structgrad.oracles.random_streams import random_uniform
from structgrad.suites.problems.losses import LOSSES, make_loss
from structgrad.suites.statistics.intervals import looks, sample_until
from structgrad.suites.statistics.metrics import estimated_metrics
from structgrad.suites.statistics.moments import BATCHES, Moments
from structgrad.suites.statistics.seeds import BLOCK, generator, seed_blocks, seed_sequence
from tests.suites.cases import target_of

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


def sampled(draws: Draws, most: int, checkpoint: Path | None = None, **more: float):
    return sample_until(Moments.empty(GRADIENT), draws, estimated_metrics, looks(4096, most), checkpoint=checkpoint, **more)


@pytest.mark.parametrize(
    ("first", "most", "expected"),
    [
        (4096, 65536, [4096, 8192, 16384, 32768, 65536]),
        (4096, 4096, [4096]),
        (1000, 5000, [1024, 2048, 4096, 5120]),
        (4096, 100, [4096]),
    ],
)
def test_looks_double_and_end_at_the_budget(first, most, expected):
    assert list(looks(first, most)) == expected


def test_stops_at_the_first_look_where_everything_is_narrow():
    easy, hard = Draws(noise=0.05), Draws(noise=3.0)
    assert sampled(easy, 65536)[1] == "converged"
    assert easy.looks == [4096]
    # Replicates that are all the same have an interval of no width, and are no reason to stop: events may be rare.
    for waits in (hard, Draws(noise=0.0)):
        assert sampled(waits, 16384)[1] == "budget"
        assert waits.looks == [4096, 8192, 16384]
    late = Draws(noise=3.0)
    assert (sampled(late, 16384, seconds=0.0)[1], late.looks) == ("budget", [4096])


def test_a_killed_run_goes_on_to_the_same_bits(tmp_path):
    checkpoint, most = tmp_path / "cell" / "moments.pt", 16384
    with pytest.raises(KeyboardInterrupt):
        sampled(Draws(fail_at=8192), most, checkpoint)
    resumed = Draws()
    moments, _ = sampled(resumed, most, checkpoint)
    assert resumed.looks == [16384]
    assert torch.equal(moments.mean, sampled(Draws(), most)[0].mean)
    again = Draws()
    assert sampled(again, most, checkpoint)[1] == "budget"
    assert again.looks == []


GOLDEN_WORDS = [415978578, 1823177460]
GOLDEN_DRAW = 886044541
GOLDEN_SEEDS = (3686295447486167171, 12118000613863195196)
GOLDEN_UNIFORMS = [0.49437611626003775, 0.15109732331248882]

KEY = seed_sequence(0, "suite", "problem", "instance", "replicates")


def estimates(estimator: Any, first: int, rows: int, loss: str = "quadratic") -> torch.Tensor:
    target = target_of("linear_chain")
    gold, scores = target.oracle.argmax(target.scores), target.scores.expand(rows, *target.scores.shape)
    tied = make_loss(loss, gold, target.oracle, seed=0)
    return estimator.gradient(tied, target.oracle, scores, generator=seed_blocks(KEY, first, rows))


def test_a_name_is_a_stream_of_its_own():
    words = {
        tuple(seed_sequence(entropy, *names).generate_state(2)) for entropy in (0, 1) for names in (("a",), ("b",), ("a", "b"), ("ab",))
    }
    assert len(words) == 8
    seeds = {seed for key in ("a", "b") for seed in seed_blocks(seed_sequence(0, key), 0, 50 * BLOCK).seeds}
    assert len(seeds) == 100


def test_streams_do_not_change_between_versions():
    """Golden values: published numbers depend on them."""
    assert [int(w) for w in seed_sequence(0, "tagging", "init").generate_state(2)] == GOLDEN_WORDS
    assert int(torch.randint(10**9, (), generator=generator(0, "tagging"))) == GOLDEN_DRAW
    blocks = seed_blocks(seed_sequence(0, "tagging", "init"), 7 * BLOCK, BLOCK + 1)
    assert blocks.seeds == GOLDEN_SEEDS
    drawn = random_uniform((BLOCK + 1,), (3,), generator=blocks, device=torch.device("cpu"))
    assert [float(drawn[5, 2]), float(drawn[BLOCK, 0])] == GOLDEN_UNIFORMS


@pytest.mark.parametrize("estimator", [Reinforce(), LeaveOneOut(3), PerturbAndMAP(noise=Normal()), Simple()], ids=lambda e: e.name)
@pytest.mark.parametrize("loss", [name for name in LOSSES if name not in ("downstream", "black_box")])
def test_replicates_depend_on_nothing_that_shares_their_launch(estimator: Any, loss: str) -> None:
    """Bitwise: one launch, and several of other sizes in another order; sums of up to three rows may have another order."""
    rows = 5 * BLOCK - 7
    whole = estimates(estimator, 0, rows, loss)
    pieces = {first: estimates(estimator, first, min(size, rows - first), loss) for first, size in ((384, 256), (0, 128), (128, 256))}
    assert torch.equal(torch.cat([pieces[first] for first in sorted(pieces)]), whole)
    for few in (1, 2, 7, 64):
        starts = torch.cat([estimates(estimator, block * BLOCK, few, loss) for block in range(4)])
        expected = whole[: 4 * BLOCK].unflatten(0, (4, BLOCK))[:, :few].flatten(0, 1)
        torch.testing.assert_close(starts, expected, rtol=1e-11 if few < 4 else 0, atol=1e-13 if few < 4 else 0)
