"""Formulas of the score-function family."""

import itertools
import math

import torch
from torch import Tensor

from structgrad.oracles.capabilities import DistinctSamplingOracle
from tests.catalogue.setting import Formula, Setting, enumerate_scores
from tests.helpers import OracleCase, enumerate_truth, structures


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


def sampled(s: Setting) -> Tensor:
    return reinforce(s, s.loss(s.samples(None)))


def optimal(s: Setting) -> Tensor:
    pilots = s.samples(s.estimator.pilots)
    squares = torch.where(s.free, pilots - s.marginals(), 0).square()
    if not s.estimator.per_part:
        squares = squares.flatten(1).sum(1).reshape(-1, *[1] * len(s.case.event)).expand_as(squares)
    baseline = torch.einsum("s,s...->...", s.loss(pilots), squares) / squares.sum(0)
    samples = s.samples(s.estimator.num_samples)
    losses = s.loss(samples).reshape(-1, *[1] * len(s.case.event))
    return torch.where(s.free & (squares.sum(0) > 0), ((losses - baseline) * (samples - s.marginals())).mean(0), 0)


def expected(s: Setting) -> Tensor:
    return enumerate_truth(s.case, s.scores).probabilities[0] @ s.loss(structures(s.case))


def normalised(s: Setting) -> Tensor:
    state, samples = s.estimator, s.samples(s.estimator.num_samples)
    excess = s.loss(samples) - state.mean
    variance = state.decay * state.variance + (1 - state.decay) * float(excess.mean()) ** 2
    return s.score_function(samples, excess) / max(1.0, variance**0.5)


def proximal(s: Setting) -> Tensor:
    samples = s.samples(s.estimator.num_samples)
    advantages, theta, steps = s.loss(samples) - s.estimator.value, s.scores, []
    for _ in range(s.estimator.inner_steps):
        step = torch.zeros(s.case.event, dtype=torch.float64)
        mean = enumerate_truth(s.case, theta).marginals[0]
        for z, advantage in zip(samples, advantages, strict=True):
            ratio = float((probability(s.case, z, theta)) / probability(s.case, z, s.scores))
            left = (advantage > 0 and ratio < 1 - s.estimator.clip) or (advantage < 0 and ratio > 1 + s.estimator.clip)
            step += 0 if left else ratio * advantage * (z - mean) / len(samples)
        steps.append(torch.where(s.free, step, 0))
        theta = theta - s.estimator.step_size * steps[-1]
    return torch.stack(steps).mean(0)


def probability(case: OracleCase, z: Tensor, scores: Tensor) -> Tensor:
    at = (structures(case) == z).flatten(1).all(1)
    return enumerate_truth(case, scores).probabilities[0][at].squeeze()


def vargrad(s: Setting) -> Tensor:
    """The covariance of losses and structures, part by part."""
    samples = s.samples(s.estimator.num_samples)
    both = torch.cat([s.loss(samples).unsqueeze(0), samples.flatten(1).T])
    return torch.cov(both)[0, 1:].reshape(s.case.event)


def sum_and_sample(s: Setting) -> Tensor:
    order = enumerate_scores(s.case, s.scores).argsort(descending=True, stable=True)
    p, space = enumerate_truth(s.case, s.scores).probabilities[0], structures(s.case)
    best = [int(i) for i in order[: s.estimator.k] if p[i] > 0]
    q = float(p[best].sum())
    baseline = p[best] @ s.loss(space[best]) / q if s.estimator.centred else 0.0
    centred = s.loss(space) - baseline
    estimate = sum(p[i] * centred[i] * (space[i] - s.marginals()) for i in best)
    for z in without_replacement(s, s.estimator.k + 1):
        if not any(torch.equal(z, space[i]) for i in best):
            return estimate + (1 - q) * (s.loss(z) - baseline) * (z - s.marginals())
    return estimate


