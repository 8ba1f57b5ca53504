"""``structgrad list``: what there is."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from .. import listing, terminal
from .outcome import sentences


def list_(
    kind: Annotated[
        str | None,
        typer.Argument(help="One of " + ", ".join(listing.KINDS) + "; all of them by default.", metavar="[KIND]", show_default=False),
    ] = None,
    pattern: Annotated[
        str | None, typer.Argument(help="A part of a name, or a glob such as 'reinforce*'.", metavar="[PATTERN]", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what there is: estimators, oracles, problems, losses, metrics."""
    with sentences():
        records = listing.select(kind, pattern)
    if as_json:
        typer.echo(json.dumps(records[kind] if kind else records, indent=2, ensure_ascii=False))
        return
    for name, found in records.items():
        if found:
            terminal.console().print(listing.as_table(name, found))
