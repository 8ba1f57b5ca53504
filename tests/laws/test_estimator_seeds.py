"""The generator is the only source of randomness, and rows of a seed block do not depend on what else shares a launch."""

from __future__ import annotations

import torch

from structgrad.estimators import make_estimator
from structgrad.oracles import SeedBlocks
from structgrad.suites.statistics.seeds import BLOCK
from tests.estimator_cases import DETERMINISTIC, LOSSES, STOCHASTIC, numbers, pairs, pairs_of, undecided
from tests.helpers import OracleCase, seeded


@pairs
def test_the_same_seed_gives_the_same_numbers(name: str, case: OracleCase) -> None:
    estimator, loss, scores = make_estimator(name), LOSSES["smooth"](case), numbers(8, *case.event)
    first = estimator.gradient(loss, case.oracle, scores, generator=seeded(1))
    assert torch.equal(first, estimator.gradient(loss, case.oracle, scores, generator=seeded(1)))


@pairs_of(STOCHASTIC)
def test_another_seed_gives_other_numbers(name: str, case: OracleCase) -> None:
    estimator, loss, scores = make_estimator(name), LOSSES["smooth"](case), 0.3 * numbers(20, *case.event)
    first = estimator.gradient(loss, case.oracle, scores, generator=seeded(1))
    assert not torch.equal(first, estimator.gradient(loss, case.oracle, scores, generator=seeded(2)))


@pairs_of(DETERMINISTIC)
def test_deterministic_estimators_do_not_touch_the_generator(name: str, case: OracleCase) -> None:
    generator = seeded()
    before = generator.get_state()
    make_estimator(name).gradient(LOSSES["smooth"](case), case.oracle, numbers(3, *case.event), generator=generator)
    assert torch.equal(generator.get_state(), before)


@pairs_of(STOCHASTIC)
def test_stochastic_estimators_draw_from_the_generator(name: str, case: OracleCase) -> None:
    generator = seeded()
    before = generator.get_state()
    make_estimator(name).gradient(LOSSES["smooth"](case), case.oracle, numbers(3, *case.event), generator=generator)
    assert not torch.equal(generator.get_state(), before)


@pairs
def test_the_global_generator_is_never_touched(name: str, case: OracleCase) -> None:
    before = torch.get_rng_state()
    estimator, loss, scores = make_estimator(name), LOSSES["smooth"](case), numbers(3, *case.event)
    estimator.gradient(loss, case.oracle, scores, generator=seeded())
    estimator.warmed_up(loss, case.oracle, scores, generator=seeded())
    assert torch.equal(torch.get_rng_state(), before)


@pairs
def test_blocks_do_not_depend_on_the_launch(name: str, case: OracleCase) -> None:
    """Bitwise: three blocks in one launch, in two, in three; the last one is cut short."""
    estimator, loss, scores = make_estimator(name), LOSSES["smooth"](case), undecided(name, 0.5 * numbers(*case.event))
    seeds = (11, 22, 33)

    def launch(first: int, rows: int) -> torch.Tensor:
        blocks = SeedBlocks(seeds[first : first + -(-rows // BLOCK)], BLOCK)
        return estimator.gradient(loss, case.oracle, scores.expand(rows, *case.event), generator=blocks)

    whole = launch(0, 2 * BLOCK + 5)
    assert torch.equal(torch.cat([launch(0, BLOCK), launch(1, BLOCK), launch(2, 5)]), whole)
    assert torch.equal(torch.cat([launch(0, 2 * BLOCK), launch(2, 5)]), whole)
    if name in STOCHASTIC:
        assert not torch.equal(whole[:BLOCK], whole[BLOCK : 2 * BLOCK])
