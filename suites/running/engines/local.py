"""Dispatch of cells to workers, in bundles by expected seconds and by scores, and workers on this machine: pools of pebble."""

import contextlib
import faulthandler
import functools
import math
import multiprocessing.connection
import os
import signal
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, TimeoutError, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import groupby
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from typing import Any

import torch
from pebble import ProcessExpired, ProcessPool

from ....oracles import plugins
from ....oracles.kernels import notices
from ....oracles.magnitudes import GIB
from ... import device_memory
from ...problems.score_files import PaddingWarning
from ..cells import execute, failed, healthy, load
from ..planning.plan import Machine, Plan
from ..store import scratch_path
from ..work import Busy, Cell

TICK = 1.0  # seconds between two reports of progress
MAX_BUNDLE = 256  # most cells of a bundle: Ray sends the names of so many with a call, and stores more of them first
MAX_FAILED_STARTS = 3  # workers in a row that died before their first cell; then the run ends
IDLE = 0.05  # share of a processor below which a worker counts as waiting: its limit then counts elapsed seconds instead of CPU seconds

GIL_FACTOR, MIN_GIL_SECONDS = 4.0, 5.0
"""A cell that never releases the GIL is ended after 4 times its limit in elapsed seconds, and at least 5 s: the guard cannot run then."""

MAX_TIMER_SECONDS = threading.TIMEOUT_MAX  # Seconds of the longest timer. Limits may be longer for cells with many structures, or infinite.

_COMPILING, _INDEX, _SINCE, _PROCESS = range(4)
"""Shared with the driver: whether kernels are being compiled, which cell of the bundle is measured, since when, and by which process."""

_WAITED_TOO_LONG = 75
_MARK = "== "
_TIMER = "Timeout ("  # the first words of faulthandler's timer
_MAX_TAIL = 8000

Limit = Callable[[Cell], float]  # CPU seconds that a cell may take
Step = tuple[tuple[Busy, ...], Cell | None, str]  # the state of the workers, with a finished cell and its rows, or without one


class _Queue:
    def __init__(self, cells: Sequence[Cell]) -> None:
        self.groups: dict[tuple[str, str], deque[Cell]] = {}
        self.count = len(cells)
        for cell in cells:
            self.groups.setdefault(cell.scores, deque()).append(cell)

    def bundle(
        self, last: tuple[str, str], taken: set[tuple[str, str]], seconds: Callable[[Cell], float], bundle: float, most: int
    ) -> list[Cell]:
        """The next cells of the scores that a worker had last, whose exact gradients it has cached; else of scores that no other has."""
        cells: list[Cell] = []
        while not cells or (len(cells) < min(most, MAX_BUNDLE) and bundle > 0):
            if last not in self.groups:
                last = next((scores for scores in self.groups if scores not in taken), next(iter(self.groups)))
            cells.append(self.groups[last].popleft())
            bundle -= seconds(cells[-1])
            if not self.groups[last]:
                del self.groups[last]
        self.count -= len(cells)
        return cells

    def put_back(self, cell: Cell) -> None:
        self.groups = {cell.scores: self.groups.pop(cell.scores, deque()), **self.groups}
        self.groups[cell.scores].appendleft(cell)
        self.count += 1


