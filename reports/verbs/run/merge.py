"""``structgrad merge``: the shards of a plan become one run."""

from collections import defaultdict
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
        typer.Option("--out", "-o", help="Folder or URL for the whole run.", metavar="DIR", show_default=f"{RUNS}/<hash of the plan>"),
    ] = None,
) -> None:
    """Join the shards of one plan into one run with a table and a page. Missing shards can be added later.

    Exit codes: 0 success, 2 shards of different plans or bad input, 3 failed cells.
    """
    with sentences(), ExitStack() as stack:
        from ....oracles import plugins
        from ....suites.running.planning.plan import plan_from
        from ....suites.running.remote import is_url, reading
        from ....suites.running.store import Store
        from ....suites.running.work import Grid
        from ....suites.text import plural
        from ...analysis import tables
        from . import launch

        def absolute(place: str) -> str:
            return place.rstrip("/") if is_url(place) else str(Path(place).resolve())

        sources = {shard: stack.enter_context(reading(shard)) for shard in shards}
        manifests = _manifests(sources)
        first = manifests[0]
        place = out or str(RUNS / str(first["plan_hash"]))
        if absolute(place) in map(absolute, shards):
            raise ValueError(f"`merge` got {place} as a shard and as the folder of the whole run; name another one with --out")
        folder, mirror = stack.enter_context(launch.opened(place))
        with Store(folder, write=True) as store:
            store.freeze(Grid((), ()))
            for source in sources.values():
                store.take(source, plan=True)
            cells, finished = len(store.planned().cells), len(store.known())
        total, of = (int(first["shard"][name]) for name in ("cells", "of"))
        plan = plan_from(first["plan"])
        plugins.use(plan.plugins)
        whole = {name: value for name, value in first.items() if name not in ("shard", "argv", "process")}
        frame, _ = launch.publish(plan, folder, str(folder), whole, total - finished, shards=shards)
        if mirror is not None:
            mirror.write()
    given = {manifest["shard"]["number"] for manifest in manifests}
    typer.echo(f"{plural(len(given), 'shard')} of {of} merged: {cells} cells of {total}")
    if cells < total:
        absent = ", ".join(str(number) for number in range(1, of + 1) if number not in given)
        typer.echo(f"{total - cells} cells are missing; shards not given: {absent or 'none'}")
    if finished < cells:
        typer.echo(f"{cells - finished} cells are not measured yet; continue their shards, then merge again")
    typer.echo(f"results: {place}")
    raise typer.Exit(code_of(tables.counts(frame)))


def _manifests(sources: dict[str, Path]) -> list[dict[str, Any]]:
    """The manifests of shards of one plan; versions that may change the last digits of numbers are a warning."""
    from ... import results

    found: list[dict[str, Any]] = []
    versions: dict[str, set[str]] = defaultdict(set)
    for shard, folder in sources.items():
        manifest = {"plan_hash": None, "schema_version": None, **results.manifest_of(folder)}
        results.check_not_newer(folder)
        part = manifest.get("shard")
        right = isinstance(part, dict) and all(isinstance(part.get(name), int) for name in ("number", "of", "cells"))
        if not right or not isinstance(manifest.get("plan"), dict):
            raise ValueError(f"`merge` got {shard}, which is not a shard; expected folders written by `structgrad run --shard`")
        found.append(manifest)
        for fact in ("plan {plan_hash}", "schema version {schema_version}", "{shard[of]} shards of {shard[cells]} cells"):
            here, there = fact.format(**found[0]), fact.format(**manifest)
            if here != there:
                raise ValueError(f"`merge` got {next(iter(sources))}, of {here}, and {shard}, of {there}; expected shards of one plan")
        for name, version in manifest.get("environment", {}).get("packages", {}).items():
            versions[name].add(str(version))
    for name, several in versions.items():
        if len(several) > 1:
            typer.echo(f"warning: shards were measured with different versions of {name}: {', '.join(sorted(several))}", err=True)
    return found
