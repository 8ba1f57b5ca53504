"""``structgrad doctor``: what this machine offers, and what is wrong with it; and whether a device computes right and fast."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..outcome import OK, REGRESSED, SOME_FAILED, fail, sentences


def doctor(  # noqa: PLR0913, PLR0917 - one parameter per option
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    device: Annotated[str | None, typer.Option(help="Test and time every operation on this device, such as cuda.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the device report.")] = Path("structgrad-device"),
    minutes: Annotated[float, typer.Option(min=0.1, help="Time limit for --device, in minutes, for tests and timings together.")] = 8.0,
    only: Annotated[str, typer.Option(help="Only operations whose names contain this text; runs no tests.")] = "",
    again: Annotated[bool, typer.Option("--again", help="Discard the measurements of an earlier report and start again.")] = False,
) -> None:
    """Check versions, processor, GPU, clock, memory, disk, compiled kernels, plugins and score files, and suggest fixes.

    A table shows which operations use compiled kernels and which use plain PyTorch, for each device.

    With --device, test every operation on that device. Also time it against plain PyTorch, the CPU and other libraries. Each case runs
    in its own process. The report is updated after every result. Repeat the command to continue and to retry failures.

    Exit codes: 0 runs work (even if a speed target is missed); 1 an operation on the device is wrong or fails, or a test fails; 2 no such
    device; 3 a problem that would make runs fail.
    """
    if device is not None:
        with sentences():
            if as_json:
                raise ValueError("`doctor` got --json with --device; leave it out; the numbers are in device.json next to the report")
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
        fail(f"`doctor` cannot import a package: {error}; install it with pip", SOME_FAILED)
    try:
        found = device.examine(name, out, minutes=minutes, only=only, again=again, checkout=Path.cwd(), say=typer.echo)
    except device.BrokenError as error:
        fail(error, SOME_FAILED)
    for line in device.summary(found):
        typer.echo(line)
    typer.echo(f"report: {out / 'device.md'}")
    raise typer.Exit(REGRESSED if device.is_wrong(found) else OK)
