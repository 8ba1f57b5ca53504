"""``structgrad merge``: the shards of a plan become one run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..outcome import SOME_FAILED, sentences


def merge(
    shards: Annotated[list[Path], typer.Argument(help="Folders that `run --shard` wrote.", metavar="SHARD", show_default=False)],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="The folder of the whole run.", metavar="DIR", show_default="structgrad-results/<hash of the plan>"
        ),
    ] = None,
) -> None:
    """Join shards of one plan into one run, with its table and its page; shards that are not there yet can be merged in later.

    Exit codes: 0 all well, 2 shards of different plans or bad input, 3 some cells failed.
    """
    with sentences():
        from ....suites.running.parts import merging
        from ....suites.text import plural
        from . import again, launch

        manifests = {shard: _manifest(shard) for shard in shards}
        first = next(iter(manifests.values()))
        for shard, manifest in manifests.items():
            _check_same(shards[0], first, shard, manifest)
        folder = out or again.RUNS / str(first["plan_hash"])
        if any(folder.resolve() == shard.resolve() for shard in shards):
            raise ValueError(f"`merge` got {folder} as a shard and as the folder of the whole run; name another one with --out")
        for line in _differences(manifests):
            typer.echo(f"warning: {line}", err=True)
        found = merging.merge(shards, folder, int(first["shard"]["cells"]))
        counts = launch.conclude(folder, found.work, first, [str(shard) for shard in shards], found.missing + found.unmeasured)
    given = {manifest["shard"]["number"] for manifest in manifests.values()}
    typer.echo(
        f"{plural(len(given), 'shard')} of {first['shard']['of']} merged: {len(found.work.cells)} cells of {first['shard']['cells']}"
    )
    if found.missing:
        absent = [str(number) for number in range(1, first["shard"]["of"] + 1) if number not in given]
        typer.echo(f"{found.missing} cells are in none of them; shards that were not given: {', '.join(absent) or 'none'}")
    if found.unmeasured:
        typer.echo(f"{found.unmeasured} cells are not measured yet; go on with their shards, and merge again")
    typer.echo(f"results: {folder}")
    raise typer.Exit(SOME_FAILED if counts["failed"] else 0)


def _manifest(shard: Path) -> dict[str, Any]:
    from ... import results

    found = results.manifest_of(shard)
    results.check_not_newer(shard)
    part = found.get("shard")
    right = isinstance(part, dict) and all(isinstance(part.get(name), int) for name in ("number", "of", "cells"))
    if not right or not isinstance(found.get("plan"), dict):
        raise ValueError(f"`merge` got {shard}, which is no shard; expected folders that `structgrad run --shard` wrote")
    return found


def _check_same(one: Path, first: dict[str, Any], other: Path, second: dict[str, Any]) -> None:
    for name, what in (("plan_hash", "plan"), ("schema_version", "schema version")):
        if first.get(name) != second.get(name):
            raise ValueError(
                f"`merge` got {one} of the {what} {first.get(name)} and {other} of {second.get(name)}; expected shards of one plan"
            )
    ends = [{name: part[name] for name in ("of", "cells")} for part in (first["shard"], second["shard"])]
    if ends[0] != ends[1]:
        (a, b), (c, d) = (tuple(end.values()) for end in ends)
        raise ValueError(f"`merge` got {one}, one of {a} shards of {b} cells, and {other}, one of {c} of {d}; expected shards of one cut")


def _differences(manifests: dict[Path, dict[str, Any]]) -> list[str]:
    """What numbers may depend on, in their rounding, where the machines of shards differ."""
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
