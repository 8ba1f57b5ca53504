"""Lists for ``structgrad list``: registries as records with a name and a description."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ....suites.text import first_sentence
from ..run import stamps
from .names import KINDS

if TYPE_CHECKING:
    from rich.table import Table

Record = dict[str, Any]
"""One entry: ``name``, ``description``, and for estimators what they declare."""


def estimators() -> list[Record]:
    """Estimators, those of plugins too, with what they declare."""
    from ....estimators import AVAILABLE_ESTIMATORS

    return [estimator_record(name, kind) for name, kind in usable(AVAILABLE_ESTIMATORS).items()]


def estimator_record(name: str, kind: Any) -> Record:
    """What an estimator class declares."""
    return {
        "name": name,
        "description": first_sentence(kind),
        "objective": kind.objective,
        "unbiased": kind.unbiased,
        "deterministic": kind.deterministic,
        "needs": [need.__name__ for need in kind.needs],
        "references": list(kind.references),
        "version": kind.version,
    }


def supervised() -> list[Record]:
    """Training that is told true structures, with what it declares."""
    from ....estimators import SUPERVISED

    return [estimator_record(name, kind) for name, kind in SUPERVISED.items()]


def oracles() -> list[Record]:
    """Structure oracles, those of plugins too."""
    from ....oracles import AVAILABLE_ORACLES

    return _described(usable(AVAILABLE_ORACLES))


def usable(catalogue: Mapping[str, Any]) -> dict[str, Any]:
    """What a catalogue holds, without the plugins that are broken: `warnings` tells of these."""
    found = {}
    for name in catalogue:
        try:
            found[name] = catalogue[name]
        except ValueError:
            continue
    return {name: kind for name, kind in found.items() if isinstance(kind, type)}


def warnings() -> list[str]:
    """One sentence for every plugin that cannot be used."""
    if not stamps.plugins():
        return []
    from .... import estimators  # noqa: F401 - registers its catalogue
    from ....oracles.plugins import plugins

    return [plugin.problem for plugin in plugins() if plugin.problem]


def problems() -> list[Record]:
    """Problems with a name."""
    from ....suites.problems import PROBLEMS

    return _described(PROBLEMS)


def tasks() -> list[Record]:
    """Tasks with a name, and what they learn."""
    from ....suites.tasks import TASKS, make_task

    return [{"name": name, "description": make_task(name).summary} for name in TASKS]


def losses() -> list[Record]:
    """Losses with a name."""
    from ....suites.problems.losses import LOSSES

    return _described(LOSSES)


def noises() -> list[Record]:
    """Noises with a name."""
    from ....estimators import NOISES

    return _described(NOISES)


def suites() -> list[Record]:
    """Suites and the questions that they ask."""
    from ....suites.measures import SUITES

    return [{"name": name, "description": suite.summary, "version": suite.version} for name, suite in SUITES.items()]


def metrics() -> list[Record]:
    """Metrics and their meaning."""
    from ....suites.metrics import METRICS

    return [{"name": name, "description": metric.meaning} for name, metric in METRICS.items()]


def engines() -> list[Record]:
    """Where workers run."""
    about = {"local": "spawned processes of this machine", "ray": "the workers of a Ray cluster: pip install 'structgrad[ray]'"}
    from ....suites.running.engines import ENGINES

    return [{"name": name, "description": about.get(name, "")} for name in ENGINES]


def presets() -> list[Record]:
    """Plans with a name."""
    from ....suites.running.planning.presets import PRESETS

    return [{"name": name, "description": preset.summary} for name, preset in PRESETS.items()]


def plugins() -> list[Record]:
    """What files and installed packages add, broken or not."""
    from .... import estimators  # noqa: F401 - registers its catalogue
    from ....oracles import plugins

    return [
        {
            "name": found.name,
            "description": found.problem or f"{found.kind} of {found.source}",
            "kind": found.kind,
            "broken": bool(found.problem),
        }
        for found in plugins.plugins()
    ]


SOURCES: dict[str, Callable[[], list[Record]]] = {
    "estimators": estimators,
    "supervised": supervised,
    "oracles": oracles,
    "problems": problems,
    "tasks": tasks,
    "losses": losses,
    "noises": noises,
    "suites": suites,
    "metrics": metrics,
    "engines": engines,
    "presets": presets,
    "plugins": plugins,
}
"""How the records of each kind are found."""


def _described(registry: Mapping[str, Any]) -> list[Record]:
    return [{"name": name, "description": value if isinstance(value, str) else first_sentence(value)} for name, value in registry.items()]


def everything() -> dict[str, list[Record]]:
    """The records of all kinds; where nothing has changed since they were made, nothing is imported for them."""

    def make() -> dict[str, list[Record]]:
        return {kind: source() for kind, source in SOURCES.items()}

    return make() if stamps.plugins() else stamps.kept("list", make)


def select(kind: str | None, pattern: str | None) -> dict[str, list[Record]]:
    """The records of a kind, or of all kinds, whose names hold a text or match a glob; a word alone that is no kind is such a text.

    Raises:
        ValueError: an unknown kind, or a pattern that matches nothing.
    """
    known = everything()
    every = {name: known[name] for name in ([kind] if kind in KINDS else KINDS)}
    if kind is not None and kind not in KINDS:
        found = _matching(every, kind) if pattern is None else {}
        if not found:
            from ....oracles import registry

            raise ValueError(f"`list` got {kind!r}; {registry.hint(kind, KINDS)}")
        return found
    if pattern is None:
        return every
    found = _matching(every, pattern)
    if not found:
        from ....oracles import registry

        names = [record["name"] for records in every.values() for record in records]
        raise ValueError(f"`list` got the pattern {pattern!r}, which matches nothing; {registry.hint(pattern, names)}")
    return found


def _matching(every: dict[str, list[Record]], pattern: str) -> dict[str, list[Record]]:
    found = {name: [record for record in records if _matches(record["name"], pattern)] for name, records in every.items()}
    return {name: records for name, records in found.items() if records}


def _matches(name: str, pattern: str) -> bool:
    return pattern in name or fnmatch.fnmatch(name, pattern)


def as_table(kind: str, records: list[Record]) -> Table:
    """Records for a terminal."""
    from rich.table import Table

    table = Table(title=kind, title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0), header_style="dim")
    declares = kind in ("estimators", "supervised")
    table.add_column("name", no_wrap=True)
    for column in ("objective", "declares", "needs") if declares else ():
        table.add_column(column)
    table.add_column("description")
    for record in records:
        middle = (record["objective"], declared(record), ", ".join(record["needs"])) if declares else ()
        table.add_row(record["name"], *middle, record["description"].replace("[", r"\["))
    return table


def declared(record: Record) -> str:
    """What an estimator says of its bias and its randomness."""
    return ("unbiased" if record["unbiased"] else "biased") + (", deterministic" if record["deterministic"] else "")
