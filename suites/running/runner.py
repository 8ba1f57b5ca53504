"""Running a plan: cells in worker processes, each with a time limit, resumed from what is on disk."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, TimeoutError, wait
from pathlib import Path

from pebble import ProcessExpired, ProcessPool

from ..base import Progress, Row
from ..problems import default_data
from .cells import cell_path, execute, failed_rows, finished_rows, stored_rows, write_cell
from .plan import Cell, Plan, grid

__all__ = ["Plan", "default_data", "run"]


def run(plan: Plan, directory: Path, *, progress: Progress | None = None) -> list[Row]:
    """Measure a plan; every finished cell is one file below ``directory/cells``, and is not measured again.

    Interrupted or killed, a run keeps its finished cells: the same call goes on from there. Numbers depend neither on ``jobs`` nor on
    ``batch_size``, nor on how often a run was interrupted. A cell that fails or takes too long gives rows that say so.

    Args:
        plan: what to measure.
        directory: where results lie; made if it is not there.
        progress: told about every finished cell.

    Returns:
        All rows of the plan, in the order of its grid; skipped pairs at the end.

    Raises:
        ValueError: a plan that cannot be measured.
        OSError: a directory that cannot be written.

    Example:
        >>> import tempfile
        >>> plan = Plan(problems=("categorical_regimes",), stages=("init",), estimators=("rloo",), instances=1, timing=False, jobs=0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     rows = run(plan, Path(folder))
        >>> [row.verdict for row in rows if row.metric == "relative_bias"]
        ['unbiased-exact']
    """
    work = grid(plan)
    check_writable(directory)
    done = {cell.identity: rows for cell in work.cells if (rows := finished_rows(directory, cell)) is not None}
    report = progress or (lambda finished, total, label: None)
    finished = len(done)
    report(finished, len(work.cells), "resumed" if done else "")
    # Timings come last, one at a time, when no other cell uses the machine.
    for kind, jobs in (("moments", plan.jobs), ("timing", min(plan.jobs, 1))):
        waiting = [cell for cell in work.cells if cell.kind == kind and cell.identity not in done]
        for cell in _completed(plan, waiting, directory, jobs):
            finished += 1
            report(finished, len(work.cells), cell.label)
    rows = [row for cell in work.cells for row in stored_rows(directory, cell)]
    return rows + list(work.skips)


def check_writable(directory: Path) -> None:
    """Raise OSError, with one sentence, where a folder cannot be made or written: before anything is measured."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise OSError(f"cannot write results to {directory} ({error.strerror}); choose another folder with --out") from error


def _completed(plan: Plan, cells: list[Cell], directory: Path, jobs: int) -> Iterator[Cell]:
    """Yield cells as they finish."""
    if jobs == 0:
        for cell in cells:
            execute(plan, cell, str(directory))
            yield cell
    elif cells:
        yield from _pooled(plan, cells, directory, jobs)


def _pooled(plan: Plan, cells: list[Cell], directory: Path, jobs: int) -> Iterator[Cell]:
    """Spawned workers that live on from cell to cell; one that hangs or dies is replaced, and its cell says why."""
    context = multiprocessing.get_context("spawn")
    with ProcessPool(max_workers=min(jobs, len(cells)), context=context) as pool:
        futures: dict[Future[None], Cell] = {
            pool.schedule(execute, args=(plan, cell, str(directory)), timeout=plan.timeout): cell for cell in cells
        }
        try:
            pending = set(futures)
            while pending:
                completed, pending = wait(pending, return_when=FIRST_COMPLETED)
                for future in completed:
                    _settle(plan, futures[future], future, directory)
                    yield futures[future]
        except BaseException:
            pool.stop()
            raise


def _settle(plan: Plan, cell: Cell, future: Future[None], directory: Path) -> None:
    try:
        future.result()
    except TimeoutError:
        write_cell(directory, cell, failed_rows(plan, cell, "timeout", f"took longer than {plan.timeout:g} s; raise --timeout"))
    except ProcessExpired as error:
        write_cell(directory, cell, failed_rows(plan, cell, "error", f"the worker died with exit code {error.exitcode}"))
    if not cell_path(directory, cell).exists():
        raise OSError(f"cannot find the result of {cell.label} in {directory}; was the folder removed during the run?")
