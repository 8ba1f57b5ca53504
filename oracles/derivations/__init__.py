"""Structures as derivations: a hypergraph of items and rules, from which every operation follows."""

from .examples import Examples
from .hypergraph import DEAD, UNIT, Builder, Derivations, Level, walked
from .oracle import DerivedOracle
from .tied import TiedOracle

__all__ = ["DEAD", "UNIT", "Builder", "Derivations", "DerivedOracle", "Examples", "Level", "TiedOracle", "walked"]
