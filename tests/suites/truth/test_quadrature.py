"""Quadrature: known means, honest errors, and numbers that depend on the key alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from scipy import stats
from scipy.integrate import quad
from torch import Tensor

from structgrad.estimators import GumbelSoftmax, LeaveOneOut, PerturbAndMAP, Reinforce, StraightThrough, StraightThroughGumbel
from structgrad.estimators.base import Loss, with_gradient
from structgrad.oracles import Categorical
from structgrad.oracles.random_streams import random_uniform
from structgrad.suites.truth import Target, exact_truth, quadrature
from structgrad.suites.truth.quadrature import ScrambleMeans, ServedPoints, noise_dimensions, sobol_moments
from structgrad.suites.truth.replay import replay
from tests.suites.cases import target_of


@dataclass(frozen=True)
class Drawing(Reinforce):
    """Draws as it is told to, and estimates the sum of what it drew."""

    how: Callable[[torch.Generator], Tensor] | None = None

    def surrogate(self, loss: Loss, oracle: Any, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        assert self.how is not None
        return with_gradient(scores.new_zeros(len(scores)), scores, self.how(generator).sum() * torch.ones_like(scores))


def drawing(generator: torch.Generator, width: int) -> Tensor:
    return random_uniform((4,), (width,), generator=generator, device=torch.device("cpu"))


def test_uniforms_of_one_estimate_are_counted() -> None:
    category, subset, chain = (target_of(name) for name in ("categorical", "subset", "linear_chain"))
    assert noise_dimensions(Reinforce(), category) == 1
    assert noise_dimensions(LeaveOneOut(4), category) == 4
    assert noise_dimensions(Reinforce(), chain) == 3
    assert noise_dimensions(PerturbAndMAP(), subset) == 6
    assert noise_dimensions(GumbelSoftmax(), category) == 6
    assert noise_dimensions(StraightThrough(), category) == 0


def test_other_ways_to_draw_are_seen() -> None:
    target = target_of("categorical")
    assert noise_dimensions(Drawing(how=lambda generator: drawing(generator, 3) + drawing(generator, 1)), target) == 4
    assert noise_dimensions(Drawing(how=lambda generator: torch.rand(4, generator=generator)), target) is None
    more = lambda generator: drawing(generator, 1) + (drawing(generator, 1) if generator.seeds[0] else 0)  # noqa: E731
    assert noise_dimensions(Drawing(how=more), target) is None


TEMPERATURE = 0.7


def two_classes(gap: float) -> Target:
    scores, loss = torch.tensor([gap, 0.0], dtype=torch.float64), lambda z: (z[..., 0] - 0.3).square()
    return Target(Categorical(), loss, scores, exact_truth(loss, Categorical(), scores))


def by_quadrature(gap: float, slope: Callable[[float], float]) -> float:
    """The mean of ``L'(·) y(1 − y)/τ`` with ``y = σ((g + x)/τ)`` over a logistic x, the difference of two Gumbel variables."""

    def integrand(x: float) -> float:
        y = 1 / (1 + math.exp(-(gap + x) / TEMPERATURE))
        return slope(gap + x) * y * (1 - y) / TEMPERATURE * 0.25 / math.cosh(x / 2) ** 2

    return float(quad(integrand, -40, 40, epsabs=1e-11, points=[-gap], limit=200)[0])


KNOWN = [
    (GumbelSoftmax(TEMPERATURE), lambda noisy: 2 * (1 / (1 + math.exp(-noisy / TEMPERATURE)) - 0.3)),
    (StraightThroughGumbel(TEMPERATURE), lambda noisy: 2 * (float(noisy > 0) - 0.3)),
]


@pytest.mark.parametrize("gap", [0.0, 0.8])
@pytest.mark.parametrize(("estimator", "slope"), KNOWN, ids=["gumbel_softmax", "st_gumbel"])
def test_known_means(estimator: Any, slope: Callable[[float], float], gap: float) -> None:
    found = sobol_moments(estimator, two_classes(gap), points=1024, key=("known",))
    means, expected = found.means[:, 0], by_quadrature(gap, slope)
    error = float(means.std()) / math.sqrt(len(means))
    assert float(means.mean()) == pytest.approx(expected, abs=4 * error)
    assert error < 0.6 * math.sqrt(float(found.trace.mean()) / 2 / (32 * 1024))


