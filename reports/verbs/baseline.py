"""``structgrad baseline``: stored runs to compare with."""

import json
import math
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from .outcome import REGRESSED, fail, sentences

app = typer.Typer(
    no_args_is_help=True, help="Save and show baselines (stored runs to compare with). Each is one file, which you may rename or delete."
)

Folder = Annotated[Path, typer.Option("--dir", help="Folder with the baselines.", metavar="DIR")]
HERE = Path("baselines")


@app.command()
def save(  # noqa: PLR0913 - one parameter per option
    name: Annotated[str, typer.Argument(help="Name of the baseline.", metavar="NAME")],
    run: Annotated[str, typer.Argument(help="Run: its folder or its table.", metavar="RUN")],
    *,
    replace: Annotated[bool, typer.Option("--replace", help="Replace a baseline of this name if the gate against it passes.")] = False,
    force: Annotated[
        str | None, typer.Option("--force", help="Save although the gate fails; the reason is stored.", metavar="REASON")
    ] = None,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="TOML file of the gate.", metavar="FILE")] = None,
    folder: Folder = HERE,
) -> None:
    """Save the gated numbers of a run as one file, with its commit, seed and machine.

    Refused if the gate against the replaced baseline fails, or if an estimator that declares itself unbiased is biased.
    """
    with sentences():
        import pyarrow.parquet as pq

        from ...suites.base import COLUMNS
        from ...suites.comparison import gate
        from ...suites.comparison.settings import load_settings
        from ...suites.running.store import OtherSchemaError
        from .. import comparison, results
        from ..analysis import loading

        path = loading.path_of(name, folder)
        if path.exists() and not replace:
            raise ValueError(f"baseline {name!r} already exists in {folder}; --replace overwrites it if the gate against it passes")
        if force is not None and not force.strip():
            raise ValueError("--force got an empty reason; expected the reason to save despite a failing gate")
        loaded, settings = loading.load(run, folder), load_settings(config)
        try:
            before = loading.load(str(path)) if path.exists() else None
        except OtherSchemaError:
            before = None
        # Without an older baseline, only claims are checked.
        machines = (before.machine if before else {}, loaded.machine)
        result = gate(before.frame if before else [], loaded.frame, machines, settings)
        if result.outcome == "failed" and force is None:
            typer.echo(comparison.gate_text(result), err=True, nl=False)
            fail(f"baseline {name} is not saved, because the gate fails; to save it anyway, use --force 'the reason'", REGRESSED)
        kept = loading.gated_rows(loaded.frame).assign(traceback="", seconds=math.nan, source="").astype(COLUMNS).reset_index(drop=True)
        kept = kept.assign(**{str(column): kept[column].cat.remove_unused_categories() for column in kept.select_dtypes("category")})
        note = {"saved": datetime.now(UTC).isoformat(timespec="seconds"), "rows": len(kept), "name": name}
        with tempfile.TemporaryDirectory() as scratch:
            written = results.write(kept, Path(scratch), {**loaded.manifest, "baseline": note | ({"reason": force} if force else {})})
            pq.write_table(pq.read_table(written), written, compression="zstd", use_dictionary=True)
            results.write_whole(path, written.read_bytes())
        typer.echo(f"baseline {name}: {len(kept)} rows, {path.stat().st_size} bytes, {path}")


@app.command()
def show(
    name: Annotated[str | None, typer.Argument(help="Name of the baseline. Default: list all.", metavar="NAME", show_default=False)] = None,
    folder: Folder = HERE,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the origin of a baseline: code, seed, machine, command, and the reason if it was saved with --force."""
    with sentences():
        from ...oracles.registry import hint
        from .. import results
        from ..analysis import loading

        if folder.exists() and not folder.is_dir():
            raise ValueError(f"`baseline show` got --dir {folder}, which is a file; expected a folder with baselines")
        known = loading.baselines_in(folder)
        if name is None:
            typer.echo(json.dumps(known) if as_json else "\n".join(known) or f"no baselines in {folder}")
            return
        path = loading.path_of(name, folder)
        if not path.is_file():
            raise ValueError(f"no baseline {name!r} in {folder}" + (f"; {hint(name, known)}" if known else ""))
        manifest = results.read(path)[1]
        environment, note = manifest.get("environment", {}), manifest.get("baseline", {})
        found = {"name": note.get("name", path.stem), "file": str(path), "bytes": path.stat().st_size}
        found |= {key: note.get(key) for key in ("rows", "saved", "reason")}
        found |= {key: environment.get(key) for key in ("commit", "dirty", "packages")}
        found |= {"seed": manifest.get("seed"), "cpu": environment.get("cpu"), "command": manifest.get("command")}
        lines = "\n".join(f"{key}: {value}" for key, value in found.items() if value is not None)
        typer.echo(json.dumps(found, indent=1) if as_json else lines)
