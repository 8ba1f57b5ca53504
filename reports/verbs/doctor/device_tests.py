"""The tests that need a GPU, run in a checkout, within a time."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

LAST_SECONDS = 20.0
"""For pytest to say how far it came."""


@dataclass(frozen=True)
class DeviceTests:
    """What became of the tests with the marker ``gpu``.

    Attributes:
        verdict: ``passed``, ``failed``, ``stopped`` when their time was over, or why they were not run.
        summary: pytest's last line.
        failed: names of tests.
        unread: files of tests that could not be imported, with the reason; they say nothing about the device.
        seconds: that they took.
    """

    verdict: str
    summary: str = ""
    failed: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def finished(self) -> bool:
        """Whether to run them again would tell nothing new."""
        return self.verdict in ("passed", "failed")


def run_tests(folder: Path, seconds: float) -> DeviceTests:
    """Run the tests of a checkout that need a GPU, in several processes where pytest-xdist is at hand."""
    if not (folder / "tests" / "oracles" / "gpu").is_dir():
        return DeviceTests(f"not run: no tests in {folder}; call this in a checkout of structgrad")
    if importlib.util.find_spec("pytest") is None:
        return DeviceTests("not run: pytest is not installed")
    start = time.monotonic()
    with tempfile.TemporaryFile() as written:
        process = subprocess.Popen(
            [*command(), *files(folder)], cwd=folder, stdout=written, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            stopped = not _ended(process, seconds)
            if stopped:
                _signal(process, signal.SIGINT)  # pytest says how far it came
                _ended(process, LAST_SECONDS)
        finally:
            _signal(process, signal.SIGKILL)
            _ended(process, LAST_SECONDS)
        written.seek(0)
        said = written.read().decode(errors="replace")
    return outcome_of(said, process.returncode, stopped=stopped, seconds=time.monotonic() - start)


def command() -> list[str]:
    """For pytest: with options of its own in place of those of the project, whose plugins may be missing.

    Warnings are no errors here: the libraries of a machine with a GPU are those of its driver.
    """
    options = ["--import-mode=importlib"]
    if importlib.util.find_spec("xdist") is not None:
        options += ["-n", str(min(os.cpu_count() or 1, 8)), "--dist=worksteal"]
    chosen = ["-m", "gpu and not sweep and not benchmark", "--continue-on-collection-errors"]
    settings = ["-o", f"addopts={' '.join(options)}", "-o", "filterwarnings=default"]
    leash = ["-p", "structgrad.suites.speed.leash", "-p", "no:cacheprovider"]
    return [sys.executable, "-m", "pytest", "-q", "--tb=line", *settings, *leash, *chosen]


def files(folder: Path) -> list[str]:
    """The files that speak of a device: to read the others takes most of a minute."""
    found = (path for path in sorted((folder / "tests").rglob("test_*.py")) if re.search(r"gpu|device", path.read_text(encoding="utf-8")))
    return [str(path.relative_to(folder)) for path in found]


def outcome_of(said: str, status: int | None, *, stopped: bool, seconds: float) -> DeviceTests:
    """From pytest's output and exit status."""
    lines = said.strip().splitlines()
    summary = next((line.strip("= ") for line in reversed(lines) if re.search(r"\b(passed|failed|error|no tests ran)\b.* in ", line)), "")
    named = [line.split(" ", 1)[1] for line in lines if line.startswith(("FAILED ", "ERROR "))]
    failed = tuple(name.split(" - ")[0] for name in named if "::" in name.split(" - ")[0])
    unread = tuple(name for name in named if "::" not in name.split(" - ")[0])
    if failed or (status not in (0, 2, 5) and not stopped and not unread):
        verdict = "failed"
    elif stopped:
        verdict = "stopped"
    elif status == 5:
        verdict = "not run: no test has the marker"
    else:
        verdict = "passed" if re.search(r"\d+ passed", summary) or not unread else "not run: no file of tests can be imported"
    if verdict == "failed" and not summary:
        summary = f"pytest ended with exit status {status}" + (f": {lines[-1][:300]}" if lines else "")
    return DeviceTests(verdict, summary, failed, unread, round(seconds, 1))


def _ended(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