class LocalEngine:
    """Workers, and the cells that they measure within ``limit`` CPU seconds; logs and checkpoints lie in ``folder``.

    They are spawned, never forked: a fork after CUDA has started is broken, and inherits the parent's memory.
    """

    bundle = 0.25  # seconds of the cells that a worker gets at once

    def __init__(self, plan: Plan, machine: Machine, folder: Path, limit: Limit) -> None:
        self.plan, self.machine, self.folder, self.limit = plan, machine, folder, limit
        self.workers: list[Any] = []  # with the methods of `LocalWorker`

    def places(self) -> int:
        """The number of workers that can run at the same time."""
        return self.machine.jobs

    def start_worker(self, place: int) -> Any:
        """A new worker at a place, counted from 0."""
        return LocalWorker(WorkerConfig(f"worker {place + 1}", self.plan, self.folder, self.machine.memory, self.machine.jobs), self.limit)

    def measured(
        self, cells: Sequence[Cell], seconds: Callable[[Cell], float] = lambda cell: math.inf, stops: Callable[[], bool] = lambda: False
    ) -> Iterator[Step]:
        """Cells as they are finished, by phase, exclusive ones last and one at a time; none begins once it ``stops``."""
        for (exclusive, _), group in groupby(sorted(cells, key=lambda cell: cell.phase), lambda cell: cell.phase):
            phase = list(group)
            places = min(1 if exclusive else self.places(), len(phase))
            self._keep(places)
            self.workers += [self.start_worker(place) for place in range(len(self.workers), places)]
            yield from self._measured(_Queue(phase), seconds, stops)

    def _measured(self, queue: _Queue, seconds: Callable[[Cell], float], stops: Callable[[], bool]) -> Iterator[Step]:
        running: dict[Future[dict[str, str]], tuple[Any, list[Cell]]] = {}
        given: dict[Any, list[Cell]] = {}
        last = dict.fromkeys(self.workers, ("", ""))
        finished: list[tuple[Cell, str]] = []
        due = time.monotonic() + TICK
        while queue.count or running or finished:
            if stops():
                queue = _Queue(())
            for worker in self.workers:
                if queue.count and worker not in given:
                    taken = {scores for other, scores in last.items() if other in given}
                    # No more than half of an equal share of the queue, so that all workers end at about the same time.
                    cells = queue.bundle(last[worker], taken, seconds, self.bundle, queue.count // (2 * len(self.workers)))
                    given[worker], last[worker] = cells, cells[-1].scores
                    running[worker.submit(cells)] = worker, cells
            # Workers measure while the results of the bundles before are written.
            for cell, text in finished:
                yield self._busy(given), cell, text
            finished = []
            for future in wait(running, timeout=max(due - time.monotonic(), 0.0), return_when=FIRST_COMPLETED).done:
                worker, cells = running.pop(future)
                del given[worker]
                texts = worker.collect(future, cells)
                finished += [(cell, texts[cell.identity]) for cell in cells if cell.identity in texts]
                for cell in reversed(cells):
                    if cell.identity not in texts:
                        queue.put_back(cell)
            if time.monotonic() >= due:
                due = time.monotonic() + TICK
                yield self._busy(given), None, ""

    def _busy(self, given: dict[Any, list[Cell]]) -> tuple[Busy, ...]:
        return tuple(worker.busy(given.get(worker, ())) for worker in self.workers)

    def close(self) -> None:
        """Kill all workers."""
        self._keep(0)

    def _keep(self, places: int) -> None:
        with ThreadPoolExecutor(max_workers=32) as threads:
            list(threads.map(lambda worker: worker.close(), self.workers[places:]))
        del self.workers[places:]


@dataclass(frozen=True)
class WorkerConfig:
    """Settings of a worker process; its memory is in GiB beyond those of its imports, and so many workers share a device."""

    name: str
    plan: Plan
    folder: Path
    memory: float | None = None
    sharing: int = 1

    @property
    def log(self) -> Path:
        """The file with the output of the worker's cells."""
        return self.folder / "logs" / f"{self.name.replace(' ', '-')}.log"


class LocalWorker:
    """A process that measures one bundle of cells at a time, within CPU seconds, or elapsed ones if it waits; it restarts if it dies."""

    def __init__(self, config: WorkerConfig, limit: Limit) -> None:
        self.config, self.limit, self.failed_starts = config, limit, 0
        self.state = _CONTEXT.RawArray("d", 4)
        self.pool: ProcessPool | None = None

    def submit(self, cells: Sequence[Cell]) -> Future[dict[str, str]]:
        """Start to measure a bundle."""
        self.state[_INDEX], self.state[_SINCE] = 0, time.time()
        limits = [self.limit(cell) for cell in cells]
        if self.pool is None or not self.pool.active:
            self.close()
            self.config.log.parent.mkdir(parents=True, exist_ok=True)
            self.pool = ProcessPool(max_workers=1, context=_CONTEXT, initializer=_begin, initargs=(self.config, self.state))
        # In a thread: an interruption between the start of a process and its first message would leave it with half a message.
        with ThreadPoolExecutor(1) as thread:
            # Workers watch their limits themselves; pebble kills those that cannot.
            call = functools.partial(self.pool.schedule, _measure, args=(tuple(cells), limits), timeout=sum(limits) / IDLE)
            return thread.submit(call).result()

    def collect(self, future: Future[dict[str, str]], cells: Sequence[Cell]) -> dict[str, str]:
        """The texts of the finished cells of a bundle by identity; the others must be submitted again."""
        cell, seconds = cells[int(self.state[_INDEX])], time.time() - self.state[_SINCE]
        try:
            texts = future.result()
        except BrokenProcessPool:
            self.failed_starts += 1
            self.close()
            if self.failed_starts >= MAX_FAILED_STARTS:
                raise OSError(f"no worker could be started: several died before they were ready; see {self.config.log}") from None
            return {}
        except (Exception, SystemExit) as error:
            return {cell.identity: failed(self.config.plan, cell, self._failure(error, self.limit(cell)), seconds)}
        self.failed_starts = 0
        if not all(map(healthy, texts.values())):
            self.close()
        return texts

    def _failure(self, error: BaseException, limit: float) -> dict[str, str]:
        """The end of a worker, by its exit code or signal, with the last lines that the cell printed and the stacks of a signal."""
        tail, code = "", getattr(error, "exitcode", getattr(error, "code", None))
        with contextlib.suppress(OSError):
            lines = self.config.log.read_text(encoding="utf-8", errors="replace").rpartition(f"\n{_MARK}")[2].splitlines()[1:]
            tail = "\n".join(line for line in lines if not line.startswith("Extension modules:"))[-_MAX_TAIL:]
        if isinstance(error, TimeoutError) or code == _WAITED_TOO_LONG or (code == 1 and f"\n{_TIMER}" in f"\n{tail}"):
            return {"status": "timeout", "reason": f"took longer than {limit:g} s; raise --timeout", "traceback": tail}
        if not isinstance(error, ProcessExpired | SystemExit):  # such as a disk that is full
            kind = type(error).__name__
            return {"status": "crash", "reason": f"the worker failed with {kind}: {error}", "error_type": kind, "traceback": tail}
        code = code if isinstance(code, int) else int(code is not None)  # as Python exits for a text
        if code >= 0:
            return {"status": "crash", "reason": f"the worker died with exit code {code}", "traceback": tail}
        name = signal.Signals(-code).name
        if name == "SIGPROF":
            return {"status": "timeout", "reason": f"took longer than {limit:g} s of CPU time; raise --timeout", "traceback": tail}
        found = {"status": "crash", "reason": f"the worker died of {name}", "error_type": name, "traceback": tail}
        by_kernel = {"status": "oom", "reason": "the worker was killed by SIGKILL, as the kernel does when memory runs out"}
        return found | (by_kernel if name == "SIGKILL" else {})

    def busy(self, cells: Sequence[Cell]) -> Busy:
        """The progress of a bundle, or of an idle worker without one."""
        label = cells[min(int(self.state[_INDEX]), len(cells) - 1)].label if cells else "idle"
        return Busy(self.config.name, label, time.time() - self.state[_SINCE] if cells else 0.0, bool(self.state[_COMPILING]))

    def close(self) -> None:
        """Kill the process at once."""
        if self.pool is not None:
            self.pool.stop()
            if self.state[_PROCESS]:
                with contextlib.suppress(OSError):
                    os.kill(int(self.state[_PROCESS]), getattr(signal, "SIGKILL", signal.SIGTERM))  # compiled code does not hear pebble's
            self.pool.join()
            self.pool, self.state[_PROCESS] = None, 0
        with contextlib.suppress(FileNotFoundError):
            if self.config.log.stat().st_size == 0:
                self.config.log.unlink()


class _Process(SpawnProcess):
    """A spawned process that ignores Ctrl-C, and does not import the main module, which may start a run of its own."""

    def start(self) -> None:
        names: dict[str, Any] = vars(sys.modules["__main__"])
        hidden: dict[str, Any] = {name: names.pop(name) for name in ("__file__", "__spec__") if name in names}
        names["__spec__"] = None
        masks = hasattr(signal, "pthread_sigmask")
        resource_tracker.ensure_running()  # its start would unblock signals
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if masks else ()
        try:
            super().start()
        finally:
            names.update(hidden)
            if masks:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Context(SpawnContext):
    Process = _Process


_CONTEXT = _Context()


# In the worker.


class _Worker:
    def __init__(self, config: WorkerConfig, state: Any) -> None:
        self.config, self.state = config, state
        self.file = config.log.open("ab", buffering=0)
        self.since, self.cpu, self.limit = 0.0, 0.0, math.inf

    def guard(self) -> None:
        """End this process with its parent, or if its cell waits longer than its limit.

        This thread needs the GIL. If a cell never releases it, the timer of faulthandler ends the process.
        """
        parent = multiprocessing.parent_process()
        assert parent is not None, "a worker is spawned"
        while not multiprocessing.connection.wait([parent.sentinel], timeout=0.5):
            age = time.monotonic() - self.since
            if age > self.limit and time.process_time() - self.cpu < IDLE * age:
                faulthandler.dump_traceback(self.file)
                os._exit(_WAITED_TOO_LONG)
            self.start_timers()
        os._exit(1)

    def start_timers(self, cpu: float | None = None) -> None:
        """Start the timer again during a cell, else stop it. With `cpu` seconds, start or stop (0) the one of CPU time too."""
        if math.isinf(self.limit):
            faulthandler.cancel_dump_traceback_later()
        else:
            seconds = max(GIL_FACTOR * self.limit * self.config.plan.threads, MIN_GIL_SECONDS)
            faulthandler.dump_traceback_later(seconds, exit=True, file=self.file)
        if cpu is not None and hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_PROF, cpu)

    def measure(self, cell: Cell, limit: float) -> str:
        threads, begin = self.config.plan.threads, os.fstat(self.file.fileno()).st_size
        mark = self.file.write(f"\n{_MARK}{cell.label}\n".encode())
        self.since, self.cpu = time.monotonic(), time.process_time()
        self.limit = min(limit, MAX_TIMER_SECONDS / (GIL_FACTOR * threads))
        self.start_timers(self.limit * threads)
        text = execute(self.config.plan, cell, scratch_path(self.config.folder, cell))
        self.limit = math.inf
        self.start_timers(0.0)
        sys.stdout.flush()
        sys.stderr.flush()
        if os.fstat(self.file.fileno()).st_size == begin + mark:
            self.file.truncate(begin)
        return text


