"""``structgrad doctor``: what this machine offers, and what is wrong with it; and whether a device computes right and fast."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..outcome import OK, REGRESSED, SOME_FAILED, fail, sentences


def doctor(  # noqa: PLR0913, PLR0917 - one parameter per option
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    device: Annotated[
        str | None, typer.Option(help="Say whether every operation is right on this device, such as cuda, and how fast.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the report on a device.")] = Path("structgrad-device"),
    minutes: Annotated[float, typer.Option(min=0.1, help="Time for a device, tests and timings together.")] = 8.0,
    only: Annotated[str, typer.Option(help="Take the operations whose names hold this text, and run no tests.")] = "",
    again: Annotated[bool, typer.Option("--again", help="Measure anew what the folder of an earlier report holds.")] = False,
) -> None:
    """Look at versions, processor, GPU, clock, memory, disk, compiled kernels, plugins and score files; say what to do.

    A table says which operations of which structures are served by compiled kernels, and which by plain torch, on every device.

    With --device, say instead whether every operation is right there, and time it against plain torch, the CPU and peers: each case in a
    process of its own, the report anew after every answer. The same command goes on where it stopped, and tries again what failed.

    Exit codes: 0 runs work, also where a target is missed; 1 an operation on the device is wrong or does not run, or a test failed; 2 there
    is no such device; 3 something is broken that would fail runs.
    """
    if device is not None:
        with sentences():
            if as_json:
                raise ValueError("`doctor` got --json with --device; leave it out, the numbers are in device.json beside the report")
            _on_device(device, out, minutes, only, again)
        return
    if only or again:
        with sentences():
            raise ValueError(f"`doctor` got {f'--only {only}' if only else '--again'} without --device; expected both, or neither")
    import json

    from .checks import checks
    from .served import lines, served

    with sentences():
        found, rows = checks(), served()
    broken = [check for check in found if check.verdict == "broken"]
    if as_json:
        page = {"broken": len(broken), "checks": [vars(check) for check in found], "served": [vars(row) for row in rows]}
        typer.echo(json.dumps(page, indent=2, ensure_ascii=False))
    else:
        width = max(len(check.name) for check in found)
        for check in found:
            mark = {"ok": " ", "note": "!", "broken": "X"}[check.verdict]
            typer.echo(f"{mark} {check.name:<{width}}  {check.value}" + (f"\n  {'':<{width}}  -> {check.advice}" if check.advice else ""))
        for line in lines(rows):
            typer.echo(f"  {line}")
        typer.echo(f"{len(broken)} broken: runs would fail" if broken else "runs work here")
    raise typer.Exit(SOME_FAILED if broken else OK)


def _on_device(name: str, out: Path, minutes: float, only: str, again: bool) -> None:
    """Everything that can be found out before the time is over, and the report."""
    try:
        from . import device
    except ImportError as error:
        fail(f"`doctor` cannot import what it measures with: {error}; install that package", SOME_FAILED)
    try:
        found = device.examine(name, out, minutes=minutes, only=only, again=again, checkout=Path.cwd(), say=typer.echo)
    except device.BrokenError as error:
        fail(error, SOME_FAILED)
    for line in device.summary(found):
        typer.echo(line)
    typer.echo(f"report: {out / 'device.md'}")
    raise typer.Exit(REGRESSED if device.is_wrong(found) else OK)
