"""Structures as derivations: a hypergraph of items and rules, from which every operation follows."""

from .hypergraph import DEAD, UNIT, Builder, Derivations, Level, walked
from .oracle import DerivedOracle, StatedOracle

__all__ = ["DEAD", "UNIT", "Builder", "Derivations", "DerivedOracle", "Level", "StatedOracle", "walked"]
