"""Capabilities of a structure oracle."""

from .base import Oracle as Oracle
from .enumeration import EnumerableOracle as EnumerableOracle, KBestOracle as KBestOracle
from .marginals import MarginalOracle as MarginalOracle
from .projection import ProjectionOracle as ProjectionOracle, WarmStart as WarmStart
from .relaxation import RelaxedOracle as RelaxedOracle
from .sampling import (
    DistinctSamplingOracle as DistinctSamplingOracle,
    DrawnSet as DrawnSet,
    FactorisedOracle as FactorisedOracle,
    PolicyOracle as PolicyOracle,
    SamplingOracle as SamplingOracle,
    SubsetOracle as SubsetOracle,
)
