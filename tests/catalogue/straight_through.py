"""Formulas of straight-through, perturbation and surrogate-projection estimators."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from structgrad.estimators import Gumbel, Normal
from tests.catalogue.setting import Formula, Setting, along_the_face, nearest
from tests.helpers import enumerate_truth, read_parts


def perturb_and_map(s: Setting) -> Tensor:
    return s.gamma(s.best(s.scores + s.noise(s.estimator.noise)))


def relaxed_at_noise(s: Setting, noise: Tensor, temperature: float = 1.0) -> Tensor:
    perturbed = s.scores + noise
    return s.pushed(perturbed / temperature, s.gamma(s.best(perturbed))) / temperature


def decoupled(s: Setting) -> Tensor:
    noise, forward, backward = s.noise(Gumbel()), s.estimator.forward_temperature, s.estimator.backward_temperature
    return s.pushed(s.scores / backward + noise, s.gamma(s.best(s.scores / forward + noise))) / backward


def tempered(s: Setting, point: Tensor) -> Tensor:
    return s.pushed(s.scores / s.estimator.temperature, s.gamma(point)) / s.estimator.temperature


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


def perturbations(s: Setting, source: Any, count: int) -> Tensor:
    """[count, *event], drawn as an estimator of several samples draws them."""
    zeros: Tensor = torch.zeros(count, *s.case.event, dtype=torch.float64)
    drawn: Tensor = source.perturb(s.case.oracle, zeros, generator=s.generator)
    return drawn


def inner_step(s: Setting, point: Tensor) -> Tensor:
    """The projection of a step of descent from a point."""
    step = s.estimator.step_size * torch.where(s.free, s.gamma(point), 0)
    return nearest(s.case, torch.where(s.free | ~read_parts(s.case), point - step, -math.inf))


def descent(s: Setting, start: Tensor) -> Tensor:
    point = start
    for _ in range(s.estimator.inner_steps):
        point = inner_step(s, point)
    return start - point


def exponentiated_descent(s: Setting) -> Tensor:
    moved = s.scores
    for _ in range(s.estimator.inner_steps):
        moved = moved - s.estimator.step_size * s.gamma(enumerate_truth(s.case, moved).marginals[0])
    return s.marginals() - enumerate_truth(s.case, moved).marginals[0]


def blackbox(s: Setting) -> Tensor:
    best = s.best(s.scores)
    return (best - s.best(s.scores - s.estimator.lambda_ * s.gamma(best))) / s.estimator.lambda_


def through_normalisation(s: Setting, scores: Tensor) -> Tensor:
    """γ times the Jacobian of the projection, written out as a matrix over the free parts."""
    gamma, theta = s.gamma(s.best(scores))[s.free], scores[s.free]
    n = len(theta)
    jacobian = torch.eye(n, dtype=torch.float64)
    if s.estimator.centre:
        jacobian = jacobian - 1 / n
        theta = theta - theta.mean()
    if s.estimator.normalise:
        unit = theta / theta.norm()
        jacobian = (torch.eye(n, dtype=torch.float64) - torch.outer(unit, unit)) @ jacobian / theta.norm()
    if s.estimator.centre and n == 1:
        jacobian = torch.zeros(1, 1, dtype=torch.float64)
    result = torch.zeros(s.case.event, dtype=torch.float64)
    result[s.free] = jacobian.mT @ gamma
    return result


def stochastic_softmax(s: Setting) -> Tensor:
    utilities = (s.scores + s.noise(s.estimator.noise)) / s.estimator.temperature
    return s.pushed(utilities, s.gamma(enumerate_truth(s.case, utilities).marginals[0])) / s.estimator.temperature


def stochastic_sparsemap(s: Setting) -> Tensor:
    utilities = (s.scores + s.noise(s.estimator.noise)) / s.estimator.temperature
    return along_the_face(s.case, utilities, s.gamma(nearest(s.case, utilities))) / s.estimator.temperature


def mean_of_perturbed(s: Setting, perturbed: Tensor, score: Tensor) -> Tensor:
    """(1/M) Σ ⟨z_m − b_m, γ(y)⟩ s_m with y the mean of the z_m."""
    found = torch.stack([s.best(scores) for scores in perturbed])
    gamma = torch.where(s.free, s.gamma(found.mean(0)), 0)
    total = torch.zeros(s.case.event, dtype=torch.float64)
    for m, z in enumerate(found):
        others = torch.cat([found[:m], found[m + 1 :]])
        baseline = {"none": 0 * z, "argmax": s.best(s.scores), "leave_one_out": others.mean(0)}[s.estimator.control_variate]
        total = total + ((z - baseline) * gamma).sum() * score[m] / len(found)
    return total


def perturbed_optimizer(s: Setting) -> Tensor:
    noise, source, sigma = perturbations(s, s.estimator.noise, s.estimator.num_samples), s.estimator.noise, s.estimator.sigma
    score = noise / source.scale**2 if source.name == "normal" else (1 - (-noise / source.scale).exp()) / source.scale
    return mean_of_perturbed(s, s.scores + sigma * noise, score / sigma)


def perturbed_multiplicative(s: Setting) -> Tensor:
    noise, sigma = perturbations(s, Normal(), s.estimator.num_samples), s.estimator.sigma
    return mean_of_perturbed(s, s.scores * (sigma * noise - sigma**2 / 2).exp(), noise / (sigma * s.scores))


def relaxed_subset(s: Setting, leaf: Tensor) -> Tensor:
    """k softmaxes, the logarithms of what they leave over written as they are; over the free parts, of which there are k."""
    x, total = (leaf + s.noise(Gumbel()))[s.free], torch.zeros_like(leaf[s.free])
    for _ in range(s.case.oracle.k):
        a = (x / s.estimator.temperature).exp() / (x / s.estimator.temperature).exp().sum()
        total = total + a
        rest = [(torch.cat([x[:i], x[i + 1 :]]) / s.estimator.temperature).exp().sum() for i in range(len(x))]
        x = x + torch.stack(rest).log() - (x / s.estimator.temperature).exp().sum().log()
    return torch.zeros_like(leaf).masked_scatter(s.free, total)


def relaxed_walk(s: Setting, leaf: Tensor) -> Tensor:
    """The relaxed walk from the root of derivations down, with a Gumbel variable for every edge of a table, level by level."""
    tables = s.case.oracle._tables_for(leaf.unsqueeze(0))
    scores = torch.nn.functional.pad(s.case.oracle.natural_parameters(leaf.unsqueeze(0)).flatten(), (0, 1)).unbind()
    values, steps = [leaf.new_zeros(()), *[leaf.new_tensor(-math.inf)] * (tables.root + 1)], []
    for level in tables.levels:
        second = torch.zeros_like(level.first) if level.second is None else level.second
        edges = torch.stack([level.first, second, level.parts.expand_as(level.first)], -1).tolist()
        for node, below, gumbel in zip(range(level.heads.start, level.heads.stop), edges, gumbels(s, *level.first.shape), strict=True):
            joint = torch.stack([values[first] + values[other] + scores[part] for first, other, part in below])
            steps.append((node, below, choice(s, joint, gumbel)))
            values[node] = joint.logsumexp(0) if bool((joint > -math.inf).any()) else joint.detach().amax(0)
    reached, expected = {tables.root: leaf.new_ones(())}, [leaf.new_zeros(())] * len(scores)
    for node, below, shares in reversed(steps):
        for (first, other, part), share in zip(below, shares * reached.get(node, 0), strict=True):
            reached[first], expected[part] = reached.get(first, 0) + share, expected[part] + share
            reached[other] = reached.get(other, 0) + share
    return torch.stack(expected[:-1]).reshape(s.case.event)


def choice(s: Setting, log_weights: Tensor, gumbel: Tensor) -> Tensor:
    """Gumbel-softmax of a vector, straight-through where the estimator is."""
    allowed = log_weights > -math.inf
    if not bool(allowed.any()):
        return torch.zeros_like(log_weights)
    noisy = torch.where(allowed, log_weights, -1e6) + torch.where(allowed, gumbel, 0)
    soft = torch.where(allowed, (noisy / s.estimator.temperature).softmax(0), 0)
    if s.estimator.name == "gumbel_crf":
        return soft
    hard = torch.nn.functional.one_hot(noisy.argmax(), len(noisy)).double()
    return hard - soft.detach() + soft


def gumbels(s: Setting, *size: int) -> Tensor:
    return -(-torch.rand(*size, generator=s.generator, dtype=torch.float64).log()).log()


def through_the_relaxation(s: Setting, relaxed: Callable[[Setting, Tensor], Tensor], at: Tensor | None = None) -> Tensor:
    """γ, at the relaxed structure or another point, through the derivative of the relaxed structure."""
    leaf = s.scores.clone().requires_grad_()
    point = relaxed(s, leaf)
    (result,) = torch.autograd.grad(point, leaf, s.gamma(point.detach() if at is None else at), materialize_grads=True)
    return result


def straight_through_top_k(s: Setting) -> Tensor:
    state = s.generator.get_state()
    best = s.best(s.scores + s.noise(Gumbel()))
    s.generator.set_state(state)
    return through_the_relaxation(s, relaxed_subset, best)


def aimle(s: Setting) -> Tensor:
    estimates = []
    for noise in perturbations(s, s.estimator.noise, s.estimator.num_samples):
        z = s.best(s.scores + noise)
        gamma = torch.where(s.free, s.gamma(z), 0)
        step = s.estimator.beta * s.scores[s.free].norm() / gamma.norm()
        below, above = (s.best(s.scores + sign * step * gamma + noise) for sign in (-1, 1))
        difference = (above - below) / 2 if s.estimator.symmetric else z - below
        estimates.append(difference / (step if s.estimator.divide_by_lambda else 1))
    return torch.stack(estimates).mean(0)


FORMULAS: dict[str, Formula] = {
    "ste": lambda s: s.gamma(s.best(s.scores)),
    "ste_marginals": lambda s: tempered(s, s.best(s.scores)),
    "ste_sample": lambda s: s.gamma(s.samples(None)),
    "simple": lambda s: tempered(s, s.samples(None)),
    "decoupled_st_gumbel": decoupled,
    "st_gumbel": lambda s: relaxed_at_noise(s, s.noise(Gumbel()), s.estimator.temperature),
    "perturb_and_map": perturb_and_map,
    "perturb_and_parse": lambda s: relaxed_at_noise(s, s.noise(s.estimator.noise), s.estimator.temperature),
    "identity": lambda s: through_normalisation(s, s.scores),
    "identity_perturbed": lambda s: through_normalisation(s, s.scores + s.noise(s.estimator.noise)),
    "stochastic_softmax": stochastic_softmax,
    "stochastic_sparsemap": stochastic_sparsemap,
    "perturbed_optimizer": perturbed_optimizer,
    "perturbed_multiplicative": perturbed_multiplicative,
    "relaxed_top_k": lambda s: through_the_relaxation(s, relaxed_subset),
    "relaxed_top_k_st": straight_through_top_k,
    "gumbel_crf": lambda s: through_the_relaxation(s, relaxed_walk),
    "gumbel_crf_st": lambda s: through_the_relaxation(s, relaxed_walk),
    "spigot": spigot,
    "spigot_steps": lambda s: descent(s, s.best(s.scores)),
    "spigot_ce": lambda s: descent(s, s.marginals()),
    "spigot_eg": exponentiated_descent,
    "blackbox": blackbox,
    "imle": imle,
    "aimle": aimle,
}
