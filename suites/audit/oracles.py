"""The audit of an oracle: its rules and its operations against all structures of small events."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...oracles import make_oracle
from ...oracles.capabilities import EnumerableOracle, MarginalOracle, Oracle, SamplingOracle
from ...oracles.derivations import Derivations, StatedOracle, walked
from ..problems.sized import is_sized, size_names, sized_structure
from ..truth.derivations import derivations_of
from .oracle_laws import CAPABILITIES, LAWS, DisagreementError, Law, Listing, Scene, compare, sample_test, scenes
from .result import Check, Judged, settled

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
    if not 0 < alpha < 1:
        raise ValueError(f"`audit_oracle` got alpha={alpha}; expected a number between 0 and 1")
    if not 0 <= seed < 2**63:
        raise ValueError(f"`audit_oracle` got seed={seed}; expected an integer from 0 to 2^63 - 1")
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
    listings: list[Listing] = []
    until = math.inf
    for event in chosen:
        listing, of_rules = None, []
        try:
            listing = listed(oracle, event)
            listings.append(listing)
            of_rules = list(check_rules(listing, oracle.derivations(event) if isinstance(oracle, StatedOracle) else None))
        except Exception as error:  # an author's code may raise anything
            of_rules = [Check("derivations", f"{oracle.name} {'x'.join(map(str, event))}", "crashed", _message(error))]
        checks += of_rules
        if listing is None or any(check.status != "holds" for check in of_rules):
            break  # operations by wrong rules are wrong too
        for scene in scenes(listing, seed, quick=quick):
            checks += _checks(scene, seed, until)
            until = min(until, time.monotonic() + seconds)
    checks, _ = settled(checks, alpha)
    sources = tuple(f"{'x'.join(map(str, one.event))}: {len(one.structures)} structures, by {one.source}" for one in listings)
    lacking = tuple(word for kind, word in CAPABILITIES.items() if not isinstance(oracle, kind))
    return OracleAudit(subject if isinstance(subject, str) else oracle.name, sources, tuple(checks), lacking, alpha)


def _subject(name: str) -> tuple[Any, list[tuple[int, ...]]]:
    """The oracle, and the event of the sizes in its name, if any."""
    if is_sized(name):
        try:
            oracle, event = sized_structure(name)
        except ValueError:  # options alone
            return make_oracle(name), []
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


def listed(oracle: Oracle, event: tuple[int, ...]) -> Listing:
    """All structures: the author's own list, else every derivation in plain Python, else the oracle's enumeration."""
    own = getattr(oracle, "structures", None)
    if callable(own):
        rows = [torch.as_tensor(structure, dtype=torch.float64).flatten() for structure in own(event)]
        return Listing(oracle, event, torch.stack(rows), "its own list of structures")
    derivations = derivations_of(oracle, event)
    if derivations is not None:
        ways = walked(derivations, MAX_STRUCTURES)
        structures = torch.zeros(len(ways), derivations.parts, dtype=torch.float64)
        for structure, parts in zip(structures, ways, strict=True):
            structure.index_add_(0, torch.tensor(parts, dtype=torch.int64), structures.new_ones(len(parts)))
        return Listing(oracle, event, structures, "its derivations, walked one by one")
    if not isinstance(oracle, EnumerableOracle):
        raise ValueError(
            f"`{oracle.name}` states no derivations and lists no structures; give it `structures(event_shape)`, which yields them"
        )
    return Listing(oracle, event, oracle.enumerate(event).double().flatten(1), "its own `enumerate`, which is not independent")


def check_rules(listing: Listing, derivations: Derivations | None) -> Iterator[Check]:
    """Whether derivations are those of the structures, each once; and whether the count agrees."""
    where, structures, oracle = str(listing), listing.structures, listing.oracle
    distinct, binary = len(torch.unique(structures, dim=0)), oracle.binary_mask(listing.event).flatten()
    repeated = len(structures) - distinct
    if repeated:
        yield Check("derivations", where, "violated", f"{len(structures)} structures are listed, and {repeated} of them twice")
    if not bool(((structures == 0) | (structures == 1) | ~binary).all()):
        yield Check("derivations", where, "violated", "a structure holds other numbers than 0 and 1")
    if derivations is not None:
        ways = walked(derivations, 10 * MAX_STRUCTURES)
        found, good = _wrong_derivation(listing, ways, binary), f"{len(ways)} derivations of as many structures"
        yield Check("derivations", where, "violated" if found else "holds", found or good)
    count = oracle.count(listing.event)
    yield Check("count", where, "holds" if count == distinct else "violated", f"`count` is {count}; expected {distinct}")


def _wrong_derivation(listing: Listing, ways: Sequence[Sequence[int]], binary: Tensor) -> str:
    """The first fault of the derivations; empty if there is none."""

    def named(parts: Sequence[int]) -> str:
        return ", ".join(str(tuple(int(index) for index in torch.unravel_index(torch.tensor(part), listing.event))) for part in parts)

    part = next((part for way in ways if len(set(way)) < len(way) for part in way if binary[part] and way.count(part) > 1), None)
    if part is not None:
        return f"a derivation takes {named([part])} twice; expected every part at most once"
    sets = [tuple(sorted(way)) for way in ways]
    ambiguous = next((one for one in sets if sets.count(one) > 1), None)
    if ambiguous is not None:
        return f"{{{named(ambiguous)}}} has {sets.count(ambiguous)} derivations; expected exactly one for each structure"
    every = torch.arange(listing.structures.shape[1])
    wanted = {tuple(every.repeat_interleave(row.long()).tolist()) for row in listing.structures}
    for found, said in ((wanted - set(sets), "has no derivation"), (set(sets) - wanted, "is derived and is no structure")):
        if found:
            return f"{{{named(min(found))}}} {said}, as {len(found) - 1} more"
    return ""


def _checks(scene: Scene, seed: int, until: float) -> Iterator[Check]:
    oracle, where = scene.oracle, str(scene)
    laws: list[tuple[str, Law | None]] = [(name, law) for kind, name, law in LAWS if isinstance(oracle, kind)]
    laws += [("samples", None)] if isinstance(oracle, SamplingOracle) else []
    out_of_reach = isinstance(oracle, MarginalOracle) and not oracle.sums_in_reach(scene.listing.event)
    for name, law in laws:
        if time.monotonic() > until:
            yield Check(name, where, "undecided", "no time was left; give it more with --time")
            continue
        if out_of_reach and name not in ("argmax", "batches"):
            continue
        try:
            if law is None:
                detail, p_value = sample_test(scene, seed)
                yield Check(name, where, "holds", detail, "", "test", p_value)
                continue
            for comparison in law(scene):
                compare(*comparison)
            yield Check(name, where, "holds")
        except DisagreementError as error:
            yield Check(name, where, "violated", str(error))
        except Exception as error:  # an author's code may raise anything
            without_lengths = name == "lengths" and "lengths" in str(error) and isinstance(error, ValueError)
            yield Check(name, where, "skipped", str(error)) if without_lengths else Check(name, where, "crashed", _message(error))


def _message(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'without a message'}"
