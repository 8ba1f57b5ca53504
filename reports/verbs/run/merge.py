"""``structgrad merge``: the shards of a plan become one run."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from ..options import RUNS
from ..outcome import code_of, sentences


def merge(
    shards: Annotated[list[str], typer.Argument(help="Folders or URLs written by `run --shard`.", metavar="SHARD", show_default=False)],
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            "-o",
            help="Folder or URL for the whole run.",
            metavar="DIR",
            show_default="structgrad-results/<hash of the plan>",
        ),
    ] = None,
) -> None:
    """Join the shards of one plan into one run with a table and a page. Missing shards can be added later.

    Exit codes: 0 success, 2 shards of different plans or bad input, 3 failed cells.
    """
    with sentences(), ExitStack() as stack:
        from ....suites.running.remote import Mirror, is_url, mirrored, reading
        from ....suites.running.store import Store, check_writable, locked
        from ....suites.running.work import Grid
        from ....suites.text import plural
        from . import launch

        found_at = {shard: stack.enter_context(reading(shard)) for shard in shards}
        manifests = {shard: _manifest(shard, folder) for shard, folder in found_at.items()}
        first = next(iter(manifests.values()))
        for shard, manifest in manifests.items():
            _check_same(shards[0], first, shard, manifest)
        place = out or str(RUNS / str(first["plan_hash"]))
        if _place(place) in map(_place, shards):
            raise ValueError(f"`merge` got {place} as a shard and as the folder of the whole run; name another one with --out")
        for line in _differences(manifests):
            typer.echo(f"warning: {line}", err=True)
        mirror: Mirror | None = stack.enter_context(mirrored(place)) if is_url(place) else None
        folder = Path(place) if mirror is None else mirror.folder
        check_writable(folder)
        with locked(folder):
            with Store(folder, write=True) as store:
                store.freeze(Grid((), ()))
                for source in found_at.values():
                    store.take(source, plan=True)
                cells, finished = len(store.planned().cells), len(store.known())
            total = int(first["shard"]["cells"])
            counts = launch.conclude(folder, first, shards, total - finished)
        if mirror is not None:
            mirror.write()
    given = {manifest["shard"]["number"] for manifest in manifests.values()}
    typer.echo(f"{plural(len(given), 'shard')} of {first['shard']['of']} merged: {cells} cells of {total}")
    if cells < total:
        absent = [str(number) for number in range(1, first["shard"]["of"] + 1) if number not in given]
        typer.echo(f"{total - cells} cells are missing; shards not given: {', '.join(absent) or 'none'}")
    if finished < cells:
        typer.echo(f"{cells - finished} cells are not measured yet; continue their shards, then merge again")
    typer.echo(f"results: {place}")
    raise typer.Exit(code_of(counts))


def _place(text: str) -> str:
    """A folder or URL in a form that can be compared."""
    from ....suites.running.remote import is_url

    return text.rstrip("/") if is_url(text) else str(Path(text).resolve())


def _manifest(shard: str, folder: Path) -> dict[str, Any]:
    from ... import results

    found = results.manifest_of(folder)
    results.check_not_newer(folder)
    part = found.get("shard")
    right = isinstance(part, dict) and all(isinstance(part.get(name), int) for name in ("number", "of", "cells"))
    if not right or not isinstance(found.get("plan"), dict):
        raise ValueError(f"`merge` got {shard}, which is not a shard; expected folders written by `structgrad run --shard`")
    return found


def _check_same(one: str, first: dict[str, Any], other: str, second: dict[str, Any]) -> None:
    for name, what in (("plan_hash", "plan"), ("schema_version", "schema version")):
        if first.get(name) != second.get(name):
            raise ValueError(
                f"`merge` got {one} of the {what} {first.get(name)} and {other} of {second.get(name)}; expected shards of one plan"
            )
    ends = [{name: part[name] for name in ("of", "cells")} for part in (first["shard"], second["shard"])]
    if ends[0] != ends[1]:
        (a, b), (c, d) = (tuple(end.values()) for end in ends)
        raise ValueError(
            f"`merge` got {one}, one of {a} shards of {b} cells, and {other}, one of {c} of {d}; expected shards of the same division"
        )


def _differences(manifests: dict[str, dict[str, Any]]) -> list[str]:
    """Differences between the machines of shards that may change the last digits of numbers."""
    found: dict[str, set[str]] = {}
    for manifest in manifests.values():
        surroundings = manifest.get("environment", {})
        for name, version in {**surroundings.get("packages", {}), "processor": surroundings.get("cpu")}.items():
            found.setdefault(name, set()).add(str(version))
    return [
        f"shards were measured with different versions of {name}: {', '.join(sorted(values))}"
        for name, values in found.items()
        if len(values) > 1
    ]
