"""``structgrad doctor``: what this machine offers, and what is wrong with it."""

from __future__ import annotations

from typing import Annotated

import typer

from .outcome import OK, SOME_FAILED


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Look at versions, processor, GPU, clock, memory, disk, compiled kernels, plugins and score files; say what to do.

    Exit codes: 0 runs work, 3 something is broken that would fail them.
    """
    import json

    from ..upkeep.doctor import checks

    found = checks()
    broken = [check for check in found if check.verdict == "broken"]
    if as_json:
        typer.echo(json.dumps({"broken": len(broken), "checks": [vars(check) for check in found]}, indent=2, ensure_ascii=False))
    else:
        width = max(len(check.name) for check in found)
        for check in found:
            mark = {"ok": " ", "note": "!", "broken": "X"}[check.verdict]
            typer.echo(f"{mark} {check.name:<{width}}  {check.value}" + (f"\n  {'':<{width}}  -> {check.advice}" if check.advice else ""))
        typer.echo(f"{len(broken)} broken: runs would fail" if broken else "runs work here")
    raise typer.Exit(SOME_FAILED if broken else OK)
