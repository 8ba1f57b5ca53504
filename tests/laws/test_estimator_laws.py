"""The laws of `structgrad audit`, for every estimator on structures of every kind, and laws of rows, seeds, entries and dtypes."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from structgrad.estimators import Loss, RunningMeanBaseline, make_estimator
from structgrad.estimators.surrogates import evaluate
from structgrad.oracles import SeedBlocks
from structgrad.suites.audit.cases import AuditEffort, Case, Structure
from structgrad.suites.audit.laws import LAWS
from structgrad.suites.audit.result import subject_of
from structgrad.suites.problems.losses import LOSSES as MEASURED, make_loss
from structgrad.suites.statistics.seeds import BLOCK, seed_blocks, seed_sequence
from tests.estimator_cases import (
    DETERMINISTIC,
    GRADIENT_FREE,
    LOSSES,
    NAMES,
    NEVER_STILL,
    PATHWISE,
    SMALLEST,
    STANDS_STILL,
    STOCHASTIC,
    numbers,
    oracles,
    pairs,
    pairs_of,
    undecided,
)
from tests.helpers import OracleCase, make_scores, read_parts, seeded, structures

SEEDS = (3, 1, 4, 1, 5, 9)
REAL_LOSSES = [name for name, loss in MEASURED.items() if loss.differentiable and name != "downstream"]


@pairs
def test_every_law_of_the_audit_holds(name: str, case: OracleCase) -> None:
    """Shapes, randomness, arguments, NaN, rows, direction, declared calls, and parameters of the loss."""
    single = next((small.event for small in SMALLEST if repr(small.oracle) == repr(case.oracle)), ())
    audited = Case(subject_of(make_estimator(name)), Structure(str(case), case.oracle, case.event, single), AuditEffort())
    for _, law, _ in LAWS:
        for check in law(audited):
            assert check.status == "holds", check
            assert check.p_value is None or check.p_value > 1e-6, check


# Rows.


def with_targets(case: OracleCase, targets: Tensor) -> Loss:
    """A loss with data per batch row: targets [*batch, *event]."""
    first = -len(case.event)
    return lambda z: (z - targets).square().flatten(first).sum(-1).sin() + (z * targets).flatten(first).sum(-1)


@pairs
def test_a_batch_is_its_rows(name: str, case: OracleCase) -> None:
    """In any shape, also expanded. Each row draws from a stream of its own, so that one batch is comparable with single calls."""
    estimator, targets, smooth = make_estimator(name), numbers(6, *case.event, seed=8), LOSSES["smooth"](case)
    for regime in (1.0, "masked"):
        scores = make_scores(case, regime, rows=6, seed=4)
        batched = estimator.gradient(with_targets(case, targets), case.oracle, scores, generator=SeedBlocks(SEEDS, 1))
        single = [
            estimator.gradient(with_targets(case, targets[i : i + 1]), case.oracle, scores[i : i + 1], generator=SeedBlocks((SEEDS[i],), 1))
            for i in range(6)
        ]
        torch.testing.assert_close(batched, torch.cat(single), rtol=1e-11, atol=1e-12)
        assert regime == "masked" or batched.abs().sum() > 0 or name in STANDS_STILL
    scores = numbers(6, *case.event)
    flat = estimator.gradient(with_targets(case, targets), case.oracle, scores, generator=seeded())
    shaped = with_targets(case, targets.reshape(2, 3, *case.event))
    deep = estimator.gradient(shaped, case.oracle, scores.reshape(2, 3, *case.event), generator=seeded())
    torch.testing.assert_close(deep.reshape(flat.shape), flat, rtol=1e-12, atol=1e-13)
    alone, one = (estimator.gradient(smooth, case.oracle, rows, generator=seeded()) for rows in (scores[0], scores[:1]))
    torch.testing.assert_close(alone, one[0], rtol=1e-13, atol=1e-13)
    for small, large in (((1,), (12,)), ((3, 1), (3, 4)), ((1, 3), (4, 3))):
        expanded = numbers(*small, *case.event).expand(*large, *case.event)
        found, expected = (estimator.gradient(smooth, case.oracle, rows, generator=seeded()) for rows in (expanded, expanded.contiguous()))
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)
    for batch in ((0,), (2, 0), (0, 3)):
        empty = numbers(*batch, *case.event)
        assert estimator.gradient(smooth, case.oracle, empty, generator=seeded()).shape == empty.shape
        assert estimator.surrogate(smooth, case.oracle, empty, generator=seeded()).shape == batch
        assert estimator.warmed_up(smooth, case.oracle, empty, generator=seeded()) == estimator
    assert estimator.observed(numbers(0), numbers(0, *case.event)) == estimator


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


@oracles
def test_a_baseline_warms_up_on_rows_with_data_of_their_own(case: OracleCase) -> None:
    """Every row has its best structure as its target, so that the loss is 0 where rows and targets meet."""
    for rows in (1, 5, 64):
        scores = 200 * numbers(rows, *case.event)
        best = case.oracle.argmax(scores)
        loss = lambda z, best=best: (z - best).abs().flatten(-len(case.event)).sum(-1)  # noqa: E731
        assert RunningMeanBaseline(mean=1.0).warmed_up(loss, case.oracle, scores, generator=seeded()).mean < 0.1


# Seeds.


@pairs
def test_blocks_do_not_depend_on_the_launch(name: str, case: OracleCase) -> None:
    """Bitwise: three blocks in one launch, in two, in three; the last one is cut short. Another seed gives other numbers."""
    kind = REAL_LOSSES[len(name) % len(REAL_LOSSES)]
    # Among the losses those that are measured, whose products must not round a row by how many there are.
    for loss in (LOSSES["smooth"](case), make_loss(kind, structures(case)[0].double(), case.oracle, seed=0)):
        scores = undecided(name, 0.5 * numbers(*case.event))
        estimator = make_estimator(name).warmed_up(loss, case.oracle, scores, generator=seeded())

        def launch(first: int, last: int, loss: Loss = loss, estimator: Any = estimator, scores: Tensor = scores) -> Tensor:
            blocks = seed_blocks(seed_sequence(0, name), first, last - first)
            return estimator.gradient(loss, case.oracle, scores.expand(last - first, *case.event), generator=blocks)

        whole = launch(0, 2 * BLOCK + 5)
        assert torch.equal(torch.cat([launch(0, BLOCK), launch(BLOCK, 2 * BLOCK), launch(2 * BLOCK, 2 * BLOCK + 5)]), whole)
        assert torch.equal(torch.cat([launch(0, 2 * BLOCK), launch(2 * BLOCK, 2 * BLOCK + 5)]), whole)
    scores, generator = 0.3 * numbers(20, *case.event), seeded(1)
    first = make_estimator(name).gradient(LOSSES["smooth"](case), case.oracle, scores, generator=generator)
    other = make_estimator(name).gradient(LOSSES["smooth"](case), case.oracle, scores, generator=seeded(2))
    assert torch.equal(first, other) == (name in DETERMINISTIC)
    assert torch.equal(generator.get_state(), seeded(1).get_state()) == (name in DETERMINISTIC)
    before = torch.get_rng_state()
    make_estimator(name).warmed_up(LOSSES["smooth"](case), case.oracle, scores[0], generator=seeded())
    assert torch.equal(torch.get_rng_state(), before)


# Entries.


def forbidding_scores(case: OracleCase) -> Tensor:
    """Random masks; the last parts forbidden; one structure left; one part left; the first structure forbidden."""
    late = make_scores(case, 1.0, rows=20, seed=2)
    late[:, -1] = -math.inf
    finite, first, last = make_scores(case, 1.0, rows=5, seed=1), structures(case)[0] > 0, structures(case)[-1] > 0
    one = torch.arange(finite[0].numel()).reshape(case.event) == 0
    kept = torch.stack([last, first, one, ~first, one | ~read_parts(case)])
    return torch.cat([make_scores(case, "masked", rows=20), late, finite.masked_fill(~kept, -math.inf)])


@pairs
def test_only_free_parts_of_feasible_rows_have_a_gradient(name: str, case: OracleCase) -> None:
    estimator, scores = make_estimator(name), forbidding_scores(case).requires_grad_()
    feasible = case.oracle.feasible(scores)
    assert 0 < int(feasible.sum()) < len(scores)
    found = [estimator.gradient(LOSSES[kind](case), case.oracle, scores, generator=seeded()) for kind in ("smooth", "offset")]
    if name in PATHWISE:
        structure = estimator.structure(case.oracle, scores, generator=seeded())  # type: ignore[attr-defined]
        assert structure.isfinite().all()
        found += torch.autograd.grad(LOSSES["smooth"](case)(structure).mean(), scores)
    for estimate in found:
        assert estimate.isfinite().all()
        assert not estimate[scores == -math.inf].any()
        assert not estimate[~feasible].any()
    assert not any(estimate[:, ~read_parts(case)].any() for estimate in found[:2])
    assert estimator.surrogate(LOSSES["smooth"](case), case.oracle, scores, generator=seeded()).isfinite().all()
    for other in (make_scores(case, "ties"), make_scores(case, "equal"), 0.05 * numbers(10, *case.event), 50 * numbers(10, *case.event)):
        assert estimator.gradient(LOSSES["offset"](case), case.oracle, other, generator=seeded()).isfinite().all()


@pairs
def test_ignored_entries_are_never_read(name: str, case: OracleCase) -> None:
    """Neither those of the scores, nor those of the gradient of the loss."""
    estimator, scores, loss, parts = make_estimator(name), numbers(6, *case.event), LOSSES["smooth"](case), read_parts(case)
    garbage = torch.where(torch.arange(6).reshape(6, *[1] * len(case.event)) % 2 == 0, math.nan, math.inf)
    event = tuple(range(-len(case.event), 0))
    spoilt = lambda z: loss(z * parts) + 1e6 * (z * ~parts).sum(event)  # noqa: E731
    expected = estimator.gradient(lambda z: loss(z * parts), case.oracle, scores, generator=seeded())
    found = estimator.gradient(spoilt, case.oracle, torch.where(parts, scores, garbage), generator=seeded())
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pairs_of(NAMES, SMALLEST)
def test_a_single_structure(name: str, case: OracleCase) -> None:
    """There is nothing to learn: 0 except for the estimators that never rest."""
    estimate = make_estimator(name).gradient(LOSSES["smooth"](case), case.oracle, numbers(3, *case.event), generator=seeded())
    assert estimate.isfinite().all()
    if name not in NEVER_STILL and name.partition("[")[0] not in NEVER_STILL:
        torch.testing.assert_close(estimate, torch.zeros_like(estimate), rtol=0, atol=1e-13)


# Dtypes and devices.


@pairs
def test_dtypes_and_devices_are_kept(name: str, case: OracleCase, device: torch.device) -> None:
    """Noise of float32 scores is that of float64 ones, so all but rounding agrees, where no choice was that close."""
    estimator, quadratic, smooth = make_estimator(name), LOSSES["quadratic"](case), LOSSES["smooth"](case)
    for dtype in (torch.bfloat16, torch.float32):
        scores, seen = numbers(3, *case.event).to(dtype), set[torch.dtype]()
        estimate = estimator.gradient(lambda z, seen=seen: seen.add(z.dtype) or quadratic(z), case.oracle, scores, generator=seeded())
        assert (estimate.dtype, estimate.shape) == (dtype, scores.shape)
        assert estimate.isfinite().all()
        assert seen == {dtype}
        assert estimator.surrogate(quadratic, case.oracle, scores, generator=seeded()).shape == (3,)
    scores = numbers(40, *case.event).float()
    single, double = (estimator.gradient(smooth, case.oracle, rows, generator=seeded()) for rows in (scores, scores.double()))
    torch.testing.assert_close(single.double(), double, rtol=1e-4, atol=1e-5 if name in DETERMINISTIC else 2e-5)
    there = estimator.gradient(smooth, case.oracle, scores.double().to(device), generator=seeded(device=device))
    assert there.device.type == device.type
    if name in DETERMINISTIC:
        torch.testing.assert_close(there.cpu(), double, rtol=1e-9, atol=1e-10)


@pairs
def test_half_precision_is_rounded_once(name: str, case: OracleCase) -> None:
    """Noise, differences and relaxations are those of float32, near 20 too; the loss gets structures in the dtype of the scores."""
    estimator, smooth = make_estimator(name), LOSSES["smooth"](case)
    for dtype in (torch.bfloat16, torch.float16):
        for scores in (numbers(6, *case.event).to(dtype), (20 + 0.3 * numbers(1, *case.event)).to(dtype).expand(6, *case.event)):
            found = []
            for theta in (scores, scores.float()):
                loss: Loss = lambda z, dtype=dtype: smooth(z.to(dtype).float())  # type: ignore[misc] # noqa: E731
                leaf = theta.clone().requires_grad_()
                steps = [*estimator.rounds(loss, case.oracle, lambda leaf=leaf: leaf, generator=seeded())]  # type: ignore[misc]
                moved = [torch.autograd.grad(step.sum(), leaf)[0] for step in steps]
                found.append([estimator.gradient(loss, case.oracle, theta, generator=seeded()), *steps, *moved])
            for half, single in zip(*found, strict=True):
                assert torch.equal(half.float(), single.to(half.dtype).float())


@pairs_of(GRADIENT_FREE)
def test_values_of_the_loss_suffice(name: str, case: OracleCase) -> None:
    """The loss gets no tensor to differentiate, and its result has no history; integers and booleans are the numbers they stand for."""
    estimator, gold, event = make_estimator(name), case.oracle.argmax(numbers(*case.event, seed=3)), -len(case.event)

    def black_box(z: Tensor) -> Tensor:
        assert not z.requires_grad
        return LOSSES["black_box"](case)(z)

    estimate = estimator.gradient(black_box, case.oracle, numbers(20, *case.event), generator=seeded())
    assert estimate.isfinite().all()
    assert estimate.abs().sum() > 0

    def results(convert: Callable[[Tensor, Tensor], Tensor], scores: Tensor) -> tuple[Tensor, Tensor]:
        loss: Loss = lambda z: convert((z != gold.to(z)).flatten(event), z)  # noqa: E731
        warmed = estimator.warmed_up(loss, case.oracle, scores, generator=seeded())
        estimate = estimator.gradient(loss, case.oracle, scores, generator=seeded())
        return estimate, warmed.surrogate(loss, case.oracle, scores, generator=seeded())

    for scores in (numbers(5, *case.event), numbers(5, *case.event).float()):
        for found, expected in (
            (results(lambda wrong, z: wrong.sum(-1), scores), results(lambda wrong, z: wrong.sum(-1).to(z), scores)),
            (results(lambda wrong, z: wrong.any(-1), scores), results(lambda wrong, z: wrong.any(-1).to(z), scores)),
        ):
            assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, expected, strict=True))


def test_a_count_of_half_precision_structures_is_exact() -> None:
    counts = torch.tensor([257, 300])
    found = evaluate(lambda z: counts, torch.zeros(2, 3, dtype=torch.bfloat16), 1)
    assert found.dtype == torch.float32
    assert torch.equal(found.long(), counts)
