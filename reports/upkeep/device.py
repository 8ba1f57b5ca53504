"""What ``structgrad doctor --device`` says: whether the operations are right and fast on a device, in one report."""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import platform
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from ...suites.running.store import write_atomically
from ...suites.speed.device import DeviceTiming, time_on_device
from ...suites.speed.targets import Task
from ..results import processor

SHARE = 0.5
"""Of the time that the tests may take."""

LAST_SECONDS = 20.0
"""Kept for the operation that is being timed when the time is over."""


@dataclass(frozen=True)
class DeviceTests:
    """What became of the tests with the marker ``gpu``.

    Attributes:
        verdict: ``passed``, ``failed``, ``stopped`` when their time was over, or why they were not run.
        summary: pytest's last line. ``failed``: names of tests.
        seconds: that they took.
    """

    verdict: str
    summary: str = ""
    failed: tuple[str, ...] = ()
    seconds: float = 0.0


def run_tests(folder: Path, seconds: float) -> DeviceTests:
    """Run the tests of a checkout that need a GPU, in several processes where pytest-xdist is at hand."""
    if not (folder / "tests" / "oracles" / "gpu").is_dir():
        return DeviceTests(f"not run: no tests in {folder}; call this in a checkout of structgrad")
    if not torch.cuda.is_available():
        return DeviceTests("not run: torch sees no CUDA device")
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "--tb=line", *_processes()]
    start = time.monotonic()
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
    try:
        said, stopped = process.communicate(timeout=seconds)[0], False
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGINT)  # pytest says how far it came
        said, stopped = _last_words(process), True
    return outcome_of(said, process.returncode, stopped=stopped, seconds=time.monotonic() - start)


def outcome_of(said: str, status: int, *, stopped: bool, seconds: float) -> DeviceTests:
    """From pytest's output and exit status."""
    lines = said.strip().splitlines()
    summary = next((line.strip("= ") for line in reversed(lines) if re.search(r"\b(passed|failed|error|no tests ran)\b.* in ", line)), "")
    failed = tuple(line.split(" ", 1)[1].split(" - ")[0] for line in lines if line.startswith(("FAILED ", "ERROR ")))
    verdict = "failed" if failed or (status not in (0, 2, 5) and not stopped) else "stopped" if stopped else "passed"
    if status == 5:
        verdict = "not run: no test has the marker"
    return DeviceTests(verdict, summary, failed, round(seconds, 1))


def _processes() -> list[str]:
    try:
        importlib.metadata.version("pytest-xdist")
    except importlib.metadata.PackageNotFoundError:
        return []
    return ["-n", str(min(os.cpu_count() or 1, 8))]


def _last_words(process: subprocess.Popen[str]) -> str:
    try:
        return process.communicate(timeout=LAST_SECONDS)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()[0]


def timings(wanted: list[Task], device: torch.device, deadline: float) -> Iterator[DeviceTiming]:
    """Time operations until the deadline, of `time.monotonic`."""
    return time_on_device(wanted, device, deadline - LAST_SECONDS)


def environment(device: torch.device) -> dict[str, str]:
    """What the figures depend on."""
    found = {"processor": processor(), "python": platform.python_version(), "torch": torch.__version__}
    if device.type == "cuda":
        found |= {"device": torch.cuda.get_device_name(device), "cuda": str(torch.version.cuda)}
    try:
        found["triton"] = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        found["triton"] = "not installed: plain torch serves everything"
    return found | {"threads of the CPU": str(torch.get_num_threads())}


def write(folder: Path, device: torch.device, tests: DeviceTests, timed: list[DeviceTiming], *, left: int) -> Path:
    """Write ``device.md``, which people read, and ``device.json``; gives the path of the former."""
    folder.mkdir(parents=True, exist_ok=True)
    found = environment(device)
    rows = [
        {"case": timing.task.case.name, "operation": timing.task.operation, "batch": timing.task.batch, "target": _target(timing)}
        | {name: value for name, value in vars(timing).items() if name != "task"}
        | {"met": timing.met}
        for timing in timed
    ]
    page = {"environment": found, "tests": asdict(tests), "not timed": left, "timings": rows}
    write_atomically(folder / "device.json", json.dumps(page, indent=2, ensure_ascii=False, allow_nan=False))
    write_atomically(folder / "device.md", "\n".join(markdown(found, tests, timed, left=left)) + "\n")
    return folder / "device.md"


