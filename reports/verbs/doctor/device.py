"""Checks of a device, for ``structgrad doctor --device``: each in a process of its own, the report anew after every answer."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ....suites.running.store import check_writable
from ....suites.speed import device_rows
from ....suites.speed.device import THREADS
from ....suites.speed.device_rows import COMPILED, DeviceRow, by_case, compiles_for_the_cpu, key, key_of, rows, steps
from ....suites.speed.floor import MachineLimits
from ....suites.speed.isolation import Call, IsolatedAnswer, in_turn, side_by_side
from ....suites.speed.targets import DeviceTask, tasks
from ...results import processor
from . import device_page
from .device_page import KnownDevice
from .device_tests import DeviceTests, run_tests
from .journal import Journal

SHARE = 0.5
"""Of the time that the tests may take."""

FEW = 2
"""Rows of a batch where the CPU stands in for a GPU, to see what the report looks like."""

LOOK = Call("structgrad.suites.speed.device:look", {}, 60.0)

PROCESSES = max(1, min((os.cpu_count() or 1) // 2, 8))
"""At a time where nothing is timed: to compare, and to compile."""

ENOUGH = 4
"""Processors from which on the next process starts while one is timed."""

Say = Callable[[str], None]


class BrokenError(RuntimeError):
    """Nothing can be measured here."""


@dataclass
class Examination:
    """What is asked of a device, and what is known by now.

    Attributes:
        device: as torch calls it.
        out: the folder of the report.
        wanted: the operations.
        deadline: of `time.monotonic`.
        environment: what figures depend on.
        machine: what the device does at best.
        journal: the answers.
        tests: what the tests said.
    """

    device: str
    out: Path
    wanted: list[DeviceTask]
    deadline: float
    environment: dict[str, str]
    machine: MachineLimits
    journal: Journal
    say: Say
    tests: DeviceTests = field(default_factory=lambda: DeviceTests("not run: the time was over"))

    @property
    def cuda(self) -> bool:
        """Whether it is a GPU, and not the CPU in its place."""
        return self.device != "cpu"

    @property
    def rows(self) -> list[DeviceRow]:
        """A row for every operation, of what is known."""
        return rows(self.wanted, self.journal.answers, self.machine)

    def steps(self, task: DeviceTask) -> list[str]:
        """All of them, but those of the compiler of torch."""
        return ["right", *steps(task, cuda=self.cuda)]

    @property
    def unfinished(self) -> int:
        """How many operations have steps that were not taken."""
        return sum(any(key(task, step) not in self.journal.answers for step in self.steps(task)) for task in self.wanted)

    @property
    def known(self) -> KnownDevice:
        """What the report is made of."""
        return KnownDevice(self.environment, self.tests, self.rows, self.unfinished, self.cuda)

    def write(self) -> None:
        """Write the report of what is known."""
        device_page.write(self.out, self.known)

    def jobs(self, wanted: Iterable[DeviceTask], chosen: Callable[[DeviceTask], Iterable[str]]) -> list[list[Call]]:
        """The calls that have no answer yet, by case."""
        found = (
            [device_rows.call(task, step, self.device) for task in group for step in chosen(task) if self.journal.lacks(key(task, step))]
            for group in by_case(wanted)
        )
        return [job for job in found if job]

    def keep(self, answers: Iterable[tuple[Call, IsolatedAnswer]]) -> None:
        """Write each answer down as it comes, and the report."""
        for asked, found in answers:
            self.journal.add(key_of(asked), {"failure": found.failure} if found.failure else found.value)
            self.write()
            row = next(row for row in self.rows if key(row.task, "")[:3] == key_of(asked)[:3])
            if sentence := device_page.sentence(row, key_of(asked)[3]):
                self.say(sentence)


def examine(  # noqa: PLR0913 - the options of the command
    device: str, out: Path, *, minutes: float, only: str = "", again: bool = False, checkout: Path, say: Say = print
) -> Examination:
    """Compare, time and test operations on a device, all before the time is over; an earlier call's answers are kept.

    Raises:
        ValueError: no such device, or no such operation.
        BrokenError: nothing can be computed on it, or not even asked.
    """
    begun = time.monotonic()
    wanted = tasks(only) if device != "cpu" else tasks(only, FEW, held=False)
    if not wanted:
        raise ValueError(f"`doctor` got only={only!r}, which matches no operation; expected part of a name, such as 'spanning_tree 40'")
    check_writable(out)
    environment, machine = looked(device)
    journal = Journal(out, environment, again=again)
    found = Examination(device, out, wanted, begun + 60 * minutes, environment, machine, journal, say)
    if journal.tests is not None:
        stored: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in journal.tests.items()}
        found.tests = DeviceTests(**stored)
    try:
        _work(found, checkout, 60 * minutes, only)
    finally:
        found.write()
        journal.close()
    return found


def looked(device: str) -> tuple[dict[str, str], MachineLimits]:
    """What figures depend on, and what the device does at best, as a process of its own found them."""
    ((_, found),) = in_turn([[Call(LOOK.function, {"device": device}, LOOK.limit)]])
    if found.failure:
        raise BrokenError(
            f"`doctor` got no answer from device={device!r} ({found.failure}); expected one; `structgrad doctor` lists the devices"
        )
    if "refused" in found.value:
        raise ValueError(found.value["refused"])
    environment = {"processor": processor(), "threads of the CPU": str(THREADS)} | found.value["environment"]
    return environment, MachineLimits(*found.value["machine"])


def _work(found: Examination, checkout: Path, seconds: float, only: str) -> None:
    """Whether all is right, what has a target, the tests, the rest: the most telling first."""
    held = [task for task in found.wanted if task.target is not None]
    others = [task for task in found.wanted if task.target is None]
    comparing = found.jobs(found.wanted, lambda task: ["right"])
    warming = found.jobs(found.wanted, lambda task: ["warm"]) if found.cuda and compiles_for_the_cpu() else []
    together = [job for pair in _pairs(comparing, warming) for job in pair]
    if together:
        found.say(f"comparing with plain torch, and compiling, in {PROCESSES} processes")
    found.keep(side_by_side(together, PROCESSES, found.deadline))
    _time(found, held)
    _test(found, checkout, seconds, only)
    _time(found, others)
    if found.cuda:
        compiling = [task for task in (*held, *others) if task.operation in COMPILED]
        found.keep(in_turn(found.jobs(compiling, lambda task: ["compiled"]), found.deadline, ahead=_ahead()))


def _pairs(first: Sequence[list[Call]], second: Sequence[list[Call]]) -> Iterator[list[list[Call]]]:
    """One of each in turns, as long as there are some."""
    for place in range(max(len(first), len(second))):
        yield [*first[place : place + 1], *second[place : place + 1]]


def _time(found: Examination, wanted: list[DeviceTask]) -> None:
    found.keep(in_turn(found.jobs(wanted, lambda task: steps(task, cuda=found.cuda)), found.deadline, ahead=_ahead()))


def _ahead() -> bool:
    return (os.cpu_count() or 1) >= ENOUGH


def _test(found: Examination, checkout: Path, seconds: float, only: str) -> None:
    left = found.deadline - time.monotonic()
    if found.tests.finished or left <= 0:
        return
    if only:
        found.tests = DeviceTests(f"not run: only {only!r} was asked for")
    elif not found.cuda:
        found.tests = DeviceTests("not run: the CPU stands in for a GPU")
    else:
        found.say("tests that need a GPU")
        found.tests = run_tests(checkout, min(left, SHARE * seconds))
        found.journal.add_tests(asdict(found.tests))
        found.say(f"tests: {found.tests.verdict} {found.tests.summary}")
    found.write()


def summary(found: Examination) -> list[str]:
    """The last lines of the command."""
    return [line.removeprefix("- ").replace("**", "") for line in device_page.in_short(found.known)]


def is_wrong(found: Examination) -> bool:
    """Whether a test failed, or an operation is wrong or did not run."""
    return found.tests.verdict == "failed" or any(row.wrong for row in found.rows)
