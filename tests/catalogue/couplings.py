"""Formulas of antithetic samples: walks down trees of sets of parts, and opposite uniforms."""

import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from structgrad.estimators.score_function import Opposite, Recorded
from tests.catalogue.categories import one_hot
from tests.catalogue.setting import Formula, Setting

Node = tuple[list[int], list[int]]
"""The parts to the left and to the right."""


def sticks(p: list[float]) -> list[Node]:
    """One part against all that are likelier."""
    order = sorted(range(len(p)), key=lambda c: p[c])
    return [(order[k + 1 :], [order[k]]) for k in range(len(p) - 1)]


def halves(p: list[float]) -> list[Node]:
    """Level by level."""
    nodes, level = [], [list(range(len(p)))]
    while level:
        split = [(parts[: len(parts) // 2], parts[len(parts) // 2 :]) for parts in level if len(parts) > 1]
        nodes += split
        level = [side for node in split for side in node]
    return nodes


def walk(nodes: list[Node], goes_right: Callable[[int], bool], parts: int) -> tuple[int, set[int]]:
    """The part at the end, and the nodes on the way."""
    left_over, on_the_way = set(range(parts)), set()
    while len(left_over) > 1:
        k = next(k for k, (left, right) in enumerate(nodes) if {*left, *right} == left_over)
        on_the_way.add(k)
        left_over = set(nodes[k][int(goes_right(k))])
    return left_over.pop(), on_the_way


def probabilities(s: Setting) -> list[list[float]]:
    return [row.softmax(-1).tolist() for row in s.scores.reshape(-1, s.case.event[-1])]


def chance(p: list[float], node: Node) -> float:
    left, right = (sum(p[c] for c in side) for side in node)
    return right / (left + right) if left + right > 0 else 0.5


def disarm(tree: Callable[[list[float]], list[Node]], *, integrated: bool = True) -> Formula:
    """With the uniforms integrated out given the pair, or as they are, for bits."""

    def formula(s: Setting) -> Tensor:
        laws, parts = probabilities(s), s.case.event[-1]
        uniforms = torch.rand(s.estimator.num_pairs, len(laws), parts - 1, generator=s.generator, dtype=torch.float64).tolist()
        total = torch.zeros(len(laws), parts, dtype=torch.float64)
        trees = [tree(p) for p in laws]
        for pair in uniforms:
            ends = [
                [
                    walk(
                        nodes,
                        lambda k, u=u, p=p, nodes=nodes, up=up: (u[k] > 1 - chance(p, nodes[k])) if up else u[k] < chance(p, nodes[k]),
                        parts,
                    )
                    for u, p, nodes in zip(pair, laws, trees, strict=True)
                ]
                for up in (True, False)
            ]
            first, second = ([part for part, _ in one] for one in ends)
            half = float(s.loss(one_hot(s, first)) - s.loss(one_hot(s, second))) / 2
            for i, (p, nodes) in enumerate(zip(laws, trees, strict=True)):
                for k, (left, right) in enumerate(nodes):
                    sigma, (a, b) = chance(p, (left, right)), ((first[i] in right), (second[i] in right))
                    if not 0 < sigma < 1:
                        continue
                    on_a, on_b = k in ends[0][i][1], k in ends[1][i][1]
                    weight = (a - b) * max(sigma, 1 - sigma) if on_a and on_b else on_a * (a - sigma) - on_b * (b - sigma)
                    weight = weight if integrated else 2 * pair[i][k] - 1
                    for side, sign in ((right, 1), (left, -1)):
                        for c in side:
                            total[i, c] += half * weight * sign * p[c] / sum(p[other] for other in side) / len(uniforms)
        return total.reshape(s.case.event)

    return formula


def carms(s: Setting) -> Tensor:
    """With the joint law of two samples stick by stick, until the first breaks, and on with the other alone."""
    laws, parts, count = probabilities(s), s.case.event[-1], s.estimator.num_samples
    drawn = torch.rand(count, len(laws), parts - 1, generator=s.generator, dtype=torch.float64)
    exponentials = -drawn.log()
    uniforms = ((1 - exponentials / exponentials.sum(0)) ** (count - 1)).tolist()
    trees = [sticks(p) for p in laws]
    samples = [
        [
            walk(nodes, lambda k, u=u, p=p, nodes=nodes: u[k] < chance(p, nodes[k]), parts)[0]
            for u, p, nodes in zip(one, laws, trees, strict=True)
        ]
        for one in uniforms
    ]
    losses, total = [float(s.loss(one_hot(s, one))) for one in samples], torch.zeros(len(laws), parts, dtype=torch.float64)

    def joint(p: list[float], nodes: list[Node], a: int, b: int) -> float:
        sigmas = [chance(p, node) for node in nodes]
        m, n = sorted((place(nodes, a), place(nodes, b)))
        both = [max(0.0, 2 * sigma ** (1 / (count - 1)) - 1) ** (count - 1) for sigma in sigmas]
        together = math.prod(1 - 2 * sigmas[k] + both[k] for k in range(m)) * (sigmas[m] - both[m])
        return together * math.prod(1 - sigmas[k] for k in range(m + 1, n)) * (sigmas[n] if n < len(sigmas) else 1)

    for j, k in itertools.permutations(range(count), 2):
        for i, (p, nodes) in enumerate(zip(laws, trees, strict=True)):
            a, b = samples[j][i], samples[k][i]
            if a != b:
                weight = p[a] * p[b] / joint(p, nodes, a, b) * (losses[j] - losses[k])
                total[i, a] += weight / (2 * count * (count - 1))
                total[i, b] -= weight / (2 * count * (count - 1))
    return total.reshape(s.case.event)


def place(nodes: list[Node], part: int) -> int:
    """Which stick is the part's own."""
    return next((k for k, (_, right) in enumerate(nodes) if part in right), len(nodes))


def antithetic_pairs(s: Setting) -> Tensor:
    pairs, drawn = s.estimator.num_pairs, Recorded(s.generator)
    first = s.case.oracle.sample(s.scores, pairs, generator=drawn)
    second = s.case.oracle.sample(s.scores, pairs, generator=Opposite(drawn))
    means = [(s.loss(a) + s.loss(b)) / 2 for a, b in zip(first, second, strict=True)]
    estimate = torch.zeros(s.case.event, dtype=torch.float64)
    for p in range(pairs):
        others = [means[q] for q in range(pairs) if q != p]
        baseline = sum(others) / len(others) if others else 0.0
        for z in (first[p], second[p]):
            estimate += (s.loss(z) - baseline) * (z - s.marginals()) / (2 * pairs)
    return estimate


FORMULAS: dict[str, Formula] = {
    "arm": disarm(halves, integrated=False),
    "disarm": disarm(halves),
    "disarm_sb": disarm(sticks),
    "disarm_tree": disarm(halves),
    "carms": carms,
    "antithetic_pairs": antithetic_pairs,
}
