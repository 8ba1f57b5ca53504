"""Formulas of estimators for independent categories, category by category and part by part."""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from structgrad.estimators import Gumbel
from tests.catalogue.setting import Formula, Setting


def per_category(s: Setting, values: Callable[[np.ndarray, int], np.ndarray]) -> Tensor:
    """``values(scores of the free parts, number of the category)``, 0 at forbidden parts."""
    rows = s.scores.reshape(-1, s.case.event[-1])
    result = torch.zeros_like(rows)
    for i, row in enumerate(rows):
        free = row > -math.inf
        result[i, free] = torch.from_numpy(values(row[free].numpy(), i))
    return result.reshape(s.case.event)


def softmax(x: np.ndarray) -> np.ndarray:
    weights = np.exp(x - x.max())
    return weights / weights.sum()


def jacobian(y: np.ndarray) -> np.ndarray:
    return np.diag(y) - np.outer(y, y)


def draws(s: Setting, count: int) -> Tensor:
    """Gumbel noise ``[count, *event]``, drawn as the estimators draw it."""
    zeros = torch.zeros(count, *s.case.event, dtype=torch.float64)
    return Gumbel().perturb(s.case.oracle, zeros, generator=s.generator)


def at(s: Setting, tensor: Tensor, i: int) -> np.ndarray:
    """The free parts of one category."""
    free = s.scores.reshape(-1, s.case.event[-1])[i] > -math.inf
    return tensor.reshape(-1, s.case.event[-1])[i, free].numpy()


