"""Structure oracles: scores to argmax, log-partition, marginals, samples, projection and enumeration."""

from __future__ import annotations

from . import registry
from .base import (
    EnumerableOracle,
    KBestOracle,
    MarginalOracle,
    Oracle,
    ProjectionOracle,
    RelaxedOracle,
    SamplingOracle,
)
from .categorical import Categorical
from .linear_chain import LinearChain
from .random_streams import SeedBlocks
from .sparse_solution import SparseSolution
from .subset import Subset

ORACLES: dict[str, type[Oracle]] = {
    "categorical": Categorical,
    "subset": Subset,
    "linear_chain": LinearChain,
}

__all__ = [
    "ORACLES",
    "Categorical",
    "EnumerableOracle",
    "KBestOracle",
    "LinearChain",
    "MarginalOracle",
    "Oracle",
    "ProjectionOracle",
    "RelaxedOracle",
    "SamplingOracle",
    "SeedBlocks",
    "SparseSolution",
    "Subset",
    "make_oracle",
]


def make_oracle(name: str) -> Oracle:
    """The oracle of a name such as ``subset[k=3]`` or ``my_module:MyOracle``.

    Example:
        >>> make_oracle("subset[k=3]")
        Subset(k=3)
    """
    oracle = registry.build(name, ORACLES, "oracle")
    if not isinstance(oracle, Oracle):
        raise ValueError(f"got {name!r}, a {type(oracle).__name__}; expected an oracle")
    return oracle
