"""Discrete Stein operators on structures, by their exact laws: ``python -m structgrad.suites.studies.field.field_neighbours``.

RODEO (Shi et al. 2022) controls leave-one-out by functions ``A f(z) = Σ_y r(z, y) (f(y) − f(z))`` of a chain from structure to structure
that keeps p, so that their mean is 0. Of bits the chain flips one; of structures it goes to a *neighbour*, and which rates keep p is a
question that published code does not answer. Here every pair of samples is enumerated, the mean of every control is computed, and the
variance at the best sizes of both controls, which no tuning undercuts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ....oracles.capabilities import EnumerableOracle, MarginalOracle
from ...problems.named import load
from ..markdown import table

PROBLEMS = (
    "categories[n=3,t=4]@squared_distance",
    "subset[n=8,k=3]@squared_distance",
    "linear_chain[n=4,t=3]@squared_distance",
    "spanning_tree[n=4]@squared_distance",
    "constituency[n=6]@squared_distance",
    "assignment[n=4]@squared_distance",
)
STAGES = ("h=0.95", "h=0.5", "h=0.1")


def neighbours(oracle: EnumerableOracle, structures: Tensor) -> Tensor:
    """Boolean [Z, Z], symmetric: which structures [Z, *event] are one move apart.

    A move exchanges one part (a member, a head, a span); of tags it changes one, and of a permutation it swaps two neighbouring rows.

    Example:
        >>> from structgrad.oracles import Subset
        >>> neighbours(Subset(1), torch.eye(3)).int()
        tensor([[0, 1, 1],
                [1, 0, 1],
                [1, 1, 0]], dtype=torch.int32)
    """
    flat = structures.flatten(1).double()
    if oracle.name == "linear_chain":
        tags = oracle.indices(structures)
        return (tags.unsqueeze(1) != tags).sum(-1) == 1
    if oracle.name == "assignment":
        columns = oracle.indices(structures)
        moved = columns.unsqueeze(1) != columns
        return (moved.sum(-1) == 2) & (moved[..., 1:] & moved[..., :-1]).any(-1)
    return torch.cdist(flat, flat, p=1).round() == 2


def barker(p: Tensor, near: Tensor) -> Tensor:
    """To a neighbour at the rate ``p(y) / (p(y) + p(z))``, which keeps p whatever number of neighbours there are."""
    return torch.where(near, p / (p + p.unsqueeze(1)), 0)


def hastings(p: Tensor, near: Tensor) -> Tensor:
    """Propose one of the neighbours, and accept by Metropolis & Hastings: proposals of y from z and of z from y are weighed."""
    degree = near.sum(1).double()
    ratio = p * degree.unsqueeze(1) / (p.unsqueeze(1) * degree)
    return torch.where(near, ratio.clamp(max=1) / degree.unsqueeze(1), 0)


def metropolis(p: Tensor, near: Tensor) -> Tensor:
    """Propose one of the neighbours, and accept by probabilities alone: keeps p only where all have as many neighbours."""
    return torch.where(near, (p / p.unsqueeze(1)).clamp(max=1) / near.sum(1).unsqueeze(1), 0)


def refresh(p: Tensor, near: Tensor) -> Tensor:
    """To any structure by p: the operator without neighbours, which has a closed form by marginals and their covariance."""
    return p.expand(len(p), -1)


RATES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Barker": barker,
    "Metropolis–Hastings": hastings,
    "Metropolis, degrees left out": metropolis,
    "all structures": refresh,
}


class SteinLaw(NamedTuple):
    """What the controls of one operator do.

    Attributes:
        mean: the largest mean of a part of a control over that of the part's absolute value; 0 where p is kept.
        ratio: variance over that of leave-one-out, at the best sizes of both controls.
        degrees: the least and greatest number of neighbours.
    """

    mean: float
    ratio: float
    degrees: tuple[int, int]


def law(structures: Tensor, p: Tensor, losses: Tensor, slopes: Tensor, rates: Tensor) -> SteinLaw:
    """The exact law of leave-one-out by two samples with both controls of an operator.

    Args:
        structures: [Z, d].
        p: [Z], their probabilities.
        losses: [Z].
        slopes: [Z, d], the gradients of the loss there, each of which makes a control for the *other* sample.
        rates: [Z, Z], from a structure to another one.
    """
    score = structures - p @ structures
    linear = slopes @ score.T  # [a, z]: h of sample a at z

    def applied(values: Tensor) -> Tensor:  # [..., z]
        return values @ rates.T - values * rates.sum(1)

    base = applied(linear)
    moved = applied((linear.unsqueeze(1) * score.T).flatten(0, 1)).unflatten(0, (len(p), -1)).mT  # [a, z, d]
    pair = (p.unsqueeze(1) * p).unsqueeze(-1)
    difference = (losses.unsqueeze(1) - losses).unsqueeze(-1) * (score.unsqueeze(1) - score) / 2
    # What is subtracted from the loss of one sample is seen by the other one's score.
    first = -(base.unsqueeze(-1) * score.unsqueeze(1) + base.T.unsqueeze(-1) * score) / 2
    second = (moved + moved.transpose(0, 1)) / 2
    means = [float(((pair * each).sum((0, 1)).abs() / (pair * each.abs()).sum((0, 1)).clamp(min=1e-300)).max()) for each in (first, second)]
    centred = [(each - (pair * each).sum((0, 1))) * pair.sqrt() for each in (difference, first, second)]
    moments = torch.stack([torch.stack([(one * other).sum() for other in centred]) for one in centred])
    gain = moments[0, 1:] @ torch.linalg.lstsq(moments[1:, 1:], moments[1:, :1], driver="gelsd").solution.squeeze(-1)
    degrees = (rates > 0).sum(1)
    return SteinLaw(max(means), float(1 - gain / moments[0, 0]), (int(degrees.min()), int(degrees.max())))


def laws(name: str, stage: str) -> dict[str, SteinLaw]:
    """Those of all operators on the first instance of a problem."""
    problem = load(name, stage, instances=1, data=None)
    instance, oracle = problem.instances[0], problem.oracle
    assert isinstance(oracle, EnumerableOracle)
    assert isinstance(oracle, MarginalOracle)
    event = tuple(instance.scores.shape)
    structures = oracle.enumerate(event).double()
    p = oracle.log_prob(structures, instance.scores).exp()
    free = structures.clone().requires_grad_()
    losses = instance.loss(free)
    (slopes,) = torch.autograd.grad(losses.sum(), free)
    near = neighbours(oracle, structures)
    seen = structures.flatten(1), p / p.sum(), losses.detach(), slopes.flatten(1)
    return {text: law(*seen, rates(seen[1], near)) for text, rates in RATES.items()}


def rows() -> list[dict[str, Any]]:
    """One line for each problem and operator: neighbours, the means, and variances in all states."""
    lines = []
    for name in PROBLEMS:
        found = [laws(name, stage) for stage in STAGES]
        for text in RATES:
            own = [each[text] for each in found]
            least, most = own[0].degrees
            lines.append(
                {
                    "problem": f"`{name.partition('@')[0]}`",
                    "operator": text,
                    "neighbours": f"{least}" if least == most else f"{least} to {most}",
                    "mean of a control, at most": f"{max(each.mean for each in own):.1g}",
                    "variance over leave-one-out": " / ".join(f"{each.ratio:.2g}" for each in own),
                }
            )
    return lines


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.stdout.write(table(rows()) + "\n")
