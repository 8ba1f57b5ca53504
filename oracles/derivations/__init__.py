"""Structures as derivations: the hypergraph of items and rules from which every operation follows."""

from .hypergraph import DEAD, UNIT, Builder, Derivations, Level

__all__ = ["DEAD", "UNIT", "Builder", "Derivations", "Level"]
