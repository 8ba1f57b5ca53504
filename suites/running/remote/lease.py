"""Lease: one driver at a time writes into a remote run; one that dies keeps it for a minute, whatever its clock says.

Each owner has an object of its own, of the next number, which only one of all that try can create. It rewrites it every few seconds. Who
finds one that has not changed for so long, or whose process is known to be dead, creates the next; an owner that sees a higher number
than its own has been taken for dead, and stops.
"""

from __future__ import annotations

import json
import os
import platform
import threading
import time
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ...processors import is_running
from ...trust import json_of, visible
from ..parts.locking import LockedError
from .objects import ObjectStore, RemoteError, RemoteWarning

FOLDER = ".lease"

RENEWED = 10.0
"""Seconds between two signs of life of an owner."""

DEAD = 60.0
"""Seconds without one after which an owner counts as dead."""

_LOOK = 1.0


class Lease:
    """What an owner holds.

    Args:
        store: that it writes into; nothing of a lease is tried again for long. ``number``: of its object. ``token``: that no other has.
    """

    def __init__(self, store: ObjectStore, number: int, token: str) -> None:
        store.patience = 0.0
        self.store, self.number, self.token, self.lost = store, number, token, False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise RemoteError where another process has taken the run over."""
        if self.lost:
            raise RemoteError(f"{self.store.url} was taken over by another process, which had heard nothing of this one for {DEAD:g} s")

    def confirm(self) -> None:
        """The same, by asking now: before anything is removed."""
        self.lost |= any(number > self.number for number in _numbers(self.store))
        self.check()

    def end(self) -> None:
        """Give it back."""
        self._ended.set()
        self._thread.join(RENEWED)
        if not self.lost:
            with suppress(OSError):
                self.store.remove(_name(number) for number in _numbers(self.store) if number <= self.number)

    def _renew(self) -> None:
        count = 0
        while not self._ended.wait(RENEWED):
            count += 1
            with suppress(OSError):  # a server that does not answer is the driver's matter
                if any(number > self.number for number in _numbers(self.store)):
                    self.lost = True
                    return
                self.store.put(_name(self.number), _words(self.token, count))


@contextmanager
def held(url: str) -> Iterator[Lease]:
    """Be the only one that writes into a remote run.

    Raises:
        LockedError: another process is at work on it: which one, and on what machine.
    """
    store, token = ObjectStore(url), uuid.uuid4().hex
    lease = Lease(store, _acquired(store, token), token)
    try:
        yield lease
    finally:
        lease.end()


def _acquired(store: ObjectStore, token: str) -> int:
    while True:
        number = max(_numbers(store), default=0)
        if number and _is_alive(store, number):
            continue
        if store.create(_name(number + 1), _words(token, 0)):
            return number + 1


def _is_alive(store: ObjectStore, number: int) -> bool:
    """Whether to look again, for an owner has just gone; not where it is dead. One that gives a sign of life raises LockedError."""
    try:
        first = store.get(_name(number))
        owner = _owner(first)
        if _known_dead(owner):
            return False
        said, began = False, time.monotonic()
        while (waited := time.monotonic() - began) < DEAD:
            time.sleep(min(_LOOK, DEAD / 10))
            if max(_numbers(store), default=0) != number:
                return True
            if store.get(_name(number)) != first:
                who = f"process {visible(str(owner.get('process')))} on {visible(str(owner.get('host')))}"
                raise LockedError(f"{store.url} is being written by {who}; wait until it has ended, or name another place with --out")
            if not said and waited > 2 * RENEWED:
                words = f"{store.url} was not given back by its last process; looking for {DEAD:g} s whether that lives"
                warnings.warn(words, RemoteWarning, stacklevel=2)
                said = True
    except FileNotFoundError:
        return True
    return False


def _known_dead(owner: dict[str, Any]) -> bool:
    """Whether it was a process of this machine, and is gone."""
    if owner.get("machine") != _machine():
        return False
    try:
        return not is_running(int(owner["process"]))
    except (ValueError, TypeError, KeyError):
        return True


def _machine() -> str:
    """A name that no other machine has, nor another container of it, nor this one after it was started anew."""
    boot, space = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
    started = boot.read_text(encoding="utf-8").strip() if boot.is_file() else ""
    return f"{platform.node()} {started} {os.readlink(space) if space.is_symlink() else ''}"


def _words(token: str, count: int) -> bytes:
    """What an owner writes, and no other one, of its own process either: by this it knows its object."""
    words = {"process": os.getpid(), "host": platform.node(), "machine": _machine(), "token": token, "count": count}
    return json.dumps(words).encode()


def _owner(content: bytes) -> dict[str, Any]:
    with suppress(ValueError):
        found = json_of(content)
        if isinstance(found, dict):
            return found
    return {}


def _name(number: int) -> str:
    return f"{FOLDER}/{number:06d}.json"


def _numbers(store: ObjectStore) -> list[int]:
    stems = [name.removeprefix(f"{FOLDER}/").removesuffix(".json") for name in store.names(FOLDER)]
    return [int(stem) for stem in stems if stem.isdecimal()]
