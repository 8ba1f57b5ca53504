"""Facts of an instance in a result table, beside its name."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ...oracles.capabilities import MarginalOracle, Oracle
from ..base import Instance


@dataclass(frozen=True)
class InstanceFacts:
    """How large and how peaked an instance is, and what its loss is like.

    Attributes:
        log_count: log of the number of structures.
        entropy: of the Gibbs law, in nats. ``normalised_entropy``: the same / log_count, 1 for the uniform law and 0 for one structure.
        min_marginal: the least probability of a part that is not forbidden. Parts far rarer than one in the number of replicates do not
            occur in a sample, and a test on their variance misleads.
        vertex_degree, extension, offset: of the loss.
    """

    log_count: float
    entropy: float | None
    normalised_entropy: float | None
    min_marginal: float | None
    vertex_degree: int | None
    extension: str
    offset: float


def instance_facts(oracle: Oracle, instance: Instance) -> InstanceFacts:
    """The facts of one instance, at any size; those of the Gibbs law are None where the oracle has none.

    Example:
        >>> from structgrad.suites.problems import load
        >>> problem = load("subset_regimes", "h=0.4", instances=1, data=None)
        >>> facts = instance_facts(problem.oracle, problem.instances[0])
        >>> round(facts.normalised_entropy, 6), round(facts.log_count, 3), facts.vertex_degree, facts.extension, facts.offset
        (0.4, 5.394, None, 'formula', 0.0)
    """
    scores, loss = instance.scores, instance.loss
    log_count = math.log(oracle.count(tuple(scores.shape)))
    entropy: float | None = None
    least: float | None = None
    if isinstance(oracle, MarginalOracle) and oracle.sums_in_reach(tuple(scores.shape)):
        entropy, least = _law(oracle, scores)
    share = entropy / log_count if entropy is not None and log_count > 0 else None
    return InstanceFacts(log_count, entropy, share, least, loss.vertex_degree, loss.extension, loss.offset)


def _law(oracle: MarginalOracle, scores: torch.Tensor) -> tuple[float, float]:
    marginals = oracle.marginals(scores)[oracle.free_parts(scores)]
    return float(oracle.entropy(scores)), float(marginals.min())