_worker: _Worker | None = None


def _begin(config: WorkerConfig, state: Any) -> None:
    global _worker
    _worker = _Worker(config, state)
    state[_PROCESS] = os.getpid()
    threading.Thread(target=_worker.guard, daemon=True).start()
    for stream in (1, 2):
        os.dup2(_worker.file.fileno(), stream)
    faulthandler.enable(_worker.file)
    if hasattr(signal, "SIGPROF"):
        faulthandler.register(signal.SIGPROF, _worker.file, chain=True)
    warnings.simplefilter("ignore", PaddingWarning)  # the driver has shown it
    load()
    if config.sharing > 1 and config.plan.device_kind == "cuda":
        device_memory.allot(torch.cuda.get_device_properties(config.plan.device).total_memory / config.sharing)
    if config.memory is not None:
        import resource  # not on Windows

        statm = Path("/proc/self/statm")
        used = int(statm.read_text(encoding="utf-8").split()[0]) * resource.getpagesize() if statm.exists() else 0
        most = used + int(config.memory * GIB)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _measure(cells: Sequence[Cell], limits: Sequence[float]) -> dict[str, str]:
    assert _worker is not None, "the process has begun"
    plugins.use(_worker.config.plan.plugins)
    texts: dict[str, str] = {}
    with notices.listening(functools.partial(_worker.state.__setitem__, _COMPILING)):
        for index, (cell, limit) in enumerate(zip(cells, limits, strict=True)):
            _worker.state[_INDEX], _worker.state[_SINCE] = index, time.time()
            texts[cell.identity] = _worker.measure(cell, limit)
            if not healthy(texts[cell.identity]):
                break
    return texts
