"""Safe reading of files of unknown origin, and of their text; whole writing; folders of score files and of the data of tasks.

A file is refused by its size, or by the size that it declares, before it is read. It yields numbers and text, never code.
"""

import gzip
import io
import json
import os
import re
import secrets
import zipfile
import zlib
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow.parquet as pq

LARGEST_TEXT = 2**30  # bytes of a text that is read at once: a plan of a million cells has half of them
LARGEST_SETTINGS = 2**20  # bytes of a configuration
LARGEST_ARRAYS = 2**33  # bytes of the arrays of a file together, unpacked
MOST_ROWS = 30_000_000  # rows of a table that is read at once

DATA_VARIABLE = "STRUCTGRAD_DATA"
DATA_FOLDERS = ("./data/scores", "../shared/data/scores")  # folders that are searched for real score files if the variable is not set

TASK_VARIABLE = "STRUCTGRAD_TASK_DATA"
TASK_FOLDERS = (f"${TASK_VARIABLE}", "./data", "../shared/data")
"""Folders that are searched for the data of tasks. Each kind has its own subfolder, such as ``listops``."""

_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


def visible(text: str) -> str:
    r"""Escape control characters, and marks that hide or reverse text next to them; newlines and tabs stay.

    Example:
        >>> print(visible("ste\x1b[2J \u202egpj.exe"))
        ste\x1b[2J \u202egpj.exe
    """
    return _UNSEEN.sub(lambda found: repr(found[0])[1:-1].replace(found[0], f"\\u{ord(found[0]):04x}"), text)


def visible_words(content: Any) -> Any:
    """Apply `visible` to all texts in lists and mappings."""
    if isinstance(content, str):
        return visible(content)
    if isinstance(content, dict):
        return {visible(str(key)): visible_words(value) for key, value in content.items()}
    return [visible_words(value) for value in content] if isinstance(content, list) else content


def check_size(path: Path, most: int) -> None:
    """Raise ValueError for a file with more bytes than allowed."""
    size = path.stat().st_size
    if size > most:
        raise ValueError(f"{path} has {size} bytes; expected at most {most}, so that nothing larger is read by mistake")


def text_of(path: Path, most: int = LARGEST_TEXT) -> str:
    """A text, packed by gzip or not; ValueError if it is too large, unpacked too, or no UTF-8."""
    check_size(path, most)
    try:
        if path.suffix != ".gz":
            return path.read_bytes().decode()
        with gzip.open(path) as stream:
            content = stream.read(most + 1)
        if len(content) <= most:
            return content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text ({error.reason} at byte {error.start}); expected UTF-8") from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is damaged or cut off ({error}); pack it again with gzip") from error
    raise ValueError(f"{path} has more than {most} bytes when it is unpacked; expected at most so many")


def json_of(text: str | bytes) -> Any:
    """Parse JSON; ValueError if it is none, or nested deeper than this process can follow."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("the JSON is nested too deep; expected a few levels") from error


def toml_of(path: Path) -> dict[str, Any]:
    """A configuration; ValueError if it is no TOML, too large, or nested too deep."""
    import tomllib

    text = text_of(path, LARGEST_SETTINGS)
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("the TOML is nested too deep; expected a few levels") from error


def check_archive(stream: IO[bytes]) -> None:
    """Refuse a `.npz` archive whose arrays are larger than allowed, before any is unpacked."""
    with zipfile.ZipFile(stream) as archive:
        total = sum(entry.file_size for entry in archive.infolist())
    if total > LARGEST_ARRAYS:
        raise ValueError(f"its arrays have {total} bytes when they are unpacked; expected at most {LARGEST_ARRAYS}, save fewer items")
    stream.seek(0)


def check_table(file: "pq.ParquetFile", path: Path) -> None:
    """Refuse a Parquet file whose declared size is larger than is read at once."""
    found = file.metadata
    size = sum(found.row_group(group).total_byte_size for group in range(found.num_row_groups))
    if found.num_rows > MOST_ROWS or size > LARGEST_ARRAYS:
        raise ValueError(
            f"{path} says that it has {found.num_rows} rows in {size} bytes; expected at most {MOST_ROWS} in {LARGEST_ARRAYS}, of a part"
        )


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file atomically: readers see the old content or the new one, even after a power failure."""
    if path.exists() and not path.is_file():  # a device or a pipe, which is never replaced
        path.write_bytes(content)
        return
    path = path.resolve()  # never in place of a link, such as /dev/stdout
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")  # with the mode of a usual file, unlike those of `tempfile`
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_state(path: Path, state: object) -> None:
    """Write a state by torch; an interrupted write leaves the file as it was."""
    import torch

    stream = io.BytesIO()  # a full disk is an OSError then; torch would raise RuntimeError
    torch.save(state, stream)
    write_whole(path, stream.getvalue())


def default_data() -> str | None:
    """The folder of the variable, or the first of `DATA_FOLDERS` that exists; None if none does."""
    chosen = os.environ.get(DATA_VARIABLE)
    if chosen and not Path(chosen).is_dir():
        raise ValueError(f"{DATA_VARIABLE} is {chosen!r}, which is no folder; set it to the folder of the score files, or unset it")
    return chosen or next((folder for folder in DATA_FOLDERS if Path(folder).is_dir()), None)


def task_file(name: str) -> Path | None:
    """A file of a task's data, such as ``listops/train_4000.tsv``, in the first of `TASK_FOLDERS` that holds it; None if none does."""
    folders = (os.environ.get(TASK_VARIABLE), *TASK_FOLDERS[1:])
    return next((path for folder in folders if folder and (path := Path(folder) / name).is_file()), None)
