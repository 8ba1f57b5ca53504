"""Small solved instances for the tests of the measuring core."""

from dataclasses import dataclass

import torch
from torch import Tensor

from structgrad.estimators import Loss, Reinforce
from structgrad.estimators.surrogates import with_gradient
from structgrad.oracles import Categorical, LinearChain, Subset
from structgrad.oracles.capabilities import SamplingOracle
from structgrad.suites.problems.losses import LowRankQuadratic
from structgrad.suites.truth import Target, exact_truth

ORACLES = {"categorical": (Categorical(), (6,)), "subset": (Subset(2), (6,)), "linear_chain": (LinearChain(), (3, 3, 3))}


def scores_of(name: str, scale: float = 1.0, seed: int = 0) -> Tensor:
    shape = ORACLES[name][1]
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def quadratic(name: str, offset: float = 0.0) -> Loss:
    event = ORACLES[name][1]
    matrix = torch.randn(4, *event, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    loss = LowRankQuadratic(matrix, torch.zeros(event, dtype=torch.float64))
    return lambda z: loss(z) + offset


def target_of(name: str, scale: float = 1.0, offset: float = 0.0) -> Target:
    oracle, _ = ORACLES[name]
    scores, loss = scores_of(name, scale), quadratic(name, offset)
    return Target(oracle, loss, scores, exact_truth(loss, oracle, scores))


@dataclass(frozen=True)
class ScaledReinforce(Reinforce):
    """REINFORCE whose gradient is off by a factor: the error that a cosine cannot see."""

    factor: float = 0.98

    def surrogate(self, loss: Loss, oracle: SamplingOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        estimate = Reinforce(self.num_samples).gradient(loss, oracle, scores, generator=generator)
        batch = scores.shape[: scores.ndim - oracle.event_ndim]
        return with_gradient(scores.new_zeros(batch), scores, self.factor * estimate)
