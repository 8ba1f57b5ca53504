"""REINFORCE, its baselines, and wrong ones that the measurement catches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from structgrad.estimators import ConstantBaseline, Estimator, GreedyBaseline, LeaveOneOut, Reinforce, RunningMeanBaseline, VarGrad
from structgrad.estimators.score_function import ScoreFunction
from structgrad.oracles import Categorical
from structgrad.suites.measures.bias import measure
from tests.estimator_cases import CASES, LOSSES, numbers, oracles, table_loss, three_classes
from tests.helpers import OracleCase, seeded

SCORES, _, GRADIENT = three_classes()


@dataclass(frozen=True)
class Wrong(ScoreFunction):
    """A score function with faulty weights; ``num_samples`` as usual."""

    num_samples: int = 2
    decay: float = 0.9
    mean: float = 0.4

    name: ClassVar[str] = "wrong"


@dataclass(frozen=True)
class MixedBeforeUse(Wrong):
    """The running mean takes the current losses in first."""

    def _weights(self, losses: Tensor) -> Tensor:
        return losses - (self.decay * self.mean + (1 - self.decay) * losses.mean(0))


@dataclass(frozen=True)
class BatchMean(Wrong):
    """The mean of all samples, own one included, is called leave-one-out."""

    def _weights(self, losses: Tensor) -> Tensor:
        return losses - losses.mean(0)


@dataclass(frozen=True)
class Shrunk(Wrong):
    """Off by 2 %."""

    def _weights(self, losses: Tensor) -> Tensor:
        return 0.98 * losses


@dataclass(frozen=True)
class WrongSign(Wrong):
    """Rewards instead of losses."""

    def _weights(self, losses: Tensor) -> Tensor:
        return -losses


@dataclass(frozen=True)
class SelfInBaseline(Wrong):
    """The own loss as its baseline, but for a constant."""

    def _weights(self, losses: Tensor) -> Tensor:
        return losses - losses / 2


@pytest.mark.parametrize(
    ("wrong", "gain"),
    [
        (MixedBeforeUse(1), 0.9),
        (MixedBeforeUse(2), 0.95),
        (MixedBeforeUse(4, decay=0.6), 0.9),
        (BatchMean(2), 1 / 2),
        (BatchMean(3), 2 / 3),
        (Shrunk(1), 0.98),
        (WrongSign(1), -1.0),
        (SelfInBaseline(1), 0.5),
    ],
    ids=str,
)
def test_a_wrong_scale_is_caught(wrong: Estimator[Any], gain: float) -> None:
    """The cosine is blind to it; at the default settings the verdict is not."""
    found = measure(wrong, Categorical(), table_loss, SCORES)
    assert found.verdict == "biased"
    assert found.metrics["gain"].value == pytest.approx(gain, abs=1e-12)
    assert abs(found.metrics["cosine"].value) == pytest.approx(1.0, abs=1e-12)  # type: ignore[arg-type]
    assert found.metrics["relative_bias"].value == pytest.approx(abs(1 - gain), abs=1e-12)


@pytest.mark.parametrize("right", [Reinforce(), RunningMeanBaseline(mean=0.4), LeaveOneOut(2), LeaveOneOut(3), GreedyBaseline()], ids=str)
def test_the_right_ones_are_not(right: Estimator[Any]) -> None:
    found = measure(right, Categorical(), table_loss, SCORES)
    assert found.verdict == "unbiased-exact"
    assert found.metrics["gain"].value == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("samples", [2, 3, 5])
@oracles
def test_leave_one_out_is_vargrad(case: OracleCase, samples: int) -> None:
    scores, loss = numbers(20, *case.event), LOSSES["smooth"](case)
    ours = LeaveOneOut(samples).gradient(loss, case.oracle, scores, generator=seeded())
    theirs = VarGrad(samples).gradient(loss, case.oracle, scores, generator=seeded())
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@oracles
def test_an_offset_of_the_loss_changes_reinforce_and_not_leave_one_out(case: OracleCase) -> None:
    scores, smooth, offset = numbers(10, *case.event), LOSSES["smooth"](case), LOSSES["offset"](case)
    for estimator, changes in ((LeaveOneOut(3), False), (GreedyBaseline(), False), (Reinforce(3), True)):
        one = estimator.gradient(smooth, case.oracle, scores, generator=seeded())
        other = estimator.gradient(offset, case.oracle, scores, generator=seeded())
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-9) != changes


@oracles
def test_a_constant_of_zero_is_reinforce(case: OracleCase) -> None:
    scores, loss = numbers(10, *case.event), LOSSES["smooth"](case)
    plain = Reinforce(2).gradient(loss, case.oracle, scores, generator=seeded())
    for estimator in (ConstantBaseline(0.0, num_samples=2), RunningMeanBaseline(0.0, num_samples=2)):
        assert torch.equal(estimator.gradient(loss, case.oracle, scores, generator=seeded()), plain)


def test_the_running_mean_moves_after_use() -> None:
    estimator, losses = RunningMeanBaseline(mean=2.0, decay=0.75), torch.tensor([1.0, 3.0, 5.0, 7.0])
    updated = estimator.observed(losses)
    assert estimator == RunningMeanBaseline(mean=2.0, decay=0.75)
    assert updated == replace(estimator, mean=0.75 * 2.0 + 0.25 * 4.0)


def test_a_surrogate_may_be_handed_over_as_it_is() -> None:
    surrogate = RunningMeanBaseline().surrogate(table_loss, Categorical(), SCORES.clone().requires_grad_(), generator=seeded())
    assert surrogate.requires_grad
    assert RunningMeanBaseline().observed(surrogate).mean == pytest.approx(0.1 * float(surrogate.detach()))


def test_the_running_mean_approaches_the_expected_loss() -> None:
    estimator, generator = RunningMeanBaseline(decay=0.99), seeded()
    for _ in range(1500):
        estimator = estimator.observed(estimator.surrogate(table_loss, Categorical(), SCORES.expand(8, 3), generator=generator))
    assert estimator.mean == pytest.approx(float(SCORES.softmax(-1) @ three_classes()[1]), abs=0.1)


def test_warming_up_starts_from_the_first_loss() -> None:
    """64 updates from a start of its own, whatever the mean was: a loss that is constant is known at once."""
    warmed = RunningMeanBaseline(mean=1e6, decay=0.9).warmed_up(lambda z: z.sum(-1) * 3, Categorical(), SCORES, generator=seeded())
    assert warmed == RunningMeanBaseline(mean=warmed.mean, decay=0.9)
    assert warmed.mean == pytest.approx(3.0)


def test_warming_up_follows_the_recursion() -> None:
    values = []

    def loss(z: Tensor) -> Tensor:
        values.append(table_loss(z))
        return values[-1]

    warmed = RunningMeanBaseline(decay=0.8).warmed_up(loss, Categorical(), SCORES, generator=seeded())
    losses = values[0].flatten().tolist()
    assert len(losses) == 64
    mean = losses[0]
    for value in losses[1:]:
        mean = 0.8 * mean + 0.2 * value
    assert warmed.mean == pytest.approx(mean)


def test_the_measurement_uses_the_warm_estimator() -> None:
    """A huge first mean would leave a huge variance."""
    cold = measure(ConstantBaseline(1e3), Categorical(), table_loss, SCORES).metrics["relative_variance"].value
    warm = measure(RunningMeanBaseline(mean=1e3), Categorical(), table_loss, SCORES).metrics["relative_variance"].value
    assert warm < 1e-3 * cold  # type: ignore[operator]


def test_the_greedy_baseline_is_the_loss_of_the_best_structure() -> None:
    case = CASES[0]
    scores, loss = numbers(1, *case.event), LOSSES["smooth"](case)
    greedy = GreedyBaseline(2).gradient(loss, case.oracle, scores, generator=seeded())
    value = float(loss(case.oracle.argmax(scores)))
    torch.testing.assert_close(greedy, ConstantBaseline(value, num_samples=2).gradient(loss, case.oracle, scores, generator=seeded()))
