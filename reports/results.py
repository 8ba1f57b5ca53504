"""The stored result of a run: one tidy Parquet table with its manifest, and the manifest once more as ``run.json``.

The Parquet metadata hold the manifest too, so that a table alone shows its origin.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import json
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..suites.base import COLUMNS, SCHEMA_VERSION, Row, to_frame
from ..suites.running.store import FILE, NewerSchemaError, OtherSchemaError, holds_run
from ..suites.trust import check_table, json_of, text_of, visible, visible_words, write_whole as write_whole

if TYPE_CHECKING:
    import pandas as pd

TABLE = "results.parquet"
MANIFEST = "run.json"
PAGE = "report.html"
_METADATA_VERSION = b"structgrad_schema_version"
_METADATA_MANIFEST = b"structgrad_manifest"

_PACKAGES = ("structgrad", "torch", "numpy", "scipy", "pandas")
_SETTLED_ELSEWHERE = ("batch_size", "threads")

Manifest = dict[str, Any]  # plan, command, times and environment of a run, as JSON values


def write(rows: pd.DataFrame | Iterable[Row], directory: Path, manifest: Mapping[str, Any]) -> Path:
    """Write ``results.parquet`` and ``run.json`` into a folder, each as a whole or not at all; return the path of the table."""
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    frame, text = rows if isinstance(rows, pd.DataFrame) else to_frame(rows), _text(manifest)
    table = pa.Table.from_pandas(frame, preserve_index=False)
    lists = pa.array([list(values) for values in frame["batches"]], pa.list_(pa.float64()))  # numbers even if all lists are empty
    table = table.set_column(table.schema.get_field_index("batches"), pa.field("batches", lists.type), lists)
    metadata = {_METADATA_VERSION: str(SCHEMA_VERSION).encode(), _METADATA_MANIFEST: text.encode()}
    buffer = io.BytesIO()
    pq.write_table(table.replace_schema_metadata({**(table.schema.metadata or {}), **metadata}), buffer)
    write_whole(directory / TABLE, buffer.getvalue())
    write_whole(directory / MANIFEST, (text + "\n").encode())
    return directory / TABLE


def check_output(call: str, path: Path | None, *read: str) -> None:
    """Refuse, by a ValueError, an output that is a folder or would replace measurements: a file of a run, or an input of the verb."""
    if path is None:
        return
    if path.is_dir():
        raise ValueError(f"`{call}` got the folder {path} to write; expected a file: name one in it")
    of_a_run = path.name in (TABLE, MANIFEST, FILE) and any((path.parent / name).is_file() for name in {MANIFEST, FILE} - {path.name})
    if of_a_run or any(path.is_file() and Path(name).is_file() and path.samefile(name) for name in read):
        raise ValueError(f"`{call}` got the file {path} to write, which is for what was measured; expected another one: name a new file")


def read(path: Path | str, columns: Sequence[str] | None = None) -> tuple[pd.DataFrame, Manifest]:
    """The table and the manifest of a run by its folder or table; the finished cells of a run that was killed or interrupted.

    A damaged table is derived again from the cells. Some `columns` alone save memory; batches of replicates are then arrays. Raises a
    FileNotFoundError without a table, an OtherSchemaError, or a ValueError if the file is no table of structgrad.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    given = Path(path)
    folder, file = (given, given / TABLE) if given.is_dir() else (given.parent, given)
    has_cells = file.name == TABLE and holds_run(folder)
    # The table of a folder whose latest run did not come to its end is that of an earlier run.
    unfinished = given.is_dir() and manifest_of(folder).get("status") in ("running", "interrupted", "broken")
    if has_cells and (unfinished or not file.is_file()):
        return _derived(folder)
    if not file.is_file():
        raise FileNotFoundError(
            f"found no run at {given}; expected the folder of a run, or its {TABLE} (to list your runs, type structgrad status)"
        )
    try:
        metadata = dict(pq.read_schema(file).metadata or {})
        version = metadata.get(_METADATA_VERSION, b"").decode()
        if not version:
            raise ValueError(f"{file} has no schema version, and is no table of structgrad; expected the {TABLE} of a run, or a baseline")
        if version != str(SCHEMA_VERSION):
            newer = version.isdecimal() and int(version) > SCHEMA_VERSION
            raise (NewerSchemaError if newer else OtherSchemaError)(file, version)
        with pq.ParquetFile(file) as found:
            check_table(found, file)
        table = pq.read_table(file, columns=columns and list(columns))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if has_cells:
            return _derived(folder)
        raise ValueError(f"{file} is no Parquet file, or damaged; expected the {TABLE} of a run") from error
    try:
        frame, names = table.to_pandas(), list(columns or COLUMNS)
        if columns is None:
            frame["batches"] = frame["batches"].map(tuple)
        return _with_visible_names(frame[names].astype({name: COLUMNS[name] for name in names})), _manifest(metadata[_METADATA_MANIFEST])
    except (KeyError, TypeError, ValueError, pa.ArrowException, OverflowError) as error:
        raise ValueError(
            f"{file} is not what its schema version {SCHEMA_VERSION} says ({' '.join(str(error).split())}); measure it again"
        ) from error


