"""Numbers follow names, blocks and rows alone: not the launch, the order, the implementation, or the estimator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from structgrad.estimators import Gumbel, LeaveOneOut, Normal, PerturbAndMAP, Reinforce, Simple
from structgrad.oracles.random_streams import random_uniform
from structgrad.suites.problems.losses import LOSSES, make_loss
from structgrad.suites.statistics.seeds import BLOCK, generator, seed_blocks, seed_sequence
from tests.suites.cases import target_of

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


def test_blocks_are_numbered_from_the_start_of_the_run():
    key = seed_sequence(0, "a")
    whole = seed_blocks(key, 0, 5 * BLOCK)
    assert whole.seeds[3:] == seed_blocks(key, 3 * BLOCK, 2 * BLOCK).seeds
    assert len(set(whole.seeds)) == 5
    assert len(seed_blocks(key, 0, BLOCK + 1).seeds) == 2


@pytest.mark.parametrize("estimator", [Reinforce(), LeaveOneOut(3), PerturbAndMAP(noise=Normal()), Simple()], ids=lambda e: e.name)
@pytest.mark.parametrize("loss", [name for name in LOSSES if name not in ("downstream", "black_box")])
def test_replicates_depend_on_nothing_that_shares_their_launch(estimator: Any, loss: str) -> None:
    """Bitwise: one launch, and several of other sizes in another order."""
    rows = 5 * BLOCK - 7
    whole = estimates(estimator, 0, rows, loss)
    pieces = {first: estimates(estimator, first, min(size, rows - first), loss) for first, size in ((384, 256), (0, 128), (128, 256))}
    assert torch.equal(torch.cat([pieces[first] for first in sorted(pieces)]), whole)
    for few in (1, 2, 7, 64):
        starts = torch.cat([estimates(estimator, block * BLOCK, few, loss) for block in range(4)])
        assert torch.equal(starts, whole[: 4 * BLOCK].unflatten(0, (4, BLOCK))[:, :few].flatten(0, 1))


def test_estimators_share_their_noise() -> None:
    """The first sample at a slot does not depend on their number, and noise of another scale is the same."""
    target = target_of("linear_chain")
    scores = target.scores.expand(200, *target.scores.shape)
    one = target.oracle.sample(scores, generator=seed_blocks(KEY, 0, 200))
    many = target.oracle.sample(scores, 4, generator=seed_blocks(KEY, 0, 200))
    assert torch.equal(many[0], one)
    noises = [law.draw(target.oracle, scores, generator=seed_blocks(KEY, 0, 200)) for law in (Gumbel(), Gumbel(2.0), Normal())]
    torch.testing.assert_close(noises[1], 2 * noises[0])
    order = [np.argsort(noise[:, 0, 1, 1].numpy()).tolist() for noise in noises]
    assert order[0] == order[2]
