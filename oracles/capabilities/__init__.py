"""Capabilities of a structure oracle: what it offers beside the best structure."""

from __future__ import annotations

from .base import EnumerableOracle, KBestOracle, MarginalOracle, Oracle, ProjectionOracle, RelaxedOracle, SamplingOracle
from .kinds import FactorisedOracle, PolicyOracle, SubsetOracle

__all__ = [
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
]