def _derived(folder: Path) -> tuple[pd.DataFrame, Manifest]:
    from ..suites.running.runner import collect

    return _with_visible_names(to_frame(collect(folder))), manifest_of(folder)


def _with_visible_names(frame: pd.DataFrame) -> pd.DataFrame:
    """The table without names that hold control characters, or characters that hide or reverse text."""
    for name in frame.select_dtypes(["category", "string"]):
        changed = {word: seen for word in frame[name].dropna().unique() if (seen := visible(str(word))) != word}
        if changed:
            words = frame[name].astype(object).replace(changed)
            frame = frame.assign(**{str(name): words}).astype({name: "category" if frame[name].dtype == "category" else frame[name].dtype})
    return frame


def _manifest(text: bytes | str) -> Manifest:
    """A manifest from JSON, with text that can be printed; ValueError if it is none."""
    found = visible_words(json_of(text))
    if not isinstance(found, dict):
        raise ValueError(f"the manifest is {type(found).__name__}; expected a mapping")
    return found


def manifest_of(folder: Path) -> Manifest:
    """The content of ``run.json``; empty if it is missing or damaged."""
    with suppress(FileNotFoundError, NotADirectoryError, ValueError):
        return _manifest(text_of(folder / MANIFEST))
    return {}


def check_not_newer(folder: Path) -> None:
    """Refuse a folder whose run was made by a newer version, before anything in it is replaced."""
    version = manifest_of(folder).get("schema_version", 0)
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise NewerSchemaError(folder / MANIFEST, version)


def write_manifest(directory: Path, manifest: Mapping[str, Any]) -> None:
    """Write ``run.json`` alone, at the start of a run, so that a killed run has one."""
    write_whole(directory / MANIFEST, (_text(manifest) + "\n").encode())


def _text(manifest: Mapping[str, Any]) -> str:
    return json.dumps({"schema_version": SCHEMA_VERSION, **manifest}, indent=2, default=str)


def plan_hash(plan: Mapping[str, Any]) -> str:
    """Eight hex digits that name a plan. Settings that change no number, such as the batch size, are left out."""
    settled = {key: value.partition(":")[0] if key == "device" else value for key, value in plan.items() if key not in _SETTLED_ELSEWHERE}
    return hashlib.blake2b(json.dumps(settled, sort_keys=True, default=str).encode(), digest_size=4).hexdigest()


def environment(device: str = "cpu") -> dict[str, Any]:
    """The environment of a run: commit, versions, processor, system, threads, device."""
    import torch

    cuda = device.startswith("cuda") and torch.cuda.is_available()
    return {
        "python": platform.python_version(),
        "packages": {name: version_of(name) for name in _PACKAGES},
        **dict(zip(("commit", "dirty"), commit_of_package(), strict=True)),
        "cpu": processor(),
        "cores": os.cpu_count(),
        "os": platform.platform(),
        "threads": torch.get_num_threads(),
        "device": device,
        "device_name": torch.cuda.get_device_name(device) if cuda else None,
    }


def version_of(package: str) -> str | None:
    """The version of an installed package; None if it is not installed."""
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return None


def commit_of_package() -> tuple[str | None, bool | None]:
    """The commit of the checkout that the package lies in, and whether it was changed since; None outside one."""
    here = Path(__file__).resolve()
    with suppress(OSError, subprocess.SubprocessError):
        git(here.parent, "ls-files", "--error-unmatch", here.name)  # an installed copy may lie in the checkout of another project
        return git(here.parent, "rev-parse", "HEAD"), bool(git(here.parent, "status", "--porcelain"))
    return None, None


def git(folder: Path | str, *words: str) -> str:
    """The output of a command of git in a folder; OSError or SubprocessError without git, or without a repository there."""
    command = ["git", "-C", str(folder), *words]
    return subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", timeout=10, check=True).stdout.strip()


def processor() -> str:
    """The name of the processor."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
