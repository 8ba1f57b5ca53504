"""Two halves of tasks, estimators and seeds, settled before anything is measured: predictors are chosen on one, confirmed on the other."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable
from typing import Literal

from .families import idea_of

Half = Literal["choice", "confirmation"]
HALVES: tuple[Half, Half] = ("choice", "confirmation")


def half_of_task(task: str) -> Half:
    """The half of a task: every second registered task in the order of their hashes.

    Example:
        >>> half_of_task("clusters") in HALVES
        True
    """
    from ..tasks import TASKS  # a page without learning has no use for torch

    return _alternating(task, TASKS)


@functools.cache
def half_of_estimator(family: str) -> Half:
    """The half of a family: every second one of an idea, so that both halves hold all ideas."""
    from ...estimators import ESTIMATORS

    return _alternating(family, (name for name in ESTIMATORS if idea_of(name) == idea_of(family)))


def half_of_seed(seed: int) -> Half:
    """The half of a seed: even seeds choose, odd seeds confirm."""
    return HALVES[seed % 2]


def _alternating(name: str, registered: Iterable[str]) -> Half:
    """Halves alternate in the order of hashes; the hash of an unregistered name decides its half."""
    ordered = sorted(registered, key=_hash)
    return HALVES[(ordered.index(name) if name in ordered else _hash(name)) % 2]


def _hash(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"half:{name}".encode(), digest_size=8).digest(), "big")
