"""The table of ratios: what ``python -m structgrad.suites.speed`` prints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pandas as pd
import typer
from rich.console import Console
from rich.table import Table

from .cases import BATCHES, CASES, OPERATIONS, Case
from .comparison import SpeedComparison, compare, geometric_mean, single_thread
from .floor import measure_machine
from .peers import PEERS


def main(
    case: Annotated[list[str] | None, typer.Option(help="A case or the start of one, such as 'constituency'; all when left out.")] = None,
    operation: Annotated[list[str] | None, typer.Option(help=f"One of {', '.join(OPERATIONS)}; all when left out.")] = None,
    batch: Annotated[list[int] | None, typer.Option(help="Batch size; 1, 64 and 256 when left out.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Write every timing to this file too.")] = None,
) -> None:
    """Time our oracles and every installed peer, one thread each, interleaved in one process, and print ratios."""
    chosen = _chosen(case or [])
    unknown = [name for name in operation or [] if name not in OPERATIONS]
    if unknown or not chosen:
        wrong = f"operation {unknown[0]!r}" if unknown else f"case {', '.join(map(repr, case or []))}"
        raise typer.BadParameter(f"got {wrong}; expected one of {', '.join(OPERATIONS if unknown else CASES)}")
    console = Console()
    single_thread()
    machine = measure_machine()
    console.print(f"peers: {', '.join(peer.name for peer in PEERS if peer.installed)}")
    console.print(f"copy {machine.bytes_per_second / 1e9:.1f} GB/s, {machine.multiply_adds_per_second / 1e9:.1f} G multiply-adds/s")
    results = []
    for result in compare(chosen, batch or list(BATCHES), machine, operation):
        results.append(result)
        console.print(_line(result), highlight=False, soft_wrap=True)
        if csv is not None:
            _frame(results).to_csv(csv, index=False)
    console.print(_summary(results))


def _chosen(names: list[str]) -> list[Case]:
    return [case for case in CASES.values() if not names or any(case.name.startswith(name) for name in names)]


def _line(result: SpeedComparison) -> str:
    ours = result.seconds["structgrad"]
    peers = sorted((seconds, name) for name, seconds in result.seconds.items() if name != "structgrad")
    others = ", ".join(f"{name} {1e3 * seconds:.4g}{'*' if name in result.disagreements else ''}" for seconds, name in peers)
    ratio = f"{result.ratio:.2f}x" if peers else "no peer"
    others += "".join(f", {name} failed" for name in result.failures)
    size = f"{result.case:<20} b={result.batch:<4}{result.operation:<20}"
    return f"{size}{1e3 * ours:>10.4g} ms  {ratio:>9}  {ours / max(result.floor, 1e-12):>8.3g} floors  {others}"


def _summary(results: list[SpeedComparison]) -> Table:
    table = Table(title="times faster than the fastest peer: geometric mean, least (* its result is another than ours)")
    for column in ("operation", *(f"batch {batch}" for batch in sorted({result.batch for result in results}))):
        table.add_column(column)
    for operation in (*OPERATIONS, None):
        rows = [result for result in results if operation is None or result.operation == operation]
        if rows:
            table.add_row(operation or "all", *(_cell([r for r in rows if r.batch == b]) for b in sorted({r.batch for r in results})))
    return table


def _cell(results: list[SpeedComparison]) -> str:
    known = [result for result in results if result.fastest_peer is not None]
    if not known:
        return "no peer"
    least = min(known, key=lambda result: result.ratio)
    return f"{geometric_mean([result.ratio for result in known]):.2f} (least {least.ratio:.2f}: {least.case})"


def _frame(results: list[SpeedComparison]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "case": result.case,
            "operation": result.operation,
            "batch": result.batch,
            "contender": name,
            "seconds": seconds,
            "floor": result.floor,
            "difference": result.disagreements.get(name, 0.0),
        }
        for result in results
        for name, seconds in result.seconds.items()
    )
