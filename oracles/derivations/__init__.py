"""Structures as derivations: a hypergraph of items and rules, from which every operation follows."""

from .examples import Examples as Examples
from .hypergraph import DEAD as DEAD, UNIT as UNIT, Builder as Builder, Derivations as Derivations, Level as Level, walked as walked
from .oracle import DerivedOracle as DerivedOracle
from .tied import TiedOracle as TiedOracle
