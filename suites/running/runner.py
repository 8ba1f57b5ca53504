"""Running a plan: its cells on workers, with time limits, continued from the finished cells of the folder."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from .cells import Failure, execute, failed
from .derived import derive
from .engines import ENGINES
from .planning.estimates import CostModel, time_limit
from .planning.grid import Watch, grid
from .planning.plan import AGAIN_FAILED, Machine, Plan, Scope, default_jobs
from .planning.presets import learning_plan
from .progress import Busy, Progress, Snapshot
from .remote import Mirror, RemoteError, RemoteWarning, is_url, mirrored, reading
from .results import Results
from .store import KnownCell, Store, check_writable, clear_scratch, locked, scratch_path
from .work import DONE, FAILED_KIND, Cell, Grid, WrongRowsError

__all__ = ["Machine", "Plan", "Results", "Scope", "collect", "learn", "measure", "run"]

ESTIMATE_VALIDITY = 100.0
"""An estimate of the remaining time is used for 100 times the time that it took."""


def run(
    plan: Plan, directory: Path | str, *, machine: Machine | None = None, progress: Progress | None = None, scope: Scope | None = None
) -> Results:
    """Measure a plan. Finished cells are kept in ``directory/cells.sqlite``, and are not measured again.

    An interrupted or killed run keeps its finished cells, and the same call continues it. Numbers depend neither on the machine, nor on
    ``batch_size``, nor on interruptions. A cell that fails, runs out of memory, takes too long or loses its process has rows with the
    reason.

    Args:
        plan: problems, estimators, suites and precision.
        directory: a folder, created if needed, or a URL such as ``s3://bucket/run``, to which the folder is copied.
        machine: workers, limits, engine.
        progress: called with the state of the run. None shows nothing.
        scope: which cells are measured, and when the run stops early.

    Returns:
        The rows of the plan in the order of its grid, then skipped pairs and rows that are derived from several cells. The attribute
        ``.frame`` is the same as a table.

    Raises:
        ValueError: the plan or the machine is invalid, or another process writes to the directory.
        OSError: the directory or URL cannot be written.

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
        plan: as in `run`.
        directory: a folder.
        machine: as in `run`.
        progress: as in `run`.
        scope: as in `run`.
        work: the cells of the plan, if they are known.
        mirror: the copy of the folder under a URL; None for none.

    Returns:
        The cells of the plan.
    """
    machine = (machine or Machine(jobs=default_jobs(plan))).checked(ENGINES, plan)
    scope, work = (scope or Scope()).checked(), grid(plan) if work is None else work
    check_writable(directory)
    with locked(directory), Store(directory, write=True) as store:
        store.freeze(work)
        _Run(plan, store, machine, progress, scope, mirror).perform(work)
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
        directory: as in `run`. The same call continues the run.
        estimators: names; by default one estimator of each family.
        seeds: number of seeds for each estimator and task; by default 5, or 3 if ``quick``.
        quick: whether to train for three fifths of the steps, and to choose rate and option with one seed.
        machine: as in `run`.
        progress: as in `run`.
        scope: as in `run`.

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
        FileNotFoundError: there is no run.
    """
    with reading(directory) as folder, Store(folder) as store:
        return Results(derive(store.rows()))


class _Run:
    """The state of one run."""

    def __init__(  # noqa: PLR0913, PLR0917
        self, plan: Plan, store: Store, machine: Machine, progress: Progress | None, scope: Scope, mirror: Mirror | None
    ) -> None:
        self.plan, self.store, self.machine, self.scope, self.mirror = plan, store, machine, scope, mirror
        self.report = progress or (lambda snapshot: None)
        self.costs = CostModel(plan)
        self.finished = self.failed = self.total = 0
        self.left: dict[str, Cell] = {}
        self.watch = Watch(plan)
        self.estimate, self.valid_until = 0.0, 0.0  # when the run will end, and how long that estimate is used

    def perform(self, work: Grid) -> None:
        """Measure the cells that are not finished. Exclusive cells come last, one at a time."""
        known = self.store.known()
        for cell in work.cells:
            there = known.get(cell.identity)
            if self._is_wanted(cell, there):
                self.left[cell.identity] = cell
            elif there is not None and there.kind != FAILED_KIND:
                self.finished += 1
                self.costs.add(cell, there.seconds)
        waiting = sorted(self.left.values(), key=lambda cell: cell.phase)
        self.total = self.finished + len(waiting)
        self.watch = Watch(self.plan, dict.fromkeys(name for cell in waiting for name in cell.estimators))
        self._tell("resumed" if self.finished else "", ())
        if not waiting:
            return
        self._copy(now=True)
        try:
            if self.machine.jobs == 0 and self.machine.engine == "local":
                for cell in waiting:
                    if self._is_over():
                        break
                    self._keep(cell, execute(self.plan, cell, scratch_path(self.store.directory, cell)), ())
            else:
                self._measure_on_workers(waiting)
        except KeyboardInterrupt:
            try:
                self._copy(now=True)
            except RemoteError as error:  # it must not hide the interruption
                warnings.warn(f"{error}; finished cells are in {self.store.directory}", RemoteWarning, stacklevel=2)
            raise
        finally:
            clear_scratch(self.store.directory)
        self._copy(now=True)

    def _is_wanted(self, cell: Cell, known: KnownCell | None) -> bool:
        if self.scope.rerun is None:
            return known is None or known.kind == FAILED_KIND
        if self.scope.rerun == AGAIN_FAILED:
            return known is not None and known.kind != DONE
        return self.scope.asks_for(cell)

    def _is_over(self) -> bool:
        """Whether no further cell is started."""
        return self.scope.spent() or (self.scope.fail_fast and self.failed > 0)

    def _measure_on_workers(self, cells: Sequence[Cell]) -> None:
        def limit(cell: Cell) -> float:
            return time_limit(self.plan, cell) if self.machine.timeout is None else self.machine.timeout

        with closing(ENGINES[self.machine.engine](self.plan, self.machine, self.store.directory, limit)) as engine:
            for step in engine.measured(cells, self.costs.seconds, self._is_over):
                if step.cell is None:
                    self._tell("", step.busy)
                    self._copy()
                else:
                    self._keep(step.cell, step.text, step.busy)
                if self.scope.fail_fast and self.failed:
                    return

    def _keep(self, cell: Cell, text: str, busy: tuple[Busy, ...]) -> None:
        self.watch.check()  # later cells may be measured with the new code
        try:
            stored = self.store.keep(cell.identity, text)
        except WrongRowsError as error:
            failure = Failure("crash", f"the worker returned {error}", "ValueError")
            stored = self.store.keep(cell.identity, failed(self.plan, cell, failure, 0.0))
        clear_scratch(self.store.directory, cell)
        self._copy()
        self.left.pop(cell.identity, None)
        self.finished += 1
        self.failed += stored.kind == FAILED_KIND
        self.costs.add(cell, stored.seconds)
        self._tell(cell.label, busy)

    def _copy(self, *, now: bool = False) -> None:
        if self.mirror is not None:
            self.mirror.write(self.store, now=now)

    def _tell(self, label: str, busy: tuple[Busy, ...]) -> None:
        now = time.monotonic()
        if not self.left or now >= self.valid_until:
            self.estimate = now + self.costs.left(self.left.values(), len(busy) or self.machine.jobs)
            self.valid_until = now + ESTIMATE_VALIDITY * (time.monotonic() - now)
        left = self.estimate - now - sum(item.seconds for item in busy) / max(len(busy), 1)
        self.report(Snapshot(self.finished, self.total, self.failed, label, max(left, 0.0), busy))
