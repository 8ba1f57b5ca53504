"""The table of ratios: what ``python -m structgrad.suites.speed`` prints."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from .cases import BATCHES, CASES, OPERATIONS, Case
from .comparison import SpeedComparison, geometric_mean, single_thread
from .floor import measure_machine
from .grid import SpeedGrid, read_results, to_frame
from .peers import PEERS
from .ways import WAYS


def main(  # noqa: PLR0913, PLR0917 - one parameter per option
    case: Annotated[list[str] | None, typer.Option(help="A case or the start of one, such as 'constituency'; all when left out.")] = None,
    operation: Annotated[list[str] | None, typer.Option(help=f"One of {', '.join(OPERATIONS)}; all when left out.")] = None,
    batch: Annotated[list[int] | None, typer.Option(help="Batch size; 1, 64 and 256 when left out.")] = None,
    way: Annotated[list[str] | None, typer.Option(help=f"One of {', '.join(WAYS)}; all when left out.")] = None,
    memory: Annotated[float, typer.Option(min=0.1, help="GiB that the process of a case may have: what asks for more fails alone.")] = 8.0,
    limit: Annotated[float, typer.Option(min=1.0, help="Seconds for an operation at a size, with all its peers.")] = 600.0,
    csv: Annotated[Path | None, typer.Option(help="Write every timing to this file; what it holds already is not timed again.")] = None,
) -> None:
    """Time our oracles and every installed peer, one thread each, interleaved in one process, and print ratios."""
    chosen = _chosen(case or [])
    _refuse("operation", operation or [], list(OPERATIONS))
    _refuse("way", way or [], list(WAYS))
    if not chosen:
        raise typer.BadParameter(f"got case {', '.join(map(repr, case or []))}; expected one of {', '.join(CASES)}")
    console = Console()
    single_thread()
    machine = measure_machine()
    console.print(f"peers: {', '.join(peer.name for peer in PEERS if peer.installed)}")
    console.print(f"copy {machine.bytes_per_second / 1e9:.1f} GB/s, {machine.multiply_adds_per_second / 1e9:.1f} G multiply-adds/s")
    known = [] if csv is None else read_results(csv)
    grid, results = SpeedGrid(chosen, batch or BATCHES, way or WAYS, operation, memory * 2**30, limit), []
    for result in grid.compare(machine, known):
        results.append(result)
        console.print(_line(result), highlight=False, soft_wrap=True, markup=False)
        if csv is not None and result not in known:
            known.append(result)
            to_frame(known).to_csv(csv, index=False)
    for one in grid.ways:
        console.print(_summary(one, [result for result in results if result.way == one]))
    console.print(*slower(results), sep="\n", highlight=False, soft_wrap=True, markup=False)


def _refuse(what: str, given: list[str], expected: list[str]) -> None:
    for name in given:
        if name not in expected:
            raise typer.BadParameter(f"got {what} {name!r}; expected one of {', '.join(expected)}")


def _chosen(names: list[str]) -> list[Case]:
    return [case for case in CASES.values() if not names or any(case.name.startswith(name) for name in names)]


def _line(result: SpeedComparison) -> str:
    size = f"{result.case:<20} b={result.batch:<4}{result.operation:<19}{result.way:<9}"
    missing = "".join(f"; {name} failed: {reason[:80]}" for name, reason in result.failures.items())
    if "structgrad" not in result.seconds:
        return size + missing
    ours = result.seconds["structgrad"]
    peers = sorted((seconds, name) for name, seconds in result.seconds.items() if name != "structgrad")
    others = ", ".join(f"{name} {1e3 * seconds:.4g}{'*' if name in result.disagreements else ''}" for seconds, name in peers)
    ratio = f"{result.ratio:.2f}x" if peers else "no peer"
    return f"{size}{1e3 * ours:>10.4g} ms  {ratio:>9}  {ours / max(result.floor, 1e-12):>8.3g} floors  {others}{missing}"


def slower(results: list[SpeedComparison]) -> list[str]:
    """A line for each result that a peer finds faster, the worst first."""
    found = sorted((result for result in results if result.ratio < 1.0), key=lambda result: result.ratio)
    head = f"slower than a peer: {len(found)} of {sum(result.fastest_peer is not None for result in results)} with a peer"
    return [head, *map(_line, found)]


def _summary(way: str, results: list[SpeedComparison]) -> Table:
    table = Table(title=f"{way}: times faster than the fastest peer: geometric mean, least (* its result is another than ours)")
    for column in ("operation", *(f"batch {batch}" for batch in sorted({result.batch for result in results}))):
        table.add_column(column)
    for operation in (*OPERATIONS, None):
        rows = [result for result in results if operation is None or result.operation == operation]
        if rows:
            table.add_row(operation or "all", *(_cell([r for r in rows if r.batch == b]) for b in sorted({r.batch for r in results})))
    return table


def _cell(results: list[SpeedComparison]) -> str:
    known = [result for result in results if not math.isnan(result.ratio)]
    if not known:
        return "no peer"
    least = min(known, key=lambda result: result.ratio)
    return f"{geometric_mean([result.ratio for result in known]):.2f} (least {least.ratio:.2f}: {least.case})"
