"""``python -m structgrad.suites.studies.simulations``: simulate, print, write the page, and fail where a requirement is not met."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from .page import page, section, write
from .parts import PARTS, simulate_cell


def main(arguments: Sequence[str] | None = None) -> int:
    """0, or 1 where a line violates what is required of it."""
    options = _options(arguments)
    sections, violated = {}, []
    for name in options.only or PARTS:
        part = PARTS[name]
        repetitions = options.repetitions or part.repetitions
        lines = part.lines(dict(_simulated(name, repetitions, options.jobs)))
        sections[name] = section(part, lines, repetitions)
        violated += [line for line in lines if line.violated]
        sys.stdout.write(sections[name] + "\n")
        sys.stdout.flush()
    if options.output is not None:
        write(page(sections), options.output)
    for line in violated:
        sys.stderr.write(f"not as required: {' | '.join(line.cells())}\n")
    return 1 if violated else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m structgrad.suites.studies.simulations", description=__doc__)
    parser.add_argument("--only", action="append", choices=list(PARTS), metavar="NAME", help=f"one of {', '.join(PARTS)}; may be repeated")
    parser.add_argument("--repetitions", type=int, help="of every cell; each part has its own number when left out")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--output", type=Path, help="the page; docs/results/simulations.md where everything is simulated, else none")
    options = parser.parse_args(arguments)
    for name in ("repetitions", "jobs"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            parser.error(f"--{name} got {getattr(options, name)}; expected at least 1")
    if options.output is None and options.only is None and options.repetitions is None:
        options.output = Path("docs/results/simulations.md")
    if options.output is not None and not options.output.parent.is_dir():
        parser.error(f"--output got {options.output}, whose folder does not exist; run from the root of the repository, or choose another")
    return options


def _simulated(name: str, repetitions: int, jobs: int) -> Iterator[tuple[Any, Any]]:
    """Results by cell, in their order; they do not depend on the number of processes."""
    cells = PARTS[name].cells
    tasks = [(name, number, repetitions) for number in range(len(cells))]
    if jobs == 1:
        yield from zip(cells, map(simulate_cell, tasks), strict=True)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as workers:
        yield from zip(cells, workers.map(simulate_cell, tasks), strict=True)


if __name__ == "__main__":
    sys.exit(main())
