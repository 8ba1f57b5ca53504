"""Running a plan: cells on workers, each with a time limit, resumed from what is on disk."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from ..processors import slowdown
from .cells import Failure, execute, failed
from .derived import derive
from .engines import ENGINES
from .notebook import notebook_progress
from .planning.estimates import CostModel, time_limit
from .planning.grid import Watch, grid
from .planning.plan import AGAIN_FAILED, Machine, Plan, Scope, default_jobs
from .planning.presets import learning_plan
from .progress import Busy, Progress, Snapshot
from .remote import Mirror, is_url, mirrored, reading
from .results import Results
from .store import DONE, FAILED_KIND, KnownCell, Store, check_writable, clear_scratch, examined, kind_of, locked, scratch_path
from .work import Cell, Grid

__all__ = ["Machine", "Plan", "Results", "Scope", "collect", "learn", "measure", "run"]

ESTIMATING, SHORT = 100.0, 1e-3
"""Times as long as an estimate of what is left took, it stands, unless it took less than so many seconds, or twice as much is finished."""


def run(
    plan: Plan, directory: Path | str, *, machine: Machine | None = None, progress: Progress | None = None, scope: Scope | None = None
) -> Results:
    """Measure a plan. Finished cells are kept in ``directory/cells.sqlite``, and are not measured again.

    An interrupted or killed run keeps its finished cells, and the same call continues it. Numbers depend neither on the machine, nor on
    ``batch_size``, nor on interruptions. A cell that fails, runs out of memory, takes too long or loses its process has rows with the
    reason.

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
            measure(plan, mirror.folder, machine=machine, progress=progress, scope=scope, mirror=mirror)
            return collect(mirror.folder)
    measure(plan, Path(directory), machine=machine, progress=progress, scope=scope)
    return collect(directory)


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
    """`run` without its rows.

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
    with locked(directory), Store(directory, write=True) as store:
        store.freeze(work)
        _Run(plan, store, machine, progress or notebook_progress(), scope, mirror).perform(work)
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


def collect(directory: Path | str) -> Results:
    """The rows of the latest run of a folder or URL, finished or not.

    Raises:
        FileNotFoundError: no run was ever started there.
    """
    with reading(directory) as folder, Store(folder) as store:
        return Results(derive(store.rows()))


class _Run:
    """One run: what is known of it while it goes on."""

    def __init__(  # noqa: PLR0913, PLR0917
        self, plan: Plan, store: Store, machine: Machine, progress: Progress | None, scope: Scope, mirror: Mirror | None
    ) -> None:
        self.plan, self.store, self.machine, self.scope, self.mirror = plan, store, machine, scope, mirror
        self.directory = store.directory
        self.report = progress or (lambda snapshot: None)
        self.costs = CostModel(plan, slowdown())
        self.finished = self.failed = self.total = 0
        self.watch = Watch(plan)
        self.estimated = (0.0, 0.0, 0)  # when it will have ended, and from when, and how many finished cells, on that is asked again

    def perform(self, work: Grid) -> None:
        """Measure what is not there yet, phase by phase; exclusive cells come last, one at a time, when nothing else uses the machine."""
        there = self.store.known()
        waiting = [cell for cell in work.cells if not self._stays(cell, there.get(cell.identity))]
        self.total = self.finished + len(waiting)
        self.left = {cell.identity: cell for cell in waiting}
        self.watch = Watch(self.plan, dict.fromkeys(name for cell in waiting for name in cell.estimators))
        self._tell("resumed" if self.finished else "", ())
        if not waiting:
            return
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
        for cell in cells:
            if self._stops():
                return
            self._keep(cell, execute(self.plan, cell, scratch_path(self.directory, cell)), ())

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
            content = examined(text, cell.identity)
        except ValueError as error:
            text = failed(self.plan, cell, Failure("crash", f"the worker returned {error}", type(error).__name__), 0.0)
            content = examined(text, cell.identity)
        self.watch.check()  # later cells may be measured with the new code
        self.store.keep(cell.identity, text, content)
        clear_scratch(self.directory, cell)
        self._mirrored()
        self.left.pop(cell.identity, None)
        self.finished += 1
        self.failed += kind_of(content) == FAILED_KIND
        self.costs.add(cell, content["seconds"])
        self._tell(cell.label, busy)

    def _mirrored(self, *, now: bool = False) -> None:
        if self.mirror is not None:
            self.mirror.write(self.store, now=now)

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
