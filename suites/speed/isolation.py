"""Calls in processes of their own: what crashes, hangs or breaks a device costs itself alone, and is named with its reason."""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

PREPARED = (f"{__package__}.device",)
"""Modules that a process imports while it waits for its first call."""

STARTING = 120.0
"""Seconds beside its limit for the first call of a process, which imports torch."""

PATIENCE = 10.0
"""Seconds for a process to be gone after it was killed: one that a driver holds may not go."""


@dataclass(frozen=True)
class Call:
    """A call of a function whose arguments and result JSON can hold.

    Attributes:
        function: ``"module:name"``.
        arguments: by name.
        limit: seconds that it may take.
    """

    function: str
    arguments: dict[str, Any]
    limit: float


@dataclass(frozen=True)
class IsolatedAnswer:
    """What became of a call: its value, or why there is none."""

    value: dict[str, Any]
    failure: str = ""


def in_turn(
    jobs: Iterable[Sequence[Call]], deadline: float = math.inf, *, ahead: bool = False, begun: list[IsolatedWorker] | None = None
) -> Iterator[tuple[Call, IsolatedAnswer]]:
    """The answers of calls, one after the other: a process for each job, and a new one after every failure.

    Args:
        jobs: each a list of calls.
        deadline: of `time.monotonic`; what is not done by then gets no answer.
        ahead: whether the next process starts while one is at work.
        begun: gets every process.
    """
    spare: list[IsolatedWorker] = []
    begun = [] if begun is None else begun

    def start() -> IsolatedWorker:
        begun.append(IsolatedWorker())
        return begun[-1]

    try:
        for job in jobs:
            worker: IsolatedWorker | None = None
            try:
                for call in job:
                    if time.monotonic() >= deadline:
                        return
                    if worker is None:
                        worker = spare.pop() if spare else start()
                        spare += [start()] if ahead else []
                    found = worker.ask(call, deadline)
                    if found is None:
                        return
                    if found.failure:
                        worker.end()
                        worker = None
                    yield call, found
            finally:
                if worker is not None:
                    worker.end()
    finally:
        for unused in spare:
            unused.end()


def side_by_side(jobs: Sequence[Sequence[Call]], processes: int, deadline: float = math.inf) -> Iterator[tuple[Call, IsolatedAnswer]]:
    """As `in_turn`, several jobs at a time; answers come as they are found."""
    found: SimpleQueue[tuple[Call, IsolatedAnswer] | BaseException | None] = SimpleQueue()
    stopped, begun = threading.Event(), list[IsolatedWorker]()

    def work(job: Sequence[Call]) -> None:
        try:
            for each in in_turn([job], deadline, begun=begun):
                if stopped.is_set():
                    return
                found.put(each)
        except BaseException as error:
            found.put(error)
        finally:
            found.put(None)

    with ThreadPoolExecutor(processes) as pool:
        try:
            for job in jobs:
                pool.submit(work, job)
            pending = len(jobs)
            while pending:
                each = found.get()
                if isinstance(each, BaseException):
                    raise each
                if each is None:
                    pending -= 1
                else:
                    yield each
        finally:
            stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in begun:
                worker.kill()


class IsolatedWorker:
    """A process that answers calls; see `structgrad.suites.speed.worker`."""

    def __init__(self) -> None:
        # It finds what this process finds, and nothing else: no package in the folder that it happens to start in.
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", f"{__package__}.worker", *PREPARED],
            # A kernel that is wrong here is to be told, not to be replaced by plain torch.
            env={"STRUCTGRAD_KERNELS": "check"} | os.environ | {"PYTHONPATH": paths},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            start_new_session=True,
        )
        self._read, self._started = b"", False

    def ask(self, call: Call, deadline: float = math.inf) -> IsolatedAnswer | None:
        """The answer of a call; None where the deadline comes first. After either, or a failure, the process is of no use."""
        limit = time.monotonic() + call.limit + (0.0 if self._started else STARTING)
        line = json.dumps({"function": call.function, "arguments": call.arguments}) + "\n"
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()
            answer = self._line(min(limit, deadline))
        except (EOFError, BrokenPipeError):
            return IsolatedAnswer({}, self._last_words())
        if answer is None:
            return IsolatedAnswer({}, f"took longer than {call.limit:.0f} s and was ended") if limit <= deadline else None
        self._started = True
        return IsolatedAnswer(answer.get("value") or {}, answer.get("failure", ""))

    def _line(self, end: float) -> dict[str, Any] | None:
        """The next line; None where it does not come in time."""
        assert self._process.stdout is not None
        place = self._process.stdout.fileno()
        while b"\n" not in self._read:
            left = end - time.monotonic()
            if left <= 0 or not select.select([place], [], [], None if left == math.inf else left)[0]:
                return None
            more = os.read(place, 2**16)
            if not more:
                raise EOFError
            self._read += more
        line, _, self._read = self._read.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    def _last_words(self) -> str:
        """How it ended, and the last line that it wrote."""
        try:
            status = self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            return "closed its output and did not end"
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").strip().splitlines()
        how = f"ended by {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"
        return f"{how}: {lines[-1][:300]}" if lines else how

    def kill(self) -> None:
        """End it, with all that it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def end(self) -> None:
        """End it, and forget it."""
        self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(PATIENCE)
        for stream in (self._process.stdin, self._process.stdout, self._said):
            with contextlib.suppress(OSError):  # what was not sent any more
                if stream is not None:
                    stream.close()