def test_the_trace_is_that_of_one_estimate() -> None:
    """Exactly known by replay, and not that of the means, which is far smaller."""
    target = target_of("categorical")
    found = sobol_moments(Reinforce(), target, points=512)
    exact = replay(Reinforce(), target, 1)
    assert float(found.trace.mean()) == pytest.approx(float(exact.trace), rel=1e-3)
    assert float(found.means.var(0).sum()) < 0.1 * float(exact.trace) / 512
    torch.testing.assert_close(found.means.mean(0), exact.error + exact.gradient, rtol=0, atol=3e-3)
    assert float(found.nonzero.mean()) == pytest.approx(float(exact.nonzero))
    assert found.zero.tolist() == [0.0] * 32
    assert (found.means.shape, found.trace.shape, found.points) == ((32, 6), (32,), 512)


def test_the_trace_has_no_bias_of_its_own() -> None:
    """Of two points, where the plain spread within a scramble would be off by much."""
    target = target_of("categorical")
    found = sobol_moments(Reinforce(), target, points=2, scrambles=500)
    error = float(found.trace.std()) / math.sqrt(500)
    assert float(found.trace.mean()) == pytest.approx(float(replay(Reinforce(), target, 1).trace), abs=4 * error)


def test_intervals_cover() -> None:
    """t over scrambles, at few points and kinks: 95 % nominal."""
    truth = by_quadrature(0.8, KNOWN[1][1])
    found = [sobol_moments(KNOWN[1][0], two_classes(0.8), points=32, scrambles=8, key=(str(i),)).means[:, 0] for i in range(80)]
    hits = [abs(float(means.mean()) - truth) <= stats.t.ppf(0.975, 7) * float(means.std()) / math.sqrt(8) for means in found]
    assert 0.87 <= sum(hits) / len(hits) <= 0.99


def test_scrambles_depend_on_the_key_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(key: str, scrambles: int = 3) -> ScrambleMeans:
        return sobol_moments(GumbelSoftmax(), target_of("categorical"), points=64, scrambles=scrambles, key=(key,))

    first = run("a")
    assert torch.equal(run("a").means, first.means)
    assert torch.equal(run("a", 5).means[:3], first.means)
    assert not torch.allclose(run("b").means, first.means)
    assert len(first.means.unique(dim=0)) == 3
    monkeypatch.setattr(quadrature, "LAUNCH", 24)
    torch.testing.assert_close(run("a").means, first.means, rtol=1e-13, atol=1e-14)


def test_every_draw_is_served_coordinates_of_its_own() -> None:
    cube, cpu = torch.rand(5, 6, dtype=torch.float64), torch.device("cpu")
    points = ServedPoints(cube)
    drawn = [random_uniform((5,), (2,), generator=points, device=cpu), random_uniform((5, 2), (2,), generator=points, device=cpu)]
    assert torch.equal(torch.cat([part.flatten(1) for part in drawn], 1), cube)
    drawn[0].zero_()
    assert bool((cube > 0).all())


def test_messages() -> None:
    target = target_of("categorical")
    for points, scrambles in ((100, 32), (1, 32), (64, 1)):
        with pytest.raises(ValueError, match=f"got points={points}, scrambles={scrambles}; expected a power of two and at least 2"):
            sobol_moments(Reinforce(), target, points=points, scrambles=scrambles)
    with pytest.raises(ValueError, match="got rloo, which draws 21 uniforms per estimate; expected 1 to 20 of them: choose tier='mc'"):
        sobol_moments(LeaveOneOut(21), target)
    with pytest.raises(ValueError, match="got ste, which draws 0 uniforms"):
        sobol_moments(StraightThrough(), target)
    with pytest.raises(ValueError, match="got reinforce, which draws in another way than by `random_uniform`"):
        sobol_moments(Drawing(how=lambda generator: torch.rand(4, generator=generator)), target)
    points = ServedPoints(torch.zeros(5, 3, dtype=torch.float64))
    points.uniforms(5, 2, torch.device("cpu"))
    with pytest.raises(ValueError, match="draw of 2 uniforms for each of 5 rows after 2; expected 5 rows and 3 uniforms in all"):
        points.uniforms(5, 2, torch.device("cpu"))
