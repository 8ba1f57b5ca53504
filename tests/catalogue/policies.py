"""Formulas of policies, decision by decision, from the probabilities of an enumeration."""

import dataclasses
import math
from collections.abc import Callable

import torch
from torch import Tensor

from structgrad.estimators import Gumbel
from tests.catalogue.setting import Formula, Setting
from tests.helpers import structures

Part = tuple[int, ...]


def chance(s: Setting, part: Part) -> float:
    """π(a|s): how likely the structures with this part are among those that pass its state."""
    space = structures(s.case)
    return float((s.law * space[(slice(None), *part)]).sum() / (s.law * space[(slice(None), *part[:-1])].sum(-1)).sum())


def action_score(s: Setting, part: Part) -> Tensor:
    """∇ log π(a|s): ``E[z | part] − E[z | state]`` for scores that are natural parameters, ``e_a − π`` for those of a policy."""
    if s.case.potentials is None:
        space = structures(s.case)
        return mean_given(s, space[(slice(None), *part)] > 0, space) - mean_given(s, space[(slice(None), *part[:-1])].sum(-1) > 0, space)
    score = torch.zeros(s.case.event, dtype=torch.float64)
    score[part] = 1
    for action in range(s.case.event[-1]):
        score[(*part[:-1], action)] -= chance(s, (*part[:-1], action))
    return score


def mean_given(s: Setting, which: Tensor, values: Tensor) -> Tensor:
    """E[values | which]."""
    weights = torch.where(which, s.law, 0)
    return torch.einsum("s,s...->...", weights / weights.sum(), values)


def walk(s: Setting, z: Tensor) -> list[Part]:
    """The parts of a structure in the order of its decisions."""
    parts: list[Part] = [tuple(part) for part in z.nonzero().tolist()]
    return sorted(parts, key=lambda part: 2 * part[0] - part[1])


def begins_like(s: Setting, z: Tensor, step: int) -> Tensor:
    """Boolean [s]: the structures whose first decisions are those of z."""
    first = walk(s, z)[:step]
    return torch.tensor([walk(s, other)[:step] == first for other in structures(s.case)])


Baseline = Callable[[Setting, Tensor, int, int], Tensor | float]
"""b_t, from the samples, the place of one among them, and how many decisions it has taken."""


def by_steps(baseline: Baseline) -> Formula:
    """(1/N) Σ_i Σ_t (L(z_i) − b_t) ∇ log π(a_t|s_t)."""
    return lambda s: weighted(s, s.samples(s.estimator.num_samples), baseline)


def weighted(s: Setting, samples: Tensor, baseline: Baseline) -> Tensor:
    total = torch.zeros(s.case.event, dtype=torch.float64)
    for i, z in enumerate(samples):
        for step, part in enumerate(walk(s, z)):
            total += (s.loss(z) - baseline(s, samples, i, step)) * action_score(s, part)
    return total / len(samples)


def greedy(s: Setting, samples: Tensor, i: int, step: int) -> Tensor:
    """The most likely structure with this prefix, the first of several."""
    best = structures(s.case)[torch.where(begins_like(s, samples[i], step), s.law, -1).argmax()]
    return s.loss(best)


def conditional_mean(s: Setting, samples: Tensor, i: int, step: int) -> Tensor:
    return mean_given(s, begins_like(s, samples[i], step), s.loss(structures(s.case)))


def optimal(s: Setting, samples: Tensor, i: int, step: int) -> Tensor | float:
    """The squared norm of e_a − π(·|s) weighs the loss of every structure."""
    which, space = begins_like(s, samples[i], step), structures(s.case)
    norms = torch.zeros(len(space), dtype=torch.float64)
    for index in (which & (s.law > 0)).nonzero().flatten().tolist():
        part = walk(s, space[index])[step]
        norms[index] = sum((float(a == part[-1]) - chance(s, (*part[:-1], a))) ** 2 for a in range(s.case.event[-1]))
    mean = mean_given(s, which, norms)
    return mean_given(s, which, norms * s.loss(space)) / mean if mean > 0 else 0.0


def leave_one_out(s: Setting, samples: Tensor, i: int, step: int) -> Tensor:
    """The others at the same state; all others where there is none."""
    others = [z for j, z in enumerate(samples) if j != i]
    state = walk(s, samples[i])[step][:-1]
    visitors = [z for z in others if bool(z[state].any())]
    return s.loss(torch.stack(visitors or others)).mean()


