"""The audit of an oracle: its rules and its operations against all structures of small events."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ....oracles import make_oracle
from ....oracles.capabilities import MarginalOracle, Oracle, SamplingOracle
from ....oracles.derivations import StatedOracle
from ...problems.sized import is_sized, size_names, sized_oracle
from ..result import Check
from . import laws
from .listing import MOST, Listing, check_rules, listed

LARGEST_PART = 6
"""Of the sizes that are tried where none are given."""

PARTS = 150
"""Entries of an event, at most, where no sizes are given."""


@dataclass(frozen=True)
class OracleAudit:
    """What came out.

    Attributes:
        subject: the name as it was given, or that of the oracle.
        events: shapes that were looked at, with how their structures were found.
        checks: one per law, event and kind of scores. ``lacking``: capabilities that it does not have.
        alpha: the chance that an oracle without a fault is called wrong.
    """

    subject: str
    events: tuple[str, ...]
    checks: tuple[Check, ...]
    lacking: tuple[str, ...]
    alpha: float

    @property
    def verdict(self) -> str:
        """``wrong``, ``crashed``, ``undecided`` where something could not be asked in time, or ``right``."""
        statuses = {check.status for check in self.checks}
        found = {"violated": "wrong", "crashed": "crashed", "undecided": "undecided"}
        return next((verdict for status, verdict in found.items() if status in statuses), "right")

    def raise_if_wrong(self) -> None:
        """AssertionError with every violation and every exception: one line for a test of one's own."""
        bad = [check.sentence for check in self.checks if check.status in ("violated", "crashed")]
        if bad:
            raise AssertionError(f"{self.subject} is {self.verdict}:\n" + "\n".join(bad))

    def exit_code(self, *, strict: bool = False) -> int:
        """0 no violation, 1 a violation, 3 it raised, 4 undecided where that is not enough."""
        return {"wrong": 1, "crashed": 3, "undecided": 4 if strict else 0}.get(self.verdict, 0)


def audit_oracle(  # noqa: PLR0913
    subject: Oracle | str,
    *,
    events: Sequence[tuple[int, ...]] = (),
    alpha: float = 1e-3,
    seed: int = 0,
    quick: bool = False,
    seconds: float = 60.0,
) -> OracleAudit:
    """Hold an oracle to all of its structures.

    Args:
        subject: an oracle, or its name: of the registry or ``./file.py:Class``, with options, and with sizes where these are to be looked
            at: ``subset[n=5,k=2]``.
        events: shapes to look at; where none are given, the smallest and the one with the most structures up to `MOST`, of small sizes.
        alpha: the chance that an oracle without a fault is called wrong; exact laws have none.
        seed: of scores and samples.
        quick: one event, and no more than scores of scale 1 and forbidden parts.
        seconds: after which no new law is asked; the first scores, for which kernels are compiled, do not count.

    Raises:
        ValueError: a name that is unknown, an event that the oracle refuses, or an oracle of which no small event is found.

    Example:
        >>> audit_oracle("subset[n=4,k=2]").verdict
        'right'
    """
    if not 0 < alpha < 1:
        raise ValueError(f"`audit_oracle` got alpha={alpha}; expected a number between 0 and 1")
    if not 0 <= seed < 2**63:
        raise ValueError(f"`audit_oracle` got seed={seed}; expected an integer from 0 to 2^63 - 1")
    oracle, found = _subject(subject) if isinstance(subject, str) else (subject, [])
    events = list(events) or found or _small_events(oracle)
    events = events[-1:] if quick else events
    for event in events:
        _accepted(oracle, event)
    checks: list[Check] = []
    listings: list[Listing] = []
    until = math.inf
    for event in events:
        listing, found_of_rules = _rules(oracle, event)
        checks += found_of_rules
        listings += [listing] if listing else []
        # Whatever is computed by wrong rules is wrong: it would hide what is.
        if listing is None or any(check.status != "holds" for check in found_of_rules):
            break
        for scene in laws.scenes(listing, seed, quick=quick):
            checks += _asked(scene, seed, until)
            until = min(until, time.monotonic() + seconds)
    told = tuple(f"{'x'.join(map(str, listing.event))}: {len(listing.structures)} structures, by {listing.source}" for listing in listings)
    name = subject if isinstance(subject, str) else oracle.name
    return OracleAudit(name, told, tuple(_judged(checks, alpha)), tuple(laws.lacking(oracle)), alpha)


