"""Capabilities of a structure oracle: what it offers beside the best structure."""

from __future__ import annotations

from .base import Oracle
from .enumeration import EnumerableOracle, KBestOracle
from .kinds import FactorisedOracle, PolicyOracle, SubsetOracle
from .marginals import MarginalOracle
from .projection import ProjectionOracle
from .relaxation import RelaxedOracle
from .sampling import DistinctSamplingOracle, DrawnSet, SamplingOracle
from .warm_start import WarmStart

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
