"""Capabilities of a structure oracle: what it offers beside the best structure."""

from .base import Oracle
from .enumeration import EnumerableOracle, KBestOracle
from .marginals import MarginalOracle
from .projection import ProjectionOracle, WarmStart
from .relaxation import RelaxedOracle
from .sampling import DistinctSamplingOracle, DrawnSet, FactorisedOracle, PolicyOracle, SamplingOracle, SubsetOracle

__all__ = [
    "DistinctSamplingOracle",
    "DrawnSet",
    "EnumerableOracle",
    "FactorisedOracle",
    "KBestOracle",
    "MarginalOracle",
    "Oracle",
    "PolicyOracle",
    "ProjectionOracle",
    "RelaxedOracle",
    "SamplingOracle",
    "SubsetOracle",
    "WarmStart",
]
