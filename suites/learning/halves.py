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
    """Every second of the registered tasks in the order of their hashes, whichever of them are run.

    Example:
        >>> half_of_task("clusters") in HALVES
        True
    """
    from ..tasks import TASKS  # a page without learning has no use for torch

    return _alternating(task, TASKS)


@functools.cache
def half_of_estimator(family: str) -> Half:
    """Every second family of an idea, so that both halves hold all ideas; options of one family stay together."""
    from ...estimators import ESTIMATORS

    return _alternating(family, (name for name in ESTIMATORS if idea_of(name) == idea_of(family)))


def half_of_seed(seed: int) -> Half:
    """Even ones choose, odd ones confirm."""
    return HALVES[seed % 2]


def _alternating(name: str, registered: Iterable[str]) -> Half:
    """What is registered by nobody goes where its own hash says."""
    ordered = sorted(registered, key=_hash)
    return HALVES[(ordered.index(name) if name in ordered else _hash(name)) % 2]


def _hash(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"half:{name}".encode(), digest_size=8).digest(), "big")
