"""Sources of code that is not of this package: what a cell was measured with, and whether that changed meanwhile."""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Iterable
from pathlib import Path

_OURS = "structgrad."


def source_of(thing: object) -> Path | None:
    """The file that the class of an estimator or an oracle stands in; None of those of this package.

    Example:
        >>> from structgrad.estimators import LeaveOneOut
        >>> source_of(LeaveOneOut()) is None
        True
    """
    module = type(thing).__module__
    file = getattr(sys.modules.get(module), "__file__", None)
    return None if file is None or module.startswith(_OURS) else Path(file)


def digest_of(file: Path | None) -> tuple[str, ...]:
    """One word that changes with the content of a file; none where there is no file."""
    stamp = () if file is None else _stamp(file)
    return (_digest(file, stamp),) if file is not None and stamp else ()


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_size, found.st_ino


@functools.lru_cache(maxsize=256)
def _digest(file: Path, stamp: tuple[int, ...]) -> str:
    return hashlib.blake2b(file.read_bytes(), digest_size=8).hexdigest()


def files_of(plugins: Iterable[str], names: Iterable[str]) -> set[str]:
    """The Python files that a plan names: its plugins, and those of estimators such as ``./mine.py:Mine[k=2]``.

    Example:
        >>> files_of(("a.py",), ("./mine.py:Mine[k=2]", "rloo")) == {"a.py", "./mine.py"}
        True
    """
    return {*plugins, *(name.partition(".py:")[0] + ".py" for name in names if ".py:" in name)}


class Watch:
    """Files of code that must not change while they are measured.

    Args:
        files: paths, of which those that are no files are let be.
    """

    def __init__(self, files: Iterable[str]) -> None:
        self._digests = {path: digest_of(path) for path in map(Path, files) if path.is_file()}
        self._seen = {path: _stamp(path) for path in self._digests}

    def check(self) -> None:
        """Refuse a change; a file that was only touched is as it was.

        Raises:
            ValueError: the content of a file is another one, or gone.
        """
        for path, stamp in self._seen.items():
            now = _stamp(path)
            if now != stamp:
                if digest_of(path) != self._digests[path]:
                    raise ValueError(f"{path} changed while it was measured; finished cells are kept, run the command again")
                self._seen[path] = now
