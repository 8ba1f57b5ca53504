"""``structgrad export``: the rows of a run for other programs."""

from dataclasses import MISSING, dataclass
from pathlib import Path

from .options import option
from .outcome import sentences, write_output

FORMATS = ("csv", "parquet", "jsonl", "json", "latex")  # ``json`` is ``jsonl``


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Options of `export`."""

    run: str = option(MISSING, None, "RUN", shown=False)
    """Run: a folder, a results.parquet, or a URL."""
    to: str = option("csv", "Options", "FORMAT")
    """csv, parquet, jsonl (one JSON object per line), or latex (tables of medians with the best in bold, for booktabs)."""
    output: Path | None = option(None, "Options", "FILE", "--output", "-o", shown="export.FORMAT in the run's folder, or here for a URL")
    """Output file, or - for standard output."""


def export(options: ExportOptions) -> None:
    """Write all rows of a run as CSV, Parquet or JSON lines, or its tables in LaTeX. An unfinished run exports its finished rows."""
    run, to, output = options.run, options.to, options.output
    with sentences():
        from ...suites.running.remote import is_url, reading
        from .. import results

        if to not in FORMATS:
            from ...oracles.registry import unknown

            raise ValueError(unknown(to, FORMATS, "format"))
        results.check_output("export", output, run)
        with reading(run) as found:
            frame = results.read(found)[0]
        if to == "csv":  # `frames.from_csv` restores the table: batches are separated by semicolons
            batches = frame["batches"].map(lambda values: ";".join(repr(float(value)) for value in values))
            content = frame.assign(batches=batches).to_csv(index=False).encode()
        elif to == "parquet":
            words = dict.fromkeys(frame.select_dtypes("category"), "string")
            content = frame.assign(batches=frame["batches"].map(list)).astype(words).to_parquet(index=False)
        elif to == "latex":
            from ..analysis import tables
            from ..page import of_gradients, paper, sections

            shown = tables.by_loss(of_gradients(frame))
            content = paper.tex_tables(sections.problem_tables(shown, tables.claims(shown))).encode()
        else:
            from ..comparison import json_text

            records = frame.astype(object).where(frame.notna(), None).to_dict("records")
            content = "".join(json_text(record, indent=None) for record in records).encode()
        folder = Path() if is_url(run) else Path(run) if Path(run).is_dir() else Path(run).parent
        write_output("export", output or folder / f"export.{to}", content)
