"""Formulas of control variates from a Taylor expansion, sample by sample."""

from collections.abc import Callable
from functools import partial

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


def rodeo(s: Setting) -> Tensor:
    """With every neighbour of every sample, weighed by the probability that the operator moves there."""
    samples, mean, count = s.samples(s.estimator.num_samples), s.marginals(), s.estimator.num_samples
    parts = s.case.event[-1]

    def surrogate(i: int, z: Tensor) -> Tensor:
        return torch.stack([(s.gamma(samples[j]) * (z - mean)).sum() for j in range(count) if j != i]).mean()

    def operator(f: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
        total = torch.zeros_like(f(z))
        for c in range(mean.numel() // parts):
            for m in range(parts):
                moved = z.clone().reshape(-1, parts)
                moved[c] = torch.eye(parts, dtype=z.dtype)[m]
                total += mean.reshape(-1, parts)[c, m] * (f(moved.reshape(z.shape)) - f(z))
        return total

    estimate = torch.zeros_like(mean)
    signals = [s.loss(z) + s.estimator.alpha * operator(partial(surrogate, j), z) for j, z in enumerate(samples)]
    for i, z in enumerate(samples):
        baseline = torch.stack([signals[j] for j in range(count) if j != i]).mean()
        control = operator(lambda y, i=i: surrogate(i, y) * (y - mean), z)
        estimate += ((s.loss(z) - baseline) * (z - mean) + s.estimator.beta * control) / count
    return estimate


FORMULAS: dict[str, Formula] = {"muprop": muprop, "double_cv": double_control, "rodeo": rodeo}
