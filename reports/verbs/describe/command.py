"""``structgrad describe``: what is known of one thing."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ..outcome import sentences
from .names import complete_anything


def describe(
    name: Annotated[
        str,
        typer.Argument(
            help=r"Name of an estimator, oracle, problem, task, suite, metric, loss, noise or preset, such as 'imle\[lambda=2.5]'; "
            "or your own class, such as ./my.py:MyEstimator.",
            metavar="NAME",
            show_default=False,
            autocompletion=complete_anything,
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Describe one estimator, structure, task or metric: its options, cost, supported structures, and an example."""
    import json

    with sentences():
        from . import describing

        found = describing.describe(name)
    if as_json:
        typer.echo(json.dumps(found[0] if len(found) == 1 else found, indent=2, ensure_ascii=False))
        return
    for record in found:
        for line in _lines(record):
            typer.echo(line)


def _lines(record: dict[str, Any]) -> list[str]:
    """A record for people: the documentation last, the example at the very end."""
    head = f"{record['kind']} {record['name']}" + (f": {record['description']}" if "description" in record else "")
    shown = {key: value for key, value in record.items() if key not in ("kind", "name", "description", "documentation", "example")}
    facts = [line for key, value in shown.items() for line in _entry(key.replace("_", " "), value)]
    document = (
        ["", *(f"  {line}".rstrip() for line in record.get("documentation", "").splitlines()), ""] if "documentation" in record else []
    )
    return [head, *facts, *document, *([f"  try: {record['example']}"] if "example" in record else []), ""]


def _entry(key: str, value: Any) -> list[str]:
    """One fact: a line, or one for each of its parts where these are long."""
    if isinstance(value, dict) and any(len(str(item)) > 20 for item in value.values()):
        return [f"  {key}:", *(f"    {name}: {item}" for name, item in value.items())]
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [f"  {key}:", *(f"    {_pairs(item)}" for item in value)]
    return [f"  {key}: {_pairs(value) if isinstance(value, dict) else _plain(value)}"]


def _pairs(record: dict[str, Any]) -> str:
    """A small record in a line; an option as it is written: ``lambda = 1.0  (a finite number > 0)``."""
    if "required" in record:
        default = " (required)" if record["required"] else f" = {record['default']}"
        return f"{record['name']}{default}  ({record['expected']})"
    return ", ".join(f"{key} {_plain(value)}" for key, value in record.items()) or "none"


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "not known"
    if isinstance(value, list):
        sizes = bool(value) and all(isinstance(item, int) for item in value)
        return (" × " if sizes else ", ").join(map(str, value)) or "none"
    return str(value)
