"""Faults as users write them: functions of plain PyTorch for categories, one mistake each."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Estimate = Callable[[Any, Any, Tensor, torch.Generator], Tensor]


def probabilities(scores: Tensor) -> Tensor:
    return torch.softmax(scores, -1)


def one_hot(index: Tensor, scores: Tensor) -> Tensor:
    return torch.nn.functional.one_hot(index, scores.shape[-1]).to(scores)


def draw(chances: Tensor, count: int, generator: torch.Generator, *, replacement: bool = True) -> Tensor:
    """``[count, *batch, K]``."""
    drawn = torch.multinomial(chances.reshape(-1, chances.shape[-1]), count, replacement=replacement, generator=generator)
    return one_hot(drawn.T.reshape(count, *chances.shape[:-1]), chances)


def gumbel(scores: Tensor, generator: torch.Generator) -> Tensor:
    return -torch.log(-torch.log(torch.rand(scores.shape, generator=generator, dtype=scores.dtype)))


def derivative(function: Callable[[Tensor], Tensor], scores: Tensor) -> Tensor:
    leaf = scores.detach().clone().requires_grad_()
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(function(leaf).sum(), leaf)
    return gradient


def score_function(change: Callable[[Tensor], Tensor], count: int = 4) -> Estimate:
    """REINFORCE with log-probabilities by autograd, whose losses are changed to advantages."""

    def estimate(loss: Any, oracle: Any, scores: Tensor, generator: torch.Generator) -> Tensor:
        z = oracle.sample(scores, count, generator=generator)
        advantages = change(loss(z).detach())
        return derivative(lambda theta: (advantages * oracle.log_prob(z, theta)).mean(0), scores)

    return estimate


def by_autograd(value: Callable[..., Tensor], count: int = 2) -> Estimate:
    """The derivative of a value of the loss, samples, the oracle and scores."""

    def estimate(loss: Any, oracle: Any, scores: Tensor, generator: torch.Generator) -> Tensor:
        z = oracle.sample(scores, count, generator=generator)
        return derivative(lambda theta: value(loss, z, oracle, theta), scores)

    return estimate


def by_hand(rule: Callable[[Any, Tensor, Tensor], Tensor], count: int = 2) -> Estimate:
    """A function of the loss, samples and scores of these."""

    def estimate(loss: Any, oracle: Any, scores: Tensor, generator: torch.Generator) -> Tensor:
        z = oracle.sample(scores, count, generator=generator)
        return rule(loss, z, z - probabilities(scores))

    return estimate


def best_two(weights: Callable[[Tensor], Tensor]) -> Estimate:
    """The two best structures, with weights of their log-probabilities."""

    def estimate(loss: Any, oracle: Any, scores: Tensor, generator: torch.Generator) -> Tensor:
        z = oracle.kbest(scores, 2)
        return derivative(lambda theta: (weights(oracle.log_prob(z, theta.expand(z.shape))) * loss(z).detach()).sum(0), scores)

    return estimate


def leave_one_out(losses: Tensor) -> Tensor:
    return losses - (losses.sum(0) - losses) / (len(losses) - 1)


def weighted(proposal: Callable[[Tensor], Tensor], change: Callable[[Tensor], Tensor]) -> Estimate:
    """Importance weights p/q of samples of a proposal, which are changed."""

    def estimate(loss: Any, oracle: Any, scores: Tensor, generator: torch.Generator) -> Tensor:
        p, q = probabilities(scores), proposal(scores)
        z = draw(q, 4, generator)
        weights = change((z * p).sum(-1) / (z * q).sum(-1))
        return ((weights * loss(z)).unsqueeze(-1) * (z - p)).mean(0)

    return estimate


def uniform(scores: Tensor) -> Tensor:
    return torch.full_like(scores, 1 / scores.shape[-1])


def fitted_baseline(loss: Any, oracle: Any, scores: Tensor, generator: torch.Generator) -> Tensor:
    """A ridge regression on the losses of the batch itself."""
    z = oracle.sample(scores, 12, generator=generator)
    losses = loss(z).detach()
    x = z.flatten(z.ndim - oracle.event_ndim).movedim(0, -2)
    inverse = torch.linalg.inv(x.mT @ x + 0.1 * torch.eye(x.shape[-1]).to(x))
    fit = (x @ inverse @ x.mT @ losses.movedim(0, -1).unsqueeze(-1)).squeeze(-1).movedim(-1, 0)
    return derivative(lambda theta: ((losses - fit) * oracle.log_prob(z, theta)).mean(0), scores)


def least_squares(loss: Any, oracle: Any, scores: Tensor, generator: torch.Generator) -> Tensor:
    """Scores are linear in the features of the baseline, so that only rounding is left."""
    z = oracle.sample(scores, 12, generator=generator)
    losses = loss(z).detach()
    x = z.flatten(z.ndim - oracle.event_ndim).movedim(0, -2)
    fit = (x @ torch.linalg.pinv(x) @ losses.movedim(0, -1).unsqueeze(-1)).squeeze(-1).movedim(-1, 0)
    return derivative(lambda theta: ((losses - fit) * oracle.log_prob(z, theta)).mean(0), scores)


def noise_twice(loss: Any, oracle: Any, scores: Tensor, generator: torch.Generator) -> Tensor:
    noise = gumbel(scores, generator)
    z = torch.stack([one_hot((scores + noise).argmax(-1), scores) for _ in range(2)])
    first, baseline = loss(z)
    return (first - baseline).unsqueeze(-1) * (z[0] - probabilities(scores))


def loss_detached(loss: Any, oracle: Any, scores: Tensor, generator: torch.Generator) -> Tensor:
    noise = gumbel(scores, generator)
    return derivative(lambda theta: loss((theta + noise).softmax(-1)).detach() + 0 * theta.sum(-1), scores)


def hard_without_detach(loss: Any, oracle: Any, scores: Tensor, generator: torch.Generator) -> Tensor:
    noise = gumbel(scores, generator)

    def value(theta: Tensor) -> Tensor:
        soft = (theta + noise).softmax(-1)
        return loss(one_hot(soft.argmax(-1), scores) + soft - soft)

    return derivative(value, scores)


def without_replacement(loss: Any, oracle: Any, scores: Tensor, generator: torch.Generator) -> Tensor:
    z = draw(probabilities(scores), min(2, scores.shape[-1]), generator, replacement=False)
    return (loss(z).unsqueeze(-1) * (z - probabilities(scores))).mean(0)


def frozen(loss: Any, oracle: Any, scores: Tensor, generator: torch.Generator) -> Tensor:
    return score_function(leave_one_out)(loss, oracle, scores, torch.Generator().manual_seed(0))


def reinforce(direction: Any, change: Any = leave_one_out, count: int = 4) -> Estimate:
    """Losses times a direction of samples and probabilities."""

    def estimate(loss: Any, oracle: Any, scores: Tensor, generator: torch.Generator) -> Tensor:
        z, p = oracle.sample(scores, count, generator=generator), probabilities(scores)
        return (change(loss(z)).unsqueeze(-1) * direction(z, p, scores)).mean(0)

    return estimate


def with_term(term: Any) -> Estimate:
    """Leave-one-out with a further term."""
    plain = score_function(leave_one_out)
    return lambda loss, oracle, scores, generator: plain(loss, oracle, scores, generator) + term(scores, oracle)


def clamped_score(z: Tensor, p: Tensor, scores: Tensor) -> Tensor:
    leaf = scores.expand(z.shape).clone().requires_grad_()
    with torch.enable_grad():
        (found,) = torch.autograd.grad((z * leaf.softmax(-1).clamp(min=0.2).log()).sum(), leaf)
    return found


def sum_and_sample(loss: Any, oracle: Any, scores: Tensor, generator: torch.Generator) -> Tensor:
    p = probabilities(scores)
    top = one_hot(p.argmax(-1), scores)
    rest = (p * (1 - top)) / (p * (1 - top)).sum(-1, keepdim=True).clamp(min=1e-30)
    z = draw(rest.nan_to_num(0).clamp(min=1e-30), 1, generator)[0]
    return ((p * top).sum(-1) * loss(top)).unsqueeze(-1) * (top - p) + loss(z).unsqueeze(-1) * (z - p)


def loss_at_the_best(loss: Any, oracle: Any, scores: Tensor, generator: torch.Generator) -> Tensor:
    z, best = oracle.sample(scores, 1, generator=generator)[0], oracle.argmax(scores)
    return loss(best).unsqueeze(-1) * (z - probabilities(scores))


def two_calls(loss: Any, oracle: Any, scores: Tensor, generator: torch.Generator, correction: float = 1.0) -> Tensor:
    """The baseline includes the sample itself, by a second call."""
    z = oracle.sample(scores, 4, generator=generator)
    return derivative(
        lambda theta: ((loss(z) - loss(z.detach()).mean(0)).detach() * correction * oracle.log_prob(z, theta)).mean(0), scores
    )


def expanded_rows(loss: Any, oracle: Any, scores: Tensor, generator: torch.Generator, correction: float = 1.0) -> Tensor:
    """The baseline includes the sample itself; rows are repeated by hand."""
    rows = scores.expand(4, *scores.shape)
    z = oracle.sample(rows, generator=generator)
    losses = loss(z)
    return derivative(lambda theta: ((losses - losses.mean(0)).detach() * correction * oracle.log_prob(z, theta)).mean(0), scores)


def gumbel_expected(loss: Any, oracle: Any, scores: Tensor, generator: torch.Generator) -> Tensor:
    noise = gumbel(scores, generator)
    return derivative(lambda theta: loss(((theta + noise) / 0.5).softmax(-1)), scores)


FAULTS: dict[str, Estimate] = {
    "importance weights missing": weighted(uniform, torch.ones_like),
    "importance weights clipped": weighted(uniform, lambda w: w.clamp(max=2)),
    "self-normalised weights": weighted(uniform, lambda w: len(w) * w / w.sum(0)),
    "fitted baseline": fitted_baseline,
    "baseline of least squares": least_squares,
    "noise used twice": noise_twice,
    "a beam of its own mass": best_two(lambda log_p: log_p.softmax(0)),
    "score of another sample": by_autograd(lambda loss, z, oracle, theta: loss(z[0]).detach() * oracle.log_prob(z[1], theta)),
    "advantages clipped": score_function(lambda losses: leave_one_out(losses).clamp(-0.3, 0.3)),
    "advantages clipped below": score_function(lambda losses: leave_one_out(losses).clamp(min=-0.3)),
    "advantages standardised": score_function(lambda losses: (losses - losses.mean(0)) / (losses.std(0) + 0.001)),
    "baseline not detached": by_autograd(
        lambda loss, z, oracle, theta: (loss(z[0]).detach() - loss(oracle.marginals(theta))) * oracle.log_prob(z[0], theta), 1
    ),
    "probability for its logarithm": by_autograd(
        lambda loss, z, oracle, theta: (oracle.log_prob(z, theta).exp() * loss(z).detach()).mean(0)
    ),
    "a part of the sum": best_two(torch.exp),
    "ranks": score_function(lambda losses: losses.argsort(0).argsort(0).to(losses)),
    "loss detached": loss_detached,
    "divided by N − 1": score_function(lambda losses: leave_one_out(losses) * 4 / 3),
    "gradient at the marginals": by_autograd(lambda loss, z, oracle, theta: loss(oracle.marginals(theta))),
    "straight-through without detach": hard_without_detach,
    "without replacement": without_replacement,
    "first sample left out": by_autograd(
        lambda loss, z, oracle, theta: (leave_one_out(loss(z).detach()) * oracle.log_prob(z, theta))[1:].sum(0) / 4, 4
    ),
    "another temperature": by_autograd(lambda loss, z, oracle, theta: (loss(z).detach() * oracle.log_prob(z, theta / 2)).mean(0)),
    "half precision": score_function(lambda losses: leave_one_out(losses.half()).double()),
    "mean over the batch": score_function(lambda losses: leave_one_out(losses) / max(1, losses[0].numel())),
    "inverted ratio": weighted(uniform, lambda w: 1 / w),
    "entropy bonus": with_term(
        lambda scores, oracle: 0.1 * derivative(lambda theta: (theta.softmax(-1) * theta.log_softmax(-1)).sum(-1), scores)
    ),
    "clamped probabilities": reinforce(clamped_score),
    "loss of the mean": by_hand(lambda loss, z, s: loss(z.mean(0)).unsqueeze(-1) * s.mean(0)),
    "squared losses": score_function(lambda losses: leave_one_out(losses**2)),
    "remainder without its weight": sum_and_sample,
    "samples at another temperature": weighted(lambda scores: probabilities(scores / 2), torch.ones_like),
    "control variate not returned": by_hand(
        lambda loss, z, s: ((loss(z) - z @ torch.linspace(-1, 1, z.shape[-1]).to(z)).unsqueeze(-1) * s).mean(0)
    ),
    "advantages of the next sample": score_function(lambda losses: leave_one_out(losses).roll(1, 0)),
    "product of means": by_hand(lambda loss, z, s: loss(z).mean(0).unsqueeze(-1) * s.mean(0), 3),
    "mean over the parts": reinforce(lambda z, p, scores: (z - p) / z.shape[-1]),
    "weight decay": with_term(lambda scores, oracle: 0.1 * scores),
    "logarithms of losses": score_function(lambda losses: leave_one_out((1 + losses.abs()).log())),
    "loss at the best structure": loss_at_the_best,
    "half of the own sample": score_function(lambda losses: losses - 0.5 * losses.mean(0)),
    "pairs without a half": by_hand(lambda loss, z, s: loss(z).diff(dim=0)[0].neg().unsqueeze(-1) * (z[0] - z[1])),
    "rounded advantages": score_function(lambda losses: leave_one_out(losses).round(decimals=0)),
    "unit scores": reinforce(lambda z, p, s: (z - p) / (z - p).norm(dim=-1, keepdim=True)),
    "centred by 1/K": reinforce(lambda z, p, s: z - 1 / z.shape[-1], lambda losses: losses),
    "weights to the power of a half": weighted(uniform, lambda w: w.sqrt()),
    "ratio doubled": weighted(uniform, lambda w: w**2),
    "own sample, by two calls": two_calls,
    "own sample, rows repeated": expanded_rows,
    "a relaxed sample": gumbel_expected,
}
"""Faults by name."""
