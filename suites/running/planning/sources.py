"""Files of a user's own code that must not change while they are measured."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ....oracles.sources import digest_of, own_files, stamp


def files_of(plugins: Iterable[str], names: Iterable[str]) -> set[str]:
    """The Python files that a plan names: its plugins, and those of estimators such as ``./mine.py:Mine[k=2]``.

    Example:
        >>> files_of(("a.py",), ("./mine.py:Mine[k=2]", "rloo")) == {"a.py", "./mine.py"}
        True
    """
    return {*plugins, *(name.partition(".py:")[0] + ".py" for name in names if ".py:" in name)}


class Watch:
    """Files of code, and what they import of their own, that must not change while they are measured.

    Args:
        files: paths, of which those that are no files are ignored.
    """

    def __init__(self, files: Iterable[str]) -> None:
        found = dict.fromkeys(own for path in map(Path, files) if path.is_file() for own in own_files(path))
        self._digests = {path: digest_of(path) for path in found}
        self._seen = {path: stamp(path) for path in found}

    def check(self) -> None:
        """Refuse a change; a file that was only touched is as it was.

        Raises:
            ValueError: the content of a file is another one, or gone.
        """
        for path, seen in self._seen.items():
            now = stamp(path)
            if now != seen:
                if digest_of(path) != self._digests[path]:
                    raise ValueError(f"{path} changed while it was measured; finished cells are kept, run the command again")
                self._seen[path] = now
