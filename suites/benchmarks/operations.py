"""Every operation that an oracle may offer, as one call on prepared inputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

MAX_NUMBERS = 2**26  # the most numbers of one tensor; larger cases are left out to save memory

MAX_RANK = 2**62
MAX_PERMUTATION = 8  # beyond it a sum over permutations takes minutes

MAX_LISTED = 4096


@dataclass(frozen=True)
class Inputs:
    """Scores [batch, *event], other scores, best structures, a generator, and a solution for the scores of the step before."""

    scores: Tensor
    others: Tensor
    structures: Tensor
    generator: torch.Generator
    before: Any = None


Operation = Callable[[Any, Inputs], Tensor]


def backward(function: Callable[[Tensor], Tensor], scores: Tensor) -> Tensor:
    """The gradient of the sum of squares of a function."""
    leaf = scores.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(function(leaf).square().sum(), leaf)
    return gradient


OPERATIONS: dict[str, Operation] = {  # by name: the name of the method with a suffix for the kind of call
    "argmax": lambda oracle, given: oracle.argmax(given.scores),
    "score": lambda oracle, given: oracle.score(given.structures, given.scores),
    "log_partition": lambda oracle, given: oracle.log_partition(given.scores),
    "marginals": lambda oracle, given: oracle.marginals(given.scores),
    "marginals_backward": lambda oracle, given: backward(oracle.marginals, given.scores),
    "log_prob": lambda oracle, given: oracle.log_prob(given.structures, given.scores),
    "entropy": lambda oracle, given: oracle.entropy(given.scores),
    "kl": lambda oracle, given: oracle.kl(given.scores, given.others),
    "sample": lambda oracle, given: oracle.sample(given.scores, generator=given.generator),
    "sample_64": lambda oracle, given: oracle.sample(given.scores, 64, generator=given.generator),
    "project": lambda oracle, given: oracle.project(given.scores).mean,
    "project_warm": lambda oracle, given: oracle.project(given.scores, start=given.before).mean,
    "project_backward": lambda oracle, given: backward(lambda leaf: oracle.project(leaf).mean, given.scores),
    "sample_distinct_8": lambda oracle, given: oracle.sample_distinct(given.scores, 8, generator=given.generator).log_probs,
    "kbest_8": lambda oracle, given: oracle.kbest(given.scores, 8),
    "enumerate": lambda oracle, given: oracle.enumerate(event := given.scores.shape[1:], 0, min(oracle.count(event), MAX_LISTED)),
    "rank": lambda oracle, given: oracle.rank(given.structures),
    "relax": lambda oracle, given: oracle.relax(given.scores, "l2"),
    "relaxed_value": lambda oracle, given: oracle.relaxed_value(given.scores, "l2"),
    "relaxed_sample": lambda oracle, given: oracle.relaxed_sample(given.scores, generator=given.generator),
    "step_log_probs": lambda oracle, given: oracle.step_log_probs(given.scores),
}

SUMS = frozenset(
    {"log_partition", "marginals", "marginals_backward", "log_prob", "entropy", "kl", "sample", "sample_64", "sample_distinct_8"}
)


def method_of(operation: str) -> str:
    """``sample_64`` → ``sample``."""
    return operation.removesuffix("_backward").removesuffix("_warm").removesuffix("_64").removesuffix("_8")


def left_out(operation: str, oracle: Any, event: tuple[int, ...], batch: int) -> str | None:
    """The reason that an operation is not measured; None if it is."""
    if not hasattr(oracle, method_of(operation)):
        return f"the oracle {oracle.name} has no {method_of(operation)}"
    if oracle.name == "assignment" and event[0] > MAX_PERMUTATION and operation in SUMS:
        return "sums over so many permutations are out of reach"
    if operation in ("enumerate", "rank") and oracle.count(event) > MAX_RANK:
        return "more structures than there are ranks"
    if batch * math.prod(event) * (64 if operation == "sample_64" else 1) > MAX_NUMBERS:
        return "too large for memory"
    return None
