"""Object store: what lies under a URL, through fsspec; each object is there whole or not at all, and what fails is tried again."""

from __future__ import annotations

import hashlib
import re
import time
import uuid
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ....user_cache import user_cache

T = TypeVar("T")

PATIENCE = 300.0
"""Seconds for which one operation is tried again."""

FIRST, LONGEST = 0.5, 30.0
"""Seconds before the first new attempt, which double, and at most."""

_BUCKETS = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oci", "oss", "memory"}
"""Protocols without folders, whose objects appear when they are whole. Elsewhere a file is renamed when it is."""

_TEMPORARY = ".tmp-"
_FINAL = (PermissionError, ValueError, TypeError, AttributeError, NotImplementedError)
_FINAL_NAMES = {"NoCredentialsError", "PartialCredentialsError", "NoRegionError", "ProfileNotFound"}
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(/+)")


class RemoteError(OSError):
    """What lies under a URL cannot be had: one sentence."""


class RemoteWarning(UserWarning):
    """What lies under a URL is slow to be had, or damaged."""


def is_url(place: object) -> bool:
    """Whether a place is a URL and no path.

    Raises:
        ValueError: it begins as one, with one slash, and would be a folder of that name.

    Example:
        >>> is_url("s3://bucket/run"), is_url("results/run")
        (True, False)
    """
    match = _URL.match(place) if isinstance(place, str) else None
    if match is not None and match[2] == "/":
        raise ValueError(f"got {place!r}; expected {match[1]}:// with two slashes, or a folder without a colon")
    return match is not None


