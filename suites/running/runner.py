"""Running a plan: cells on workers, each with a time limit, resumed from what is on disk."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from ..problems.sized import size_text
from ..processors import slowdown
from .cell_writer import CellWriter, GarbageError, examined
from .cells import Failure, execute, failed
from .derived import derive
from .engines import ENGINES
from .notebook import notebook_progress
from .parts.journal import DONE, FAILED_KIND
from .parts.locking import locked
from .planning.estimates import CostModel, time_limit
from .planning.grid import Watch, grid
from .planning.plan import AGAIN_FAILED, Machine, Plan, Scope, default_jobs
from .planning.presets import learning_plan
from .progress import Busy, Progress, Snapshot
from .remote import Mirror, is_url, mirrored, reading
from .results import Results
from .scores import sample
from .store import KnownCell, Scratch, check_writable, clear_scratch, freeze, kind_of, known, planned, stored_rows
from .work import Cell, Grid

__all__ = ["Machine", "Plan", "Results", "Scope", "collect", "learn", "measure", "run"]

ESTIMATING, SHORT = 100.0, 1e-3
"""Times as long as an estimate of what is left took, it stands, unless it took less than so many seconds, or twice as much is finished."""


def run(
    plan: Plan, directory: Path | str, *, machine: Machine | None = None, progress: Progress | None = None, scope: Scope | None = None
) -> Results:
    """Measure a plan; every finished cell is one file below ``directory/cells``, and is not measured again.

    Interrupted or killed, a run keeps its finished cells: the same call goes on from there. Numbers depend neither on the machine, nor on
    ``batch_size``, nor on how often a run was interrupted. A cell that fails, runs out of memory, takes too long or loses its process
    gives rows that say so.

    Args:
        plan: what to measure.
        directory: where results lie, made if it is not there; or a URL such as ``s3://bucket/run``, to which they are mirrored.
        machine: workers, limits, engine.
        progress: told how far the run is. None shows a line in a notebook, and nothing elsewhere.
        scope: which cells are measured, and when the run stops early.

    Returns:
        All rows of the plan that there are, in the order of its grid; then skipped pairs, and what follows from all cells together: a list,
        and as ``.frame`` a table.

    Raises:
        ValueError: a plan that cannot be measured, an engine that cannot be had, or a directory that another process is writing.
        OSError: a directory or URL that cannot be written.

    Example:
        >>> import tempfile
        >>> plan = Plan(suites=("bias",), problems=("categorical_regimes",), estimators=("rloo",), instances=1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     rows = run(plan, Path(folder), machine=Machine(jobs=0))
        >>> {row.verdict for row in rows if row.metric == "relative_bias"}
        {'unbiased-exact'}
    """
    if isinstance(directory, str) and is_url(directory):
        with mirrored(directory) as mirror:
            work = measure(plan, mirror.folder, machine=machine, progress=progress, scope=scope, mirror=mirror)
            mirror.write(cells=False)
            return Results(collect(mirror.folder), sizes=_sizes(plan, work))
    work = measure(plan, Path(directory), machine=machine, progress=progress, scope=scope)
    return Results(collect(directory), sizes=_sizes(plan, work))


def measure(  # noqa: PLR0913
    plan: Plan,
    directory: Path,
    *,
    machine: Machine | None = None,
    progress: Progress | None = None,
    scope: Scope | None = None,
    work: Grid | None = None,
    mirror: Mirror | None = None,
) -> Grid:
    """`run` without its rows, which may be too many to be held.

    Args:
        plan: what to measure.
        directory: where results lie; no URL.
        machine: as in `run`.
        progress: likewise.
        scope: likewise.
        work: the cells of the plan, where they are known already.
        mirror: the copy of the folder under a URL; None for none.

    Returns:
        The cells of the plan.
    """
    machine = (machine or Machine(jobs=default_jobs(plan))).checked(ENGINES, plan)
    scope, work = (scope or Scope()).checked(), grid(plan) if work is None else work
    check_writable(directory)
    with locked(directory):
        freeze(directory, work)
        _Run(plan, directory, machine, progress or notebook_progress(), scope, mirror).perform(work)
    return work


def learn(  # noqa: PLR0913
    tasks: str | Sequence[str],
    directory: Path | str,
    *,
    estimators: Sequence[str] = (),
    seeds: int | None = None,
    quick: bool = False,
    machine: Machine | None = None,
    progress: Progress | None = None,
    scope: Scope | None = None,
) -> Results:
    """Train models on tasks with every estimator, seed by seed: `run` with the plan of ``structgrad learn --no-gradients``.

    Args:
        tasks: a name, or several, such as ``clusters`` or ``clusters[clusters=3,steps=100]``.
        directory: where results lie; the same call goes on from there.
        estimators: names; one of every idea where there are none.
        seeds: of every estimator on every task; None for 5, or 3 where it is to be quick.
        quick: three fifths of the steps, and one seed to choose rate and option with.
        machine: as in `run`.
        progress: likewise.
        scope: likewise.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     found = learn("clusters[steps=5]", Path(folder), estimators=["ste"], seeds=1, quick=True, machine=Machine(jobs=0))
        >>> found.frame.query("metric == 'accuracy'")[["problem", "estimator", "unit"]].values.tolist()
        [['task:clusters[steps=5]', 'ste', '1']]
    """
    names = (tasks,) if isinstance(tasks, str) else tuple(tasks)
    plan = learning_plan(names, tuple(estimators), seeds, quick=quick)
    return run(plan, directory, machine=machine, progress=progress, scope=scope)


def _sizes(plan: Plan, work: Grid) -> dict[tuple[str, str], str]:
    """Of the first item of every problem at every stage."""
    found = {place: sample(plan, *place) for place in dict.fromkeys(cell.scores for cell in work.cells)}
    return {place: size_text(problem.oracle, tuple(problem.instances[0].scores.shape)) for place, problem in found.items()}


def collect(directory: Path | str) -> Results:
    """The rows of the latest run of a folder or URL, as far as it came: of a killed one too.

    Raises:
        FileNotFoundError: no run was ever started there.
    """
    with reading(directory) as folder:
        return Results(derive(stored_rows(folder, planned(folder))))


class _Run:
    """One run: what is known of it while it goes on."""

    def __init__(  # noqa: PLR0913, PLR0917
        self, plan: Plan, directory: Path, machine: Machine, progress: Progress | None, scope: Scope, mirror: Mirror | None
    ) -> None:
        self.plan, self.directory, self.machine, self.scope, self.mirror = plan, directory, machine, scope, mirror
        self.report = progress or (lambda snapshot: None)
        self.costs = CostModel(plan, slowdown())
        self.finished = self.failed = self.total = 0
        self.watch = Watch(plan)
        self.estimated = (0.0, 0.0, 0)  # when it will have ended, and from when, and how many finished cells, on that is asked again

    def perform(self, work: Grid) -> None:
        """Measure what is not there yet, phase by phase; exclusive cells come last, one at a time, when nothing else uses the machine."""
        there = known(self.directory, work.cells)
        waiting = [cell for cell in work.cells if not self._stays(cell, there.get(cell.identity))]
        self.total = self.finished + len(waiting)
        self.left = {cell.identity: cell for cell in waiting}
        self.watch = Watch(self.plan, dict.fromkeys(name for cell in waiting for name in cell.estimators))
        self._tell("resumed" if self.finished else "", ())
        if not waiting:
            return
        self.writer = CellWriter(self.directory, work.cells)
        self._mirrored(now=True)
        waiting = sorted(waiting, key=lambda cell: cell.phase)
        try:
            if self.machine.jobs == 0 and self.machine.engine == "local":
                self._here(waiting)
            else:
                self._elsewhere(waiting)
        except KeyboardInterrupt:
            self._mirrored(now=True)
            raise
        finally:
            clear_scratch(self.directory)
        self.writer.close()
        self._mirrored(now=True)

    def _stays(self, cell: Cell, there: KnownCell | None) -> bool:
        """Whether a cell is not measured now, for it is finished, or is not asked for."""
        finished = there is not None and there.kind != FAILED_KIND
        again = not finished if self.scope.rerun is None else self._again(cell, there)
        if there is not None and finished and not again:
            self.finished += 1
            self.costs.add(cell, there.seconds)
        return not again

    def _again(self, cell: Cell, there: KnownCell | None) -> bool:
        if self.scope.rerun != AGAIN_FAILED:
            return self.scope.asks_for(cell)
        return there is not None and there.kind != DONE

    def _stops(self) -> bool:
        """Whether no further cell is started."""
        return self.scope.spent() or (self.scope.fail_fast and self.failed > 0)

    def _here(self, cells: Sequence[Cell]) -> None:
        scratch = Scratch(self.directory)
        for cell in cells:
            if self._stops():
                return
            folder = scratch.open(cell)
            text = execute(self.plan, cell, folder)
            scratch.close(folder)
            self._keep(cell, text, ())

    def _elsewhere(self, cells: Sequence[Cell]) -> None:
        with closing(ENGINES[self.machine.engine](self.plan, self.machine, self.directory, self._limit)) as engine:
            for step in engine.measured(cells, self.costs.seconds, self._stops):
                if step.cell is None:
                    self._tell("", step.busy)
                    self._mirrored()
                else:
                    self._keep(step.cell, step.text, step.busy)
                if self.scope.fail_fast and self.failed:
                    return

    def _limit(self, cell: Cell) -> float:
        return time_limit(self.plan, cell) if self.machine.timeout is None else self.machine.timeout

    def _keep(self, cell: Cell, text: str, busy: tuple[Busy, ...]) -> None:
        try:
            content = examined(cell, text)
        except GarbageError as error:
            text = failed(self.plan, cell, Failure("crash", f"the worker {error}", type(error).__name__), 0.0)
            content = examined(cell, text)
        self.watch.check()  # what comes after a change may be of the new code
        self.writer.keep(cell, text, content["seconds"], content)
        self._mirrored()
        self.left.pop(cell.identity, None)
        self.finished += 1
        self.failed += kind_of(content) == FAILED_KIND
        self.costs.add(cell, content["seconds"])
        self._tell(cell.label, busy)

    def _mirrored(self, *, now: bool = False) -> None:
        if self.mirror is not None:
            self.mirror.write(now=now)

    def _tell(self, label: str, busy: tuple[Busy, ...]) -> None:
        left = self._seconds(len(busy) or self.machine.jobs) - sum(item.seconds for item in busy) / max(len(busy), 1)
        self.report(Snapshot(self.finished, self.total, self.failed, label, max(left, 0.0), busy))

    def _seconds(self, jobs: int) -> float:
        """For what is left; the last answer, less what has gone by, as long as a new one would take too much of the run."""
        now = time.monotonic()
        if not self.left or now >= self.estimated[1] or self.finished >= self.estimated[2]:
            seconds = self.costs.left(self.left.values(), jobs)
            took = time.monotonic() - now
            self.estimated = seconds + now, now + ESTIMATING * took if took > SHORT else now, 2 * self.finished + 1
        return self.estimated[0] - now
