"""CPU time of the tests by file; a run of all tests fails if it exceeds the budget.

Wall time depends on the load of a machine. So CPU seconds are counted, also of child processes. They are divided by the time of a fixed
piece of work, which is repeated during the run on the same processors. Compilation of kernels is counted separately, because it happens
once per machine. ``--costs`` shows the table of CONTRIBUTING.
"""

from __future__ import annotations

import os
import statistics
import time
from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest

BUDGET = 720.0
"""CPU seconds that the default set takes, on a machine that does the fixed piece of work in `REFERENCE` seconds."""

REFERENCE = 0.04

OFTEN = 10.0
"""Seconds from one look at the pace to the next."""

SLACK = 1.5
"""A run fails beyond this multiple of the budget: the same tests were seen to take from .9 to 1.3 of it on processors of two kinds."""

COMPILING = "compiling kernels"


class Costs:
    """CPU seconds of one process by file; compilation of kernels is separate."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.paces = [pace()]
        self.looked = time.monotonic()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        if time.monotonic() > self.looked + OFTEN:
            self.paces.append(pace())
            self.looked = time.monotonic()
        start, compiled = _cpu_seconds(), self.seconds[COMPILING]
        try:
            return (yield)
        finally:
            self.seconds[item.nodeid.partition("::")[0]] += _cpu_seconds() - start - (self.seconds[COMPILING] - compiled)

    def watch_the_compiler(self) -> None:
        from numba.core import event

        started: list[float] = []

        class Listener(event.Listener):  # type: ignore[misc]
            def on_start(self, _: Any) -> None:
                started.append(time.process_time())

            def on_end(_, __: Any) -> None:  # noqa: N805
                begun = started.pop()
                # A kernel compiles what it calls.
                if not started:
                    self.seconds[COMPILING] += time.process_time() - begun

        event.register("numba:compile", Listener())

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.paces.append(pace())
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["costs"] = (dict(self.seconds), self.paces)


class Bill:
    """The sum over all processes, told and judged at the end."""

    def __init__(self, config: pytest.Config, own: Costs | None) -> None:
        self.config = config
        self.own = own
        self.seconds: Counter[str] = Counter()
        self.paces: list[float] = []

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["costs"] = True

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        seconds, paces = getattr(node, "workeroutput", {}).get("costs", ({}, []))
        self.seconds.update(seconds)
        self.paces += paces

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.own is not None:
            self.seconds.update(self.own.seconds)
            self.paces += self.own.paces
        if self.spent() > SLACK * BUDGET and session.exitstatus == pytest.ExitCode.OK and _whole(self.config):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def spent(self) -> float:
        """CPU seconds of the tests at the reference's pace, without the compiler's."""
        pace = statistics.fmean(self.paces) / REFERENCE if self.paces else 1.0
        return (sum(self.seconds.values()) - self.seconds[COMPILING]) / pace

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        spent = self.spent()
        terminalreporter.write_line(
            f"tests took {sum(self.seconds.values()) - self.seconds[COMPILING]:.0f} CPU s ({spent:.0f} at the reference's pace; "
            f"their budget is {BUDGET:.0f}), and compiling kernels {self.seconds[COMPILING]:.0f}"
        )
        if spent > SLACK * BUDGET and _whole(self.config):
            terminalreporter.write_line(
                "error: that is over the budget by more than half; shrink what grew (--costs lists files), mark large forms `sweep`, "
                "or raise BUDGET in tests/costs.py and say why",
                red=True,
            )
        if self.config.option.costs:
            terminalreporter.write_line("\n".join(self.table()))

    def table(self) -> list[str]:
        rows = [f"| `{name}` | {seconds:.1f} |" for name, seconds in self.seconds.most_common() if seconds >= 1]
        return ["| file | CPU s |", "|---|---|", *rows]


def pace() -> float:
    """CPU seconds of a fixed piece of work like that of the tests: interpreted code and calls of small operations."""
    import torch

    def work() -> float:
        start, values = time.process_time(), torch.ones(8, 8, dtype=torch.float64)
        for number in range(4000):
            values = torch.where(values > 0.5, values * 0.999, values + 0.5)
            sorted(range(number % 50), key=lambda index: -index)
        return time.process_time() - start

    return statistics.median(work() for _ in range(3))


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _whole(config: pytest.Config) -> bool:
    """Whether all that runs by default does."""
    return config.args_source is pytest.Config.ArgsSource.TESTPATHS and not config.option.keyword and "not sweep" in config.option.markexpr


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costs", action="store_true", help="Show the CPU seconds of every file of tests.")


def pytest_configure(config: pytest.Config) -> None:
    counted = config.option.costs or _whole(config)
    if not getattr(config, "workerinput", {}).get("costs", counted) or config.option.collectonly:
        return
    works = hasattr(config, "workerinput") or not config.option.tx
    own = None
    if works:
        own = Costs()
        own.watch_the_compiler()
        config.pluginmanager.register(own, "costs")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Bill(config, own), "bill")
