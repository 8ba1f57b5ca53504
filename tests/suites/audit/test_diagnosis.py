"""Causes compete by their predictions at all points: one is reported if it is not rejected and clearly beats the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from structgrad.suites.audit.diagnosis import NO_NORMALISER, SIGN, Explanation, Point, corrected, explain

GRADIENTS = torch.randn(5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
MARGINALS = torch.rand(5, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

Field = Callable[[Tensor, Mapping[str, float]], Tensor]


def points(field: Field, noise: float = 0.0, seed: int = 3, **numbers: float) -> list[Point]:
    """Five places where the mean is a function of the gradient, exactly or in 32 batches with noise of their mean."""
    draws = torch.Generator().manual_seed(seed)
    found = []
    for row, (gradient, marginals) in enumerate(zip(GRADIENTS, MARGINALS, strict=True)):
        mean = field(gradient, numbers).unsqueeze(0)
        if noise:
            mean = mean + noise * 32**0.5 * torch.randn(32, 4, generator=draws, dtype=torch.float64)
        found.append(Point(f"place {row}", (4,), mean, gradient, numbers, marginals, None if noise else 1e-6))
    return found


def explained(field: Field, noise: float = 0.0, **numbers: float) -> Explanation:
    def ask(option: str) -> Sequence[Point]:
        value = numbers[option]
        return points(field, noise, **{**numbers, option: value + 1 if value == int(value) else 0.8 * value})

    return explain(points(field, noise, **numbers), ask)


def times(factor: Callable[..., float]) -> Field:
    return lambda gradient, numbers: factor(**numbers) * gradient


FACTORS: list[tuple[Callable[..., float], dict[str, float], str]] = [
    (lambda num_samples: (num_samples - 1) / num_samples, {"num_samples": 4}, "gain 0.75 = (N − 1)/N with N = 4"),
    (lambda num_samples: (num_samples - 1) / num_samples, {"num_samples": 2}, "gain 0.5 = (N − 1)/N with N = 2"),
    (lambda num_samples: num_samples / (num_samples - 1), {"num_samples": 4}, "N/(N − 1) with N = 4"),
    (lambda num_samples: num_samples, {"num_samples": 4}, "summed, not averaged"),
    (lambda num_samples: 1 / num_samples, {"num_samples": 2}, "mean over the samples is taken twice"),
    (lambda decay, num_samples: decay, {"decay": 0.95, "num_samples": 1}, "gain 0.95 = decay: the estimate is multiplied by decay"),
    (lambda decay, num_samples: 1 - (1 - decay) / num_samples, {"decay": 0.95, "num_samples": 1}, "1 − (1 − decay)/N with decay = 0.95"),
    (
        lambda decay, num_samples: 1 - (1 - decay) / num_samples,
        {"decay": 0.9, "num_samples": 2},
        "1 − (1 − decay)/N with decay = 0.9, N = 2",
    ),
    (lambda sigma: sigma, {"sigma": 0.3}, "gain 0.3 = sigma: the estimate is multiplied by sigma, or not divided by it"),
    (lambda sigma: 1 / sigma, {"sigma": 0.3}, "1/sigma with sigma = 0.3"),
    (lambda sigma: sigma**2, {"sigma": 0.3}, "sigma² with sigma = 0.3"),
    (lambda **numbers: 1 / numbers["noise.scale"] ** 2, {"noise.scale": 0.3}, "1/noise.scale² with noise.scale = 0.3"),
    (lambda sigma, num_samples: sigma, {"sigma": 0.5, "num_samples": 2}, "gain 0.5 = sigma"),
    (lambda **numbers: 0.5, {"sigma": 0.5, "num_samples": 2}, ""),
    (lambda **numbers: 2.0, {}, ""),
    (lambda **numbers: 0.61, {"num_samples": 3}, ""),
    (lambda **numbers: -0.5, {"sigma": 0.5}, ""),
]
"""A factor as a function of options, their values, and the cause."""


@pytest.mark.parametrize("noise", [0.0, 0.002])
@pytest.mark.parametrize("case", range(len(FACTORS)))
def test_a_factor_is_named_by_what_it_follows(case: int, noise: float) -> None:
    factor, numbers, words = FACTORS[case]
    found = explained(times(factor), noise, **numbers)
    assert words in found.cause
    assert bool(found.cause) == bool(words)
    if not words:
        assert f"gain {factor(**numbers):.2g}" in found.seen or noise
        assert found.parallel
        assert "on every part at all 5 places" in found.seen


def test_without_another_value_a_factor_is_no_cause() -> None:
    for numbers, factor in (({"num_samples": 4.0}, 0.75), ({"sigma": 0.3}, 0.3)):
        found = explain(points(times(lambda factor=factor, **numbers: factor), **numbers))
        assert (found.cause, found.parallel) == ("", True)
        assert f"gain {factor:.4g}" in found.seen


def changed(part: int, factor: float) -> Field:
    scale = torch.ones(4, dtype=torch.float64)
    scale[part] = factor
    return lambda gradient, numbers: scale * gradient


FIELDS: list[tuple[Field, str, str]] = [
    (times(lambda **numbers: -1.0), SIGN, ""),
    (changed(0, -1.0), "part (0) has the other sign, and all others are right", ""),
    (changed(3, 0.0), "part (3) has no gradient, and all others are right", ""),
    (lambda gradient, numbers: gradient + torch.tensor([0, 0, 0.5, 0]).to(gradient) * gradient.norm(), "", "1 of 4 parts are, (2)"),
    (lambda gradient, numbers: gradient[[1, 2, 0, 3]], "", "3 of 4 parts are, (0), (1), (2)"),
    (lambda gradient, numbers: gradient.flip(0), "", "the mean is wrong at all 5 places"),
    (lambda gradient, numbers: gradient + 0.3 * MARGINALS[row_of(gradient)], NO_NORMALISER, ""),
]


def row_of(gradient: Tensor) -> int:
    return int((gradient == GRADIENTS).all(-1).nonzero())


@pytest.mark.parametrize("noise", [0.0, 0.002])
@pytest.mark.parametrize("case", range(len(FIELDS)))
def test_a_field_is_named_where_a_cause_predicts_it(case: int, noise: float) -> None:
    field, cause, seen = FIELDS[case]
    found = explained(field, noise, num_samples=2, sigma=0.5)
    assert found.cause == cause
    assert seen in found.seen
    assert bool(found.seen) == bool(seen)


def test_what_noise_leaves_open_is_not_named() -> None:
    """A mean that is known to a fifth of itself fits many factors."""
    assert explained(times(lambda num_samples: (num_samples - 1) / num_samples), noise=0.4, num_samples=4).cause == ""


def test_a_place_that_does_not_fit_rejects_a_cause() -> None:
    wrong = points(times(lambda **numbers: 0.75), num_samples=4)
    odd = [*wrong[:-1], replace(wrong[-1], found=0.7 * GRADIENTS[-1:])]
    found = explain(odd, lambda option: points(times(lambda **numbers: 0.8), num_samples=5))
    assert found.cause == ""
    assert "the mean is wrong at all 5 places, gain 0.7 to 0.75; every part is" in found.seen


@pytest.mark.parametrize(
    ("factor", "noise", "expected"), [(1.0, 0.0, True), (0.9, 0.0, False), (1.0, 0.002, True), (0.9, 0.002, False), (1.0, 0.4, False)]
)
def test_another_value_of_an_option_is_the_cause_where_means_are_right_and_others(factor: float, noise: float, expected: bool) -> None:
    """Means of another value that are wrong too, and means that noise cannot tell apart, blame no option."""
    found, others = (points(times(lambda value=value, **numbers: value), noise, seed) for seed, value in enumerate((0.9, factor)))
    assert corrected(found, others) == expected
