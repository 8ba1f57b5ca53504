"""Running a plan: its cells on workers, with time limits, continued from the finished cells of the folder; and derived rows."""

import math
import shutil
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...estimators import make_estimator
from ...estimators.base import Estimator
from ...estimators.own import shown_name
from ...oracles.registry import importing_nothing
from ...oracles.sources import digest_of
from ..base import Row, to_frame
from ..metrics import unit_of
from ..statistics.interval import Interval
from ..statistics.selection import holm, loss_evaluations
from ..text import plural
from .cells import execute
from .engines.local import LocalEngine
from .engines.ray import RayEngine
from .planning.estimates import CostModel, time_limit
from .planning.grid import grid
from .planning.plan import Machine, Plan, Scope, default_jobs
from .planning.presets import learning_plan
from .remote import Mirror, RemoteError, RemoteWarning, reading, writing
from .store import Store, scratch_path
from .work import FAILED_KIND, Busy, Cell, Grid, Progress, Snapshot

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Machine", "Plan", "Results", "Scope", "collect", "learn", "measure", "run"]

WORK = "work"  # the suite of derived rows
ESTIMATE_VALIDITY = 100.0  # an estimate of the remaining time is used for 100 times the time that it took

_SHOWN = ["problem", "stage", "estimator", "instance", "metric", "setting", "value", "low", "high", "unit", "verdict", "status"]


class Results(list[Row]):
    """The rows of a run in the order of its grid: a plain list of `Row` with views."""

    def __repr__(self) -> str:
        """One line: how many rows, of how many estimators and problems."""
        if not self:
            return "<Results: no rows>"
        counts = Counter(row.status for row in self)
        others = "".join(f", {number} {status}" for status, number in counts.items() if status != "ok")
        estimators, problems = (len({getattr(row, name) for row in self}) for name in ("estimator", "problem"))
        return f"<Results: {len(self)} rows of {plural(estimators, 'estimator')} on {plural(problems, 'problem')}{others}>"

    @property
    def frame(self) -> "pd.DataFrame":
        """A row per finding with the columns of `Row`, as `results.parquet` has them.

        ``value`` is in ``unit``; ``low`` and ``high`` are the ends of its 95 % interval by the method ``interval``; NA if there is none.
        """
        return to_frame(self)

    def _repr_html_(self) -> str:
        return self.frame[_SHOWN].to_html(max_rows=60, show_dimensions=True, notebook=True)


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
    machine, work = (machine or Machine(jobs=default_jobs(plan))).checked(plan), grid(plan)
    with writing(directory) as (folder, mirror):
        measure(plan, folder, work, machine, progress=progress, scope=scope, mirror=mirror)
        return collect(folder)


def measure(  # noqa: PLR0913
    plan: Plan,
    folder: Path,
    work: Grid,
    machine: Machine,
    *,
    progress: Progress | None = None,
    scope: Scope | None = None,
    mirror: Mirror | None = None,
) -> None:
    """Measure the cells of a plan that are not finished in a folder, which the caller has locked, and copy them to a mirror."""
    with Store(folder, write=True) as store:
        store.freeze(work)
        _Run(plan, store, machine, progress or (lambda snapshot: None), scope or Scope(), mirror).perform(work)


def learn(  # noqa: PLR0913 - the options of the command
    tasks: str | Sequence[str],
    directory: Path | str,
    *,
    estimators: Sequence[str] = (),
    seeds: int | None = None,
    quick: bool = False,
    losses: Sequence[str] = (),
    **options: Any,
) -> Results:
    """Train models on tasks with every estimator, seed by seed: `run` with the plan of ``structgrad learn --no-gradients``.

    The same call continues the run.

    Args:
        tasks: a name, or several, such as ``clusters`` or ``clusters[clusters=3,steps=100]``.
        directory: a folder or URL, as in `run`.
        estimators: names; by default one estimator of each family.
        seeds: number of seeds for each estimator and task; by default 5, or 3 if ``quick``.
        quick: whether to train for three fifths of the steps, and to choose rate and option with one seed.
        losses: functions of predictions and labels, such as ``./mine.py:loss``, in place of the losses of the tasks.
        options: ``machine``, ``progress`` and ``scope`` of `run`.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     found = learn("clusters[steps=5]", Path(folder), estimators=["ste"], seeds=1, quick=True, machine=Machine(jobs=0))
        >>> found.frame.query("metric == 'accuracy'")[["problem", "estimator", "unit"]].values.tolist()
        [['task:clusters[steps=5]', 'ste', '1']]
    """
    names = (tasks,) if isinstance(tasks, str) else tuple(tasks)
    return run(learning_plan(names, tuple(estimators), seeds, quick=quick, losses=tuple(losses)), directory, **options)


def collect(directory: Path | str) -> Results:
    """The rows of the latest run of a folder or URL, finished or not; FileNotFoundError if there is none."""
    with reading(directory) as folder, Store(folder) as store:
        return Results(derive(store.rows()))