def sampled(s: Setting) -> Tensor:
    """Completions are drawn in one call after the samples, sample by sample and prefix by prefix."""
    samples = s.samples(s.estimator.num_samples)
    prefixes = [[forced(s, walk(s, z)[:step]) for step in range(len(walk(s, z)))] for z in samples]
    losses = s.loss(s.case.oracle.sample(torch.stack([torch.stack(each) for each in prefixes]), generator=s.generator))
    return weighted(s, samples, lambda _, __, i, step: losses[i, step])


def forced(s: Setting, parts: list[Part]) -> Tensor:
    """The scores without the other actions of these states."""
    scores = s.scores.clone()
    for part in parts:
        kept = scores[part].clone()
        scores[part[:-1]] = -math.inf
        scores[part] = kept
    return scores


def local_expectation(s: Setting) -> Tensor:
    """``Σ_a ∇π(a|s) Q(a) = Σ_a π(a|s) Q(a) ∇ log π(a|s)``; completions are drawn in one call after the samples, prefix by prefix."""
    samples, total = s.samples(s.estimator.num_samples), torch.zeros(s.case.event, dtype=torch.float64)
    last, forks = max(len(walk(s, z)) for z in structures(s.case)), []
    for z in samples:
        own = walk(s, z)
        for step in range(last):
            taken = own[: step + 1]
            if step < len(own) and chance(s, other := (*own[step][:-1], 1 - own[step][-1])) > 0:
                taken = [*own[:step], other]
            forks.append(forced(s, taken))
    completed = s.case.oracle.sample(torch.stack(forks).reshape(len(samples), last, *s.case.event), generator=s.generator)
    for z, completions in zip(samples, completed, strict=True):
        for step, part in enumerate(walk(s, z)):
            other = (*part[:-1], 1 - part[-1])
            total += chance(s, part) * s.loss(z) * action_score(s, part)
            if chance(s, other) > 0:
                total += chance(s, other) * s.loss(completions[step]) * action_score(s, other)
    return total / len(samples)


def ppo(s: Setting) -> Tensor:
    """The mean of the clipped gradients on the way; an action that went too far adds nothing."""
    options, here, gradients = s.estimator, s, []
    samples = s.samples(options.num_samples)
    for _ in range(options.inner_steps):
        total = torch.zeros(s.case.event, dtype=torch.float64)
        for z in samples:
            excess = s.loss(z) - options.value
            for part in walk(s, z):
                ratio = chance(here, part) / chance(s, part)
                stopped = ratio < 1 - options.clip if excess > 0 else ratio > 1 + options.clip
                total += 0 if stopped else ratio * excess * action_score(here, part)
        gradients.append(total / len(samples))
        here = dataclasses.replace(s, scores=here.scores - options.step_size * gradients[-1])
    return torch.stack(gradients).mean(0)


def relaxed(s: Setting, z: Tensor, noisy: Callable[[Part, int], float]) -> Tensor:
    """Σ over visited states of J_τ γ, carried to the scores by ∇ log π; ``noisy`` gives the logit of an action, and the winner's."""
    gamma, temperature = s.gamma(z), s.estimator.temperature
    total = torch.zeros(s.case.event, dtype=torch.float64)
    for part in walk(s, z):
        possible = [a for a in range(s.case.event[-1]) if chance(s, (*part[:-1], a)) > 0]
        y = torch.tensor([noisy(part, a) / temperature for a in possible], dtype=torch.float64).softmax(0)
        here = gamma[part[:-1]][possible]
        rates = y * (here - y @ here) / temperature
        for rate, action in zip(rates, possible, strict=True):
            total += rate * action_score(s, (*part[:-1], action))
    return total


def step_ste(s: Setting) -> Tensor:
    return relaxed(s, s.samples(None), lambda part, action: math.log(chance(s, (*part[:-1], action))))


def step_st_gumbel(s: Setting) -> Tensor:
    """Exponential variables: the winner's is the time of its arrival, and the others arrive later."""
    z = s.samples(None)
    times = (-s.noise(Gumbel())).exp()

    def noisy(part: Part, action: int) -> float:
        first, place = float(times[part]), (*part[:-1], action)
        return -math.log(first if action == part[-1] else first + float(times[place]) / chance(s, place))

    return relaxed(s, z, noisy)


FORMULAS: dict[str, Formula] = {
    "step_reinforce": by_steps(lambda s, *_: s.estimator.value),
    "step_greedy": by_steps(greedy),
    "step_sampled": sampled,
    "step_conditional_mean": by_steps(conditional_mean),
    "step_optimal": by_steps(optimal),
    "step_learned": by_steps(lambda *_: 0.0),
    "step_local_expectation": local_expectation,
    "step_leave_one_out": by_steps(leave_one_out),
    "step_ppo": ppo,
    "step_ste": step_ste,
    "step_st_gumbel": step_st_gumbel,
}
