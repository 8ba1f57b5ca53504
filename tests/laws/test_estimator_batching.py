"""Rows of a batch share nothing: a batch is a loop of single calls, in any shape, with data of its own per row."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from structgrad.estimators import Loss, RunningMeanBaseline, make_estimator
from structgrad.oracles import SeedBlocks
from structgrad.suites.problems.losses import LOSSES as MEASURED
from structgrad.suites.problems.losses import make_loss
from structgrad.suites.statistics.seeds import BLOCK, seed_blocks, seed_sequence
from tests.estimator_cases import CASES, DETERMINISTIC, LOSSES, STANDS_STILL, STOCHASTIC, numbers, oracles, pairs, pairs_of, undecided
from tests.helpers import OracleCase, make_scores, seeded, structures

SEEDS = (3, 1, 4, 1, 5, 9)
REAL_LOSSES = [name for name, loss in MEASURED.items() if loss.differentiable and name != "downstream"]


def with_targets(case: OracleCase, targets: Tensor) -> Loss:
    """A loss with data per batch row: targets [*batch, *event]."""
    first = -len(case.event)
    return lambda z: (z - targets).square().flatten(first).sum(-1).sin() + (z * targets).flatten(first).sum(-1)


@pytest.mark.parametrize("regime", [1.0, "masked"], ids=str)
@pairs
def test_every_row_has_data_of_its_own(name: str, case: OracleCase, regime: float | str) -> None:
    """Each row draws from a stream of its own, so that one batch is comparable with single calls."""
    estimator, scores, targets = make_estimator(name), make_scores(case, regime, rows=6, seed=4), numbers(6, *case.event, seed=8)
    batched = estimator.gradient(with_targets(case, targets), case.oracle, scores, generator=SeedBlocks(SEEDS, 1))
    single = [
        estimator.gradient(with_targets(case, targets[i : i + 1]), case.oracle, scores[i : i + 1], generator=SeedBlocks((SEEDS[i],), 1))
        for i in range(6)
    ]
    torch.testing.assert_close(batched, torch.cat(single), rtol=1e-11, atol=1e-12)
    assert regime == "masked" or batched.abs().sum() > 0 or name in STANDS_STILL


@pytest.mark.parametrize("kind", REAL_LOSSES)
@pairs
def test_replicates_come_out_the_same_to_the_last_bit_in_launches_of_any_blocks(name: str, case: OracleCase, kind: str) -> None:
    """With the losses that are measured, whose products must not round a row by how many there are."""
    loss = make_loss(kind, structures(case)[0].double(), case.oracle, seed=0)
    scores, rows = undecided(name, numbers(*case.event)), 2 * BLOCK + 5
    estimator = make_estimator(name).warmed_up(loss, case.oracle, scores, generator=seeded())

    def launch(first: int, last: int) -> Tensor:
        blocks = seed_blocks(seed_sequence(0, name), first, last - first)
        return estimator.gradient(loss, case.oracle, scores.expand(last - first, *case.event), generator=blocks)

    assert torch.equal(torch.cat([launch(0, BLOCK), launch(BLOCK, rows)]), launch(0, rows))


@pairs
def test_several_batch_dimensions(name: str, case: OracleCase) -> None:
    estimator, scores, targets = make_estimator(name), numbers(6, *case.event), numbers(6, *case.event, seed=8)
    flat = estimator.gradient(with_targets(case, targets), case.oracle, scores, generator=seeded())
    shaped, shaped_targets = scores.reshape(2, 3, *case.event), targets.reshape(2, 3, *case.event)
    found = estimator.gradient(with_targets(case, shaped_targets), case.oracle, shaped, generator=seeded())
    assert found.shape == shaped.shape
    torch.testing.assert_close(found.reshape(flat.shape), flat, rtol=1e-12, atol=1e-13)
    value = estimator.surrogate(with_targets(case, shaped_targets), case.oracle, shaped, generator=seeded())
    assert value.shape == (2, 3)


@pairs
def test_no_batch_dimension(name: str, case: OracleCase) -> None:
    estimator, scores, loss = make_estimator(name), numbers(*case.event), LOSSES["smooth"](case)
    found = estimator.gradient(loss, case.oracle, scores, generator=seeded())
    assert found.shape == scores.shape
    assert estimator.surrogate(loss, case.oracle, scores, generator=seeded()).shape == ()
    torch.testing.assert_close(
        found, estimator.gradient(loss, case.oracle, scores.unsqueeze(0), generator=seeded())[0], rtol=1e-13, atol=1e-13
    )


@pairs
def test_an_empty_batch_gives_empty_results_and_leaves_the_state(name: str, case: OracleCase) -> None:
    estimator, loss = make_estimator(name), LOSSES["smooth"](case)
    for batch in ((0,), (2, 0), (0, 3)):
        scores = numbers(*batch, *case.event)
        assert estimator.gradient(loss, case.oracle, scores, generator=seeded()).shape == scores.shape
        assert estimator.surrogate(loss, case.oracle, scores, generator=seeded()).shape == batch
        assert estimator.warmed_up(loss, case.oracle, scores, generator=seeded()) == estimator
    assert estimator.observed(numbers(0), numbers(0, *case.event)) == estimator


@pytest.mark.parametrize("layout", [((1,), (12,)), ((3, 1), (3, 4)), ((1, 3), (4, 3))], ids=["all", "last", "first"])
@pairs
def test_expanded_rows_are_materialised_rows(name: str, case: OracleCase, layout: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    estimator, loss = make_estimator(name), LOSSES["smooth"](case)
    small, large = layout
    scores = numbers(*small, *case.event).expand(*large, *case.event)
    found = estimator.gradient(loss, case.oracle, scores, generator=seeded())
    expected = estimator.gradient(loss, case.oracle, scores.contiguous(), generator=seeded())
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)


@pairs_of(STOCHASTIC)
def test_expanded_rows_are_independent_replicates(name: str, case: OracleCase) -> None:
    """The mean over pairs of neighbouring replicates of ⟨ĝ_i − ĝ, ĝ_{i+1} − ĝ⟩ is that of independent ones: 0."""
    rows = undecided(name, 0.3 * numbers(*case.event)).expand(2000, *case.event)
    estimates = make_estimator(name).gradient(LOSSES["smooth"](case), case.oracle, rows, generator=seeded())
    centred = (estimates - estimates.mean(0)).flatten(1)
    products = (centred[:-1] * centred[1:]).sum(-1)
    assert estimates.unique(dim=0).shape[0] > 1
    # An estimate may be exact, up to rounding, which replicates of one table share.
    assert abs(float(products.mean())) < 5 * float(products.std()) / len(products) ** 0.5 + 1e-28


@pairs_of(DETERMINISTIC)
def test_replicates_of_a_deterministic_estimator_are_equal(name: str, case: OracleCase) -> None:
    rows = numbers(*case.event).expand(5, *case.event)
    estimates = make_estimator(name).gradient(LOSSES["smooth"](case), case.oracle, rows, generator=seeded())
    torch.testing.assert_close(estimates, estimates[:1].expand_as(estimates), rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("name", ["imle[num_samples=3]", "imle[lambda=2.0, noise=sum_of_gamma/k=2, num_samples=3, divide_by_lambda=True]"])
@oracles
def test_samples_of_one_call_are_averaged(name: str, case: OracleCase) -> None:
    scores, targets = numbers(4, *case.event), numbers(4, *case.event, seed=8)
    found = make_estimator(name).gradient(with_targets(case, targets), case.oracle, scores, generator=seeded())
    repeated = scores.unsqueeze(1).expand(4, 3, *case.event)
    one = make_estimator(name.replace("num_samples=3", "num_samples=1"))
    single = one.gradient(with_targets(case, targets.unsqueeze(1)), case.oracle, repeated, generator=seeded())
    torch.testing.assert_close(found, single.mean(1), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("rows", [1, 5, 64])
@oracles
def test_a_baseline_warms_up_on_rows_with_data_of_their_own(case: OracleCase, rows: int) -> None:
    """Every row has its best structure as its target, so that the loss is 0 where rows and targets meet."""
    scores = 200 * numbers(rows, *case.event)
    best = case.oracle.argmax(scores)
    loss = lambda z: (z - best).abs().flatten(-len(case.event)).sum(-1)  # noqa: E731
    assert RunningMeanBaseline(mean=1.0).warmed_up(loss, case.oracle, scores, generator=seeded()).mean < 0.1


def test_the_table_has_both_kinds() -> None:
    assert len(DETERMINISTIC) > 5
    assert len(STOCHASTIC) > 10
    assert len(CASES) == 8
