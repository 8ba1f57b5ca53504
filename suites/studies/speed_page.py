"""Results of the speed table as a page: ``python -m structgrad.suites.studies.speed_page speed.csv [--to docs/results/speed.md]``.

The file is what ``python -m structgrad.suites.speed --csv speed.csv`` wrote. The page answers who is faster, where, and by how much, and
how far from the machine's limit that is; every row of a peer that is faster is named.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ..speed.cases import CASES, OPERATIONS
from ..speed.comparison import SpeedComparison, geometric_mean
from ..speed.grid import read_results
from ..speed.ways import WAYS
from ..text import milliseconds, number
from .markdown import Entry, table

Record = dict[str, Entry]


def page(results: Sequence[SpeedComparison], made: str = "") -> str:
    """The page of results, as Markdown.

    Args:
        results: of any part of the grid, in any order.
        made: sentences on the machine and the run.

    Example:
        >>> one = SpeedComparison("subset 20/5", "argmax", 64, "hot", {"structgrad": 1e-3, "torch": 2e-3}, floor=1e-4)
        >>> print(page([one]).splitlines()[-1])
        | argmax | 1 | 2.0 | torch | 10 |
    """
    batches, ways = sorted({result.batch for result in results}), [way for way in WAYS if any(result.way == way for result in results)]
    parts = [
        "# Speed beside other libraries",
        "Of every operation at sizes that people use: the median CPU time of a call on one thread, in milliseconds; how many times longer "
        "the fastest library that has the operation takes, timed in turns with ours in one process; and how many times longer ours takes "
        "than moving its bytes, or doing the multiplications of one pass, would take at this machine's best. What is timed, and the three "
        "ways of timing, are in [benchmarks](../how-to/benchmarks.md#compare-with-other-libraries). Only times of one run compare.",
        *([made] if made else []),
        "## Times faster than the fastest peer",
        "Geometric means over structures, with the number of those that have a peer; an asterisk where one is faster for some of them, all "
        "of which are below.",
        *(part for way in ways for part in (f"### {way}", table(_means([one for one in results if one.way == way], batches)))),
        "## Where a peer is faster",
        _slower(results),
        "## Every structure",
        *(part for case in CASES for part in _of_case(case, results, batches, ways)),
    ]
    return "\n\n".join(parts) + "\n"


def _means(results: Sequence[SpeedComparison], batches: Sequence[int]) -> list[Record]:
    found = []
    for operation in (*OPERATIONS, None):
        rows = [result for result in results if operation in {result.operation, None} and not math.isnan(result.ratio)]
        if rows:
            cells = {f"batch {batch}": _mean([row.ratio for row in rows if row.batch == batch]) for batch in batches}
            found.append({"operation": operation or "all", **cells})
    return found


def _mean(ratios: Sequence[float]) -> Entry:
    slow = "*" if any(ratio < 1 for ratio in ratios) else ""
    return f"{_times(geometric_mean(list(ratios)))}{slow} ({len(ratios)})" if ratios else None


def _slower(results: Sequence[SpeedComparison]) -> str:
    rows = sorted((result for result in results if result.ratio < 1), key=lambda result: result.ratio)
    compared = sum(not math.isnan(result.ratio) for result in results)
    if not rows:
        return f"Nowhere: of {compared} rows that have a peer, ours is the fastest in all."
    records: list[Record] = [
        {
            "structure": row.case,
            "operation": row.operation,
            "batch": row.batch,
            "timed": row.way,
            "ours": milliseconds(row.seconds["structgrad"]),
            "fastest": row.fastest_peer,
            "its time": milliseconds(row.seconds[row.fastest_peer or ""]),
            "ratio": _times(row.ratio),
        }
        for row in rows
    ]
    return f"In {len(rows)} of {compared} rows that have a peer, in milliseconds:\n\n{table(records)}"


def _of_case(case: str, results: Sequence[SpeedComparison], batches: Sequence[int], ways: Sequence[str]) -> list[str]:
    """Its rows by the first of the ways; the others are in the means, and where a peer is faster."""
    own = [result for result in results if result.case == case and result.way == ways[0] and "structgrad" in result.seconds]
    records = [_record([row for row in own if row.operation == operation], batches) for operation in OPERATIONS]
    shown = [record for record in records if record]
    return [f"### {case}", table(shown)] if shown else []


def _record(rows: Sequence[SpeedComparison], batches: Sequence[int]) -> Record:
    if not rows:
        return {}
    of_batch = {row.batch: row for row in rows}

    def cells(batch: int) -> Record:
        row, label = of_batch.get(batch), f" {batch}" if len(batches) > 1 else ""
        columns: dict[str, Callable[[SpeedComparison], Entry]] = {
            f"ms{label}": lambda row: milliseconds(row.seconds["structgrad"]),
            f"peer ÷ ours{label}": lambda row: None if math.isnan(row.ratio) else _times(row.ratio),
            f"fastest peer{label}": lambda row: row.fastest_peer,
            f"floors{label}": lambda row: number(row.seconds["structgrad"] / row.floor, 2) if row.floor > 0 else None,
        }
        return {name: None if row is None else value(row) for name, value in columns.items()}

    found: Record = {"operation": rows[0].operation}
    for batch in batches:
        found |= cells(batch)
    return found


def _times(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 1 else number(ratio, 2) if ratio >= 10 else f"{ratio:.1f}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the page, or print it."""
    parser = argparse.ArgumentParser(prog="python -m structgrad.suites.studies.speed_page", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("csv", type=Path, help="what --csv of the speed table wrote")
    parser.add_argument("--made", default="", help="sentences on the machine and the run")
    parser.add_argument("--to", type=Path, help="where the page goes; printed when left out")
    given = parser.parse_args(arguments)
    results = read_results(given.csv)
    if not results:
        parser.error(f"found no timings in {given.csv}; expected the file of python -m structgrad.suites.speed --csv {given.csv}")
    text = page(results, given.made)
    if given.to is None:
        sys.stdout.write(text)
    else:
        given.to.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