def _subject(name: str) -> tuple[Any, list[tuple[int, ...]]]:
    """The oracle, and the event that its name has sizes of, if any."""
    if is_sized(name):
        try:
            oracle, event = sized_oracle(name)
        except ValueError:  # options alone
            return make_oracle(name), []
        return oracle, [event]
    return make_oracle(name), []


def _accepted(oracle: Oracle, event: tuple[int, ...]) -> None:
    """ValueError where an oracle refuses an event; whatever else it raises is found by the laws."""
    try:
        oracle.argmax(torch.zeros(event, dtype=torch.float64))
    except ValueError:
        raise
    except Exception:
        pass


def _small_events(oracle: Oracle) -> list[tuple[int, ...]]:
    """The smallest event, and the one with most structures up to `MOST`."""
    names = size_names(type(oracle))
    found: dict[tuple[int, ...], int] = {}
    for sizes in itertools.product(*(range(1, LARGEST_PART + 1 if place == 0 else 4) for place in range(len(names)))):
        try:
            event = type(oracle).event_shape(**dict(zip(names, sizes, strict=True)))
            if math.prod(event) <= PARTS:
                found[event] = oracle.count(event)
        except ValueError:  # a shape that it refuses
            continue
    small = {event: count for event, count in found.items() if 1 <= count <= MOST}
    if not small:
        example = ",".join(f"{name}=..." for name in names) or "n=..."
        raise ValueError(f"got `{oracle.name}`, of which no small event was found; give sizes, such as {oracle.name}[{example}]")
    events = [
        min(small, key=lambda event: (small[event], math.prod(event))),
        max(small, key=lambda event: (small[event], -math.prod(event))),
    ]
    return list(dict.fromkeys(events))


def _rules(oracle: Oracle, event: tuple[int, ...]) -> tuple[Listing | None, list[Check]]:
    """All structures, where they can be listed, and whether the rules are theirs."""
    listing = None
    try:
        listing = listed(oracle, event)
        return listing, list(check_rules(listing, oracle.derivations(event) if isinstance(oracle, StatedOracle) else None))
    except Exception as error:  # an author's code may raise anything
        return listing, [Check("derivations", f"{oracle.name} {'x'.join(map(str, event))}", "crashed", _told(error))]


def _asked(scene: laws.Scene, seed: int, until: float) -> Iterator[Check]:
    oracle = scene.listing.oracle
    names: list[tuple[str, Any]] = [*laws.asked(oracle).items()]
    names += [("samples", None)] if isinstance(oracle, SamplingOracle) else []
    for name, law in names:
        if time.monotonic() > until:
            yield Check(name, str(scene), "undecided", "no time was left; give it more with --time")
            continue
        if isinstance(oracle, MarginalOracle) and not oracle.sums_in_reach(scene.listing.event) and name not in ("argmax", "batches"):
            continue
        yield _outcome(name, law, scene, seed)


def _outcome(name: str, law: Any, scene: laws.Scene, seed: int) -> Check:
    try:
        if law is None:
            return laws.sample_check(scene, seed)
        law(scene)
    except laws.DisagreementError as error:
        return Check(name, str(scene), "violated", str(error))
    except Exception as error:
        if name == "lengths" and "lengths" in str(error) and isinstance(error, ValueError):
            return Check(name, str(scene), "skipped", str(error))
        return Check(name, str(scene), "crashed", _told(error))
    return Check(name, str(scene), "holds")


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'without a word'}"


def _judged(checks: list[Check], alpha: float) -> Iterator[Check]:
    """With tests that fail at their share of the error rate as violations."""
    tests = sum(check.p_value is not None for check in checks)
    for check in checks:
        failed = check.p_value is not None and check.p_value < alpha / tests
        yield dataclasses.replace(check, status="violated") if failed else check