def markdown(found: dict[str, str], tests: DeviceTests, timed: Iterable[DeviceTiming], *, left: int) -> Iterator[str]:
    """The report, line by line."""
    timed = list(timed)
    yield "# Operations on this device\n"
    yield from (f"- {name}: {value}" for name, value in found.items())
    yield f"\n## Tests\n\n{tests.verdict}{f': {tests.summary}' if tests.summary else ''} ({tests.seconds:.0f} s)\n"
    yield from (f"- {name}" for name in tests.failed[:50])
    held = [timing for timing in timed if timing.task.target is not None]
    met = sum(timing.met is True for timing in held)
    yield f"\n## Targets\n\n{met} of {len(held)} met.\n"
    yield "| operation | batch | against | at least | measured | met |\n|---|--:|---|--:|--:|---|"
    yield from (_target_row(timing) for timing in held)
    yield (
        "\n## All operations\n\nMedians of one call in milliseconds, and how many times longer others take: plain torch on this device, "
        "the CPU, and peers. `graph` is the time of a replay as a CUDA graph, `of floor` how much of the call the bytes or the arithmetic "
        "take at least, `MiB` what the operation takes beside its inputs, `off` the largest difference from plain torch, relative.\n"
    )
    yield "| operation | batch | ms | graph | of floor | torch | CPU | others | MiB | off | kernel |"
    yield "|---|--:|--:|--:|--:|--:|--:|---|--:|--:|---|"
    yield from (_row(timing) for timing in timed)
    if left:
        yield f"\n{left} operations were not timed: the time was over."
    failures = [(timing, name, reason) for timing in timed for name, reason in timing.failures.items()]
    if failures:
        yield "\n## What did not run\n"
        yield from (f"- {timing.task.case.name} {timing.task.operation}, {name}: {reason}" for timing, name, reason in failures)


def sentence(timing: DeviceTiming) -> str:
    """One line on the way."""
    ours = timing.seconds.get("structgrad")
    took = "failed" if ours is None else f"{_number(1e3 * ours)} ms, plain torch {_number(timing.ratio('torch'))} times as long"
    return f"{timing.task.case.name} {timing.task.operation}: {took}"


def _target(timing: DeviceTiming) -> dict[str, object] | None:
    return None if timing.task.target is None else asdict(timing.task.target)


def _target_row(timing: DeviceTiming) -> str:
    target = timing.task.target
    assert target is not None
    said = {True: "yes", False: "**no**", None: "not timed"}[timing.met]
    name = f"{timing.task.case.name} {timing.task.operation}"
    return f"| {name} | {timing.task.batch} | {target.contender} | {target.factor:g} | {_number(timing.ratio(target.contender))} | {said} |"


def _row(timing: DeviceTiming) -> str:
    ours = timing.seconds.get("structgrad")
    others = ", ".join(f"{name} {_number(timing.ratio(name))}" for name in timing.seconds if name not in ("structgrad", "torch", "cpu"))
    cells = [
        f"{timing.task.case.name} {timing.task.operation}",
        str(timing.task.batch),
        _number(None if ours is None else 1e3 * ours),
        _number(None if timing.replay is None else 1e3 * timing.replay),
        "—" if ours is None else f"{timing.floor / ours:.0%}",
        _number(timing.ratio("torch")),
        _number(timing.ratio("cpu")),
        others or "—",
        f"{timing.memory / 2**20:.0f}",
        "—" if timing.difference is None else f"{timing.difference:.0e}",
        "yes" if timing.kernel else "no",
    ]
    return f"| {' | '.join(cells)} |"


def _number(value: float | None) -> str:
    """Three digits, or a dash."""
    if value is None or math.isnan(value):
        return "—"
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"
