"""Causes compete by their predictions at all points; the error rate of the procedure; names on the command line of an audit."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from structgrad.estimators import ImplicitMLE, LeaveOneOut
from structgrad.estimators.own import FunctionEstimator
from structgrad.suites.audit.causes import NO_NORMALISER, SIGN, Explanation, Point, explain
from structgrad.suites.audit.result import Check, confirmed, numbers, settled, subject_of

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


def changed(part: int, factor: float) -> Field:
    scale = torch.ones(4, dtype=torch.float64)
    scale[part] = factor
    return lambda gradient, numbers: scale * gradient


CASES: list[tuple[Field, dict[str, float], str, str]] = [
    (times(lambda num_samples: (num_samples - 1) / num_samples), {"num_samples": 4}, "gain 0.75 = (N − 1)/N with N = 4", ""),
    (times(lambda num_samples: (num_samples - 1) / num_samples), {"num_samples": 2}, "gain 0.5 = (N − 1)/N with N = 2", ""),
    (times(lambda num_samples: num_samples), {"num_samples": 4}, "summed, not averaged", ""),
    (times(lambda num_samples: 1 / num_samples), {"num_samples": 2}, "mean over the samples is taken twice", ""),
    (
        times(lambda decay, num_samples: 1 - (1 - decay) / num_samples),
        {"decay": 0.9, "num_samples": 2},
        "1 − (1 − decay)/N with decay = 0.9, N = 2",
        "",
    ),
    (times(lambda sigma: sigma), {"sigma": 0.3}, "gain 0.3 = sigma: the estimate is multiplied by sigma, or not divided by it", ""),
    (times(lambda **numbers: 1 / numbers["noise.scale"] ** 2), {"noise.scale": 0.3}, "1/noise.scale² with noise.scale = 0.3", ""),
    (times(lambda sigma, num_samples: sigma), {"sigma": 0.5, "num_samples": 2}, "gain 0.5 = sigma", ""),
    (times(lambda **numbers: 0.5), {"sigma": 0.5, "num_samples": 2}, "", "on every part at all 5 places"),
    (times(lambda **numbers: -0.7), {}, "", "the sign is wrong too"),
    (times(lambda **numbers: -1.0), {}, SIGN, ""),
    (changed(0, -1.0), {"sigma": 0.5}, "part (0) has the other sign, and all others are right", ""),
    (changed(3, 0.0), {"sigma": 0.5}, "part (3) has no gradient, and all others are right", ""),
    (lambda gradient, numbers: gradient.flip(0), {}, "", "the mean is wrong at all 5 places"),
    (lambda gradient, numbers: gradient + 0.3 * MARGINALS[int((gradient == GRADIENTS).all(-1).nonzero())], {}, NO_NORMALISER, ""),
]
"""The mean as a function of the gradient and of options, the values of these, and words of the cause and of the symptoms."""


@pytest.mark.parametrize("noise", [0.0, 0.002])
@pytest.mark.parametrize("case", range(len(CASES)))
def test_a_mean_is_explained_by_what_predicts_it(case: int, noise: float) -> None:
    field, numbers, cause, seen = CASES[case]
    found = explained(field, noise, **numbers)
    assert cause in found.cause
    assert seen in found.seen
    assert (bool(found.cause), bool(found.seen)) == (bool(cause), bool(seen))


def test_what_is_left_open_is_not_named() -> None:
    """A factor without another value of its option, a mean with much noise, and a place that does not fit."""
    own_sample = times(lambda num_samples: (num_samples - 1) / num_samples)
    assert explain(points(times(lambda **numbers: 0.75), num_samples=4)).cause == ""
    assert explained(own_sample, noise=0.4, num_samples=4).cause == ""
    wrong = points(own_sample, num_samples=4)
    found = explain([*wrong[:-1], replace(wrong[-1], found=0.7 * GRADIENTS[-1:])], lambda option: points(own_sample, num_samples=5))
    assert (found.cause, found.seen) == ("", "the mean is wrong at all 5 places, gain 0.7 to 0.75 (place 0)")


@pytest.mark.parametrize(("alpha", "tests"), [(0.2, 1), (0.2, 8), (0.05, 8)])
def test_false_alarms_of_the_procedure(alpha: float, tests: int) -> None:
    """Uniform p-values, screened, confirmed and corrected: the share of audits with a false alarm is below the level."""
    generator, audits = np.random.default_rng(0), 4000
    wrong = 0
    for _ in range(audits):
        p_values = [confirmed(lambda slot, times: float(generator.random()), alpha) for _ in range(tests)]
        checks, count = settled([Check("sign", "", "holds", p_value=p) for p in p_values], alpha)
        assert count == tests
        wrong += any(check.status == "violated" for check in checks)
    assert 0.2 * alpha < wrong / audits < alpha + 3 * (alpha / audits) ** 0.5


def test_exact_violations_share_no_error_rate() -> None:
    exact = Check("seeds", "", "violated", cause="a")
    weak = [Check("sign", str(number), "holds", cause="b", p_value=0.0006) for number in range(3)]
    checks, count = settled([exact, *weak], 0.001)
    assert (checks[0], count) == (exact, 3)
    assert [(check.status, check.cause) for check in checks[1:]] == [("holds", "")] * 3
    assert settled(weak[:1], 0.001)[0][0].status == "violated"


MODULE = """
from dataclasses import dataclass

from structgrad.estimators import LeaveOneOut


@dataclass(frozen=True)
class Mine(LeaveOneOut):
    decay: float = 0.9


def estimate(loss, oracle, scores, generator, factor=1.0):
    return factor * scores


def made(num_samples=3):
    return LeaveOneOut(num_samples)


READY = LeaveOneOut(5)
NUMBER = 3
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "some_estimators.py").write_text(MODULE)
    (tmp_path / "broken.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("elsewhere")
    return str(tmp_path / "some_estimators.py")


def test_registered_names_classes_functions_factories_and_objects(file: str) -> None:
    assert subject_of("imle[lambda=2.5]").estimator == ImplicitMLE(2.5)
    mine = subject_of(f"{file}:Mine[num_samples=4]")
    assert numbers(mine.estimator) == {"num_samples": 4.0, "decay": 0.9}
    assert mine.declared["evaluations"] == {"losses": 4, "marginals": 1, "samples": 4}
    assert numbers(subject_of("some_estimators:Mine").estimator)["decay"] == 0.9  # the working directory counts
    assert isinstance(subject_of(f"{file}:made").estimator, LeaveOneOut)
    assert numbers(subject_of(f"{file}:made[num_samples=7]").estimator) == {"num_samples": 7.0}
    assert numbers(subject_of(f"{file}:READY").estimator) == {"num_samples": 5.0}
    function = subject_of(f"{file}:estimate[factor=2]", objective="relaxed", unbiased=False, scale=3.0)
    assert isinstance(function.estimator, FunctionEstimator)
    assert isinstance(function.estimator.function, functools.partial)
    assert function.declared == {"objective": "relaxed", "unbiased": False, "scale": 3.0}
