"""``structgrad doctor``: what this machine offers, and what is wrong with it; and whether a device computes right and fast."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .outcome import OK, REGRESSED, SOME_FAILED, sentences

FEW = 2
"""Rows of a batch where the CPU stands in for a GPU, to see what the report looks like."""


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    device: Annotated[
        str | None, typer.Option(help="Run the tests that need a GPU and time every operation on this device, such as cuda.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the report on a device.")] = Path("structgrad-device"),
    minutes: Annotated[float, typer.Option(min=0.1, help="Time for a device, tests and timings together.")] = 8.0,
    only: Annotated[str, typer.Option(help="Time the operations whose names hold this text, and run no tests.")] = "",
) -> None:
    """Look at versions, processor, GPU, clock, memory, disk, compiled kernels, plugins and score files; say what to do.

    A table says which operations of which structures are served by compiled kernels, and which by plain torch, on every device.

    With --device, run the tests that need a GPU instead, and time every operation there against plain torch, the CPU and peers.

    Exit codes: 0 runs work, 1 a test on the device failed, 2 there is no such device, 3 something is broken that would fail runs.
    """
    if device is not None:
        with sentences():
            if as_json:
                raise ValueError("`doctor` got --json with --device; leave it out, the numbers are in device.json beside the report")
            _on_device(device, out, minutes, only)
        return
    if only:
        with sentences():
            raise ValueError(f"`doctor` got --only {only} without --device; expected both, or neither")
    import json

    from ..upkeep.doctor import checks
    from ..upkeep.served import lines, served

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


def _on_device(name: str, out: Path, minutes: float, only: str) -> None:
    """Tests, then timings, then the report, all before the time is over."""
    import time

    import torch

    from ...suites.running.plan import check_device
    from ...suites.speed.targets import tasks
    from ..upkeep import device as report

    begun = time.monotonic()
    check_device(name)
    place, deadline = torch.device(name), begun + 60 * minutes
    torch.set_num_threads(2)
    wanted = tasks(only, FEW) if place.type == "cpu" else tasks(only)
    if not wanted:
        raise ValueError(f"`doctor` got only={only!r}, which no operation holds; expected a part of a name, such as 'spanning_tree 40'")
    if only:
        tests = report.DeviceTests(f"not run: only {only!r} was asked for")
    else:
        typer.echo("tests that need a GPU ...")
        tests = report.run_tests(Path.cwd(), report.SHARE * 60 * minutes)
    typer.echo(f"tests: {tests.verdict} {tests.summary}")
    timed = []
    for timing in report.timings(wanted, place, deadline):
        timed.append(timing)
        typer.echo(f"{len(timed)}/{len(wanted)} {report.sentence(timing)}")
    page = report.write(out, place, tests, timed, left=len(wanted) - len(timed))
    typer.echo(f"report: {page}")
    raise typer.Exit(REGRESSED if tests.verdict == "failed" else OK)
