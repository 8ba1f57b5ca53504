"""CPU seconds of the tests by file, shown by ``--costs``; those of compiling kernels, which happens once per machine, are separate."""

import os
import time
from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest

COMPILING = "compiling kernels"


class Costs:
    """CPU seconds of this process and its children, and the sum over all workers."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.watch_the_compiler()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        start, compiled = sum(os.times()[:4]), self.seconds[COMPILING]
        try:
            return (yield)
        finally:
            self.seconds[item.nodeid.partition("::")[0]] += sum(os.times()[:4]) - start - (self.seconds[COMPILING] - compiled)

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
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["costs"] = dict(self.seconds)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.seconds.update(getattr(node, "workeroutput", {}).get("costs", {}))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        rows = [f"| `{name}` | {seconds:.1f} |" for name, seconds in self.seconds.most_common() if seconds >= 1]
        total = f"| all | {self.seconds.total():.0f} |"
        terminalreporter.write_line("\n".join(["| file | CPU s |", "|---|---|", *rows, total]))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costs", action="store_true", help="Show the CPU seconds of every file of tests.")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.costs and not config.option.collectonly:
        config.pluginmanager.register(Costs(), "costs")
