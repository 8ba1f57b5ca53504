"""Families of oracles by their derivations."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from ....oracles import Assignment, Categorical, Constituency, IndependentCategoricals, ProjectiveTree, Subset
from ....oracles.capabilities import Oracle
from ....oracles.derivations import Derivations, StatedOracle
from . import sequences

LARGEST_ASSIGNMENT = 18
"""The largest n whose 2ⁿ sets of columns are gone through."""

LARGEST_PASS = 2**27
"""The most choices of a pass, which takes about 50 bytes for each."""

FAMILIES: dict[type[Oracle], Callable[[Any, tuple[int, ...]], Derivations]] = {
    Categorical: lambda oracle, event: sequences.categorical(event),
    IndependentCategoricals: lambda oracle, event: sequences.categories(event),
    Assignment: lambda oracle, event: sequences.assignment(event),
}


@lru_cache(maxsize=16)
def derivations_of(oracle: Oracle, event: tuple[int, ...]) -> Derivations | None:
    """The derivations of an oracle; None where there are none, or too many nodes.

    Example:
        >>> from structgrad.oracles import SpanningTree
        >>> derivations_of(Constituency(), (4, 4)).nodes, derivations_of(SpanningTree(), (4, 4))
        (12, None)
    """
    if _choices(oracle, event) > LARGEST_PASS or (isinstance(oracle, Assignment) and event[0] > LARGEST_ASSIGNMENT):
        return None
    if isinstance(oracle, StatedOracle):
        return oracle.derivations(event)
    build = FAMILIES.get(type(oracle))
    return None if build is None else build(oracle, event)


def _choices(oracle: Oracle, event: tuple[int, ...]) -> int:
    """About how many choices a pass goes through."""
    if isinstance(oracle, Subset):
        return event[0] * oracle.k
    if isinstance(oracle, Constituency | ProjectiveTree):
        return event[0] ** 3 // 6
    return math.prod(event)