def without_replacement(s: Setting, count: int) -> Tensor:
    """Distinct draws by the oracle, or by a race of all structures."""
    if isinstance(s.case.oracle, DistinctSamplingOracle):
        return s.case.oracle.sample_distinct(s.scores, count, generator=s.generator).structures
    return structures(s.case)[drawn(s, count)[0]]


def race(case: OracleCase, scores: Tensor, uniforms: Tensor) -> Tensor:
    """``log p(z) − log(−log u)`` of all structures, for one row."""
    return enumerate_truth(case, scores).probabilities[0].log() - (-uniforms.log()).log()


def drawn(s: Setting, k: int) -> tuple[list[int], float]:
    """The feasible structures of the set, and the threshold."""
    values = race(s.case, s.scores, torch.rand(len(structures(s.case)), generator=s.generator, dtype=torch.float64))
    order = [i for i in values.argsort(descending=True).tolist() if values[i] > -math.inf]
    return order[:k], float(values[order[k]]) if len(order) > k else -math.inf


def in_order(p: Tensor, chosen: tuple[int, ...], before: float = 0.0) -> float:
    """The probability to draw structures in this order, after others of some mass."""
    total = 1.0
    for i in chosen:
        # What is left; nothing but these where they are the last.
        left = max(1 - before, float(p[list(chosen)].sum()) - sum(float(p[j]) for j in chosen[: chosen.index(i)]))
        total *= float(p[i]) / left
        before += float(p[i])
    return total


def as_a_set(p: Tensor, chosen: list[int], first: tuple[int, ...] = ()) -> float:
    """The probability that the draws after ``first`` are the others of the set, in any order."""
    others = [i for i in chosen if i not in first]
    before = sum(float(p[i]) for i in first)
    return sum(in_order(p, order, before) for order in itertools.permutations(others))


def unordered_set(s: Setting) -> Tensor:
    (chosen, _), p = drawn(s, s.estimator.num_samples), enumerate_truth(s.case, s.scores).probabilities[0]
    losses, space = s.loss(structures(s.case)), structures(s.case)
    estimate = torch.zeros(s.case.event, dtype=torch.float64)
    for z in chosen:
        after = as_a_set(p, chosen, (z,))
        baseline = p[z] * losses[z] + sum(p[y] * as_a_set(p, chosen, (z, y)) / after * losses[y] for y in chosen if y != z)
        ratio = after / as_a_set(p, chosen)
        estimate += p[z] * ratio * (losses[z] - (baseline if s.estimator.baseline else 0)) * (space[z] - s.marginals())
    return estimate


def importance_weighted_set(s: Setting) -> Tensor:
    (chosen, threshold), p = drawn(s, s.estimator.num_samples), enumerate_truth(s.case, s.scores).probabilities[0]
    space, losses = structures(s.case)[chosen], s.loss(structures(s.case)[chosen])
    p = p[chosen]
    w = p / (1 - (-(p.log() - threshold).exp()).exp())
    terms = w * (losses * (1 - p + w) - w @ losses)
    if s.estimator.normalised:
        terms = w / (w.sum() - w + p) * (losses - (w @ losses) / w.sum())
    if not s.estimator.baseline:
        terms = w * losses / (w.sum() if s.estimator.normalised else 1)
    return torch.einsum("s,s...->...", terms, space - s.marginals())


FORMULAS: dict[str, Formula] = {
    "exact": exact,
    "reinforce": reinforce,
    "reinforce_constant": lambda s: reinforce(s, s.estimator.value),
    "reinforce_running_mean": lambda s: reinforce(s, s.estimator.mean),
    "reinforce_greedy": lambda s: reinforce(s, s.loss(s.best(s.scores))),
    "reinforce_sampled": sampled,
    "reinforce_optimal": optimal,
    "reinforce_learned": reinforce,
    "reinforce_conditional_mean": lambda s: reinforce(s, expected(s)),
    "reinforce_normalised": normalised,
    "reinforce_ppo": proximal,
    "rloo": rloo,
    "vargrad": vargrad,
    "sum_and_sample": sum_and_sample,
    "unordered_set": unordered_set,
    "importance_weighted_set": importance_weighted_set,
}
