"""The audit of an oracle: its rules and its operations against all structures of small events."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...oracles import make_oracle
from ...oracles.capabilities import EnumerableOracle, Oracle
from ...oracles.derivations import Derivations, StatedOracle, walked
from ..problems.sized import size_names, sized_structure
from ..truth.laws import derivations_of
from .oracle_laws import CAPABILITIES, Scene, laws_of, scenes
from .result import Check, Judged, check_limits, checked, settled

__all__ = ["OracleAudit", "audit_oracle"]

MAX_STRUCTURES = 400
"""Structures of one event shape; brute force over them is quick."""

MAX_SIZE = 6
"""Largest of the sizes that are tried if none is given."""

MAX_PARTS = 150
"""Most entries of an event if no size is given."""


@dataclass(frozen=True)
class OracleAudit(Judged):
    """The result of testing an oracle.

    Attributes:
        subject: the given name, or that of the oracle.
        events: tested shapes, with the source of their structures.
        checks: one per law, event and kind of scores.
        lacking: capabilities that it does not have.
        alpha: the chance that an oracle without a fault is called wrong.
    """

    subject: str
    events: tuple[str, ...]
    checks: tuple[Check, ...]
    lacking: tuple[str, ...]
    alpha: float


def audit_oracle(  # noqa: PLR0913
    subject: Oracle | str,
    *,
    events: Sequence[tuple[int, ...]] = (),
    alpha: float = 1e-3,
    seed: int = 0,
    quick: bool = False,
    seconds: float = 60.0,
) -> OracleAudit:
    """Test an oracle against all of its structures.

    Args:
        subject: an oracle or its name, such as ``./file.py:Class`` or, with sizes to test one event, ``subset[n=5,k=2]``.
        events: shapes to test; by default the smallest one, and the one with the most structures up to 400, of small sizes.
        alpha: the chance that an oracle without a fault is called wrong. Exact laws have none.
        seed: seed of scores and samples.
        quick: test one event, only at scores of scale 1 and with forbidden parts.
        seconds: time after which no new law is tested. The first scores, for which kernels are compiled, do not count.

    Raises:
        ValueError: an unknown name, an event that the oracle refuses, or an oracle without a small event.

    Example:
        >>> audit_oracle("subset[n=4,k=2]").verdict
        'right'
    """
    check_limits("audit_oracle", alpha, seed)
    oracle, sized = _subject(subject) if isinstance(subject, str) else (subject, [])
    chosen = (list(events) or sized or _small_events(oracle))[-1 if quick else 0 :]
    for event in chosen:
        try:
            oracle.argmax(torch.zeros(event, dtype=torch.float64))
        except ValueError:
            raise
        except Exception:
            pass
    checks: list[Check] = []
    listings: list[Scene] = []
    until = math.inf

    def rules(event: tuple[int, ...]) -> Iterator[Check]:
        listings.append(listed(oracle, event))
        yield from check_rules(listings[-1], oracle.derivations(event) if isinstance(oracle, StatedOracle) else None)

    for event in chosen:
        of_rules = list(checked("derivations", f"{oracle.name} {'x'.join(map(str, event))}", functools.partial(rules, event)))
        checks += of_rules
        if any(check.status != "holds" for check in of_rules):
            break  # operations by wrong rules are wrong too
        for scene in scenes(listings[-1], seed, quick=quick):
            for name, law in laws_of(scene, seed):
                checks += checked(name, str(scene), law, until)
            until = min(until, time.monotonic() + seconds)
    checks, _ = settled(checks, alpha)
    sources = tuple(f"{'x'.join(map(str, one.event))}: {len(one.structures)} structures, by {one.source}" for one in listings)
    lacking = tuple(word for kind, word in CAPABILITIES.items() if not isinstance(oracle, kind))
    return OracleAudit(subject if isinstance(subject, str) else oracle.name, sources, tuple(checks), lacking, alpha)


def _subject(name: str) -> tuple[Any, list[tuple[int, ...]]]:
    """The oracle, and the event of the sizes in its name, if any."""
    with contextlib.suppress(ValueError):  # options alone
        oracle, event = sized_structure(name)
        return oracle, [event]
    return make_oracle(name), []


def _small_events(oracle: Oracle) -> list[tuple[int, ...]]:
    """The smallest event, and the one with most structures up to `MAX_STRUCTURES`."""
    names = size_names(type(oracle))
    small: dict[tuple[int, ...], int] = {}
    for sizes in itertools.product(*(range(1, MAX_SIZE + 1 if place == 0 else 4) for place in range(len(names)))):
        try:
            event = type(oracle).event_shape(**dict(zip(names, sizes, strict=True)))
            if math.prod(event) <= MAX_PARTS and 1 <= (count := oracle.count(event)) <= MAX_STRUCTURES:
                small[event] = count
        except ValueError:  # a shape that it refuses
            continue
    if not small:
        example = ",".join(f"{name}=..." for name in names) or "n=..."
        raise ValueError(f"got `{oracle.name}`, of which no small event was found; give sizes, such as {oracle.name}[{example}]")
    ends = min(small, key=lambda one: (small[one], math.prod(one))), max(small, key=lambda one: (small[one], -math.prod(one)))
    return list(dict.fromkeys(ends))


def listed(oracle: Oracle, event: tuple[int, ...]) -> Scene:
    """All structures: the author's own list, else every derivation in plain Python, else the oracle's enumeration."""
    own = getattr(oracle, "structures", None)
    if callable(own):
        rows = [torch.as_tensor(structure, dtype=torch.float64).flatten() for structure in own(event)]
        return Scene(oracle, event, torch.stack(rows), "its own list of structures")
    derivations = derivations_of(oracle, event)
    if derivations is not None:
        ways = walked(derivations, MAX_STRUCTURES)
        structures = torch.zeros(len(ways), derivations.parts, dtype=torch.float64)
        for structure, parts in zip(structures, ways, strict=True):
            structure.index_add_(0, torch.tensor(parts, dtype=torch.int64), structures.new_ones(len(parts)))
        return Scene(oracle, event, structures, "its derivations, walked one by one")
    if not isinstance(oracle, EnumerableOracle):
        raise ValueError(
            f"`{oracle.name}` states no derivations and lists no structures; give it `structures(event_shape)`, which yields them"
        )
    return Scene(oracle, event, oracle.enumerate(event).double().flatten(1), "its own `enumerate`, which is not independent")


def check_rules(listing: Scene, derivations: Derivations | None) -> Iterator[Check]:
    """Whether derivations are those of the structures, each once; and whether the count agrees."""
    where, structures, oracle = str(listing), listing.structures, listing.oracle
    distinct, binary = len(torch.unique(structures, dim=0)), oracle.binary_mask(listing.event).flatten()
    if repeated := len(structures) - distinct:
        yield Check("derivations", where, "violated", f"{len(structures)} structures are listed, and {repeated} of them twice")
    if not bool(((structures == 0) | (structures == 1) | ~binary).all()):
        yield Check("derivations", where, "violated", "a structure holds other numbers than 0 and 1")
    if derivations is not None:
        ways = walked(derivations, 10 * MAX_STRUCTURES)
        bad = next(_wrong_derivations(listing, ways, binary), "")
        yield Check("derivations", where, "violated" if bad else "holds", bad or f"{len(ways)} derivations of as many structures")
    count = oracle.count(listing.event)
    yield Check("count", where, "holds" if count == distinct else "violated", f"`count` is {count}; expected {distinct}")


def _wrong_derivations(listing: Scene, ways: Sequence[Sequence[int]], binary: Tensor) -> Iterator[str]:
    def named(parts: Sequence[int]) -> str:
        return ", ".join(str(tuple(int(index) for index in torch.unravel_index(torch.tensor(part), listing.event))) for part in parts)

    for way in ways:
        for part in way:
            if binary[part] and way.count(part) > 1:
                yield f"a derivation takes {named([part])} twice; expected every part at most once"
    sets = Counter(tuple(sorted(way)) for way in ways)
    for one, count in sets.items():
        if count > 1:
            yield f"{{{named(one)}}} has {count} derivations; expected exactly one for each structure"
    every = torch.arange(listing.structures.shape[1])
    wanted = {tuple(every.repeat_interleave(row.long()).tolist()) for row in listing.structures}
    for found, said in ((wanted - set(sets), "has no derivation"), (set(sets) - wanted, "is derived and is no structure")):
        if found:
            yield f"{{{named(min(found))}}} {said}, as {len(found) - 1} more"
