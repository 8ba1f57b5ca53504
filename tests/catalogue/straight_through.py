"""Formulas of straight-through, perturbation and surrogate-projection estimators."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from structgrad.estimators import Gumbel
from tests.catalogue.setting import Formula, Setting, nearest
from tests.helpers import read_parts


def perturb_and_map(s: Setting) -> Tensor:
    return s.gamma(s.best(s.scores + s.noise(s.estimator.noise)))


def relaxed_at_noise(s: Setting, noise: Tensor, temperature: float = 1.0) -> Tensor:
    perturbed = s.scores + noise
    return s.pushed(perturbed / temperature, s.gamma(s.best(perturbed))) / temperature


def spigot(s: Setting) -> Tensor:
    best = s.best(s.scores)
    gamma = torch.where(s.free, s.gamma(best), 0)
    gamma = gamma * min(1.0, s.estimator.max_norm / float(gamma.norm()))
    return best - nearest(s.case, torch.where(s.free | ~read_parts(s.case), best - s.estimator.step_size * gamma, -math.inf))


def imle(s: Setting) -> Tensor:
    zeros = torch.zeros(s.estimator.num_samples, *s.case.event, dtype=torch.float64)
    noise = s.estimator.noise.perturb(s.case.oracle, zeros, generator=s.generator)
    estimates = []
    for epsilon in noise:
        z = s.best(s.scores + epsilon)
        estimates.append(z - s.best(s.scores - s.estimator.lambda_ * s.gamma(z) + epsilon))
    return torch.stack(estimates).mean(0) / (s.estimator.lambda_ if s.estimator.divide_by_lambda else 1.0)


FORMULAS: dict[str, Formula] = {
    "ste": lambda s: s.gamma(s.best(s.scores)),
    "ste_marginals": lambda s: s.pushed(s.scores, s.gamma(s.best(s.scores))),
    "ste_sample": lambda s: s.gamma(s.samples(None)),
    "simple": lambda s: s.pushed(s.scores, s.gamma(s.samples(None))),
    "st_gumbel": lambda s: relaxed_at_noise(s, s.noise(Gumbel()), s.estimator.temperature),
    "perturb_and_map": perturb_and_map,
    "perturb_and_parse": lambda s: relaxed_at_noise(s, s.noise(s.estimator.noise)),
    "spigot": spigot,
    "imle": imle,
}
