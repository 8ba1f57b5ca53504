"""Answers on disk, a line each as they come: what is there outlasts a kill, and is not measured again."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ....suites.speed.device_rows import Key

JOURNAL = "device.jsonl"


class Journal:
    """The answers of this device and this code, of this process and of those before it.

    Lines are only ever added: each begins with what it was measured with, so that nothing is taken for what it is not.

    Args:
        folder: where it is.
        environment: what figures depend on; answers of another one are left where they are, and not taken.
        again: whether to begin anew.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str], *, again: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.answers: dict[Key, Mapping[str, Any]] = {}
        self.tests: Mapping[str, Any] | None = None
        path = folder / JOURNAL
        before = list(_lines(path)) if path.exists() else []
        self._file = path.open("ab")
        if path.stat().st_size:
            self._file.write(b"\n")  # a line that a kill cut short ends here
        if again or not self._taken(before, environment):
            self._add({"environment": dict(environment)})

    def add(self, key: Key, value: Mapping[str, Any]) -> None:
        """Keep an answer."""
        self.answers[key] = value
        self._add({"key": key, "value": value})

    def add_tests(self, found: Mapping[str, Any]) -> None:
        """Keep what the tests said."""
        self.tests = found
        self._add({"tests": found})

    def lacks(self, key: Key) -> bool:
        """Whether there is no answer, or a failure, which is tried again."""
        return key not in self._kept

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _taken(self, before: list[dict[str, Any]], environment: Mapping[str, str]) -> bool:
        """Take the answers since the last line that says with what; whether that is what is here now."""
        last = max((place for place, line in enumerate(before) if "environment" in line), default=None)
        if last is None or before[last]["environment"] != dict(environment):
            return False
        for line in before[last:]:
            if "key" in line:
                self.answers[tuple(line["key"])] = line["value"]
            elif "tests" in line:
                self.tests = line["tests"]
        return True

    @property
    def _kept(self) -> set[Key]:
        return {key for key, value in self.answers.items() if "failure" not in value}

    def _add(self, line: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(line, ensure_ascii=False, allow_nan=False).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Those that are whole."""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with contextlib.suppress(ValueError):
            found = json.loads(line)
            if isinstance(found, dict):
                yield found
