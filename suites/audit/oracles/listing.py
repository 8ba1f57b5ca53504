"""Every structure of an oracle at one small event shape, found by other means than the oracle's own operations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ....oracles.capabilities import EnumerableOracle, Oracle
from ....oracles.derivations import Derivations, walked
from ...truth.closed_form.families import derivations_of
from ..result import Check

MOST = 400
"""Structures of one event shape; brute force over them is quick."""


@dataclass(frozen=True, eq=False)
class Listing:
    """The structures of an event shape.

    Attributes:
        oracle: of what. ``event``: the shape. ``structures``: float64 [n, d].
        source: how they were found; ``independent`` says whether by other means than the oracle's own.
    """

    oracle: Any
    event: tuple[int, ...]
    structures: Tensor
    source: str
    independent: bool = True

    def __str__(self) -> str:
        return f"{self.oracle.name} {'x'.join(map(str, self.event))}"

    def totals(self, scores: Tensor) -> Tensor:
        """⟨η, z⟩ of every structure [b, n] for scores [b, *event], η their natural parameters: differentiable; -inf where forbidden."""
        parameters = self.oracle.natural_parameters(scores).flatten(1).double()
        allowed = parameters > -torch.inf
        sums = torch.where(allowed, parameters, 0) @ self.structures.mT
        return torch.where((~allowed).double() @ self.structures.mT > 0, -torch.inf, sums)

    def probabilities(self, scores: Tensor) -> Tensor:
        """Of every structure, [b, n]; 0 where none is feasible."""
        totals = self.totals(scores)
        feasible = (totals > -torch.inf).any(1, keepdim=True)
        return torch.where(feasible, torch.where(feasible, totals, 0).softmax(1), 0)


def listed(oracle: Oracle, event: tuple[int, ...]) -> Listing:
    """All structures: the author's own list, else every derivation in plain Python, else what the oracle itself enumerates."""
    own = getattr(oracle, "structures", None)
    if callable(own):
        rows = [torch.as_tensor(structure, dtype=torch.float64).flatten() for structure in own(event)]
        return Listing(oracle, event, torch.stack(rows), "its own list of structures")
    derivations = derivations_of(oracle, event)
    if derivations is not None:
        return Listing(oracle, event, indicators(walked(derivations, MOST), derivations.parts), "its derivations, walked one by one")
    if not isinstance(oracle, EnumerableOracle):
        raise ValueError(
            f"`{oracle.name}` states no derivations and lists no structures; give it `structures(event_shape)`, which yields them"
        )
    structures = oracle.enumerate(event).double().flatten(1)
    return Listing(oracle, event, structures, "its own `enumerate`, which is not independent", independent=False)


def indicators(chosen: Sequence[tuple[int, ...]], parts: int) -> Tensor:
    """Structures [n, d] from the parts that each of them takes, as often as it does."""
    structures = torch.zeros(len(chosen), parts, dtype=torch.float64)
    for structure, taken in zip(structures, chosen, strict=True):
        structure.index_add_(0, torch.tensor(taken, dtype=torch.int64), structures.new_ones(len(taken)))
    return structures


def check_rules(listing: Listing, derivations: Derivations | None) -> Iterator[Check]:
    """Whether derivations are those of the structures, each once; and whether the count agrees."""
    where, structures = str(listing), listing.structures
    distinct = len(torch.unique(structures, dim=0))
    if distinct < len(structures):
        yield Check(
            "derivations", where, "violated", f"{len(structures)} structures are listed, and {len(structures) - distinct} of them twice"
        )
    binary = listing.oracle.binary_mask(listing.event).flatten()
    if not bool(((structures == 0) | (structures == 1) | ~binary).all()):
        yield Check("derivations", where, "violated", "a structure holds other numbers than 0 and 1")
    if derivations is not None:
        yield from _derived(listing, derivations)
    count = listing.oracle.count(listing.event)
    status: Any = "holds" if count == distinct else "violated"
    yield Check("count", where, status, f"`count` is {count}; expected {distinct}")


def _derived(listing: Listing, derivations: Derivations) -> Iterator[Check]:
    where, ways = str(listing), walked(derivations, 10 * MOST)
    binary = listing.oracle.binary_mask(listing.event).flatten().tolist()
    part = next((part for way in ways if len(set(way)) < len(way) for part in way if binary[part] and way.count(part) > 1), None)
    if part is not None:
        yield Check("derivations", where, "violated", f"a derivation takes {_named(listing, part)} twice; expected every part at most once")
        return
    sets = [tuple(sorted(way)) for way in ways]
    ambiguous = next((one for one in sets if sets.count(one) > 1), None)
    if ambiguous is not None:
        told = ", ".join(_named(listing, part) for part in ambiguous)
        yield Check(
            "derivations", where, "violated", f"{{{told}}} has {sets.count(ambiguous)} derivations; expected exactly one for each structure"
        )
        return
    every = torch.arange(listing.structures.shape[1])
    wanted = {tuple(every.repeat_interleave(row.long()).tolist()) for row in listing.structures}
    for found, said in ((wanted - set(sets), "has no derivation"), (set(sets) - wanted, "is derived and is no structure")):
        if found:
            told = ", ".join(_named(listing, part) for part in min(found))
            yield Check("derivations", where, "violated", f"{{{told}}} {said}, as {len(found) - 1} more")
            return
    yield Check("derivations", where, "holds", f"{len(sets)} derivations of as many structures")


def _named(listing: Listing, part: int) -> str:
    return str(tuple(int(index) for index in torch.unravel_index(torch.tensor(part), listing.event)))
