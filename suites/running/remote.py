"""Runs under URLs: a local folder is copied there each minute and at the end, and fetched from there to be read or continued.

One driver writes at a time. Files are replaced whole, so a reader never sees a part of one.
"""

import hashlib
import re
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from .store import FILE, Store, check_writable, holds_run, locked

COPY_SECONDS = 60.0  # seconds between two copies of a run

MANIFEST, TABLE = "run.json", "results.parquet"

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(/+)")


class RemoteError(OSError):
    """A URL cannot be read or written."""


class RemoteWarning(UserWarning):
    """A copy of a run was not written, and will be tried again."""


def is_url(place: object) -> bool:
    """Whether a place is a URL and no path; a URL with one slash, which would become a folder of that name, is a ValueError."""
    match = _URL.match(place) if isinstance(place, str) else None
    if match is not None and match[2] == "/":
        raise ValueError(f"got {place!r}; expected {match[1]}:// with two slashes, or a folder without a colon")
    return match is not None


def working_folder(url: str) -> Path:
    """The local folder of a run that is copied to a URL."""
    name = re.sub(r"[^0-9A-Za-z_-]+", "-", url.rstrip("/").rpartition("/")[2]).strip("-")[:40]
    return Path("structgrad-results") / f"{name or 'run'}-{hashlib.blake2b(url.rstrip('/').encode(), digest_size=16).hexdigest()[:8]}"


class RemoteFolder:
    """A folder under a URL of a protocol that fsspec knows; ValueError if a package is missing, or the protocol is unknown."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        try:
            import fsspec

            self.files, root = fsspec.core.url_to_fs(self.url, use_listings_cache=False, skip_instance_cache=True)
        except ImportError as error:
            raise ValueError(f"{self.url} needs a package ({error}); install it, such as with: pip install 'structgrad[remote]'") from error
        except ValueError as error:
            raise ValueError(f"{self.url} cannot be read or written ({error}); expected such as s3://bucket/run") from error
        self.root = str(root).rstrip("/")

    def put(self, name: str, content: bytes) -> None:
        """Write or replace a file."""
        with self._explained("write"):
            self.files.makedirs(self.root, exist_ok=True)
            self.files.pipe_file(f"{self.root}/.{name}.tmp", content)
            self.files.mv(f"{self.root}/.{name}.tmp", f"{self.root}/{name}")

    def discard(self) -> None:
        """Remove the files."""
        with self._explained("remove"), suppress(FileNotFoundError):
            self.files.rm(self.root, recursive=True)

    def fetch(self, folder: Path, names: Sequence[str] = (FILE, MANIFEST, TABLE)) -> bool:
        """Copy files into an empty folder, by default those of a run that are read, and return whether there was any."""
        for name in names:
            with suppress(FileNotFoundError), self._explained("read"):
                (folder / name).write_bytes(self.files.cat_file(f"{self.root}/{name}"))
        return any(folder.iterdir())

    @contextmanager
    def _explained(self, verb: str) -> Iterator[None]:
        """Turn any exception of a library into one sentence; a missing file stays FileNotFoundError."""
        try:
            yield
        except FileNotFoundError:
            if verb == "read":
                raise
            raise RemoteError(f"cannot {verb} {self.url}; expected a bucket or folder that exists") from None
        except Exception as error:
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise RemoteError(f"cannot {verb} {self.url} ({reason}); expected a place that may be read and written") from error


class Mirror:
    """The local folder of a run, whose lock the caller holds, and its copy under a URL."""

    def __init__(self, url: str, folder: Path) -> None:
        self.remote, self.folder, self.last = RemoteFolder(url), folder, 0.0
        self.stamps: dict[str, tuple[int, int]] = {}  # of files as they were copied

    def write(self, cells: Store | None = None, *, now: bool = True) -> None:
        """Copy the files of the folder that have changed, with the open database of an unfinished run.

        With ``now`` at once, or with a RemoteError. Else a copy is due every `COPY_SECONDS`, and a failed one is a warning.
        """
        if not now and time.monotonic() - self.last < COPY_SECONDS:
            return
        self.last = time.monotonic()
        try:
            for path in sorted(self.folder.iterdir()):
                if path.is_file() and not path.name.startswith((".", f"{FILE}-")):
                    opened = cells if path.name == FILE else None
                    stamp = (path.stat().st_mtime_ns, path.stat().st_size) if opened is None else (opened.base.total_changes, -1)
                    if self.stamps.get(path.name) != stamp:
                        self.remote.put(path.name, path.read_bytes() if opened is None else opened.copied())
                        self.stamps[path.name] = stamp
        except RemoteError as error:
            if now:
                raise
            warnings.warn(f"{error}; tried again in {COPY_SECONDS:g} s", RemoteWarning, stacklevel=2)


@contextmanager
def writing(place: Path | str) -> Iterator[tuple[Path, Mirror | None]]:
    """The locked folder of a run. For a URL, it is a local one with the finished cells under the URL, with its mirror."""
    folder = working_folder(str(place)) if is_url(place) else Path(place)
    check_writable(folder)
    with locked(folder), tempfile.TemporaryDirectory() as name:
        if not is_url(place):
            yield folder, None
            return
        mirror, copy = Mirror(str(place), folder), Path(name)
        mirror.remote.fetch(copy)
        if holds_run(copy):
            with Store(folder, write=True) as cells:
                try:
                    cells.take(copy)
                except ValueError as error:  # of another version, or damaged
                    raise RemoteError(str(error).replace(str(copy), str(place))) from error
        yield folder, mirror


@contextmanager
def reading(place: Path | str) -> Iterator[Path]:
    """The folder or table of a run. For a URL, it is a temporary copy; FileNotFoundError if there is nothing."""
    if not is_url(place):
        yield Path(place)
        return
    url = str(place).rstrip("/")
    base, _, name = url.rpartition("/") if url.endswith(".parquet") else (url, "", "")
    with tempfile.TemporaryDirectory() as folder:
        if not (RemoteFolder(base).fetch(Path(folder), [name]) if name else RemoteFolder(base).fetch(Path(folder))):
            raise FileNotFoundError(f"found nothing at {url}; expected the URL of a run, or of its {TABLE}")
        yield Path(folder) / name
