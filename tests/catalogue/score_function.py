"""Formulas of the score-function family."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.catalogue.setting import Formula, Setting
from tests.helpers import enumerate_truth, structures


def exact(s: Setting) -> Tensor:
    values = s.loss(structures(s.case))
    probabilities = enumerate_truth(s.case, s.scores).probabilities[0]
    centred = probabilities * (values - probabilities @ values)
    return torch.einsum("s,s...->...", centred, structures(s.case))


def reinforce(s: Setting, baseline: float | Tensor = 0.0) -> Tensor:
    samples = s.samples(s.estimator.num_samples)
    return s.score_function(samples, s.loss(samples) - baseline)


def rloo(s: Setting) -> Tensor:
    n = s.estimator.num_samples
    samples = s.samples(n)
    values = s.loss(samples)
    others = torch.stack([(values.sum() - value) / (n - 1) for value in values])
    return s.score_function(samples, values - others)


FORMULAS: dict[str, Formula] = {
    "exact": exact,
    "reinforce": reinforce,
    "reinforce_constant": lambda s: reinforce(s, s.estimator.value),
    "reinforce_running_mean": lambda s: reinforce(s, s.estimator.mean),
    "reinforce_greedy": lambda s: reinforce(s, s.loss(s.best(s.scores))),
    "rloo": rloo,
}
