"""Which code computes the operations of an oracle on the CPU."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import kernels
from .capabilities import (
    DistinctSamplingOracle,
    EnumerableOracle,
    KBestOracle,
    MarginalOracle,
    Oracle,
    ProjectionOracle,
    SamplingOracle,
)

OPERATIONS: dict[str, tuple[type, Callable[[Any, Tensor, torch.Generator], object]]] = {
    "argmax": (Oracle, lambda oracle, scores, _: oracle.argmax(scores)),
    "log_partition": (MarginalOracle, lambda oracle, scores, _: oracle.log_partition(scores)),
    "marginals": (MarginalOracle, lambda oracle, scores, _: oracle.marginals(scores)),
    "backward": (MarginalOracle, lambda oracle, scores, _: oracle.marginals(scores.requires_grad_()).square().sum().backward()),
    "sample": (SamplingOracle, lambda oracle, scores, generator: oracle.sample(scores, generator=generator)),
    "distinct": (DistinctSamplingOracle, lambda oracle, scores, generator: oracle.sample_distinct(scores, 2, generator=generator)),
    "kbest": (KBestOracle, lambda oracle, scores, _: oracle.kbest(scores, 2)),
    "project": (ProjectionOracle, lambda oracle, scores, _: oracle.project(scores).mean),
    "enumerate": (EnumerableOracle, lambda oracle, scores, _: oracle.enumerate(tuple(scores.shape[1:]))),
}
"""Operations by name, each with the capability that it belongs to. ``backward`` is that of marginals."""


def served(oracle: Oracle, event: tuple[int, ...]) -> dict[str, str]:
    """The code that computes each operation of an oracle for scores of such an event shape: every one is called once.

    Returns:
        ``executor`` (of derivations), ``kernel`` (compiled for this structure), or ``torch``, by operation. Operations that the oracle
        does not have are absent.

    Example:
        >>> from structgrad.oracles import Constituency
        >>> served(Constituency(), Constituency.event_shape(length=4))["log_partition"]
        'executor'
    """
    found = {}
    for name, (capability, call) in OPERATIONS.items():
        if isinstance(oracle, capability):
            scores = torch.linspace(-1, 1, 2 * math.prod(event), dtype=torch.float64).reshape(2, *event)
            with kernels.recorded() as functions:
                call(oracle, scores, torch.Generator().manual_seed(0))
            modules = {function.__module__ for function in functions if not function.__module__.endswith(".philox")}  # of uniforms
            rooms = {module.split(".")[2] for module in modules} - {"active_set"}
            found[name] = "torch" if not rooms else "executor" if rooms == {"derivations"} else "kernel"
    return found
