"""``structgrad list``, and the completion of names: everything that has a name, from its registry."""

import fnmatch
import hashlib
import importlib.metadata
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from .outcome import sentences

Record = dict[str, Any]  # one entry: its ``name``, its ``description``, and the declarations of an estimator

_KINDS = "estimators supervised oracles problems tasks losses noises suites metrics engines presets plugins"
KINDS = {kind: {"losses": "loss"}.get(kind, kind.removesuffix("s")) for kind in _KINDS.split()}  # with the word for one of them

STAGES = ("init", "early", "final", "h=0.95", "h=0.7", "h=0.4", "h=0.1")  # entropy levels of the built-in problems


def registries() -> dict[str, Mapping[str, Any]]:
    """The registry of each kind; engines have one of descriptions."""
    from ...estimators import AVAILABLE_ESTIMATORS, NOISES, SUPERVISED
    from ...oracles import AVAILABLE_ORACLES, plugins
    from ...suites.measures import SUITES
    from ...suites.metrics import METRICS
    from ...suites.problems import LOSSES, PROBLEMS
    from ...suites.running.planning.presets import PRESETS
    from ...suites.tasks import TASKS

    engines = {"local": "spawned processes of this machine", "ray": "the workers of a Ray cluster: pip install 'structgrad[ray]'"}
    offered = {one.name: one for one in plugins.plugins()}
    found = (AVAILABLE_ESTIMATORS, SUPERVISED, AVAILABLE_ORACLES, PROBLEMS, TASKS, LOSSES, NOISES, SUITES, METRICS, engines, PRESETS)
    return dict(zip(KINDS, (*found, offered), strict=True))


def record(kind: str, name: str, entry: Any) -> Record:
    """The record of one entry of a registry."""
    from ...suites.text import first_sentence

    if kind == "plugins":
        description = entry.problem or f"{entry.kind} of {entry.source}"
        return {"name": name, "description": description, "kind": entry.kind, "broken": bool(entry.problem)}
    if kind == "tasks":
        from ...suites.tasks import make_task

        entry = make_task(name)
    text = entry if isinstance(entry, str) else getattr(entry, "summary", "") or getattr(entry, "meaning", "") or first_sentence(entry)
    found: Record = {"name": name, "description": text}
    if kind in ("estimators", "supervised"):
        found |= {key: getattr(entry, key) for key in ("objective", "unbiased", "deterministic")}
        found |= {"needs": [need.__name__ for need in entry.needs], "references": list(entry.references)}
    return found | ({"version": entry.version} if kind in ("estimators", "supervised", "suites") else {})


def everything() -> dict[str, list[Record]]:
    """The records of all kinds, without broken plugins; from the user's cache unless the package has changed or plugins are installed."""
    from ...user_cache import user_cache
    from .. import results

    package = Path(__file__).parents[2]
    path = user_cache() / f"list-{hashlib.blake2b(str(package).encode(), digest_size=4).hexdigest()}.json"
    code = ""
    if not any(importlib.metadata.entry_points(group=f"structgrad.{kind}") for kind in ("estimators", "oracles")):
        files = (file for room in ("oracles", "estimators", "suites", "reports") for file in (package / room).rglob("*.py"))
        lines = sorted(f"{file} {(found := file.stat()).st_size} {found.st_mtime_ns}" for file in files)
        code = hashlib.blake2b("\n".join([sys.version, *lines]).encode(), digest_size=16).hexdigest()
        with suppress(OSError, ValueError, KeyError, TypeError):
            kept = json.loads(path.read_text(encoding="utf-8"))
            if kept["code"] == code:
                return dict(kept["value"])
    value: dict[str, list[Record]] = {kind: [] for kind in KINDS}
    for kind, registry in registries().items():
        for name in registry:
            with suppress(ValueError):
                entry = registry[name]
                if kind not in ("estimators", "oracles") or isinstance(entry, type):
                    value[kind].append(record(kind, name, entry))
    if code:
        with suppress(OSError):
            results.write_whole(path, json.dumps({"code": code, "value": value}, ensure_ascii=False).encode())
    return value


def complete(kind: str = "") -> Callable[[str], list[str]]:
    """A function that completes names of a kind, by default of all."""

    def completed(incomplete: str) -> list[str]:
        names: Iterable[str] = {"kinds": tuple(KINDS), "stages": STAGES}.get(kind, ())
        if not names:
            names = [one["name"] for each, records in everything().items() if kind in ("", each) for one in records]
        return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]

    return completed


def select(kind: str | None, pattern: str | None) -> dict[str, list[Record]]:
    """The records of a kind, or of all kinds, whose names contain a text or match a glob. A word alone that is no kind is a pattern."""
    known = everything()
    chosen = {kind: known[kind]} if kind in KINDS else known
    wanted = kind if pattern is None and kind not in KINDS else pattern
    if wanted is None:
        return chosen
    found = {
        name: matching
        for name, records in chosen.items()
        if (matching := [one for one in records if wanted in one["name"] or fnmatch.fnmatch(one["name"], wanted)])
    }
    if found:
        return found
    from ...oracles.registry import hint

    if kind not in KINDS:
        raise ValueError(f"`list` got {kind!r}; {hint(str(kind), KINDS)}")
    names = [one["name"] for records in chosen.values() for one in records]
    raise ValueError(f"`list` got the pattern {pattern!r}, which matches nothing; {hint(wanted, names)}")


def list_(
    kind: Annotated[
        str | None,
        typer.Argument(
            help="Kind: " + ", ".join(KINDS) + ". Default: all.", metavar="KIND", show_default=False, autocompletion=complete("kinds")
        ),
    ] = None,
    pattern: Annotated[
        str | None, typer.Argument(help="Part of a name, or a glob such as 'reinforce*'.", metavar="PATTERN", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List estimators, supervised losses, oracles, problems, tasks, losses, suites, metrics, engines, presets and plugins."""
    from rich.table import Table

    from ..terminal import console

    with sentences():
        records = select(kind, pattern)
    if kind in (None, "estimators", "oracles") and everything()["plugins"]:
        from ...oracles.plugins import plugins

        for plugin in plugins():
            if plugin.problem:
                typer.echo(f"warning: {plugin.problem}", err=True)
    if as_json:
        typer.echo(json.dumps(records.get(kind or "", records), indent=2, ensure_ascii=False))
        return
    for name, found in records.items():
        declared = name in ("estimators", "supervised")
        table = Table(title=name, title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("name", no_wrap=True)
        for column in (*(("objective", "declares", "needs") if declared else ()), "description"):
            table.add_column(column)
        for one in found:
            bias = ("unbiased" if one["unbiased"] else "biased") + ", deterministic" * one["deterministic"] if declared else ""
            middle = (one["objective"], bias, ", ".join(one["needs"])) if declared else ()
            table.add_row(one["name"], *middle, one["description"].replace("[", r"\["))
        if found:
            console().print(table)
    if kind == "plugins" and not records["plugins"]:
        typer.echo(
            "no plugins: packages offer them as entry points structgrad.estimators and structgrad.oracles, files with --plugin FILE.py"
        )
