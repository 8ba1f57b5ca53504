"""``structgrad list``: what there is."""

from __future__ import annotations

from typing import Annotated

import typer

from ..outcome import sentences
from .names import KINDS, complete_kinds


def list_(
    kind: Annotated[
        str | None,
        typer.Argument(
            help="Kind: " + ", ".join(KINDS) + ". Default: all.",
            metavar="KIND",
            show_default=False,
            autocompletion=complete_kinds,
        ),
    ] = None,
    pattern: Annotated[
        str | None, typer.Argument(help="Part of a name, or a glob such as 'reinforce*'.", metavar="PATTERN", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List estimators, supervised losses, oracles, problems, tasks, losses, suites, metrics, engines, presets and plugins."""
    import json

    from ... import terminal
    from . import listing

    with sentences():
        records = listing.select(kind, pattern)
        for warning in listing.warnings() if kind in (None, "estimators", "oracles") else ():
            typer.echo(f"warning: {warning}", err=True)
    if as_json:
        typer.echo(json.dumps(records.get(kind or "", records), indent=2, ensure_ascii=False))
        return
    for name, found in records.items():
        if found:
            terminal.console().print(listing.as_table(name, found))
    if kind == "plugins" and not records["plugins"]:
        typer.echo(
            "no plugins: packages offer them as entry points structgrad.estimators and structgrad.oracles, files with --plugin FILE.py"
        )
