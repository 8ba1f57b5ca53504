"""``structgrad export``: the rows of a run for other programs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .outcome import sentences

if TYPE_CHECKING:
    import pandas as pd


def export(
    run: Annotated[str, typer.Argument(help="Run: a folder, a results.parquet, or a URL.", metavar="RUN", show_default=False)],
    to: Annotated[str, typer.Option("--to", help="csv, parquet, or jsonl (one JSON object per line).", metavar="FORMAT")] = "csv",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Output file, or - for standard output.",
            metavar="FILE",
            show_default="export.FORMAT in the run's folder, or here for a URL",
        ),
    ] = None,
) -> None:
    """Write all rows of a run as CSV, Parquet or JSON lines. An unfinished run exports its finished rows."""
    with sentences():
        from ...suites.running.remote import is_url, reading
        from .. import results

        if to not in FORMATS:
            from ...oracles.registry import unknown

            raise ValueError(unknown(to, FORMATS, "format"))
        results.check_output("export", output, run)
        with reading(run) as found:
            content = FORMATS[to](results.read(found)[0])
        if str(output) == "-":
            typer.get_binary_stream("stdout").write(content)
            return
        folder = Path() if is_url(run) else Path(run) if Path(run).is_dir() else Path(run).parent
        path = output or folder / f"export.{to}"
        results.write_output("export", path, content)
    typer.echo(f"export: {path.resolve()}")


def to_csv(frame: pd.DataFrame) -> bytes:
    """Comma-separated values, one row per line; the batches behind a number are numbers separated by semicolons."""
    plain = frame.assign(batches=frame["batches"].map(lambda values: ";".join(repr(float(value)) for value in values)))
    return plain.to_csv(index=False).encode()


def to_parquet(frame: pd.DataFrame) -> bytes:
    """Parquet with plain columns: names are texts and not dictionaries, for programs that know no categories."""
    names = frame.select_dtypes("category")
    return frame.assign(batches=frame["batches"].map(list)).astype(dict.fromkeys(names, "string")).to_parquet(index=False)


def to_json(frame: pd.DataFrame) -> bytes:
    """One strict JSON object per line; missing values are null, and infinity is the text ``inf``.

    ``pandas.read_json(file, lines=True, dtype=False)`` reads it back.
    """

    def plain(value: Any) -> Any:
        if isinstance(value, tuple):
            return [plain(item) for item in value]
        if isinstance(value, float) and not math.isfinite(value):
            return None if math.isnan(value) else str(value)
        return value.item() if hasattr(value, "item") else value

    records = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return "".join(json.dumps({key: plain(value) for key, value in record.items()}, allow_nan=False) + "\n" for record in records).encode()


FORMATS: dict[str, Callable[[pd.DataFrame], bytes]] = {"csv": to_csv, "parquet": to_parquet, "jsonl": to_json, "json": to_json}
"""The formats of a table; ``json`` is ``jsonl``."""