def digest_of(content: bytes) -> str:
    """32 hexadecimal digits, which the name of an object holds: one that was cut off, or changed, is known by it."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


class ObjectStore:
    """What lies under a URL, by names relative to it.

    Args:
        url: of a protocol that fsspec knows.

    Attributes:
        patience: seconds for which an operation is tried again; `PATIENCE` if None.

    Raises:
        ValueError: fsspec or what the protocol needs is not installed, or it knows no such protocol.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.patience: float | None = None
        try:
            import fsspec
        except ImportError as error:
            raise ValueError(f"{self.url} needs the package fsspec; install it with: pip install 'structgrad[remote]'") from error
        protocol = self.url.partition("://")[0]
        self.flat = protocol in _BUCKETS
        try:
            self.files, root = fsspec.core.url_to_fs(self.url, use_listings_cache=False, skip_instance_cache=True)
        except ImportError as error:
            what = "structgrad[remote]" if protocol in ("s3", "s3a") else str(error)
            raise ValueError(f"{self.url} needs a package that is not installed; install it with: pip install '{what}'") from error
        except ValueError as error:
            raise ValueError(f"{self.url} cannot be read or written ({error}); expected such as s3://bucket/run") from error
        self.root = str(root).rstrip("/")

    def put(self, name: str, content: bytes) -> None:
        """Write an object, or replace it, so that it is there whole or not at all."""
        path = self._path(name)

        def write() -> None:
            if self.flat:
                self.files.pipe_file(path, content)
                return
            folder, _, last = path.rpartition("/")
            self.files.makedirs(folder, exist_ok=True)
            temporary = f"{folder}/{_TEMPORARY}{uuid.uuid4().hex}-{last}"
            self.files.pipe_file(temporary, content)
            self.files.mv(temporary, path)

        self._tried(write, f"write {self.url}/{name}")

    def create(self, name: str, content: bytes) -> bool:
        """Write an object that is not there: whether it was this call that did, of all that try; where the server can tell."""
        path = self._path(name)

        def write() -> bool:
            if not self.flat:
                self.files.makedirs(path.rpartition("/")[0], exist_ok=True)
            try:
                self.files.pipe_file(path, content, mode="create")
            except FileExistsError:
                return False
            return True

        # An answer that was lost is no answer, though the object may be written: what is there decides.
        return self._tried(write, f"write {self.url}/{name}") or self.get(name) == content

    def get(self, name: str) -> bytes:
        """An object.

        Raises:
            FileNotFoundError: it is not there.
        """
        return self.get_all([name])[name]

    def get_all(self, names: Iterable[str]) -> dict[str, bytes]:
        """Several objects at once.

        Raises:
            FileNotFoundError: one of them is not there.
        """
        paths = {self._path(name): name for name in names}
        if not paths:
            return {}
        found: Mapping[str, bytes] = self._tried(lambda: self.files.cat(list(paths)), f"read {self.url}", absent=True)
        return {paths[path]: bytes(content) for path, content in found.items()}

    def names(self, folder: str = "") -> list[str]:
        """The names of all objects, or of those below a folder, in their order."""
        start = f"{self.root}/{folder}".rstrip("/")

        def listed() -> list[str]:
            self.files.invalidate_cache()
            return [str(path) for path in self.files.find(start)]

        try:
            paths = self._tried(listed, f"list {self.url}", absent=True)
        except FileNotFoundError:
            return []
        names = [path.removeprefix(f"{self.root}/") for path in paths if path.startswith(f"{self.root}/")]
        return sorted(name for name in names if not name.rpartition("/")[2].startswith(_TEMPORARY))

    def stamp(self, name: str) -> str:
        """A text that is another one when an object was replaced."""
        found: dict[str, Any] = self._tried(lambda: self.files.info(self._path(name)), f"read {self.url}", absent=True)
        return " ".join(str(found.get(key)) for key in ("size", "ETag", "LastModified", "mtime", "created"))

    def remove(self, names: Iterable[str]) -> None:
        """Objects that may be gone already."""
        for name in names:

            def delete(path: str = self._path(name)) -> None:
                try:
                    self.files.rm_file(path)
                except FileNotFoundError:
                    return

            self._tried(delete, f"remove {self.url}/{name}")

    def _path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def _tried(self, operation: Callable[[], T], what: str, *, absent: bool = False) -> T:
        """Until it succeeds, or cannot, or `PATIENCE` is at an end; ``absent`` lets FileNotFoundError through."""
        patience = PATIENCE if self.patience is None else self.patience
        end, delay, warned = time.monotonic() + patience, FIRST, False
        while True:
            try:
                return operation()
            except FileNotFoundError as error:
                if absent:
                    raise
                raise RemoteError(f"cannot {what} ({_reason(error)}); expected a bucket or folder that is there") from error
            except Exception as error:
                # What a library raises where a server does not answer is its own matter: not even OSError is common to all.
                if isinstance(error, _FINAL) or type(error).__name__ in _FINAL_NAMES:
                    raise RemoteError(f"cannot {what} ({_reason(error)}); expected a place that may be read and written") from error
                if time.monotonic() + delay > end:
                    raise RemoteError(f"cannot {what} ({_reason(error)}), tried for {patience:g} s") from error
                if not warned:
                    warnings.warn(f"cannot {what} ({_reason(error)}); tried again for {patience:g} s", RemoteWarning, stacklevel=3)
                warned = True
            time.sleep(delay)
            delay = min(2 * delay, LONGEST)


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def working_folder(url: str) -> Path:
    """Where the driver of a run keeps what it mirrors to a URL: among the runs of this folder.

    Example:
        >>> working_folder("s3://bucket/a run/").as_posix()
        'structgrad-results/a-run-17664381'
    """
    name = re.sub(r"[^0-9A-Za-z_-]+", "-", url.rstrip("/").rpartition("/")[2]).strip("-")[:40]
    return Path("structgrad-results") / f"{name or 'run'}-{digest_of(url.rstrip('/').encode())[:8]}"


def cached_folder(url: str) -> Path:
    """Where readers of a URL keep a copy of what lies there, in the user's cache."""
    return user_cache() / "remote" / digest_of(url.rstrip("/").encode())
