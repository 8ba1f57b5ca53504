"""Formulas of control variates from a Taylor expansion, sample by sample."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.catalogue.setting import Formula, Setting


def muprop(s: Setting) -> Tensor:
    mean = s.marginals()
    gamma, estimates = s.gamma(mean), []
    for z in s.samples(s.estimator.num_samples):
        expansion = s.loss(mean) + (gamma * (z - mean)).sum()
        estimates.append((s.loss(z) - expansion) * (z - mean) + s.pushed(s.scores, gamma))
    return torch.stack(estimates).mean(0)


def double_control(s: Setting) -> Tensor:
    """With the baseline of every sample written as the mean over the others."""
    samples, mean, alpha = s.samples(s.estimator.num_samples), s.marginals(), s.estimator.alpha
    gammas, count = [s.gamma(z) for z in samples], s.estimator.num_samples

    def signal(i: int) -> Tensor:
        others = torch.stack([gammas[j] for j in range(count) if j != i]).mean(0)
        return s.loss(samples[i]) + alpha * (others * (samples[i] - mean)).sum()

    estimate = -alpha * s.pushed(s.scores, torch.stack(gammas).mean(0))
    for i in range(count):
        baseline = torch.stack([signal(j) for j in range(count) if j != i]).mean()
        estimate += (signal(i) - baseline) * (samples[i] - mean) / count
    return estimate


FORMULAS: dict[str, Formula] = {"muprop": muprop, "double_cv": double_control}
