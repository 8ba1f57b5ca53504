"""float32 gives float32, close to float64; half precision and the device of the scores are kept."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from structgrad.estimators import Loss, make_estimator
from structgrad.estimators.surrogates import evaluate
from tests.estimator_cases import DETERMINISTIC, GRADIENT_FREE, LOSSES, numbers, pairs, pairs_of
from tests.helpers import OracleCase, seeded


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pairs
def test_an_estimate_has_the_dtype_and_shape_of_the_scores(name: str, case: OracleCase, dtype: torch.dtype) -> None:
    estimator, scores = make_estimator(name), numbers(3, *case.event).to(dtype)
    seen = []

    def loss(z: torch.Tensor) -> torch.Tensor:
        seen.append(z.dtype)
        return LOSSES["quadratic"](case)(z)

    estimate = estimator.gradient(loss, case.oracle, scores, generator=seeded())
    assert estimate.dtype == dtype
    assert estimate.shape == scores.shape
    assert estimate.isfinite().all()
    assert set(seen) == {dtype}
    assert estimator.surrogate(loss, case.oracle, scores, generator=seeded()).shape == (3,)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pairs
def test_half_precision_is_rounded_once(name: str, case: OracleCase, dtype: torch.dtype) -> None:
    """Noise, differences and relaxations are those of float32, near 20 too; the loss gets structures in the dtype of the scores."""
    estimator, smooth = make_estimator(name), LOSSES["smooth"](case)
    for scores in (numbers(6, *case.event).to(dtype), (20 + 0.3 * numbers(1, *case.event)).to(dtype).expand(6, *case.event)):
        found = []
        for theta in (scores, scores.float()):
            loss: Loss = lambda z: smooth(z.to(dtype).float())  # noqa: E731
            leaf = theta.clone().requires_grad_()
            steps = [*estimator.rounds(loss, case.oracle, lambda leaf=leaf: leaf, generator=seeded())]  # type: ignore[misc]
            moved = [torch.autograd.grad(step.sum(), leaf)[0] for step in steps]
            found.append([estimator.gradient(loss, case.oracle, theta, generator=seeded()), *steps, *moved])
        for half, single in zip(*found, strict=True):
            assert torch.equal(half.float(), single.to(half.dtype).float())


@pairs_of(GRADIENT_FREE)
def test_a_loss_may_count_or_say_yes_and_no(name: str, case: OracleCase) -> None:
    """Integers and booleans are the numbers that they stand for, in the dtype of the structures and at least in single precision."""
    estimator, gold, event = make_estimator(name), case.oracle.argmax(numbers(*case.event, seed=3)), -len(case.event)

    def results(convert: Callable[[Tensor, Tensor], Tensor], scores: Tensor) -> tuple[Tensor, Tensor]:
        loss: Loss = lambda z: convert((z != gold.to(z)).flatten(event), z)  # noqa: E731
        estimate = estimator.gradient(loss, case.oracle, scores, generator=seeded())
        warmed = estimator.warmed_up(loss, case.oracle, scores, generator=seeded())
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


@pairs_of(DETERMINISTIC)
def test_float32_agrees_with_float64(name: str, case: OracleCase) -> None:
    scores = numbers(6, *case.event).float()
    single = make_estimator(name).gradient(LOSSES["smooth"](case), case.oracle, scores, generator=seeded())
    double = make_estimator(name).gradient(LOSSES["smooth"](case), case.oracle, scores.double(), generator=seeded())
    torch.testing.assert_close(single.double(), double, rtol=1e-4, atol=1e-5)


@pairs
def test_float32_draws_the_noise_of_float64(name: str, case: OracleCase) -> None:
    """So all but rounding agrees, where no choice was that close."""
    scores = numbers(40, *case.event).float()
    single = make_estimator(name).gradient(LOSSES["smooth"](case), case.oracle, scores, generator=seeded())
    double = make_estimator(name).gradient(LOSSES["smooth"](case), case.oracle, scores.double(), generator=seeded())
    torch.testing.assert_close(single.double(), double, rtol=1e-4, atol=2e-5)


@pairs
def test_the_device_of_the_scores_is_kept(name: str, case: OracleCase, device: torch.device) -> None:
    scores = numbers(3, *case.event).to(device)
    estimate = make_estimator(name).gradient(LOSSES["smooth"](case), case.oracle, scores, generator=seeded(device=device))
    assert estimate.device.type == device.type
    assert estimate.isfinite().all()


@pairs_of(DETERMINISTIC)
def test_devices_agree(name: str, case: OracleCase, device: torch.device) -> None:
    scores = numbers(6, *case.event)
    here = make_estimator(name).gradient(LOSSES["smooth"](case), case.oracle, scores, generator=seeded())
    there = make_estimator(name).gradient(LOSSES["smooth"](case), case.oracle, scores.to(device), generator=seeded(device=device))
    torch.testing.assert_close(there.cpu(), here, rtol=1e-9, atol=1e-10)