def race(p: np.ndarray, z: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """``log p + G`` given its argmax, from exponentials: the authors' formula."""
    exponentials = np.exp(-noise)
    least = (exponentials * z).sum()
    return np.where(z > 0, -np.log(least), -np.log(exponentials / p + least))


def one_hot(s: Setting, chosen: list[int]) -> Tensor:
    return torch.nn.functional.one_hot(torch.tensor(chosen), s.case.event[-1]).double().reshape(s.case.event)


def arsm(s: Setting) -> Tensor:
    """Every exchange anew, the one of a part with itself too."""
    parts, scores = s.case.event[-1], s.scores.reshape(-1, s.case.event[-1]).numpy()
    exponentials = np.exp(-draws(s, 1)[0].reshape(-1, parts).numpy())
    pi = exponentials / exponentials.sum(-1, keepdims=True)

    def value(c: int, j: int) -> float:
        order = list(range(parts))
        order[c], order[j] = j, c
        with np.errstate(over="ignore"):
            winners = (pi[:, order] * np.exp(-scores)).argmin(-1)
        return float(s.loss(one_hot(s, winners.tolist())))

    values = np.array([[value(c, j) for j in range(parts)] for c in range(parts)])
    excess = values - values.mean(0)
    estimate = (1 - parts * pi) @ excess.T / parts
    choice = (scores > -math.inf).sum(-1, keepdims=True) > 1
    return torch.from_numpy(np.where(choice, estimate, 0)).reshape(s.case.event)


def local_expectation(s: Setting) -> Tensor:
    """Category by category: the mean score of its own choice under its law, the others as they were drawn."""
    samples, result = s.samples(s.estimator.num_samples), torch.zeros_like(s.scores.reshape(-1, s.case.event[-1]))
    for z in samples:
        chosen = z.reshape(result.shape).argmax(-1).tolist()
        for i, row in enumerate(s.scores.reshape(result.shape)):
            p = row.softmax(-1)
            for part in (row > -math.inf).nonzero().flatten().tolist():
                value = s.loss(one_hot(s, [*chosen[:i], part, *chosen[i + 1 :]]))
                score = torch.eye(len(p), dtype=p.dtype)[part] - p
                result[i] += p[part] * value * score / len(samples)
    return result.reshape(s.case.event)


def rebar(s: Setting) -> Tensor:
    """With the Jacobians of both races written out."""
    b, noise = s.samples(None), draws(s, 2)
    eta, tau = s.estimator.eta, s.estimator.temperature
    probabilities = per_category(s, lambda x, i: softmax(x))

    def relaxed(which: int) -> Tensor:
        return per_category(s, lambda x, i: softmax(race(softmax(x), at(s, b, i), at(s, noise[which], i)) / tau))

    y, conditional = relaxed(0), relaxed(1)
    gamma, conditional_gamma = s.gamma(y), s.gamma(conditional)

    def pathwise(x: np.ndarray, i: int) -> np.ndarray:
        p, z, exponentials = softmax(x), at(s, b, i), np.exp(-at(s, noise[1], i))
        slope = np.where(z > 0, 0, (exponentials / p) / (exponentials / p + (exponentials * z).sum()))
        through = np.diag(slope) @ (np.eye(len(p)) - np.outer(np.ones(len(p)), p))
        held = jacobian(at(s, y, i)) @ at(s, gamma, i) / tau
        return held - through.T @ jacobian(at(s, conditional, i)) @ at(s, conditional_gamma, i) / tau

    weight = float(s.loss(b) - eta * s.loss(conditional))
    return weight * (b - probabilities) + eta * per_category(s, pathwise)


def gumbel_softmax(s: Setting) -> Tensor:
    noise, tau = draws(s, 1)[0], s.estimator.temperature
    y = per_category(s, lambda x, i: softmax((x + at(s, noise, i)) / tau))
    gamma = s.gamma(y)
    return per_category(s, lambda x, i: jacobian(at(s, y, i)) @ at(s, gamma, i) / tau)


def rao(s: Setting, x: np.ndarray, i: int, z: Tensor, noise: Tensor) -> np.ndarray:
    """The mean Jacobian of races that z won, at probabilities x."""
    tau = s.estimator.temperature
    races = [softmax(race(x, at(s, z, i), at(s, one, i)) / tau) for one in noise]
    return np.mean([jacobian(y) for y in races], axis=0) / tau


def gumbel_rao(s: Setting) -> Tensor:
    z = s.samples(None)
    noise, gamma = draws(s, s.estimator.num_conditionals), s.gamma(z)
    return per_category(s, lambda x, i: rao(s, softmax(x), i, z, noise) @ at(s, gamma, i))


def gst(s: Setting) -> Tensor:
    z, tau = s.samples(None), s.estimator.temperature
    gamma = s.gamma(z)

    def moved(x: np.ndarray, i: int) -> np.ndarray:
        won, p = at(s, z, i) > 0, softmax(x)
        with np.errstate(divide="ignore"):
            gap = -np.log1p(-p[won]) / p[won] if s.estimator.gap == "p" else s.estimator.gap
        lowered = x - np.maximum(x - x.max() + gap, 0)
        y = softmax(np.where(won, x.max(), lowered) / tau)
        return jacobian(y) @ at(s, gamma, i) / tau

    return per_category(s, moved)


def reinmax(s: Setting) -> Tensor:
    z = s.samples(None)
    gamma = s.gamma(z)

    def heun(x: np.ndarray, i: int) -> np.ndarray:
        middle = (softmax(x / s.estimator.temperature) + at(s, z, i)) / 2
        return (2 * jacobian(middle) - jacobian(softmax(x)) / 2) @ at(s, gamma, i)

    return per_category(s, heun)


def reinmax_rao(s: Setting) -> Tensor:
    z = s.samples(None)
    noise, gamma = draws(s, s.estimator.num_conditionals), s.gamma(z)

    def combined(x: np.ndarray, i: int) -> np.ndarray:
        middle = (softmax(x) + at(s, z, i)) / 2
        return (2 * rao(s, middle, i, z, noise) - jacobian(softmax(x)) / 2) @ at(s, gamma, i)

    return per_category(s, combined)


def reinmax_cv(s: Setting) -> Tensor:
    """The noise with which z won under p is its race minus the scores."""
    z, tau = s.samples(None), s.estimator.temperature
    noise, gamma = draws(s, s.estimator.num_conditionals + 1), s.gamma(z)

    def combined(x: np.ndarray, i: int) -> np.ndarray:
        p, won = softmax(x), at(s, z, i)
        middle = (p + won) / 2
        y = softmax((np.log(middle) + race(p, won, at(s, noise[0], i)) - np.log(p)) / tau)
        control = rao(s, middle, i, z, noise[1:]) - jacobian(y) / tau
        return (2 * jacobian(middle) - jacobian(p) / 2 + s.estimator.eta * control) @ at(s, gamma, i)

    return per_category(s, combined)


def path_quadrature(s: Setting) -> Tensor:
    """By numpy's rule of Gauss, and Newton-Cotes' for the others."""
    z, mean = s.samples(None), s.marginals()
    nodes, weights = np.polynomial.legendre.leggauss(2)
    places, weights = {
        "midpoint": (np.array([0.5]), np.ones(1)),
        "gauss": ((nodes + 1) / 2, weights / 2),
        "simpson": (np.array([0, 0.5, 1]), np.array([1, 4, 1]) / 6),
    }[s.estimator.rule]
    slope = torch.stack([weight * s.gamma(mean + place * (z - mean)) for place, weight in zip(places, weights, strict=True)]).sum(0)

    def share(x: np.ndarray, i: int) -> np.ndarray:
        along = at(s, z, i) - softmax(x)
        return np.outer(along, along) @ at(s, slope, i)

    return per_category(s, share)


FORMULAS: dict[str, Formula] = {
    "arsm": arsm,
    "local_expectation": local_expectation,
    "rebar": rebar,
    "relax": rebar,
    "gumbel_softmax": gumbel_softmax,
    "gumbel_rao": gumbel_rao,
    "gst": gst,
    "reinmax": reinmax,
    "reinmax_rao": reinmax_rao,
    "reinmax_cv": reinmax_cv,
    "path_quadrature": path_quadrature,
}