class _Run:
    def __init__(  # noqa: PLR0913, PLR0917
        self, plan: Plan, store: Store, machine: Machine, report: Progress, scope: Scope, mirror: Mirror | None
    ) -> None:
        self.plan, self.store, self.machine, self.report, self.scope, self.mirror = plan, store, machine, report, scope, mirror
        self.costs = CostModel(plan)
        self.finished = self.failed = self.total = 0
        self.left: dict[str, Cell] = {}
        self.end = self.valid_until = 0.0  # when the run will end, and how long that estimate is used

    def perform(self, work: Grid) -> None:
        """Measure the cells that are not finished. Exclusive cells come last, one at a time."""
        known = self.store.known()
        for cell in work.cells:
            kind, seconds = known.get(cell.identity, (None, 0.0))
            if self.scope.wants(cell, kind):
                self.left[cell.identity] = cell
            elif kind not in (None, FAILED_KIND):
                self.finished += 1
                self.costs.add(cell, seconds)
        waiting = sorted(self.left.values(), key=lambda cell: cell.phase)
        self.total = self.finished + len(waiting)
        names = {name for cell in waiting for name in cell.estimators}
        files = {*self.plan.plugins, *(shown_name(name)[1].partition(".py:")[0] + ".py" for name in names if ".py:" in name)}
        self.code = {file: digest_of(Path(file)) for file in files}
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
            with suppress(OSError):  # not empty
                (self.store.directory / "scratch").rmdir()
        self._copy(now=True)

    def _is_over(self) -> bool:
        return self.scope.spent() or (self.scope.fail_fast and self.failed > 0)

    def _measure_on_workers(self, cells: Sequence[Cell]) -> None:
        def limit(cell: Cell) -> float:
            return time_limit(self.plan, cell) if self.machine.timeout is None else self.machine.timeout

        kind = LocalEngine if self.machine.engine == "local" else RayEngine
        with closing(kind(self.plan, self.machine, self.store.directory, limit)) as engine:
            for busy, cell, text in engine.measured(cells, self.costs.seconds, self._is_over):
                if cell is None:
                    self._tell("", busy)
                    self._copy()
                else:
                    self._keep(cell, text, busy)
                if self.scope.fail_fast and self.failed:
                    return

    def _keep(self, cell: Cell, text: str, busy: tuple[Busy, ...]) -> None:
        for file, digest in self.code.items():
            if digest_of(Path(file)) != digest:  # later cells may be measured with the new code
                raise ValueError(f"{file} (or an import) changed while it was measured; finished cells are kept, run the command again")
        stored = self.store.keep(cell.identity, text)
        scratch = scratch_path(self.store.directory, cell)
        if scratch.exists():
            shutil.rmtree(scratch, ignore_errors=True)
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
            self.end = now + self.costs.left(self.left.values(), len(busy) or self.machine.jobs)
            self.valid_until = now + ESTIMATE_VALIDITY * (time.monotonic() - now)
        left = self.end - now - sum(item.seconds for item in busy) / max(len(busy), 1)
        self.report(Snapshot(self.finished, self.total, self.failed, label, max(left, 0.0), busy))


# Derived rows: values that follow from several cells of a run; pure functions of rows.


def derive(rows: Iterable[Row]) -> list[Row]:
    """All rows of a run: those of its cells with adjusted p-values, then derived rows."""
    measured = adjusted(list(rows))
    return [*measured, *work_rows(measured), *target_rows(measured)]


def adjusted(rows: list[Row]) -> list[Row]:
    """Apply Holm's correction over all tests of each suite; a test behind several rows of an estimator on an instance counts once."""
    test = attrgetter("suite", "cell", "estimator", "instance", "setting", "reference")
    families: dict[str, dict[tuple[str, ...], float]] = defaultdict(dict)
    for row in rows:
        if row.p_value is not None:
            families[row.suite][test(row)] = row.p_value
    corrected = {name: value for family in families.values() for name, value in holm(family).items()}
    return [row if row.p_value is None else replace(row, p_adjusted=corrected[test(row)]) for row in rows]


def work_rows(rows: list[Row]) -> Iterator[Row]:
    """Evaluations of the loss by one estimate of every estimator on every instance."""
    pair = attrgetter("problem", "stage", "instance", "loss", "estimator")
    supports = {pair(row): row.value for row in rows if row.metric == "support" and row.value is not None}
    for row in rows:
        if row.suite == "bias" and row.metric == "gain" and row.reference in ("", "expected") and not row.setting and row.status == "ok":
            support, found = supports.get(pair(row)), Interval(None)
            sizes = {} if support is None else {"support_losses": round(support)}
            if row.log_count is not None and row.log_count < 40:
                sizes["enumerations"] = round(math.exp(row.log_count))
            with suppress(ValueError), importing_nothing(Estimator):  # the size of one of its passes may not be known
                found = Interval(loss_evaluations(make_estimator(row.estimator).evaluations(), **sizes))
            yield _derived(row, "loss_evaluations", found)


def target_rows(rows: list[Row]) -> Iterator[Row]:
    """Seconds until a model reaches its target: steps times the interleaved cost of one; censored if the steps are."""
    costs = {(row.problem, row.estimator): row.value for row in rows if row.metric == "step_time" and row.value is not None}
    for row in rows:
        cost = costs.get((row.problem, row.estimator))
        if row.metric == "steps_to_target" and row.status == "ok" and cost is not None:
            value, low, high = (None if steps is None else steps * cost for steps in (row.value, row.low, row.high))
            yield _derived(row, "seconds_to_target", Interval(value, low, high))


def _derived(row: Row, metric: str, found: Interval) -> Row:
    """A row of the same estimator on the same instance, of no cell."""
    values = {"value": found.value, "low": found.low, "high": found.high, "interval": found.method}
    blank = {"cell": "", "suite_version": 1, "seconds": None, "p_value": None, "verdict": "", "batches": ()}
    return replace(row, **blank, **values, suite=WORK, metric=metric, unit=unit_of(metric))  # type: ignore[arg-type]
