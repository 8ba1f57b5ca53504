"""What there is, for ``structgrad list``: registries as records with a name and a description."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping
from typing import Any

from rich.table import Table

Record = dict[str, Any]
"""One entry: ``name``, ``description``, and for estimators what they declare."""


def estimators() -> list[Record]:
    """Estimators with what they declare."""
    from ..estimators import ESTIMATORS

    return [
        {
            "name": name,
            "description": _first_sentence(kind),
            "objective": kind.objective,
            "unbiased": kind.unbiased,
            "deterministic": kind.deterministic,
            "needs": [need.__name__ for need in kind.needs],
            "references": list(kind.references),
        }
        for name, kind in ESTIMATORS.items()
    ]


def oracles() -> list[Record]:
    """Structure oracles."""
    from ..oracles import ORACLES

    return _described(ORACLES)


def problems() -> list[Record]:
    """Problems with a name."""
    from ..suites.problems import PROBLEMS

    return _described(PROBLEMS)


def losses() -> list[Record]:
    """Losses with a name."""
    from ..suites.problems.losses import LOSSES

    return _described(LOSSES)


def metrics() -> list[Record]:
    """Metrics and their meaning."""
    from ..suites.base import METRICS

    return _described(METRICS)


KINDS: dict[str, Callable[[], list[Record]]] = {
    "estimators": estimators,
    "oracles": oracles,
    "problems": problems,
    "losses": losses,
    "metrics": metrics,
}
"""What can be listed. Nothing is imported before its function is called."""


def _described(registry: Mapping[str, Any]) -> list[Record]:
    return [{"name": name, "description": value if isinstance(value, str) else _first_sentence(value)} for name, value in registry.items()]


def _first_sentence(kind: type) -> str:
    paragraph = (kind.__doc__ or "").strip().partition("\n\n")[0]
    return " ".join(paragraph.split()).replace("``", "`").partition(". ")[0].rstrip(".")


def select(kind: str | None, pattern: str | None) -> dict[str, list[Record]]:
    """The records of a kind, or of all kinds, whose names hold a text or match a glob.

    Raises:
        ValueError: an unknown kind, or a pattern that matches nothing.
    """
    from ..oracles import registry

    if kind is not None and kind not in KINDS:
        raise ValueError(f"`list` got {kind!r}; {registry.hint(kind, KINDS)}")
    every = {name: KINDS[name]() for name in ([kind] if kind else KINDS)}
    if pattern is None:
        return every
    found = {name: [record for record in records if _matches(record["name"], pattern)] for name, records in every.items()}
    if not any(found.values()):
        known = [record["name"] for records in every.values() for record in records]
        raise ValueError(f"`list` got the pattern {pattern!r}, which matches nothing; {registry.hint(pattern, known)}")
    return found


def _matches(name: str, pattern: str) -> bool:
    return pattern in name or fnmatch.fnmatch(name, pattern)


def as_table(kind: str, records: list[Record]) -> Table:
    """Records for a terminal."""
    table = Table(title=kind, title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0), header_style="dim")
    declares = "objective" in records[0]
    table.add_column("name", no_wrap=True)
    for column in ("objective", "declares", "needs") if declares else ():
        table.add_column(column)
    table.add_column("description")
    for record in records:
        middle = (record["objective"], _declared(record), ", ".join(record["needs"])) if declares else ()
        table.add_row(record["name"], *middle, record["description"].replace("[", r"\["))
    return table


def _declared(record: Record) -> str:
    return ("unbiased" if record["unbiased"] else "biased") + (", deterministic" if record["deterministic"] else "")
